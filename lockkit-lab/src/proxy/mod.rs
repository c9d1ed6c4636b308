//! A TCP proxy between clients and one server, in this process: it counts what
//! passes, takes its time, and lets the network misbehave on command. May not
//! change a byte of what it lets pass, but for ports in a group whose servers
//! tell clients where the others are.
//!
//! **Exact counts.** A round trip ends when an answer to it is handed to
//! the client. Requests that a client sends back to back, but in several pieces,
//! could find the answer to the first one on its way already; with a
//! [`latency`](Proxy::latency) of some milliseconds they cannot. Count under
//! latency.
//!
//! A client that leaves Nagle's algorithm on (no `TCP_NODELAY`) really holds its
//! second piece back until the first one is acknowledged, mostly by the answer to
//! it: its back-to-back requests are two round trips, and are counted so.

mod connection;
mod counts;
mod fault;
mod http1;
mod http2;
mod hub;
mod message;
mod mysql;
mod postgres;
mod relay;
mod resp;
mod zookeeper;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use connection::lock;
pub use counts::Counts;
pub use fault::{End, FaultFired, ProxyFault, When};
use hub::Hub;
pub use message::Protocol;

use super::error::{Doing, Result};
use super::port::Port;

/// A proxy before one server, or before all servers of a group. It runs on the
/// runtime that started it, and cuts all connections when it is dropped.
pub struct Proxy {
    /// Where it is found, and the servers behind that.
    ways: Vec<(Port, Arc<Targets>)>,
    hub: Arc<Hub>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

/// Servers that connections are led to in turns.
struct Targets {
    servers: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl Targets {
    fn next(&self) -> SocketAddr {
        let servers = lock(&self.servers);
        servers[self.turn.fetch_add(1, Ordering::Relaxed) % servers.len()]
    }
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
        Self::start_before(&[target], protocol).await
    }

    /// Starts one proxy before several servers, with a port for each. Where a
    /// server tells a client the port of another one (a Redis Cluster's table of
    /// slots, a sentinel's answer), the client hears that of the proxy. Faults and
    /// counts are of all connections together.
    ///
    /// # Errors
    ///
    /// If there is no free port.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no proxy remains.
    pub async fn start_before(targets: &[SocketAddr], protocol: Protocol) -> Result<Self> {
        let (mut ways, mut told) = (Vec::new(), Vec::new());
        for target in targets {
            let port = Port::take()?;
            if targets.len() > 1 {
                told.push((target.port(), port.number()));
            }
            let servers = Mutex::new(vec![*target]);
            ways.push((port, Arc::new(Targets { servers, turn: AtomicUsize::new(0) })));
        }
        let hub = Arc::new(Hub::new(protocol, told));
        let proxy = Self { ways, hub, acceptors: Mutex::default() };
        proxy.accept().await?;
        Ok(proxy)
    }

    /// Where clients find it; before several servers, the way to the first.
    pub fn addr(&self) -> SocketAddr {
        self.ways[0].0.addr()
    }

    /// The way to each server, in the order in which they were named.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.ways.iter().map(|(port, _)| port.addr()).collect()
    }

    /// New connections to the first way are led to these servers, in turns, as by a balancer.
    /// Those that are open stay.
    ///
    /// # Panics
    ///
    /// Without a server.
    pub fn lead_to(&self, servers: &[SocketAddr]) {
        assert!(!servers.is_empty(), "a proxy leads somewhere");
        *lock(&self.ways[0].1.servers) = servers.to_vec();
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
    pub fn fault(&self, fault: ProxyFault, when: When) -> FaultFired {
        self.hub.order(fault, when)
    }

    /// New connections are refused from now on; those that are open stay.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, connections are refused soon.
    pub async fn refuse(&self) {
        let acceptors = std::mem::take(&mut *lock(&self.acceptors));
        for acceptor in acceptors {
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
        let mut acceptors = Vec::new();
        for (port, targets) in &self.ways {
            let listener = TcpListener::bind(port.addr()).await.doing("starting a proxy")?;
            let (hub, targets) = (Arc::clone(&self.hub), Arc::clone(targets));
            acceptors.push(tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let _ = client.set_nodelay(true);
                    tokio::spawn(hub.new_connection(targets.next()).run(Arc::clone(&hub), client));
                }
            }));
        }
        let before = std::mem::replace(&mut *lock(&self.acceptors), acceptors);
        before.iter().for_each(JoinHandle::abort);
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
        let refuses = lock(&self.acceptors).is_empty();
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
        lock(&self.acceptors).iter().for_each(JoinHandle::abort);
        self.hub.end();
    }
}

impl Protocol {
    fn wire(self) -> Box<dyn message::Wire> {
        match self {
            Self::Resp => Box::<resp::Resp>::default(),
            Self::Postgres => Box::<postgres::Postgres>::default(),
            Self::MySql => Box::<mysql::MySql>::default(),
            Self::ZooKeeper => Box::<zookeeper::ZooKeeper>::default(),
            Self::Http1 => Box::<http1::Http1>::default(),
            Self::Grpc => Box::<http2::Http2>::default(),
            Self::Unknown => Box::new(message::Unknown),
        }
    }
}
