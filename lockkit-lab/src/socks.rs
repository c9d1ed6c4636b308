//! As much of SOCKS 5 (RFC 1928) as a program needs that dials through a proxy: one who asks to be
//! connected to an address of IPv4, without a login. May not decide who reaches whom.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;

/// Where the program at the other end wants to be connected to.
pub(super) async fn asked(program: &mut TcpStream) -> io::Result<SocketAddr> {
    let [version, methods] = bytes(program).await?;
    let mut offered = vec![0; usize::from(methods)];
    program.read_exact(&mut offered).await?;
    if version != VERSION || !offered.contains(&NO_LOGIN) {
        return Err(unheard_of("a greeting"));
    }
    program.write_all(&[VERSION, NO_LOGIN]).await?;
    let [VERSION, CONNECT, _, IPV4] = bytes(program).await? else {
        return Err(unheard_of("a wish"));
    };
    let host: [u8; 4] = bytes(program).await?;
    let port = u16::from_be_bytes(bytes(program).await?);
    Ok((Ipv4Addr::from(host), port).into())
}

/// Tells it that it is connected: what follows is for the other end.
pub(super) async fn connected(program: &mut TcpStream) -> io::Result<()> {
    program.write_all(&[VERSION, 0, 0, IPV4, 0, 0, 0, 0, 0, 0]).await
}

async fn bytes<const N: usize>(from: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut read = [0; N];
    from.read_exact(&mut read).await?;
    Ok(read)
}

fn unheard_of(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} that this proxy does not know"))
}
