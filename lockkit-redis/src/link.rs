//! The way to the server: one multiplexed connection that is rebuilt when it broke, or the user's
//! own. An attempt ends in bounded time; nothing here knows what a lock is.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use lockkit_core::Error;
use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::sync::Mutex;

use crate::cluster::Cluster;
use crate::tokens::ServerClock;

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

    /// Logs in at others as at the first that was named.
    fn learn(&self, addresses: impl Iterator<Item = (String, u16)>) {
        let Some(first) = self.named.first().map(Client::get_connection_info) else { return };
        let mut learned = Vec::new();
        for (host, port) in addresses.filter(|(host, _)| !host.is_empty()) {
            let addr = match first.addr() {
                ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                    host,
                    port,
                    insecure: *insecure,
                    tls_params: tls_params.clone(),
                },
                _ => ConnectionAddr::Tcp(host, port),
            };
            let named = self.named.iter().any(|n| *n.get_connection_info().addr() == addr);
            if !named && let Ok(client) = Client::open(first.clone().set_addr(addr)) {
                learned.push(client);
            }
        }
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
    pub(crate) fn learn(&self, addresses: impl Iterator<Item = (String, u16)>) {
        if let Self::Any(nodes) = self {
            nodes.learn(addresses);
        }
    }
}

/// How commands reach the server.
pub(crate) enum Link {
    /// A connection of our own.
    Own(Box<Own>),
    /// The user's, which reconnects by itself. When it did is not seen from here.
    Manager(ConnectionManager, Duration),
    /// A cluster.
    Cluster(Cluster),
}

impl Link {
    /// Sends a command. When the connection turns out to be dead, once more on a new one: all
    /// commands of this crate may be repeated.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.send_noting(cmd, &AtomicBool::new(false)).await
    }

    /// The same; `repeated` becomes true when it is sent once more. What the client crate repeats
    /// in a cluster is not seen from here.
    pub(crate) async fn send_noting(&self, cmd: &Cmd, repeated: &AtomicBool) -> RedisResult<Value> {
        match self {
            Self::Own(own) => own.send(cmd, repeated).await,
            Self::Manager(manager, limit) => {
                let mut connection = manager.clone();
                bounded(*limit, ask(&mut connection, cmd)).await
            }
            Self::Cluster(cluster) => cluster.send(cmd).await,
        }
    }

    /// The server's clock, where it is known whenever a connection is built. Not behind sentinels:
    /// for a while after a failover two servers may take themselves for the master, and what both
    /// of them grant is in order only if each looks at its clock.
    pub(crate) fn clock(&self) -> Option<&ServerClock> {
        match self {
            Self::Own(own) => own.clock(),
            _ => None,
        }
    }

    pub(crate) fn error(&self, error: RedisError) -> Error {
        to_error(error)
    }

    /// Lets go of the connection; the next command would build another one.
    pub(crate) fn close(&self) {
        if let Self::Own(own) = self {
            *own.live() = None;
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Manager(..) => "Manager",
            Self::Cluster(..) => "Cluster",
        })
    }
}

/// The error as core knows them: whether trying again may help.
pub(crate) fn to_error(error: RedisError) -> Error {
    match may_pass(&error) {
        true => Error::retryable(crate::BACKEND, error),
        false => Error::permanent(crate::BACKEND, error),
    }
}

/// What a server says that is full, cannot save, has too few replicas, is busy with a script, is
/// loading, follows another one, or is in a cluster that is not in order just now. Servers before
/// Redis 7 say it of a script's command within a longer sentence.
const PASSING: [&str; 11] = [
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
];

fn may_pass(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io => !is_about_certificates(error),
        ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::ClusterConnectionNotFound => true,
        _ => {
            let code = error.code().unwrap_or_default();
            let detail = error.detail().unwrap_or_default();
            let wrapped = |code: &&str| detail.contains(&format!("-{code} "));
            PASSING.contains(&code)
                || (code == "ERR" && detail.starts_with("max number of clients"))
                || (code == "ERR" && PASSING.iter().any(wrapped))
        }
    }
}

/// A server whose certificate is not trusted today will not be in a second.
fn is_about_certificates(error: &RedisError) -> bool {
    use std::error::Error;
    // The client crate hands out the pointer in which it keeps the cause.
    let shared = error.source().and_then(|e| e.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|cause| (**cause).downcast_ref::<std::io::Error>());
    let tls = io.and_then(std::io::Error::get_ref).and_then(|e| e.downcast_ref::<rustls::Error>());
    tls.is_some_and(|tls| !matches!(tls, rustls::Error::General(_)))
}

