//! Taking claims out, and making exclusive ones shared.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lockkit_core::driver::{ClaimData, ClaimEnd, Released, Renewal};
use lockkit_core::{Claim, Error, Lifetime, Mode, Result};

use crate::claim_cache::CachedClaim;
use crate::client::{EtcdError, EtcdResult, ranges};
use crate::keys::end_of_claims;
use crate::lease_moves::{LeaseMove, LeaseMoveResult};
use crate::leases::Lease;
use crate::locks::EtcdLocks;
use crate::queue_snapshot::StoredClaim;
use crate::requests::{TxnOutcome, created, delete, unexpected_response, written};

/// How often a downgrade looks again while others write the key.
const LOOKS: usize = 3;

/// A claim on its way out of its queue.
pub(crate) struct PendingRelease {
    claim: Arc<Claim>,
    list: Vec<u8>,
    pub(crate) key: Vec<u8>,
    created: Option<i64>,
    /// The last revision of the key of a holder, if what was put under it is known for certain.
    modified: Option<i64>,
    /// That of a holder.
    lease: Option<Arc<Lease>>,
}

impl PendingRelease {
    /// Deletes the key; otherwise asks whether any client is in the queue.
    pub(crate) fn txn(&self) -> Txn {
        let Self { claim, list, key, created: at, modified, .. } = self;
        // Where it is not known when it was created the key is of this claim alone.
        let mine = match at {
            Some(at) => created(key, *at),
            None => Compare::create_revision(&**key, CompareOp::Greater, 0),
        };
        let remove = match claim.lifetime {
            Lifetime::Renewed => delete(key),
            _ => TxnOp::delete(&**key, Some(DeleteOptions::new().with_prev_key())),
        };
        let any = GetOptions::new().with_range(end_of_claims(list)).with_limit(1).with_keys_only();
        let any = TxnOp::get(&**list, Some(any));
        let txn = Txn::new().when([mine]).and_then([remove]).or_else([any]);
        match modified {
            Some(modified) => Txn::new()
                .when([written(key, *modified)])
                .and_then([delete(key)])
                .or_else([TxnOp::txn(txn)]),
            None => txn,
        }
    }
}

impl EtcdLocks {
    /// A claim that is to be taken out, as far as it is known.
    pub(crate) fn pending_release(&self, claim: &Arc<Claim>) -> PendingRelease {
        let (list, claim) = (self.root.list(&claim.key), claim.clone());
        let is_certain = self.suffixes.is_certain(claim.id);
        if let Some(CachedClaim { stored, lease, .. }) = self.claims().get(&claim.id) {
            let (key, created, holds) =
                (stored.key.clone(), Some(stored.created), stored.is_holding());
            let modified = (holds && is_certain).then_some(stored.modified);
            let lease = holds.then(|| lease.clone());
            return PendingRelease { claim, list, key, created, modified, lease };
        }
        let (key, created) = self.key_of(&claim);
        PendingRelease { claim, list, key, created, modified: None, lease: None }
    }

    /// What became of it.
    pub(crate) async fn released(
        &self,
        pending: PendingRelease,
        outcome: TxnOutcome,
    ) -> EtcdResult<Released> {
        let PendingRelease { claim, modified, lease, .. } = pending;
        let mut answer = outcome.txn;
        if modified.is_some() {
            if answer.succeeded() {
                // No client has written the key since this driver put it there or moved it: then no
                // client broke the claim either. (While it is being moved it may be of any
                // revision.)
                self.claims().remove(&claim.id);
                self.suffixes.give_back(claim.id);
                return Ok(Released::Removed);
            }
            let otherwise = answer.op_responses().pop();
            let Some(TxnOpResponse::Txn(otherwise)) = otherwise else {
                return Err(unexpected_response());
            };
            answer = otherwise;
        }
        self.forget(claim.id);
        if claim.lifetime != Lifetime::Renewed {
            self.end_own_leases(&claim, lease, &answer).await;
        }
        Ok(match answer.succeeded() {
            true => Released::Removed,
            false => match ranges(&answer).pop().ok_or_else(unexpected_response)?.count() {
                0 => Released::NoSuchLock,
                _ => Released::NotFound,
            },
        })
    }

    /// The lease of a holder that is renewed by hand or not at all is its own, and goes with it: the
    /// one that is known here, or else that of the key that was taken out. That of a ticket is
    /// waited for, since the program may be at its end.
    async fn end_own_leases(&self, claim: &Claim, known: Option<Arc<Lease>>, answer: &TxnResponse) {
        let taken_out = answer.op_responses().into_iter().filter_map(|op| match op {
            TxnOpResponse::Delete(mut deleted) => deleted.take_prev_kvs().pop(),
            _ => None,
        });
        let entries = taken_out.map(|kv| StoredClaim::of(&kv));
        let own = entries.filter(|e| e.value.as_ref().is_some_and(ClaimData::is_holding));
        let mut leases: Vec<_> = known.into_iter().collect();
        for id in own.map(|stored| stored.lease) {
            if leases.iter().all(|lease| lease.id != id) {
                leases.push(self.leases.known_or(id));
            }
        }
        for lease in leases {
            match claim.lifetime {
                Lifetime::Detached => self.leases.revoke(&lease).await,
                _ => lease.end(),
            }
        }
    }

    pub(crate) async fn downgrade(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Renewal> {
        let mut renewal = Renewal::Ended(ClaimEnd::NotFound);
        for _ in 0..LOOKS {
            renewal = self.renew_alone(claim).await?;
            if !matches!(renewal, Renewal::Holds(_)) {
                return Ok(renewal);
            }
            let Some(cached) = self.cached(claim.id) else {
                continue;
            };
            if cached.stored.mode != Mode::Exclusive {
                return Ok(renewal);
            }
            let Some(value) = cached.stored.value.clone() else {
                return Ok(renewal);
            };
            let CachedClaim { stored, lease, .. } = cached;
            let moving = LeaseMove { id: claim.id, stored, value: Some(value.downgraded()) };
            match self.relocate_one(&lease, moving).await {
                // (That it is on this lease may also be from before.)
                Ok(LeaseMoveResult::Done(moved)) if moved.mode == Mode::Shared => {
                    return Ok(renewal);
                }
                Ok(_) | Err(EtcdError::LeaseGone) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        match renewal {
            Renewal::Holds(_) => {
                Err(Error::retryable(crate::client::BACKEND, "others keep writing this claim"))
            }
            ended => Ok(ended),
        }
    }
}
