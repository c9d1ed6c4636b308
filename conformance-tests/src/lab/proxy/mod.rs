//! A TCP proxy between clients and one server, in this process: it counts what
//! passes, takes its time, and lets the network misbehave on command. May not
//! change a byte of what it lets pass.
//!
//! **Exact counts.** A flight of requests ends when an answer to it is handed to
//! the client. Requests that a client sends back to back, but in several pieces,
//! could find the answer to the first one on its way already; with a
//! [`latency`](Proxy::latency) of some milliseconds they cannot. Count under
//! latency.
//!
//! A client that leaves Nagle's algorithm on (no `TCP_NODELAY`) really holds its
//! second piece back until the first one is acknowledged, mostly by the answer to
//! it: its back-to-back requests are two round trips, and are counted so.

mod counts;
mod fault;
mod http2;
mod hub;
mod link;
mod message;
mod mysql;
mod postgres;
mod resp;
mod zookeeper;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use counts::Counts;
pub use fault::{End, Fault, Strike, When};
use hub::{Hub, lock};
pub use message::Protocol;

use super::error::{Doing, Result};
use super::port::Port;

/// A proxy before one server. It runs on the runtime that started it, and cuts all
/// connections when it is dropped.
pub struct Proxy {
    port: Port,
    hub: Arc<Hub>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy before the server at `target`.
    ///
    /// # Errors
    ///
    /// If there is no free port.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no proxy remains.
    pub async fn start(target: SocketAddr, protocol: Protocol) -> Result<Self> {
        let hub = Arc::new(Hub::new(target, protocol));
        let proxy = Self { port: Port::take()?, hub, acceptor: Mutex::new(None) };
        proxy.accept().await?;
        Ok(proxy)
    }

    /// Where clients find it.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// What has passed on all connections.
    pub fn counts(&self) -> Counts {
        self.connections().into_iter().fold(Counts::default(), |sum, one| sum + one)
    }

    /// What has passed on each connection since the last reset, in the order in
    /// which they were opened; connections that ended before the reset are left out.
    pub fn connections(&self) -> Vec<Counts> {
        self.hub.counts()
    }

    /// Counts from zero again. Connections that are open are not counted as opened.
    pub fn reset(&self) {
        self.hub.reset();
    }

    /// Every message takes so long each way; it adds to what the network takes.
    pub fn latency(&self, each_way: Duration) {
        self.latencies(each_way, each_way);
    }

    /// Every message takes so long, differently in the two directions.
    pub fn latencies(&self, to_server: Duration, to_client: Duration) {
        self.hub.set_latency(to_server, to_client);
    }

    /// Orders a fault. It strikes once; several may be ordered.
    pub fn fault(&self, fault: Fault, when: When) -> Strike {
        self.hub.order(fault, when)
    }

    /// New connections are refused from now on; those that are open stay.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, connections are refused soon.
    pub async fn refuse(&self) {
        let acceptor = lock(&self.acceptor).take();
        if let Some(acceptor) = acceptor {
            acceptor.abort();
            let _ = acceptor.await;
        }
    }

    /// New connections are accepted again.
    ///
    /// # Errors
    ///
    /// If something else took the port meanwhile.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing has changed.
    pub async fn accept(&self) -> Result<()> {
        let listener = TcpListener::bind(self.addr()).await.doing("starting a proxy")?;
        let hub = Arc::clone(&self.hub);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let _ = client.set_nodelay(true);
                tokio::spawn(hub.new_link().run(Arc::clone(&hub), client));
            }
        });
        if let Some(before) = lock(&self.acceptor).replace(acceptor) {
            before.abort();
        }
        Ok(())
    }

    /// Ends all faults: what was held back passes, orders that have not struck are
    /// taken back, new connections are accepted. Connections that have missed
    /// something are cut.
    ///
    /// # Errors
    ///
    /// If something else took the port while connections were refused.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, new connections may still be refused.
    pub async fn heal(&self) -> Result<()> {
        self.hub.heal();
        let refuses = lock(&self.acceptor).is_none();
        if refuses { self.accept().await } else { Ok(()) }
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("addr", &self.addr()).finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(acceptor) = lock(&self.acceptor).take() {
            acceptor.abort();
        }
        self.hub.end();
    }
}