pub(crate) async fn bounded<T>(
    limit: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(timed_out()),
    }
}

fn timed_out() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the server did not answer in time").into()
}

/// The answer to a command; what the server calls an error is one.
async fn ask<C: ConnectionLike>(connection: &mut C, cmd: &Cmd) -> RedisResult<Value> {
    connection.req_packed_command(cmd).await.and_then(Value::extract_error)
}

/// A connection of our own.
pub(crate) struct Own {
    source: Arc<Source>,
    limit: Duration,
    live: StdMutex<Option<Live>>,
    /// One task connects, the others wait for it and share what came of it.
    connecting: Mutex<Option<(Instant, RedisError)>>,
    clock: ServerClock,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    number: u64,
}

impl Own {
    pub(crate) fn new(source: Arc<Source>, limit: Duration) -> Self {
        Self {
            source,
            limit,
            live: StdMutex::new(None),
            connecting: Mutex::new(None),
            clock: ServerClock::default(),
        }
    }

    fn live(&self) -> std::sync::MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> Option<&ServerClock> {
        let alone = !matches!(*self.source, Source::Sentinel(..));
        alone.then_some(&self.clock)
    }

    async fn send(&self, cmd: &Cmd, repeated: &AtomicBool) -> RedisResult<Value> {
        let mut live = self.connected().await?;
        let error = match ask(&mut live.connection, cmd).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !self.is_useless(&error) {
            return Err(error);
        }
        self.forget(live.number);
        if error.is_timeout() {
            return Err(error); // it has taken its time already
        }
        // What is rare is boxed, here and below: every lock and release carries this future.
        Box::pin(self.send_again(cmd, repeated)).await
    }

    async fn send_again(&self, cmd: &Cmd, repeated: &AtomicBool) -> RedisResult<Value> {
        let mut live = self.connected().await?;
        repeated.store(true, Ordering::Relaxed);
        let answer = ask(&mut live.connection, cmd).await;
        if answer.as_ref().is_err_and(|e| self.is_useless(e)) {
            self.forget(live.number);
        }
        answer
    }

    /// Commands that leave at once and whose answers come together, the server's errors among them.
    pub(crate) async fn send_all(
        &self,
        pipe: &redis::Pipeline,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut live = self.connected().await?;
        let answer = live.connection.send_packed_commands(pipe, 0, count).await;
        if answer.as_ref().is_err_and(|e| self.is_useless(e)) {
            self.forget(live.number);
        }
        answer
    }

    /// Whether another connection may do better: this one is dead, or leads to a replica.
    fn is_useless(&self, error: &RedisError) -> bool {
        error.is_io_error()
            || error.is_unrecoverable_error()
            || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
    }

    fn forget(&self, number: u64) {
        let mut live = self.live();
        if live.as_ref().is_some_and(|l| l.number == number) {
            *live = None;
        }
    }

    async fn connected(&self) -> RedisResult<Live> {
        if let Some(live) = self.live().clone() {
            return Ok(live);
        }
        Box::pin(self.connect_once()).await
    }

    async fn connect_once(&self) -> RedisResult<Live> {
        let asked = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(live) = self.live().clone() {
            return Ok(live);
        }
        if let Some((at, error)) = &*failed
            && *at > asked
        {
            return Err(error.clone()); // somebody tried while we stood in line
        }
        match bounded(self.limit, self.connect()).await {
            Ok(connection) => {
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let live = Live { connection, number };
                *self.live() = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let client = self.source.client().await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        // Before the first command: it may be another server than last time, with another clock
        // and other counters.
        if let Some(clock) = self.clock() {
            let time = ask(&mut connection, &redis::cmd("TIME")).await?;
            let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
            clock.set(seconds * 1_000_000 + micros);
        }
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two masters may be alive at once: tokens from what a client knows of a clock would go back.
    #[test]
    fn behind_sentinels_the_server_chooses_the_tokens() {
        let clocked = |source| {
            let own = Own::new(Arc::new(source), Duration::from_secs(2));
            Link::Own(Box::new(own)).clock().is_some()
        };
        let sentinel = Sentinel::build(vec!["redis://a:1"]).unwrap();
        let info = SentinelNodeConnectionInfo::default();
        let sentinel =
            Source::Sentinel(Box::new(Mutex::new(sentinel)), "shop".into(), Box::new(info));
        assert!(!clocked(sentinel));
        assert!(clocked(Source::Client(Client::open("redis://a:1").unwrap())));
    }
}
