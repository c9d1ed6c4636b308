//! The way to the server: one multiplexed connection that is rebuilt when it broke, or the user's
//! own. An attempt ends in bounded time; nothing here knows what a lock is.

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use lockkit_core::Error;
use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::Mutex;

use crate::tokens::ServerClock;

/// Where the servers are.
pub(crate) enum Source {
    /// One server, or the user's client.
    Client(Client),
    /// The master of this name, as the sentinels say each time that a connection is built.
    Sentinel(Box<Mutex<Sentinel>>, String, Box<SentinelNodeConnectionInfo>),
    /// Any of these, in turn: for subscriptions in a cluster.
    Any(Vec<Client>, std::sync::atomic::AtomicUsize),
}

impl Source {
    pub(crate) async fn client(&self) -> RedisResult<Client> {
        match self {
            Self::Client(client) => Ok(client.clone()),
            Self::Sentinel(sentinel, master, info) => {
                sentinel.lock().await.async_master_for(master, Some(info)).await
            }
            Self::Any(clients, next) => {
                let next = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(clients[next % clients.len()].clone())
            }
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
    Cluster(ClusterConnection, Duration),
}

impl Link {
    /// Sends a command. When the connection turns out to be dead, once more on a new one: all
    /// commands of this crate may be repeated.
    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Own(own) => own.send(cmd).await,
            Self::Manager(manager, limit) => {
                let mut connection = manager.clone();
                bounded(*limit, ask(&mut connection, cmd)).await
            }
            Self::Cluster(cluster, limit) => {
                let mut connection = cluster.clone();
                bounded(*limit, ask(&mut connection, cmd)).await
            }
        }
    }

    /// The server's clock, where it is known whenever a connection is built.
    pub(crate) fn clock(&self) -> Option<&ServerClock> {
        match self {
            Self::Own(own) => Some(&own.clock),
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
    use ServerErrorKind as S;
    let passes = match error.kind() {
        ErrorKind::Io
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::ClusterConnectionNotFound => true,
        ErrorKind::Server(kind) => matches!(
            kind,
            S::BusyLoading
                | S::Moved
                | S::Ask
                | S::TryAgain
                | S::ClusterDown
                | S::MasterDown
                | S::ReadOnly
        ),
        // Full, cannot save, too few replicas, a script that runs for too long, too many clients.
        _ => matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "ERR max")),
    };
    match passes {
        true => Error::retryable(crate::BACKEND, error),
        false => Error::permanent(crate::BACKEND, error),
    }
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

    pub(crate) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
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
        Box::pin(self.send_again(cmd)).await
    }

    async fn send_again(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut live = self.connected().await?;
        let answer = ask(&mut live.connection, cmd).await;
        if answer.as_ref().is_err_and(|e| self.is_useless(e)) {
            self.forget(live.number);
        }
        answer
    }

    /// Commands that leave at once and whose answers come together.
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
        answer?.into_iter().map(Value::extract_error).collect()
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
                static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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
        let time = ask(&mut connection, &redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
        self.clock.set(seconds * 1_000_000 + micros);
        Ok(connection)
    }
}
