//! Where servers are found: the one server, the master that sentinels name, any node of a cluster.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex as StdMutex, PoisonError};

use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{Client, ConnectionAddr, ErrorKind, RedisResult};
use tokio::sync::Mutex;

/// Host and port.
pub(crate) type Address = (String, u16);

/// The client of another server at which one logs in as at this one.
pub(crate) fn elsewhere(client: &Client, (host, port): Address) -> RedisResult<Client> {
    let info = client.get_connection_info();
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(info.clone().set_addr(addr))
}

/// Where the servers are.
pub(crate) enum Source {
    /// One server, or the user's client.
    Client(Client),
    /// The master of this name, as the sentinels say each time that a connection is built.
    Sentinel(Box<Mutex<Sentinel>>, String, Box<SentinelNodeConnectionInfo>),
    /// Any of these, in turn: for subscriptions in a cluster.
    Any(Nodes),
}

/// Nodes of a cluster: those that somebody named, and those that are in it by now.
pub(crate) struct Nodes {
    named: Vec<Client>,
    learned: StdMutex<Vec<Client>>,
    next: AtomicUsize,
}

impl Nodes {
    pub(crate) fn new(named: Vec<Client>) -> Self {
        Self { named, learned: StdMutex::default(), next: 0.into() }
    }

    fn next(&self) -> RedisResult<Client> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let all = self.named.len() + learned.len();
        let mut nodes = self.named.iter().chain(learned.iter());
        let client = turn.checked_rem(all).and_then(|at| nodes.nth(at)).cloned();
        client.ok_or_else(|| (ErrorKind::InvalidClientConfig, "a cluster has no nodes").into())
    }

    fn learn(&self, addresses: impl Iterator<Item = Address>) {
        let Some(first) = self.named.first() else { return };
        let addresses = addresses.filter(|(host, _)| !host.is_empty());
        let mut learned: Vec<_> = addresses.filter_map(|at| elsewhere(first, at).ok()).collect();
        let addr = |client: &Client| client.get_connection_info().addr().clone();
        learned.retain(|client| self.named.iter().all(|named| addr(named) != addr(client)));
        *self.learned.lock().unwrap_or_else(PoisonError::into_inner) = learned;
    }
}

impl Source {
    pub(crate) async fn client(&self) -> RedisResult<Client> {
        match self {
            Self::Client(client) => Ok(client.clone()),
            Self::Sentinel(sentinel, master, info) => {
                sentinel.lock().await.async_master_for(master, Some(info)).await
            }
            Self::Any(nodes) => nodes.next(),
        }
    }

    /// These nodes are in the cluster now.
    pub(crate) fn learn(&self, addresses: impl Iterator<Item = Address>) {
        if let Self::Any(nodes) = self {
            nodes.learn(addresses);
        }
    }
}
