//! One connection to one server, rebuilt when it broke. No more requests are in flight on it at once
//! than the server answers in time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockkit_core::driver::locked;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult};
use redis::{ServerErrorKind, Value};
use tokio::sync::{Mutex, Notify, Semaphore, SemaphorePermit};

use crate::error::{RequestError, bounded, timed_out};
use crate::locator::ServerLocator;
use crate::peer::{Peer, Response};
use crate::publisher::Publisher;
use crate::server::{Priority, ask};

/// Requests in flight, beside those that go first. Enough to keep a server busy. If there were
/// no bound, those of many thousand tasks would be answered later than the time limit, given up, and
/// sent again, which makes the next answers later still.
const CONCURRENCY_LIMIT: usize = 256;

/// A server that was silent for so long when a caller gives up may be gone.
pub(crate) const SILENCE: Duration = Duration::from_millis(100);

/// A connection of our own.
pub(crate) struct ServerConnection {
    locator: Arc<ServerLocator>,
    limit: Duration,
    live: StdMutex<Option<LiveConnection>>,
    /// One task connects, the others wait for it and share what came of it.
    connecting: Mutex<Option<(Instant, RedisError)>>,
    publisher: Arc<Publisher>,
    /// Notified when a connection was built, perhaps to another server.
    reconnected: Arc<Notify>,
    permits: Semaphore,
    /// How many requests were answered.
    answers: AtomicU64,
}

#[derive(Clone)]
struct LiveConnection {
    client: Client,
    connection: MultiplexedConnection,
    peer: Arc<Peer>,
    number: u64,
    since: Instant,
    /// When the last answer came, in ms from `since` on.
    answered: Arc<AtomicU64>,
}

impl LiveConnection {
    fn silent_for(&self) -> Duration {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(answered)
    }
}

/// A request in flight. A caller that gives up sooner than the time limit has seen all the same
/// whether the connection is silent.
struct InFlight<'a> {
    server: &'a ServerConnection,
    live: LiveConnection,
    sent_at: Instant,
    answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let waited = self.sent_at.elapsed();
        if !self.answered && waited >= SILENCE && self.live.silent_for() >= waited {
            self.server.forget(&self.live);
        }
    }
}

impl ServerConnection {
    pub(crate) fn new(
        locator: Arc<ServerLocator>,
        publisher: Arc<Publisher>,
        limit: Duration,
    ) -> Self {
        Self {
            locator,
            limit,
            live: StdMutex::new(None),
            connecting: Mutex::new(None),
            publisher,
            reconnected: Arc::default(),
            permits: Semaphore::new(CONCURRENCY_LIMIT),
            answers: AtomicU64::new(0),
        }
    }

    pub(crate) fn reconnected(&self) -> Arc<Notify> {
        self.reconnected.clone()
    }

    /// The server to which commands go.
    pub(crate) async fn client(&self) -> RedisResult<Client> {
        Ok(self.connected().await?.client)
    }

    pub(crate) fn close(&self) {
        *locked(&self.live) = None;
    }

    /// Sends a command once.
    pub(crate) async fn send(
        &self,
        cmd: &Cmd,
        priority: Priority,
    ) -> Result<Response<Value>, RequestError> {
        let _permit = match priority {
            Priority::First => None,
            Priority::Waits => Some(self.permit().await.map_err(RequestError::unsent)?),
        };
        let live = self.connected().await.map_err(RequestError::unsent)?;
        let mut connection = live.connection.clone();
        let mut sent = InFlight { server: self, live, sent_at: Instant::now(), answered: false };
        let answer = ask(&mut connection, cmd).await;
        sent.answered = true;
        match answer {
            Ok(value) => {
                self.answered(&sent.live);
                Ok(Response::new(value, Some(sent.live.peer.clone())))
            }
            Err(error) => Err(self.failed(&sent.live, error)),
        }
    }

    /// Commands that leave at once and whose answers come together, the server's errors among them.
    pub(crate) async fn send_all(
        &self,
        pipe: &Pipeline,
        count: usize,
    ) -> Result<Response<Vec<Value>>, RequestError> {
        let mut live = self.connected().await.map_err(RequestError::unsent)?;
        match live.connection.send_packed_commands(pipe, 0, count).await {
            Ok(values) => {
                self.answered(&live);
                Ok(Response::new(values, Some(live.peer)))
            }
            Err(error) => Err(self.failed(&live, error)),
        }
    }

    async fn permit(&self) -> RedisResult<SemaphorePermit<'_>> {
        match self.permits.try_acquire() {
            Ok(permit) => Ok(permit),
            // What is rare is boxed, here and below: every lock and release carries this future.
            Err(_) => Box::pin(self.wait_for_permit()).await,
        }
    }

    /// Waits for a permit for as long as the server answers others.
    async fn wait_for_permit(&self) -> RedisResult<SemaphorePermit<'_>> {
        let permit = self.permits.acquire();
        tokio::pin!(permit);
        loop {
            let answers = self.answers.load(Ordering::Relaxed);
            match tokio::time::timeout(self.limit, &mut permit).await {
                Ok(Ok(permit)) => return Ok(permit),
                Err(_) if self.answers.load(Ordering::Relaxed) != answers => {}
                _ => return Err(timed_out()),
            }
        }
    }

    fn answered(&self, live: &LiveConnection) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let now = live.since.elapsed().as_millis() as u64;
        live.answered.store(now, Ordering::Relaxed);
    }

    /// Gives up a connection that will not do.
    fn failed(&self, live: &LiveConnection, error: RedisError) -> RequestError {
        let failed = RequestError::of(error);
        let (error, is_timeout) = (&failed.error, failed.error.is_timeout());
        let retry = match error.kind() {
            // It leads to a replica by now.
            ErrorKind::Server(ServerErrorKind::ReadOnly) => true,
            ErrorKind::Server(_) | ErrorKind::Extension => {
                self.answered(live);
                return failed;
            }
            // One late answer of many is no reason to drop the connection.
            _ if is_timeout && live.silent_for() < self.limit / 4 => return failed,
            _ if is_timeout => false, // it has taken its time already
            _ if error.is_io_error() || error.is_unrecoverable_error() => true,
            _ => return failed,
        };
        self.forget(live);
        RequestError { retry, ..failed }
    }

    fn forget(&self, live: &LiveConnection) {
        let mut now = locked(&self.live);
        if now.as_ref().is_some_and(|now| now.number == live.number) {
            *now = None;
        }
    }

    async fn connected(&self) -> RedisResult<LiveConnection> {
        if let Some(live) = locked(&self.live).clone() {
            return Ok(live);
        }
        self.connect_once().boxed().await
    }

    async fn connect_once(&self) -> RedisResult<LiveConnection> {
        let asked = Instant::now();
        let mut failed = self.connecting.lock().await;
        if let Some(live) = locked(&self.live).clone() {
            return Ok(live);
        }
        if let Some((at, error)) = &*failed
            && *at > asked
        {
            return Err(error.clone()); // another task tried meanwhile
        }
        match bounded(self.limit, self.connect()).await {
            Ok((client, connection, peer)) => {
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let (since, answered) = (Instant::now(), Arc::default());
                let live = LiveConnection { client, connection, peer, number, since, answered };
                *locked(&self.live) = Some(live.clone());
                self.reconnected.notify_one();
                Ok(live)
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> RedisResult<(Client, MultiplexedConnection, Arc<Peer>)> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let (client, mut connection) = self.locator.connect(&config).await?;
        let run = self.publisher.greet(&mut connection).await?;
        Ok((client, connection, Arc::new(Peer::new(run))))
    }
}
