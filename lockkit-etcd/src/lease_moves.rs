//! Moving keys to other leases, many at a time: those of claims that may hold to the lease of
//! a holder, those on a lease that is to go to another one.
//!
//! Each is moved from one revision of its key to the next, so that no late or repeated request can
//! move it back. Until an answer has come it may be on either lease: so before anything is sent it
//! is noted ([`PendingMove`]) that it may be on the new one, and from when on that counts at the least.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::{Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::stream::{self, StreamExt};
use lockkit_core::Claim;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimData, ClaimId};

use crate::claim_cache::{CachedClaim, PendingMove};
use crate::client::{ATTEMPT, EtcdError, EtcdResult, ranges, revision};
use crate::leases::EtcdLease;
use crate::locks::EtcdLocks;
use crate::queue_snapshot::StoredClaim;
use crate::requests::{put, put_lease, unchanged, unexpected_response};

/// Keys that are moved by one transaction. (etcd takes 128 operations in one, unless it is configured
/// otherwise, those within others counted along.)
const TOGETHER: usize = 50;
/// Such transactions at once.
const AT_ONCE: usize = 8;

/// A key that is to be moved.
#[derive(Clone, Debug)]
pub(crate) struct LeaseMove {
    pub(crate) id: ClaimId,
    pub(crate) stored: StoredClaim,
    /// What is stored there afterwards; as before when `None`.
    pub(crate) value: Option<ClaimData>,
}

impl LeaseMove {
    /// To the lease of a holder.
    pub(crate) fn to_hold(claim: &Claim, stored: StoredClaim) -> Self {
        let value =
            stored.value.clone().unwrap_or_else(|| ClaimData::of(claim).queued_now()).holding();
        Self { id: claim.id, stored, value: Some(value) }
    }

    /// To another lease of the same kind.
    pub(crate) fn as_it_is(claim: &Claim, stored: StoredClaim) -> Self {
        Self { id: claim.id, stored, value: None }
    }

    /// Whether it is to have the lease of a holder.
    pub(crate) fn will_hold(&self) -> bool {
        let value = self.value.as_ref().or(self.stored.value.as_ref());
        value.is_none_or(ClaimData::is_holding)
    }
}

/// What became of a key that was to be moved to another lease.
#[derive(Debug)]
pub(crate) enum LeaseMoveResult {
    Done(Box<StoredClaim>),
    /// It was written by another client.
    Changed,
    NotFound,
}

impl EtcdLocks {
    /// Moves keys of claims to this lease, and notes where they are; says for each what became of
    /// it.
    pub(crate) async fn relocate(
        &self,
        target: &Arc<EtcdLease>,
        moving: Vec<LeaseMove>,
    ) -> Vec<EtcdResult<LeaseMoveResult>> {
        self.leases.freshen(target).await;
        let chunks: Vec<_> = moving.chunks(TOGETHER).map(<[LeaseMove]>::to_vec).collect();
        let answers = stream::iter(chunks).map(|chunk| self.relocate_some(target, chunk));
        answers.buffered(AT_ONCE).collect::<Vec<_>>().await.into_iter().flatten().collect()
    }

    /// The same of one key.
    pub(crate) async fn relocate_one(
        &self,
        target: &Arc<EtcdLease>,
        moving: LeaseMove,
    ) -> EtcdResult<LeaseMoveResult> {
        self.relocate(target, vec![moving])
            .await
            .pop()
            .unwrap_or_else(|| Err(unexpected_response()))
    }

    async fn relocate_some(
        &self,
        target: &Arc<EtcdLease>,
        moving: Vec<LeaseMove>,
    ) -> Vec<EtcdResult<LeaseMoveResult>> {
        let all = |failure: EtcdError| moving.iter().map(|_| Err(failure.clone())).collect();
        let (noted, is_young) = self.note_moves(target, &moving);
        if !is_young {
            match self.leases.keep(target).await {
                Ok(true) => {}
                Ok(false) => return all(EtcdError::LeaseGone),
                Err(failure) => return all(failure),
            }
        }
        let (number, sent) = (noted.sent(), SteadyClock.now());
        let step = |moving: &LeaseMove| TxnOp::txn(step(moving, target.id));
        let txn = || Txn::new().and_then(moving.iter().map(step).collect::<Vec<_>>());
        let answer = match self.client.txn_within(ATTEMPT, txn).await {
            Ok(reply) => reply.answer,
            Err(failure) => return all(failure),
        };
        let mut steps = answer.op_responses().into_iter();
        let mut cached_claims = self.claims();
        let done = |one: &LeaseMove| match steps.next() {
            Some(TxnOpResponse::Txn(own)) => {
                let moved = moved(one, target, &own, revision(&answer));
                if let Some(cached) = cached_claims.get_mut(&one.id) {
                    cached.was_moved(&moved, target, number, sent);
                }
                Ok(moved)
            }
            _ => Err(unexpected_response()),
        };
        moving.iter().map(done).collect()
    }

