//! Raw exchanges with servers: a few bytes of each protocol, spoken without any
//! client crate, so that the lab can ask a server what state it is in, a fault
//! can be done to its data, and the proxy can be tried with a known exchange.
//! May not be used by drivers, nor grow into clients.

pub mod azure;
pub mod etcd;
pub mod http;
pub mod mysql;
pub mod nats;
pub mod postgres;
pub mod resp;
pub mod zookeeper;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time;

/// No answer for so long counts as none: a frozen server keeps connections open.
const PATIENCE: Duration = Duration::from_secs(5);

async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = in_time(TcpStream::connect(addr)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn in_time<T>(answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    time::timeout(PATIENCE, answer).await?
}

fn unexpected(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
