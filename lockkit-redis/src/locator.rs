//! Where servers are found: the one server, the master that sentinels name, any node of a cluster.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkit_core::driver::locked;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisResult};

use crate::sentinel::Sentinels;
use crate::server::{Address, client_at};

/// Where the servers are.
pub(crate) enum ServerLocator {
    /// One server, or the user's client.
    Client(Client),
    /// The master, as the sentinels say each time that a connection is built.
    Sentinels(Sentinels),
    /// Any of these, in turn: for subscriptions in a cluster.
    Any(ClusterNodes),
}

/// Nodes of a cluster: the configured ones, and those that are in it by now.
pub(crate) struct ClusterNodes {
    named: Vec<Client>,
    learned: Mutex<Vec<Client>>,
    next: AtomicUsize,
}

impl ClusterNodes {
    pub(crate) fn new(named: Vec<Client>) -> Self {
        Self { named, learned: Mutex::default(), next: 0.into() }
    }

    fn next(&self) -> RedisResult<Client> {
        let learned = locked(&self.learned);
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let all = self.named.len() + learned.len();
        let mut nodes = self.named.iter().chain(learned.iter());
        let client = turn.checked_rem(all).and_then(|at| nodes.nth(at)).cloned();
        client.ok_or_else(|| (ErrorKind::InvalidClientConfig, "a cluster has no nodes").into())
    }

    fn learn(&self, addresses: impl Iterator<Item = Address>) {
        let Some(first) = self.named.first() else { return };
        let addresses = addresses.filter(|(host, _)| !host.is_empty());
        let mut learned: Vec<_> = addresses.filter_map(|at| client_at(first, at).ok()).collect();
        let addr = |client: &Client| client.get_connection_info().addr().clone();
        learned.retain(|client| self.named.iter().all(|named| addr(named) != addr(client)));
        *locked(&self.learned) = learned;
    }
}

impl ServerLocator {
    /// A connection, and the client of the server to which it leads.
    pub(crate) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<(Client, MultiplexedConnection)> {
        if let Self::Sentinels(sentinels) = self {
            return sentinels.connect(config).await;
        }
        let client = self.any()?;
        let connection = client.get_multiplexed_async_connection_with_config(config).await?;
        Ok((client, connection))
    }

    /// A server to subscribe at, where the one to which commands go is not known.
    pub(crate) fn any(&self) -> RedisResult<Client> {
        match self {
            Self::Client(client) => Ok(client.clone()),
            Self::Sentinels(_) => Err((ErrorKind::Client, "only sentinels know the master").into()),
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