    /// Notes that these keys may be on this lease from now on; says too whether it is young enough
    /// for that. Otherwise it has to be kept alive before they are moved.
    fn note_moves<'a>(
        &'a self,
        target: &Arc<EtcdLease>,
        moving: &'a [LeaseMove],
    ) -> (NotedMoves<'a>, bool) {
        let number = next_number();
        let mut cached_claims = self.claims();
        let now = SteadyClock.now(); // after that of all grants in which this move is not counted
        let is_young = !target.is_old(now);
        let begun = if is_young { target.since() } else { now };
        for LeaseMove { id, stored, .. } in moving {
            let cached = cached_claims.get_mut(id).filter(|p| p.stored.modified == stored.modified);
            if let Some(cached) = cached {
                cached.moves.push(PendingMove { number, begun, target: target.clone() });
            }
        }
        (NotedMoves { locks: self, moving: Some(moving), number }, is_young)
    }
}

/// A number that no other move has.
pub(crate) fn next_number() -> u64 {
    static MOVES: AtomicU64 = AtomicU64::new(0);
    MOVES.fetch_add(1, Ordering::Relaxed)
}

/// Moves that are noted and not sent. Dropped before that, they are noted no more.
struct NotedMoves<'a> {
    locks: &'a EtcdLocks,
    moving: Option<&'a [LeaseMove]>,
    number: u64,
}

impl NotedMoves<'_> {
    fn sent(mut self) -> u64 {
        self.moving = None;
        self.number
    }
}

impl Drop for NotedMoves<'_> {
    fn drop(&mut self) {
        let Some(moving) = self.moving else {
            return;
        };
        let mut cached_claims = self.locks.claims();
        for LeaseMove { id, .. } in moving {
            if let Some(cached) = cached_claims.get_mut(id) {
                cached.moves.retain(|m| m.number != self.number);
            }
        }
    }
}

impl CachedClaim {
    /// Notes what a request did that was sent then, to move the key.
    pub(crate) fn was_moved(
        &mut self,
        moved: &LeaseMoveResult,
        target: &Arc<EtcdLease>,
        number: u64,
        sent: Moment,
    ) {
        match moved {
            LeaseMoveResult::Done(stored) if stored.modified > self.stored.modified => {
                (self.stored, self.lease, self.confirmed_at) =
                    (StoredClaim::clone(stored), target.clone(), sent);
                self.moves.clear();
            }
            // It did nothing, and will not: but another one may have.
            _ => self.moves.retain(|m| m.number != number),
        }
    }
}

/// Writes a key again, on this lease, if no other client has written it since; otherwise shows it.
fn step(moving: &LeaseMove, lease: i64) -> Txn {
    let LeaseMove { stored, value, .. } = moving;
    let put = match value {
        Some(value) => put(&stored.key, value.to_json(), lease),
        None => put_lease(&stored.key, lease),
    };
    let show = TxnOp::get(&*stored.key, None);
    Txn::new().when([unchanged(stored)]).and_then([put]).or_else([show])
}

fn moved(
    moving: &LeaseMove,
    target: &EtcdLease,
    answer: &TxnResponse,
    revision: i64,
) -> LeaseMoveResult {
    let LeaseMove { stored, value, .. } = moving;
    if answer.succeeded() {
        let mut moved = stored.clone();
        moved.lease = target.id;
        moved.modified = revision;
        if let Some(value) = value {
            moved.mode = value.mode();
            moved.value = Some(value.clone());
        }
        return LeaseMoveResult::Done(Box::new(moved));
    }
    match ranges(answer).first().and_then(|range| range.kvs().first().map(StoredClaim::of)) {
        None => LeaseMoveResult::NotFound,
        Some(now) if now.created != stored.created => LeaseMoveResult::NotFound,
        // An attempt before did it, and its answer was lost.
        Some(now) if now.lease == target.id => LeaseMoveResult::Done(Box::new(now)),
        Some(_) => LeaseMoveResult::Changed,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::locks::tests::{no_locks, waiter};

    #[tokio::test]
    async fn a_move_counts_from_the_last_keep_alive_of_its_lease_until_it_is_answered() {
        let locks = no_locks();
        let (claim, mut cached) = waiter(&locks, 100);
        let (now, ttl) = (SteadyClock.now(), Duration::from_secs(30));
        let since = now.before(Duration::from_secs(1));
        cached.lease = Arc::new(EtcdLease::new(1, ttl * 2, now, &locks.client));
        cached.confirmed_at = now;
        locks.cache_claim(claim.id, cached.clone());
        let until = || locks.cached(claim.id).unwrap().until();
        let target = Arc::new(EtcdLease::new(2, ttl, since, &locks.client));
        let moving = [LeaseMove::to_hold(&claim, cached.stored.clone())];
        let (noted, is_young) = locks.note_moves(&target, &moving);
        assert!(is_young);
        assert_eq!(until(), target.until_from(since));
        drop(noted);
        assert_eq!(until(), cached.until(), "it was never sent");
        locks.note_moves(&target, &moving).0.sent();
        assert_eq!(until(), target.until_from(since), "it may have been moved");
    }
}
