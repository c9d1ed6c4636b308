//! One connection to one server, rebuilt when it broke. No more requests are under way on it at once
//! than the server answers in time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult};
use redis::{ServerErrorKind, Value};
use tokio::sync::{Mutex, Notify, Semaphore, SemaphorePermit};

use crate::failure::{Again, Failed, bounded, timed_out};
use crate::link::Turn;
use crate::peer::{Heard, Peer};
use crate::source::Source;
use crate::voice::Voice;

/// Requests under way at once, beside those that go first. Enough to keep a server busy. If there were
/// no bound, those of many thousand tasks would be answered later than the time limit, given up, and
/// sent again, which makes the next answers later still.
const AT_ONCE: usize = 256;

/// A server that says nothing for so long to somebody who then gives up may be gone.
pub(crate) const NOT_A_WORD: Duration = Duration::from_millis(100);

/// A connection of our own.
pub(crate) struct Own {
    source: Arc<Source>,
    limit: Duration,
    live: StdMutex<Option<Live>>,
    /// One task connects, the others wait for it and share what came of it.
    connecting: Mutex<Option<(Instant, RedisError)>>,
    voice: Arc<Voice>,
    /// Rung when a connection was built.
    connected_anew: Arc<Notify>,
    turns: Semaphore,
    answers: AtomicU64,
}

#[derive(Clone)]
struct Live {
    client: Client,
    connection: MultiplexedConnection,
    peer: Arc<Peer>,
    number: u64,
    since: Instant,
    /// When the last answer came, in ms from `since` on.
    answered: Arc<AtomicU64>,
}

impl Live {
    fn silent_for(&self) -> Duration {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(answered)
    }
}

/// A request under way. Whoever gives up waiting for it sooner than the time limit has seen all the
/// same whether the connection is silent.
struct Sent<'a> {
    own: &'a Own,
    live: Live,
    at: Instant,
    over: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let waited = self.at.elapsed();
        if !self.over && waited >= NOT_A_WORD && self.live.silent_for() >= waited {
            self.own.forget(&self.live);
        }
    }
}

impl Own {
    pub(crate) fn new(source: Arc<Source>, voice: Arc<Voice>, limit: Duration) -> Self {
        Self {
            source,
            limit,
            live: StdMutex::new(None),
            connecting: Mutex::new(None),
            voice,
            connected_anew: Arc::default(),
            turns: Semaphore::new(AT_ONCE),
            answers: AtomicU64::new(0),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rung when a connection was built, perhaps to another server.
    pub(crate) fn connected_anew(&self) -> Arc<Notify> {
        self.connected_anew.clone()
    }

    /// The server to which commands go.
    pub(crate) async fn server(&self) -> RedisResult<Client> {
        Ok(self.connected().await?.client)
    }

    pub(crate) fn close(&self) {
        *self.live() = None;
    }

    /// Sends a command once.
    pub(crate) async fn send(&self, cmd: &Cmd, turn: Turn) -> Result<Heard<Value>, Failed> {
        let _turn = match turn {
            Turn::First => None,
            Turn::Waits => Some(self.turn().await.map_err(Failed::for_good)?),
        };
        let live = self.connected().await.map_err(Failed::for_good)?;
        let mut connection = live.connection.clone();
        let mut sent = Sent { own: self, live, at: Instant::now(), over: false };
        let answer = ask(&mut connection, cmd).await;
        sent.over = true;
        match answer {
            Ok(answer) => {
                self.answered(&sent.live);
                Ok(Heard { answer, from: Some(sent.live.peer.clone()) })
            }
            Err(error) => Err(self.failed(&sent.live, error)),
        }
    }

    /// Commands that leave at once and whose answers come together, the server's errors among them.
    pub(crate) async fn send_all(
        &self,
        pipe: &Pipeline,
        count: usize,
    ) -> Result<Heard<Vec<Value>>, Failed> {
        let mut live = self.connected().await.map_err(Failed::for_good)?;
        match live.connection.send_packed_commands(pipe, 0, count).await {
            Ok(answer) => {
                self.answered(&live);
                Ok(Heard { answer, from: Some(live.peer) })
            }
            Err(error) => Err(self.failed(&live, error)),
        }
    }

    async fn turn(&self) -> RedisResult<SemaphorePermit<'_>> {
        match self.turns.try_acquire() {
            Ok(turn) => Ok(turn),
            // What is rare is boxed, here and below: every lock and release carries this future.
            Err(_) => Box::pin(self.stand_in_line()).await,
        }
    }

    /// Waits for a turn for as long as the server answers others.
    async fn stand_in_line(&self) -> RedisResult<SemaphorePermit<'_>> {
        let turn = self.turns.acquire();
        tokio::pin!(turn);
        loop {
            let answers = self.answers.load(Ordering::Relaxed);
            match tokio::time::timeout(self.limit, &mut turn).await {
                Ok(Ok(turn)) => return Ok(turn),
                Err(_) if self.answers.load(Ordering::Relaxed) != answers => {}
                _ => return Err(timed_out()),
            }
        }
    }

    fn answered(&self, live: &Live) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let now = live.since.elapsed().as_millis() as u64;
        live.answered.store(now, Ordering::Relaxed);
    }

    /// Gives up a connection that will not do.
    fn failed(&self, live: &Live, error: RedisError) -> Failed {
        let again = match error.kind() {
            // It leads to a replica by now.
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Again::Refused,
            ErrorKind::Server(_) | ErrorKind::Extension => {
                self.answered(live);
                return Failed::for_good(error);
            }
            // One late answer of many is no reason to drop the connection.
            _ if error.is_timeout() && live.silent_for() < self.limit / 4 => {
                return Failed::for_good(error);
            }
            _ if error.is_timeout() => Again::No, // it has taken its time already
            _ if error.is_io_error() || error.is_unrecoverable_error() => Again::Unanswered,
            _ => return Failed::for_good(error),
        };
        self.forget(live);
        Failed { error, again }
    }

    fn forget(&self, live: &Live) {
        let mut now = self.live();
        if now.as_ref().is_some_and(|now| now.number == live.number) {
            *now = None;
        }
    }

    async fn connected(&self) -> RedisResult<Live> {
        if let Some(live) = self.live().clone() {
            return Ok(live);
        }
        self.connect_once().boxed().await
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
            Ok((client, connection, peer)) => {
                static NUMBER: AtomicU64 = AtomicU64::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let (since, answered) = (Instant::now(), Arc::default());
                let live = Live { client, connection, peer, number, since, answered };
                *self.live() = Some(live.clone());
                self.connected_anew.notify_one();
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
        let (client, mut connection) = self.source.connect(&config).await?;
        let run = self.voice.greet(&mut connection).await?;
        Ok((client, connection, Arc::new(Peer::new(run))))
    }
}

/// The answer to a command; what the server calls an error is one, unless it is part of an answer.
pub(crate) async fn ask<C: ConnectionLike>(connection: &mut C, cmd: &Cmd) -> RedisResult<Value> {
    match connection.req_packed_command(cmd).await? {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}
