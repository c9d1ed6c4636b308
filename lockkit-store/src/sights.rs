//! What this process saw of the sessions of others, and when: the ground on which it ends one.
//!
//! An observer counts from the *arrival* of its own read of a beat (rule 2). Another beat restarts the
//! count, a mark does not. Durations are those of the slower of two clocks, so that neither slewing nor a
//! suspend of this machine makes an observer hasty.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use lockkit_core::clock::ClockPair;
use lockkit_core::driver::locked;

use crate::document::{SessionDocument, SessionId, micros};
use crate::kept_sights::KeptSight;
use crate::rules::{Rules, StoreRule};

/// Sights at most. Those that were not refreshed for the longest time are forgotten first; none for its age,
/// since a program may try once a week.
const MOST_SIGHTS: usize = 10_000;

/// What this process saw of sessions.
#[derive(Debug, Default)]
pub(crate) struct Sights(Mutex<BTreeMap<SessionId, Sight>>);

#[derive(Debug)]
struct Sight {
    beat: String,
    ttl: Duration,
    /// When the read that first showed this beat arrived.
    first_seen: ClockPair,
    /// Whether another beat was seen since.
    was_renewed: bool,
    /// When it was read last.
    read_at: ClockPair,
    /// When it was first seen dead.
    dead_since: Option<ClockPair>,
    /// When the mark of a claim was first seen.
    marked_at: HashMap<String, ClockPair>,
    /// Whether a read is under way.
    is_being_read: bool,
}

impl Sight {
    fn first(beat: String, ttl: Duration, seen: ClockPair) -> Self {
        Self {
            beat,
            ttl,
            first_seen: seen,
            was_renewed: false,
            read_at: seen,
            dead_since: None,
            marked_at: HashMap::new(),
            is_being_read: false,
        }
    }
}

impl Sights {
    /// A read, or a write of this process, showed the session so.
    pub(crate) fn saw(&self, session: &str, found: &SessionDocument, now: ClockPair, rules: Rules) {
        let mut sights = locked(&self.0);
        let first = || Sight::first(found.beat.clone(), found.ttl(), now);
        let sight = sights.entry(session.to_owned()).or_insert_with(first);
        if sight.beat != found.beat && rules.applies(StoreRule::CountFromArrival) {
            sight.first_seen = now;
        }
        sight.was_renewed |= sight.beat != found.beat;
        sight.beat.clone_from(&found.beat);
        (sight.ttl, sight.read_at) = (found.ttl(), now);
        if found.dead {
            sight.dead_since.get_or_insert(now);
        }
        for mark in &found.broken {
            sight.marked_at.entry(mark.claim.clone()).or_insert(now);
        }
    }

    /// The read that was under way has ended, with a result or without.
    pub(crate) fn end_read(&self, session: &str) {
        if let Some(sight) = locked(&self.0).get_mut(session) {
            sight.is_being_read = false;
        }
    }

    /// The session was removed, and will not come back.
    pub(crate) fn forget(&self, session: &str) {
        locked(&self.0).remove(session);
    }

    /// Whether the session is known to have ended.
    pub(crate) fn is_dead(&self, session: &str) -> bool {
        locked(&self.0).get(session).is_some_and(|sight| sight.dead_since.is_some())
    }

    /// Whether the last beat of the session has been seen for its whole TTL.
    pub(crate) fn is_overdue(&self, session: &str, now: ClockPair) -> bool {
        let sights = locked(&self.0);
        sights.get(session).is_some_and(|sight| now.since(sight.first_seen) >= sight.ttl)
    }

    /// Whether the mark of a claim has been seen for the TTL of its session (rule 9).
    pub(crate) fn mark_is_over(&self, session: &str, claim: &str, now: ClockPair) -> bool {
        let sights = locked(&self.0);
        let Some(sight) = sights.get(session) else { return false };
        sight.marked_at.get(claim).is_some_and(|since| now.since(*since) >= sight.ttl)
    }

    /// What is left of a session at most, as far as this process saw.
    pub(crate) fn remaining(&self, session: &str, now: ClockPair) -> Option<Duration> {
        let sights = locked(&self.0);
        let sight = sights.get(session)?;
        Some(sight.ttl.saturating_sub(now.since(sight.first_seen)))
    }

    /// Whether the session is to be read now, and notes that it is: one that was not seen, was not read
    /// for `pace`, or may be ended and was not read for a quarter of `pace`.
    pub(crate) fn begin_read(&self, session: &str, now: ClockPair, pace: Duration) -> bool {
        let mut sights = locked(&self.0);
        let Some(sight) = sights.get_mut(session) else { return true };
        let is_overdue = now.since(sight.first_seen) >= sight.ttl;
        let pause = if is_overdue { pace / 4 } else { pace };
        let is_due = sight.dead_since.is_none() && now.since(sight.read_at) >= pause;
        let begins = is_due && !sight.is_being_read;
        sight.is_being_read |= begins;
        begins
    }

    /// Whether the session is to be read before it is in the way: it was never seen, or its last beat has
    /// been seen for its whole TTL.
    pub(crate) fn is_urgent(&self, session: &str, now: ClockPair) -> bool {
        let is_known = locked(&self.0).contains_key(session);
        !is_known || self.is_overdue(session, now)
    }

    /// How long a session has to be watched before it is ended or, if it is dead, removed. `None` where it was
    /// never read, or its owner is known to live: a second beat was seen.
    pub(crate) fn in_doubt_for(&self, session: &str, now: ClockPair) -> Option<Duration> {
        let sights = locked(&self.0);
        let sight = sights.get(session)?;
        let first_beat = (!sight.was_renewed).then_some(sight.first_seen);
        let since = sight.dead_since.or(first_beat)?;
        Some(sight.ttl.saturating_sub(now.since(since)))
    }

    /// What another process saw. What this one sees counts more.
    pub(crate) fn restore(&self, kept: Vec<KeptSight>) {
        let mut sights = locked(&self.0);
        for kept in kept {
            let (ttl, first_seen) = (Duration::from_micros(kept.ttl_us), kept.first_seen());
            let first = || Sight::first(kept.beat, ttl, first_seen);
            sights.entry(kept.session).or_insert_with(first);
        }
    }

    /// What another process may use: of sessions that are not known to have ended.
    pub(crate) fn kept(&self, store: &str, is_own: impl Fn(&str) -> bool) -> Vec<KeptSight> {
        let sights = locked(&self.0);
        let living = sights.iter().filter(|(id, it)| it.dead_since.is_none() && !is_own(id));
        let kept = living.map(|(session, sight)| {
            KeptSight::new(store, session, (&sight.beat, micros(sight.ttl)), sight.first_seen)
        });
        kept.collect()
    }

    /// Forgets sessions where there are very many.
    pub(crate) fn prune(&self) {
        let mut sights = locked(&self.0);
        let more = sights.len().saturating_sub(MOST_SIGHTS);
        if more == 0 {
            return;
        }
        let read = sights.iter().map(|(session, sight)| (sight.read_at.boot, session.clone()));
        let mut read: Vec<_> = read.collect();
        read.sort_unstable();
        for (_, session) in read.into_iter().take(more) {
            sights.remove(&session);
        }
    }
}

/// Which sessions a sweep looks at.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// The key behind which the next page begins; a random one at first.
    pub(crate) after: Option<String>,
    /// Those that may be dead.
    pub(crate) in_doubt: BTreeSet<SessionId>,
}
