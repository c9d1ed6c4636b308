//! Passing a lock on within a driver: the transaction that takes a holder out gives the lease of a holder
//! to the waiter directly after it. So the answer to a release is the grant of the next claim: no message,
//! no read, and no request of its own.
//!
//! That is done only where the answer can mean nothing else. The one that leaves holds exclusively, so
//! nothing is ahead of it; the waiter came directly after it, and a queue grows only at its end; both keys
//! are as this driver wrote them last, or the transaction does what a release does without an heir. Then the
//! waiter is woken all the same, and reads the queue.

use std::sync::Arc;

use etcd_client::{Compare, TxnOp};
use lockkit_core::clock::Moment;
use lockkit_core::driver::Batch;
use lockkit_core::{Claim, Lifetime, Mode};

use crate::claim_cache::PendingMove;
use crate::lease_moves::{LeaseMove, LeaseMoveResult, next_number};
use crate::leases::EtcdLease;
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{Position, StoredClaim};
use crate::requests::{put, unchanged};

/// The waiter that is to hold once the claim ahead of it is out of the queue.
pub(crate) struct Heir {
    moving: LeaseMove,
    /// The lease that it will hold on.
    pub(crate) target: Arc<EtcdLease>,
    number: u64,
}

impl Heir {
    /// "Its key is as it was."
    pub(crate) fn is_there(&self) -> Compare {
        unchanged(&self.moving.stored)
    }

    /// Moves its key to the lease of a holder.
    pub(crate) fn promote(&self) -> TxnOp {
        let LeaseMove { stored, value, .. } = &self.moving;
        let value = value.as_ref().or(stored.value.as_ref());
        let text = value.map(lockkit_core::driver::ClaimData::to_json).unwrap_or_default();
        put(&stored.key, text, self.target.id)
    }
}

impl EtcdLocks {
    /// The heir of a sole holder that is to be taken out, where there is one that no operation of this batch
    /// is about.
    pub(crate) async fn heir_of(&self, holder: &Position, batch: Batch<'_>) -> Option<Heir> {
        let claim = self.successors.next(holder)?;
        let is_free = batch.claims().all(|other| other.id != claim.id);
        if !is_free || claim.mode != Mode::Exclusive || claim.lifetime != Lifetime::Renewed {
            return None;
        }
        let cached = self.cached(claim.id).filter(|cached| !cached.stored.is_holding())?;
        let target = self.leases.holding(&claim).await.ok()?;
        let moving = LeaseMove::to_hold(&claim, cached.stored);
        Some(Heir { moving, target, number: next_number() })
    }

    /// Its key may be on the lease of a holder from now on.
    pub(crate) fn note_heir(&self, heir: &Heir) {
        let Heir { moving, target, number } = heir;
        let begun = target.since();
        if let Some(cached) = self.claims().get_mut(&moving.id)
            && cached.stored.modified == moving.stored.modified
        {
            cached.moves.push(PendingMove { number: *number, begun, target: target.clone() });
        }
    }

    /// What became of it, in a request that was sent then: at which revision it was moved, if it was.
    pub(crate) fn note_succession(&self, heir: &Heir, revision: Option<i64>, sent: Moment) {
        let Heir { moving, target, number } = heir;
        let moved = match revision {
            Some(modified) => {
                let (lease, value) = (target.id, moving.value.clone());
                let stored = moving.stored.clone();
                LeaseMoveResult::Done(Box::new(StoredClaim { lease, modified, value, ..stored }))
            }
            None => LeaseMoveResult::Changed,
        };
        if let Some(cached) = self.claims().get_mut(&moving.id) {
            cached.was_moved(&moved, target, *number, sent);
        }
    }

    /// Whether the cached state of a claim says that it holds: it is on the lease of a holder.
    pub(crate) fn holds_by_now(&self, claim: &Claim) -> bool {
        self.cached(claim.id).is_some_and(|cached| cached.stored.is_holding())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::locks::tests::{at, no_locks, waiter};

    /// The answer may come late, and the lease may have been kept alive while it was under way.
    #[tokio::test]
    async fn a_lock_that_is_passed_on_counts_from_the_sending_of_that_request() {
        let locks = no_locks();
        let (claim, cached) = waiter(&locks, 100);
        locks.cache_claim(claim.id, cached.clone());
        let until = || locks.cached(claim.id).unwrap().until();
        let target = Arc::new(EtcdLease::new(2, Duration::from_secs(3), at(103), &locks.client));
        let moving = LeaseMove::to_hold(&claim, cached.stored.clone());
        let heir = Heir { moving, target: target.clone(), number: 7 };
        locks.note_heir(&heir);
        assert_eq!(until(), target.until_from(at(103)), "it may be on either lease");
        locks.note_succession(&heir, None, at(102));
        assert_eq!(until(), cached.until(), "it was not moved");
        assert!(!locks.holds_by_now(&claim));
        locks.note_heir(&heir);
        locks.note_succession(&heir, Some(5), at(102));
        assert!(locks.holds_by_now(&claim));
        assert_eq!(until(), target.until_from(at(102)));
    }
}
