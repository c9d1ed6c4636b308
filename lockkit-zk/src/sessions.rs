//! Where sessions come from: one for the ttl of the options, and one for each other ttl that claims
//! ask for, so that a process that dies keeps each of its locks for about as long as it asked.
//! Each is replaced when it has ended. May not know of locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{in_time, locked, no_answer};
use lockkit_core::{Error, Result};
use zookeeper_client::Client;

use crate::ZkOptions;
use crate::errors::{BACKEND, unreachable};
use crate::options::{LEAST, ROUNDED, SessionTimeouts, longest_connection_timeout};
use crate::session::Session;

/// How long it may take to reach a server. Every member of an ensemble gets its chance in that
/// time, also when those that are asked first are silent.
const CONNECTING: Duration = Duration::from_secs(6);
/// When one more server is asked, beside those that have not answered yet.
const HEDGE: Duration = Duration::from_secs(1);
/// For so many other ttls there are sessions of exactly that ttl. Beyond, ttls are rounded down to
/// powers of two, which bounds the number of sessions.
const EXACT: usize = 8;
/// A session for another ttl is closed when no claim has lived in it for so long.
const IDLE: Duration = Duration::from_secs(10);

/// The sessions of a driver.
#[derive(Debug)]
pub(crate) struct Sessions {
    options: ZkOptions,
    /// Whether sessions are made here; otherwise there is the user's one, and no other.
    own: bool,
    /// For the ttl of the options; whatever concerns no claim goes over it.
    main: SessionSlot,
    /// For other ttls.
    others: Mutex<HashMap<Duration, Arc<SessionSlot>>>,
}

/// The sessions for one ttl, one after the other.
#[derive(Debug)]
struct SessionSlot {
    ttl: Duration,
    current: Mutex<Option<Arc<Session>>>,
    /// Held while a session is being made.
    making: tokio::sync::Mutex<()>,
    /// How often making one has failed.
    failures: AtomicU64,
    /// When a claim was last seen to live in it, in nanoseconds.
    used: AtomicU64,
}

impl Sessions {
    pub(crate) async fn open(options: ZkOptions) -> Result<Self> {
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
        let main = SessionSlot::new(options.ttl);
        main.set(first);
        Self { options, own, main, others: Mutex::default() }
    }

    pub(crate) fn options(&self) -> &ZkOptions {
        &self.options
    }

    /// Whether all ephemeral nodes of a session are this driver's.
    pub(crate) fn are_own(&self) -> bool {
        self.own
    }

    /// Whether claims of another ttl get a session of that ttl.
    pub(crate) fn are_several(&self) -> bool {
        self.own && self.options.session_timeout.is_none()
    }

    /// Whether the server of a session may be a follower of another: of several, which is not
    /// known. One alone is asked as if it had no leader.
    pub(crate) fn may_follow(&self) -> bool {
        !self.own || self.options.has_several()
    }

    /// The main session there is, ended or not.
    pub(crate) fn latest(&self) -> Option<Arc<Session>> {
        self.main.latest()
    }

    /// The main session, or a new one when it has ended.
    ///
    /// # Cancel safety
    /// Dropping it leaves things as they were.
    pub(crate) async fn get(&self) -> Result<Arc<Session>> {
        self.main.get(self).await
    }

    /// The session that a claim of this ttl is to live in, made if there is none.
    ///
    /// # Cancel safety
    /// As [`get`](Self::get).
    pub(crate) async fn for_ttl(&self, ttl: Duration) -> Result<Arc<Session>> {
        match self.slot(ttl) {
            None => self.get().await,
            Some(slot) => {
                let session = slot.get(self).await?;
                slot.used();
                Ok(session)
            }
        }
    }

    /// The same if it is there, otherwise the main session.
    pub(crate) async fn there_for_ttl(&self, ttl: Duration) -> Result<Arc<Session>> {
        match self.live_for_ttl(ttl) {
            Some(session) => Ok(session),
            None => self.get().await,
        }
    }

    /// The session in which claims of this ttl live, if it is there.
    pub(crate) fn live_for_ttl(&self, ttl: Duration) -> Option<Arc<Session>> {
        let others = locked(&self.others);
        match self.key(&others, ttl) {
            key if key == self.main.ttl => self.main.live(),
            key => others.get(&key)?.live(),
        }
    }

