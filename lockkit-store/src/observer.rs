//! Reading the sessions of others, ending those that are overdue, and removing those that have ended.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;

use crate::context::StoreContext;
use crate::document::{SESSIONS, SessionDocument, SessionId, decode, encode, micros, session_key};
use crate::rules::StoreRule;
use crate::store::{Document, PutOutcome};

/// Sessions that are read at once at most.
const MOST_AT_ONCE: usize = 32;
/// How many sessions a sweep reads.
const SWEPT: usize = 32;
/// For how long a tombstone stays whose session was never seen.
const UNKNOWN_TTL: Duration = Duration::from_secs(60);

impl StoreContext {
    /// Reads the sessions among these that were not read for a while, in the background; calls `on_end` for
    /// each that has ended.
    pub(crate) fn observe_due(
        self: &Arc<Self>,
        sessions: impl IntoIterator<Item = SessionId>,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let (now, pace) = (self.observed_now(), self.session_pace());
        let is_due = |session: &SessionId| self.sights.begin_read(session, now, pace);
        for session in sessions.into_iter().filter(is_due).take(MOST_AT_ONCE) {
            let (context, on_end) = (self.clone(), on_end.clone());
            tokio::spawn(async move {
                match context.observe(&session).await {
                    Ok(true) => on_end(),
                    Ok(false) => {}
                    Err(error) => tracing::debug!(%error, "a session could not be read"),
                }
            });
        }
    }

    /// Reads a session and ends it if it is overdue; says whether it has ended now.
    pub(crate) async fn observe(&self, session: &str) -> Result<bool, Error> {
        if self.sights.is_dead(session) {
            return Ok(true);
        }
        let observed = self.observe_now(session).await;
        self.sights.end_read(session);
        observed
    }

    async fn observe_now(&self, session: &str) -> Result<bool, Error> {
        let key = session_key(session);
        let Some(document) = self.read(&key).await? else {
            return self.entomb(session).await;
        };
        let mut found: SessionDocument = decode(self.backend(), "a session", &document.bytes)?;
        let arrival = self.observed_now();
        let was_overdue = self.sights.is_overdue(session, arrival);
        self.sights.saw(session, &found, arrival, self.rules);
        if found.dead {
            return Ok(true);
        }
        let mut version = document.version;
        if !self.rules.keeps(StoreRule::EndAtWatchedVersion) && was_overdue {
            // What the rule forbids: the swap goes to whatever is there now.
            if let Some(Document { bytes, version: now }) = self.read(&key).await? {
                (found, version) = (decode(self.backend(), "a session", &bytes)?, now);
            }
        } else if !self.sights.is_overdue(session, arrival) {
            return Ok(false);
        }
        found.dead = true;
        found.write = self.id();
        match self.store.put_if(&key, &encode(&found), Some(&version)).await {
            PutOutcome::Stored(version) => {
                self.goes_forward(&key, Some(&version));
                self.sights.died(session, self.observed_now());
                Ok(true)
            }
            // The next read shows what is there.
            _ => Ok(false),
        }
    }

    /// A session that is missing is no proof of its end, since its creation may be late: the end is written
    /// in its place first.
    async fn entomb(&self, session: &str) -> Result<bool, Error> {
        let tombstone = SessionDocument {
            write: self.id(),
            beat: self.id(),
            ttl_us: micros(UNKNOWN_TTL),
            dead: true,
            broken: Vec::new(),
        };
        if !self.rules.keeps(StoreRule::MissingIsNoProof) {
            self.sights.saw(session, &tombstone, self.observed_now(), self.rules);
            return Ok(true);
        }
        let key = session_key(session);
        match self.store.put_if(&key, &encode(&tombstone), None).await {
            PutOutcome::Stored(version) => {
                self.goes_forward(&key, Some(&version));
                self.sights.saw(session, &tombstone, self.observed_now(), self.rules);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Reads some sessions, from a random place on, ends those that are overdue, and removes those that have
    /// been dead for a TTL of this process's watch. A claim of a removed session is pruned all the same: its
    /// session is missing, and gets a tombstone again.
    pub(crate) async fn sweep(self: &Arc<Self>) -> Result<(), Error> {
        self.sights.prune(self.observed_now());
        let from = session_key(&self.id());
        let listed = |after: Option<String>| async move {
            let keys = self.store.list(SESSIONS, after.as_deref(), SWEPT).await;
            keys.map_err(|error| error.into_error(self.backend()))
        };
        let mut keys = listed(Some(from)).await?;
        if keys.len() < SWEPT {
            keys.extend(listed(None).await?);
        }
        keys.truncate(SWEPT);
        for key in keys {
            let Some(session) = key.strip_prefix(SESSIONS) else { continue };
            let is_dead = self.observe(session).await?;
            let is_removable = is_dead && self.sights.is_removable(session, self.observed_now());
            if is_removable || !self.rules.keeps(StoreRule::RemoveOnlyDead) {
                let removed = self.store.remove(&key).await;
                removed.map_err(|error| error.into_error(self.backend()))?;
                self.removed(&key);
                self.sights.forget(session);
            }
        }
        Ok(())
    }
}
