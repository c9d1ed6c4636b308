//! Sessions: one at a time, replaced when it has ended, each with the moment up to which a
//! leader with a majority is known to have been there. May not know of locks.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkit_core::Error;
use lockkit_core::clock::{BootClock, Clock, Moment};
use tokio::task::JoinHandle;
use zookeeper_client::{Client, Error as ZkError, MultiWriteError, SessionState};

use crate::ZkOptions;
use crate::failure::{BACKEND, no_answer, unreachable};
use crate::options::{agreed_silence, connection_timeout, longest_connection_timeout};
use crate::watched::{Room, Watched};

/// How long it may take to reach a server. Every member of an ensemble gets its chance in that
/// time, also when those that are asked first are silent.
const CONNECTING: Duration = Duration::from_secs(6);
/// When one more server is asked, beside those that have not answered yet.
const HEDGE: Duration = Duration::from_secs(1);

/// Of a check that asks only whether a node is there.
const ANY_VERSION: i32 = -1;

/// One session of ZooKeeper. Ephemeral nodes live exactly as long as it does.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// What one can count on, from the sending of a request that took a majority.
    pub(crate) ttl: Duration,
    /// When the last request was sent whose answer took a leader and a majority.
    confirmed: AtomicU64,
    /// No request is waited for any longer than this.
    patience: Duration,
    /// A task that ends when the runtime does on which the client works, if it was made here.
    runtime: Option<JoinHandle<()>>,
    /// The paths that the client watches for us.
    watched: Arc<Watched>,
}

impl Session {
    /// `connection`: for how long the client was told that a connection may be silent.
    fn new(client: Client, options: &ZkOptions, connection: Duration, sent: Moment) -> Self {
        let timeout = client.session_timeout();
        let patience = (timeout / 2).clamp(Duration::from_secs(1), Duration::from_secs(5));
        let ttl = options.trusted(timeout, agreed_silence(timeout, connection));
        // A new session is a write.
        let confirmed = AtomicU64::new(sent.as_nanos());
        Self { client, ttl, confirmed, patience, runtime: None, watched: Arc::default() }
    }

    pub(crate) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    /// A request that was sent at this moment got an answer that takes a leader and a majority.
    pub(crate) fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// When the last request was sent whose answer took a leader and a majority.
    pub(crate) fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// Whether it has ended as far as this process can tell.
    ///
    /// The client says so late, or never while no server answers; so a session that is not
    /// connected and whose time is over counts as ended.
    pub(crate) fn has_ended(&self) -> bool {
        if self.runtime.as_ref().is_some_and(JoinHandle::is_finished) {
            return true; // nobody works for the client any more, and its state stays what it was
        }
        let state = self.client.state();
        let over = BootClock.now().since(self.confirmed()) > self.timeout();
        state.is_terminated() || (state == SessionState::Disconnected && over)
    }

    /// Room to watch these paths, for as long as it is kept; none when very much is watched.
    pub(crate) fn room(&self, paths: &[&str]) -> Option<Room> {
        Room::for_paths(&self.watched, paths)
    }

    /// Waits for an answer, in bounded time. (The request went out when the future was made.)
    pub(crate) async fn answer<T>(
        &self,
        answer: impl Future<Output = Result<T, ZkError>>,
    ) -> Result<T, ZkError> {
        tokio::time::timeout(self.patience, answer).await.unwrap_or(Err(ZkError::Timeout))
    }

    /// Waits for the answers to several requests, in bounded time.
    pub(crate) async fn answers<T>(&self, answers: impl Future<Output = T>) -> Result<T, Error> {
        tokio::time::timeout(self.patience, answers).await.map_err(|_| no_answer())
    }

    /// Asks the leader and a majority for a sign of life, and has the server catch up with them
    /// before it answers what is sent later. The request goes out now, as those of the client do.
    ///
    /// It is a transaction that only looks. ZooKeeper's own `sync` would not do: a leader answers it
    /// alone, for as long as it believes in its followers, and these may have another leader
    /// meanwhile. But it commits nothing without them.
    pub(crate) fn ask_majority<'a>(
        &'a self,
        path: &str,
    ) -> impl Future<Output = Result<(), ZkError>> + Send + 'a + use<'a> {
        let sent = BootClock.now();
        let mut look = self.client.new_multi_writer();
        let added = look.add_check_version(path, ANY_VERSION);
        let answer = look.commit();
        async move {
            added?;
            match answer.await {
                Ok(_) | Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                    self.confirm(sent);
                    Ok(())
                }
                Err(error) => Err(error.into()),
            }
        }
    }

    /// Has the server catch up with its leader before it answers what is sent later. Says nothing
    /// about the session's time: see [`ask_majority`](Self::ask_majority).
    pub(crate) fn catch_up<'a>(
        &'a self,
        path: &'a str,
    ) -> impl Future<Output = Result<(), ZkError>> + Send + 'a {
        self.client.sync(path)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(task) = &self.runtime {
            task.abort();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:#x}, {:?})", self.id(), self.client.state())
    }
}