    /// Where claims of this ttl live; `None` for the main session.
    fn slot(&self, ttl: Duration) -> Option<Arc<SessionSlot>> {
        let mut others = locked(&self.others);
        let key = self.key(&others, ttl);
        if key == self.main.ttl {
            return None;
        }
        Some(others.entry(key).or_insert_with(|| Arc::new(SessionSlot::new(key))).clone())
    }

    /// The ttl for which the session is, or would be, in which claims of this ttl live.
    fn key(&self, others: &HashMap<Duration, Arc<SessionSlot>>, ttl: Duration) -> Duration {
        if !self.are_several() || self.main.serves(ttl) {
            return self.main.ttl;
        }
        let least = LEAST.min(self.main.ttl);
        let ttl = ttl.max(least);
        match others.values().find(|slot| slot.serves(ttl)) {
            Some(slot) => slot.ttl,
            None if others.len() < EXACT => ttl,
            None => power_of_two_below(ttl).max(least),
        }
    }

    /// Whether this is one of the sessions that are used now.
    pub(crate) fn has(&self, session: &Arc<Session>) -> bool {
        let is_it = |slot: &SessionSlot| slot.latest().is_some_and(|it| Arc::ptr_eq(&it, session));
        is_it(&self.main) || locked(&self.others).values().any(|slot| is_it(slot))
    }

    /// Lets go of sessions for other ttls in which no claim has lived for a while.
    pub(crate) fn close_idle(&self) {
        locked(&self.others).retain(|_, slot| slot.is_needed());
    }

    /// Connects to the first server that answers. The client asks the servers in random order, and
    /// waits long for one that is silent; so others are asked beside it.
    async fn connect(&self, asked: SessionTimeouts) -> Result<Client> {
        let connector = self.options.connector.clone().with_fail_eagerly();
        let connector = connector.with_session_timeout(asked.timeout);
        let connector = connector.with_connection_timeout(asked.connection);
        let several = self.options.has_several();
        let mut dialled = FuturesUnordered::new();
        loop {
            dialled.push(self.options.dial(connector.clone()));
            let hedge = match several {
                true => Either::Left(tokio::time::sleep(HEDGE)),
                false => Either::Right(std::future::pending()),
            };
            let hedge = std::pin::pin!(hedge);
            match select(dialled.next(), hedge).await {
                Either::Left((Some(connected), _)) => {
                    return connected.map_err(|error| unreachable(error, self.options.tls));
                }
                Either::Left((None, _)) => return Err(no_answer(BACKEND)), // it is never empty
                Either::Right(_) => {}
            }
        }
    }

    /// Lets go of all sessions. Their nodes go with them. Returns when those have ended that were
    /// connected, and that are used nowhere else.
    ///
    /// # Cancel safety
    /// They are let go of when this is first polled.
    pub(crate) async fn close(&self) {
        let others = std::mem::take(&mut *locked(&self.others));
        let slots = others.values().map(|slot| &**slot).chain([&self.main]);
        let sessions = slots.filter_map(|slot| locked(&slot.current).take());
        // any other client that works with a session ends it later.
        let last = sessions.filter_map(Arc::into_inner).filter(|_| self.own);
        let connected = last.filter(Session::is_connected);
        let states: Vec<_> = connected.map(|session| session.client.state_watcher()).collect();
        for mut state in states {
            while !state.state().is_terminated() {
                state.changed().await;
            }
        }
    }
}

