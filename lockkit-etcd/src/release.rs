//! Taking claims out, and making exclusive ones shared.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lockkit_core::driver::{ClaimData, ClaimEnd, Released, Renewal};
use lockkit_core::{Claim, Error, Lifetime, Mode, Result};

use crate::claim_cache::CachedClaim;
use crate::client::{EtcdError, EtcdResult, ranges};
use crate::heir::Heir;
use crate::keys::end_of_claims;
use crate::lease_moves::{LeaseMove, LeaseMoveResult};
use crate::leases::EtcdLease;
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{Position, StoredClaim};
use crate::requests::{TxnOutcome, created, delete, unexpected_response, written};

/// How often a downgrade looks again while others write the key.
const MAX_READS: usize = 3;

/// A claim on its way out of its queue.
pub(crate) struct PendingRelease {
    claim: Arc<Claim>,
    list: Vec<u8>,
    pub(crate) key: Vec<u8>,
    created: Option<i64>,
    /// The last revision of the key of a holder, if what was put under it is known for certain.
    modified: Option<i64>,
    /// Whether nothing was ahead of it, nor may anything hold beside it.
    is_sole_holder: bool,
    /// That of a holder.
    lease: Option<Arc<EtcdLease>>,
    /// The waiter that is to hold with the same request.
    pub(crate) heir: Option<Heir>,
}

impl PendingRelease {
    /// Where it is, as far as is known.
    pub(crate) fn position(&self) -> Option<Position> {
        Some((self.key.clone(), self.created?))
    }

    /// Where it is, if it is certain that nothing else holds and that only this driver wrote its key.
    pub(crate) fn sole_holder(&self) -> Option<Position> {
        self.position().filter(|_| self.is_sole_holder && self.modified.is_some())
    }

    /// Deletes the key and lets its heir hold; otherwise only deletes it.
    pub(crate) fn txn(&self) -> Txn {
        let alone = self.txn_without_heir();
        match (&self.heir, self.modified) {
            (Some(heir), Some(modified)) => Txn::new()
                .when([written(&self.key, modified), heir.is_there()])
                .and_then([delete(&self.key), heir.promote()])
                .or_else([TxnOp::txn(alone)]),
            _ => alone,
        }
    }

    /// Deletes the key; otherwise asks whether any client is in the queue.
    fn txn_without_heir(&self) -> Txn {
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
            let (is_sole_holder, lease) = (stored.is_sole_holder(), holds.then(|| lease.clone()));
            return PendingRelease {
                claim,
                list,
                key,
                created,
                modified,
                is_sole_holder,
                lease,
                heir: None,
            };
        }
        let (key, created) = self.key_of(&claim);
        let (modified, is_sole_holder, lease, heir) = (None, false, None, None);
        PendingRelease { claim, list, key, created, modified, is_sole_holder, lease, heir }
    }

    /// What became of it.
    pub(crate) async fn released(
        &self,
        pending: PendingRelease,
        outcome: TxnOutcome,
    ) -> EtcdResult<Released> {
        let position = pending.position();
        let PendingRelease { claim, modified, lease, heir, .. } = pending;
        let mut answer = outcome.txn;
        if let Some(heir) = heir {
            let passed = answer.succeeded();
            self.note_succession(&heir, passed.then_some(outcome.revision), outcome.sent);
            if passed {
                self.was_written_here_only(&claim, position.as_ref());
                return Ok(Released::Removed);
            }
            answer = otherwise(answer)?;
        }
        if modified.is_some() {
            if answer.succeeded() {
                self.was_written_here_only(&claim, position.as_ref());
                return Ok(Released::Removed);
            }
            answer = otherwise(answer)?;
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

    /// A claim was taken out whose key no client has written since this driver put it there or moved it:
    /// then no client broke the claim either. (While it is being moved it may be of any revision.)
    fn was_written_here_only(&self, claim: &Claim, position: Option<&Position>) {
        self.claims().remove(&claim.id);
        position.into_iter().for_each(|position| self.successors.leave(position));
        self.suffixes.give_back(claim.id);
    }

    /// The lease of a holder that is renewed by hand or not at all is its own, and goes with it: the
    /// one that is known here, or else that of the key that was taken out. That of a ticket is
    /// waited for, since the program may be at its end.
    async fn end_own_leases(
        &self,
        claim: &Claim,
        known: Option<Arc<EtcdLease>>,
        answer: &TxnResponse,
    ) {
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
        for _ in 0..MAX_READS {
            renewal = self.renew_one(claim).await?;
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

/// What a transaction did whose condition was not met.
fn otherwise(answer: TxnResponse) -> EtcdResult<TxnResponse> {
    match answer.op_responses().pop() {
        Some(TxnOpResponse::Txn(otherwise)) => Ok(otherwise),
        _ => Err(unexpected_response()),
    }
}