/// Where sessions come from.
#[derive(Debug)]
pub(crate) struct Sessions {
    options: ZkOptions,
    /// Whether sessions are made here; otherwise there is the user's one, and no other.
    own: bool,
    current: Mutex<Option<Arc<Session>>>,
    /// Held while a session is being made.
    making: tokio::sync::Mutex<()>,
    /// How often making one has failed.
    failures: AtomicU64,
}

impl Sessions {
    pub(crate) async fn open(options: ZkOptions) -> Result<Self, Error> {
        let sessions = Self::starting(options, true, None);
        sessions.get().await?;
        Ok(sessions)
    }

    pub(crate) fn of(client: Client, options: ZkOptions) -> Self {
        let sent = Moment::from_nanos(0); // nothing was asked yet
        let unknown = longest_connection_timeout(client.session_timeout());
        let session = Session::new(client, &options, unknown, sent);
        Self::starting(options, false, Some(Arc::new(session)))
    }

    fn starting(options: ZkOptions, own: bool, first: Option<Arc<Session>>) -> Self {
        let (making, failures) = (tokio::sync::Mutex::default(), AtomicU64::new(0));
        Self { options, own, current: Mutex::new(first), making, failures }
    }

    pub(crate) fn options(&self) -> &ZkOptions {
        &self.options
    }

    /// Whether all ephemeral nodes of the session are this driver's.
    pub(crate) fn are_own(&self) -> bool {
        self.own
    }

    /// Whether the server of a session may be a follower of another: of several, which is not
    /// known. One alone is asked as if it had no leader.
    pub(crate) fn may_follow(&self) -> bool {
        !self.own || self.options.has_several()
    }

    /// The session there is, ended or not.
    pub(crate) fn latest(&self) -> Option<Arc<Session>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn live(&self) -> Option<Arc<Session>> {
        self.latest().filter(|session| !session.has_ended())
    }

    /// A session that has not ended: the one there is, or a new one.
    ///
    /// # Cancel safety
    /// Dropping it leaves things as they were.
    pub(crate) async fn get(&self) -> Result<Arc<Session>, Error> {
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let failures = self.failures.load(Ordering::Acquire);
        let _making = self.making.lock().await;
        if let Some(session) = self.live() {
            return Ok(session);
        }
        if !self.own {
            let given = self.latest().filter(|session| !session.client.state().is_terminated());
            let ended = || Error::permanent(BACKEND, "the session of the given client has ended");
            return given.ok_or_else(ended);
        }
        if self.failures.load(Ordering::Acquire) != failures {
            // Somebody tried while we stood in line for it: all who wait fail together, rather
            // than one after the other.
            return Err(Error::retryable(BACKEND, "no server could be reached"));
        }
        // The old client is let go first, so that it closes its session should it reach it again.
        self.set(None);
        let sent = BootClock.now();
        let connected = tokio::time::timeout(CONNECTING, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err(no_answer()));
        let client = connected.inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::AcqRel);
        })?;
        let told = connection_timeout(self.options.asked_timeout());
        let mut session = Session::new(client, &self.options, told, sent);
        session.runtime = Some(tokio::spawn(std::future::pending()));
        let session = Arc::new(session);
        tracing::debug!(?session, timeout = ?session.timeout(), "session established");
        self.set(Some(session.clone()));
        Ok(session)
    }

    /// Connects to the first server that answers. The client asks the servers in random order, and
    /// waits long for one that is silent; so others are asked beside it.
    async fn connect(&self) -> Result<Client, Error> {
        let timeout = self.options.asked_timeout();
        let connector = self.options.connector.clone().with_fail_eagerly();
        let connector = connector.with_session_timeout(timeout);
        let connector = connector.with_connection_timeout(connection_timeout(timeout));
        let several = self.options.has_several();
        let mut asked = FuturesUnordered::new();
        loop {
            asked.push(self.options.dial(connector.clone()));
            let hedge = match several {
                true => Either::Left(tokio::time::sleep(HEDGE)),
                false => Either::Right(std::future::pending()),
            };
            let hedge = std::pin::pin!(hedge);
            match select(asked.next(), hedge).await {
                Either::Left((Some(connected), _)) => {
                    return connected.map_err(|error| unreachable(error, self.options.tls));
                }
                Either::Left((None, _)) => return Err(no_answer()), // it is never empty
                Either::Right(_) => {}
            }
        }
    }

    /// Lets go of the session. Its nodes go with it.
    pub(crate) fn close(&self) {
        self.set(None);
    }

    fn set(&self, session: Option<Arc<Session>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }
}
