//! Reading the sessions of others, ending those that are overdue, and removing those that have ended.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::state::{Finding, Severity};

use crate::context::StoreContext;
use crate::document::{SESSIONS, SessionDocument, SessionId, session_key};
use crate::rules::StoreRule;

/// Sessions that are read at once at most.
const MOST_AT_ONCE: usize = 32;
/// How many sessions a sweep reads.
const SWEPT: usize = 100;
/// Sessions that a sweep has read and does not yet know to be dead or alive, at most.
const MOST_IN_DOUBT: usize = 1_000;
/// More sessions than this are worth a finding.
const MANY: usize = 1_000;
/// For how long a tombstone stays whose session was never seen.
const UNKNOWN_TTL: Duration = Duration::from_secs(60);

/// What a sweep did.
#[derive(Default)]
pub(crate) struct SweepResult {
    pub(crate) has_removed: bool,
    /// After which time a session in doubt may be ended or removed.
    pub(crate) next: Option<Duration>,
}

/// A read in the background, which ends with its runtime at the latest.
struct SessionRead {
    context: Arc<StoreContext>,
    session: SessionId,
}

impl Drop for SessionRead {
    fn drop(&mut self) {
        self.context.sights.end_read(&self.session);
    }
}

impl StoreContext {
    /// Reads the sessions among these that were not read for a while, in the background; calls `on_end` for
    /// each that has ended.
    pub(crate) fn observe_due(
        self: &Arc<Self>,
        sessions: impl IntoIterator<Item = SessionId>,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let (now, pace) = (self.observed_now(), self.facts.session_pace());
        let is_due = |session: &SessionId| self.sights.begin_read(session, now, pace);
        for session in sessions.into_iter().filter(is_due).take(MOST_AT_ONCE) {
            let (reading, on_end) =
                (SessionRead { context: self.clone(), session }, on_end.clone());
            tokio::spawn(async move {
                match reading.context.observe(&reading.session).await {
                    Ok(true) => on_end(),
                    Ok(false) => {}
                    Err(error) => tracing::debug!(%error, "a session could not be read"),
                }
            });
        }
    }

    /// Reads those of these sessions that this process never saw, or whose lease is over as far as it saw, and
    /// the others in the background as they are due. Says whether one of the former has ended.
    pub(crate) async fn observe_urgent(
        self: &Arc<Self>,
        sessions: impl IntoIterator<Item = SessionId>,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> bool {
        let now = self.observed_now();
        let is_urgent = |session: &SessionId| self.sights.is_urgent(session, now);
        let (urgent, others): (Vec<_>, Vec<_>) = sessions.into_iter().partition(is_urgent);
        self.observe_due(others, on_end);
        let observed = urgent.iter().take(MOST_AT_ONCE).map(|session| self.observe(session));
        let observed = futures_util::future::join_all(observed).await;
        observed.into_iter().any(|ended| ended.unwrap_or(false))
    }

    /// Reads a session and ends it if it is overdue; says whether it has ended now.
    pub(crate) async fn observe(&self, session: &str) -> Result<bool, Error> {
        if self.sights.is_dead(session) {
            return Ok(true);
        }
        let key = session_key(session);
        let Some((mut found, mut version)) =
            self.load::<SessionDocument>(&key, "a session").await?
        else {
            return Ok(self.entomb(session).await);
        };
        let arrival = self.observed_now();
        let was_overdue = self.sights.is_overdue(session, arrival);
        self.sights.saw(session, &found, arrival, self.rules);
        if found.dead {
            return Ok(true);
        }
        if !self.rules.applies(StoreRule::EndAtWatchedVersion) && was_overdue {
            // What the rule forbids: the swap goes to whatever is there now.
            if let Some(now) = self.load(&key, "a session").await? {
                (found, version) = now;
            }
        } else if !self.sights.is_overdue(session, arrival) {
            return Ok(false);
        }
        found.dead = true;
        found.write = self.id();
        // Where it is not, the next read shows what is there.
        let has_ended = self.is_swapped(&key, &found, Some(&version)).await;
        if has_ended {
            self.sights.saw(session, &found, self.observed_now(), self.rules);
        }
        Ok(has_ended)
    }

    /// A session that is missing is no proof of its end, since its creation may be late: the end is written
    /// in its place first.
    async fn entomb(&self, session: &str) -> bool {
        let mut tombstone = SessionDocument::new(self.id(), self.id(), UNKNOWN_TTL);
        tombstone.dead = true;
        let has_ended = !self.rules.applies(StoreRule::MissingIsNoProof)
            || self.is_swapped(&session_key(session), &tombstone, None).await;
        if has_ended {
            self.sights.saw(session, &tombstone, self.observed_now(), self.rules);
        }
        has_ended
    }

    /// Looks for sessions of processes that crashed, among those in doubt and, with `reads_page`, some more:
    /// ends those that are overdue, and removes those that have been dead for a TTL of this process's watch. A
    /// claim of a removed session is pruned all the same: its session is missing, and gets a tombstone again.
    pub(crate) async fn sweep(&self, reads_page: bool) -> Result<SweepResult, Error> {
        self.sights.prune();
        let mut swept = self.swept.lock().await;
        if reads_page && swept.in_doubt.len() < MOST_IN_DOUBT {
            let from = swept.after.get_or_insert_with(|| session_key(&self.id())).clone();
            let keys = self.list(SESSIONS, Some(&from), SWEPT).await?;
            swept.after = match keys.last() {
                Some(last) if keys.len() == SWEPT => Some(last.clone()),
                // From the first one on.
                _ => Some(SESSIONS.to_owned()),
            };
            let sessions = keys.iter().filter_map(|key| key.strip_prefix(SESSIONS));
            swept.in_doubt.extend(sessions.map(str::to_owned));
        }
        let removes_all = !self.rules.applies(StoreRule::RemoveOnlyDead);
        let mut result = SweepResult::default();
        for session in swept.in_doubt.clone() {
            let due = self.sights.in_doubt_for(&session, self.observed_now());
            if due.is_none_or(|due| due.is_zero()) || removes_all {
                self.observe(&session).await?;
            }
            let due = self.sights.in_doubt_for(&session, self.observed_now());
            let is_removable =
                self.sights.is_dead(&session) && due.is_some_and(|due| due.is_zero());
            if is_removable || removes_all {
                let key = session_key(&session);
                self.store.remove(&key).await.map_err(|error| self.failed(error))?;
                self.removed(&key);
                self.sights.forget(&session);
                result.has_removed = true;
            } else if let Some(due) = due {
                result.next = Some(result.next.map_or(due, |next| next.min(due)));
                continue;
            }
            swept.in_doubt.remove(&session);
        }
        Ok(result)
    }

    /// A finding where there are very many sessions.
    pub(crate) async fn leftovers(&self) -> Result<Option<Finding>, Error> {
        let keys = self.list(SESSIONS, None, MANY).await?;
        let found = || {
            Finding::new(
                Severity::Note,
                format!("there are {MANY} sessions or more, most likely of processes that crashed"),
                "keep a client connected for some hours: it removes some thousand an hour",
            )
        };
        Ok((keys.len() >= MANY).then(found))
    }
}
