//! The claims of this driver that wait. The task of a shard reads its document for all of them, and whatever
//! it reads or writes tells them; so a hand-over within one driver needs no poll.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkit_core::driver::{ClaimId, Grant, LeaseStart, locked};
use lockkit_core::{Claim, Error, Key, LossReason};
use tokio::sync::watch;

use crate::claims::OwnClaims;
use crate::context::StoreContext;
use crate::document::{SessionId, ShardDocument, shard_of};
use crate::rules::StoreRule;
use crate::session::Session;

/// With notifications, polls are this many times rarer.
const RARER: u32 = 10;

/// The claims of this driver that wait, by their shard.
#[derive(Debug)]
pub(crate) struct Waiters {
    own: Arc<OwnClaims>,
    shards: u32,
    waiting: Mutex<BTreeMap<u32, BTreeMap<ClaimId, Waiter>>>,
    own_sessions: Mutex<HashMap<SessionId, Weak<Session>>>,
    is_notified: AtomicBool,
}

#[derive(Debug)]
struct Waiter {
    claim: Arc<Claim>,
    outcome: watch::Sender<Option<Result<Grant, Error>>>,
}

/// A claim is waited for, as long as this lives.
pub(crate) struct Waiting<'a> {
    pub(crate) waiters: &'a Waiters,
    pub(crate) claim: &'a Claim,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.remove(self.claim);
    }
}

impl Waiters {
    pub(crate) fn new(own: Arc<OwnClaims>, shards: u32) -> Self {
        Self {
            own,
            shards,
            waiting: Mutex::default(),
            own_sessions: Mutex::default(),
            is_notified: AtomicBool::new(false),
        }
    }

    /// The claim waits from now on.
    pub(crate) fn add(&self, claim: &Arc<Claim>) -> watch::Receiver<Option<Result<Grant, Error>>> {
        let mut waiting = locked(&self.waiting);
        let shard = waiting.entry(shard_of(&claim.key, self.shards)).or_default();
        let waiter = shard
            .entry(claim.id)
            .or_insert_with(|| Waiter { claim: claim.clone(), outcome: watch::Sender::new(None) });
        waiter.outcome.subscribe()
    }

    /// The claim does not wait any more.
    pub(crate) fn remove(&self, claim: &Claim) {
        let mut waiting = locked(&self.waiting);
        let shard = shard_of(&claim.key, self.shards);
        if let Some(claims) = waiting.get_mut(&shard) {
            claims.remove(&claim.id);
            if claims.is_empty() {
                waiting.remove(&shard);
            }
        }
    }

    /// Whether a claim waits in this shard.
    pub(crate) fn is_watched(&self, shard: u32) -> bool {
        locked(&self.waiting).contains_key(&shard)
    }

    /// The queues of this shard in which claims wait.
    pub(crate) fn keys(&self, shard: u32) -> BTreeSet<Key> {
        let waiting = locked(&self.waiting);
        let claims = waiting.get(&shard).into_iter().flat_map(BTreeMap::values);
        claims.map(|waiter| waiter.claim.key.clone()).collect()
    }

    /// Whether the store reports changes.
    pub(crate) fn set_notified(&self, is_notified: bool) {
        self.is_notified.store(is_notified, Ordering::Relaxed);
    }

    /// The pause between two polls.
    pub(crate) fn pace(&self, pace: Duration) -> Duration {
        match self.is_notified.load(Ordering::Relaxed) {
            true => pace * RARER,
            false => pace,
        }
    }

    /// This driver keeps the session alive by itself, and does not watch it.
    pub(crate) fn add_own_session(&self, session: &Arc<Session>) {
        let mut own = locked(&self.own_sessions);
        if !own.contains_key(&session.id) {
            own.retain(|_, session| session.strong_count() > 0);
            own.insert(session.id.clone(), Arc::downgrade(session));
        }
    }

    pub(crate) fn is_own_session(&self, session: &str) -> bool {
        let own = locked(&self.own_sessions).get(session).and_then(Weak::upgrade);
        own.is_some_and(|session| !session.is_lost())
    }

    /// A read or a swap of this process showed a shard so: tells the claims that hold or have ended.
    pub(crate) fn saw(
        &self,
        context: &StoreContext,
        shard: u32,
        document: &ShardDocument,
        unanswered: bool,
    ) {
        let waiting = locked(&self.waiting);
        for waiter in waiting.get(&shard).into_iter().flat_map(BTreeMap::values) {
            let outcome = self.outcome(context, document, &waiter.claim, unanswered);
            if outcome.is_some() {
                waiter.outcome.send_replace(outcome);
            }
        }
    }

    fn outcome(
        &self,
        context: &StoreContext,
        document: &ShardDocument,
        claim: &Claim,
        unanswered: bool,
    ) -> Option<Result<Grant, Error>> {
        let lost = |reason| Some(Err(Error::lost(reason)));
        let Some(own) = self.own.get(&claim.id) else { return lost(LossReason::Expired) };
        let entry = document.entry(&claim.key, &claim.id);
        let Some(entry) = entry else {
            let queue = document.queues.get(&claim.key);
            let record = queue.and_then(|queue| queue.break_of(&claim.id)).cloned();
            return match record {
                Some(record) => lost(LossReason::Broken(record)),
                // A swap that is unanswered may still put it there.
                None if unanswered => None,
                None => lost(LossReason::Expired),
            };
        };
        if let Some(record) = own.session.mark(&claim.id) {
            return lost(LossReason::Broken(record));
        }
        if entry.broken {
            let queue = document.queues.get(&claim.key)?;
            let record = queue.break_of(&claim.id).cloned();
            return lost(record.map_or(LossReason::Expired, LossReason::Broken));
        }
        if own.session.is_lost() || entry.details.session != own.session.id {
            return lost(LossReason::SessionEnded);
        }
        if !entry.holding {
            return None;
        }
        let ttl = claim.hold_ttl.min(own.session.ttl);
        if !self.own.extend(&claim.id, true, ttl, context.now()) {
            return lost(LossReason::Expired);
        }
        Some(Ok(Grant {
            token: entry.token,
            ttl,
            start: LeaseStart::Sent(lease_start(context, own.session.beat_sent())),
            margin: Duration::ZERO,
        }))
    }
}

/// From when a lease counts: from the beat that was found (rule 6).
pub(crate) fn lease_start(
    context: &StoreContext,
    beat_sent: lockkit_core::clock::Moment,
) -> lockkit_core::clock::Moment {
    match context.rules.applies(StoreRule::LeaseFromBeat) {
        true => beat_sent,
        false => context.now(),
    }
}