impl SessionSlot {
    fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            current: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            failures: AtomicU64::new(0),
            used: AtomicU64::new(SteadyClock.now().as_nanos()),
        }
    }

    fn latest(&self) -> Option<Arc<Session>> {
        locked(&self.current).clone()
    }

    fn live(&self) -> Option<Arc<Session>> {
        self.latest().filter(|session| !session.has_ended())
    }

    fn set(&self, session: Option<Arc<Session>>) {
        *locked(&self.current) = session;
    }

    /// Whether a claim of this ttl belongs here: it is the ttl that was asked for here, or lies
    /// between that and what the servers gave instead, which have bounds of their own.
    fn serves(&self, ttl: Duration) -> bool {
        let given = self.latest().map_or(self.ttl, |session| session.ttl);
        let beyond = given < self.ttl.saturating_sub(ROUNDED) && given <= ttl;
        let below = self.ttl + ROUNDED < given && ttl <= given;
        ttl == self.ttl || beyond || below
    }

    fn used(&self) {
        self.used.store(SteadyClock.now().as_nanos(), Ordering::Release);
    }

    /// Whether claims live in its session, or did lately, or it is being made.
    fn is_needed(&self) -> bool {
        // A client that works with a session, and the place of each claim in it, has it as well.
        let in_use = locked(&self.current).as_ref().is_some_and(|s| Arc::strong_count(s) > 1);
        if in_use || self.making.try_lock().is_err() {
            self.used();
        }
        let used = Moment::from_nanos(self.used.load(Ordering::Acquire));
        SteadyClock.now().since(used) < IDLE
    }

    async fn get(&self, sessions: &Sessions) -> Result<Arc<Session>> {
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let failures = self.failures.load(Ordering::Acquire);
        let _making = self.making.lock().await;
        if let Some(session) = self.live() {
            return Ok(session);
        }
        if !sessions.own {
            let given = self.latest().filter(|session| !session.client.state().is_terminated());
            let ended = || Error::permanent(BACKEND, "the session of the given client has ended");
            return given.ok_or_else(ended);
        }
        if self.failures.load(Ordering::Acquire) != failures {
            // Another task tried while this one waited for it: all that wait fail together, rather
            // than one after the other.
            return Err(Error::retryable(BACKEND, "no server could be reached"));
        }
        // The old client is let go first, so that it closes its session should it reach it again.
        self.set(None);
        let asked = sessions.options.asked(self.ttl);
        let sent = SteadyClock.now();
        let connected = in_time(BACKEND, CONNECTING, sessions.connect(asked)).await;
        let client = connected.inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::AcqRel);
        })?;
        let session = Session::new(client, &sessions.options, asked.connection, sent);
        let session = Arc::new(session.in_this_runtime());
        tracing::debug!(?session, timeout = ?session.timeout(), "session established");
        self.set(Some(session.clone()));
        Ok(session)
    }
}

fn power_of_two_below(ttl: Duration) -> Duration {
    let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(1 << millis.max(1).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(options: ZkOptions) -> Sessions {
        Sessions::starting(options, true, None)
    }

    /// The ttls that these claims' sessions are asked for.
    fn slots(sessions: &Sessions, ttls: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap();
        let slot = |ttl| sessions.slot(Duration::from_millis(ttl));
        let ttl = |slot: Option<Arc<SessionSlot>>| slot.map_or(sessions.main.ttl, |slot| slot.ttl);
        ttls.into_iter().map(|asked| millis(ttl(slot(asked)))).collect()
    }

    #[test]
    fn a_claim_of_another_ttl_has_a_session_of_that_ttl_but_of_none_too_short() {
        let several = sessions(ZkOptions::new("a"));
        let asked = [30_000, 5_000, 100, 3_999, 4_000, 90_000];
        assert_eq!(slots(&several, asked), [30_000, 5_000, 4_000, 4_000, 4_000, 90_000]);
        assert_eq!(locked(&several.others).len(), 3);
        let short = sessions(ZkOptions::new("a").ttl(Duration::from_secs(1)));
        assert_eq!(slots(&short, [100, 1_000, 2_000]), [1_000, 1_000, 2_000]);
        let fixed = ZkOptions::new("a").session_timeout(Duration::from_secs(40));
        assert_eq!(slots(&sessions(fixed), [100, 5_000, 90_000]), [30_000; 3]);
    }

    #[test]
    fn of_very_many_ttls_the_sessions_are_few_and_none_is_longer_than_asked() {
        let several = sessions(ZkOptions::new("a"));
        for asked in 4_001..40_000 {
            let [slot] = slots(&several, [asked])[..] else { panic!("one each") };
            assert!(slot <= asked && slot > asked / 2 || slot == 4_000, "{slot} for {asked}");
        }
        // Those, and 4 s, 4.096 s, 8.192 s, 16.384 s and 32.768 s.
        assert!(locked(&several.others).len() <= EXACT + 5, "{:?}", locked(&several.others).keys());
    }
}
