//! Taking claims out, and making exclusive ones shared.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lockkit_core::driver::{Ended, Released, Renewal};
use lockkit_core::{Claim, Error, Lifetime, Mode};

use crate::calls::{Failure, Reply, ranges};
use crate::inner::{Inner, Place, created, delete, odd, written};
use crate::keys::end_of_claims;
use crate::leases::Lease;
use crate::line::Entry;
use crate::moves::{Moved, Moving};
use crate::value::Value;

/// How often a downgrade looks again while others write the key.
const LOOKS: usize = 3;

/// What a release has to know of a claim.
struct Known {
    key: Vec<u8>,
    created: i64,
    modified: i64,
    holds: bool,
    lease: Arc<Lease>,
}

impl Known {
    fn of(place: &Place) -> Self {
        let Place { entry, lease, .. } = place;
        Self {
            key: entry.key.clone(),
            created: entry.created,
            modified: entry.modified,
            holds: entry.is_holding(),
            lease: lease.clone(),
        }
    }
}

impl Inner {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released, Error> {
        let list = self.root.list(&claim.key);
        let known = self.places().get(&claim.id).map(Known::of);
        let mut repeated = false;
        // Nobody has written the key since this driver put it there or moved it: then nobody broke
        // the claim either. (While it is being moved it may be of any revision.)
        if let Some(known) = known.as_ref().filter(|known| known.holds)
            && self.tails.is_sure(claim.id)
        {
            let untouched = || written(&known.key, known.modified);
            let answer = self.take_out_if(&list, &delete(&known.key), untouched).await?;
            if answer.answer.succeeded() {
                self.places().remove(&claim.id);
                self.tails.back(claim.id);
                return Ok(Released::Removed);
            }
            repeated = answer.is_repeated();
        }
        let was_known = known.is_some();
        let (key, at) = match known.as_ref() {
            Some(known) => (known.key.clone(), Some(known.created)),
            None => self.key_of(claim),
        };
        // Where it is not known when it was created the key is of this claim alone.
        let mine = || match at {
            Some(at) => created(&key, at),
            None => Compare::create_revision(&*key, CompareOp::Greater, 0),
        };
        let take_out = match claim.lifetime {
            Lifetime::Renewed => delete(&key),
            _ => TxnOp::delete(&*key, Some(DeleteOptions::new().with_prev_key())),
        };
        let answer = self.take_out_if(&list, &take_out, mine).await?;
        repeated |= answer.is_repeated();
        self.forget(claim.id);
        if claim.lifetime != Lifetime::Renewed {
            let known = known.filter(|known| known.holds).map(|known| known.lease);
            self.end_own_leases(claim, known, &answer.answer).await;
        }
        // The first attempt may have done it, and its answer was lost.
        if answer.answer.succeeded() || (repeated && was_known) {
            return Ok(Released::Removed);
        }
        let rest = ranges(&answer.answer).pop().ok_or_else(odd)?;
        Ok(match rest.count() {
            0 => Released::NoSuchLock,
            _ => Released::NotInLine,
        })
    }

    /// Deletes a key, on a condition; otherwise asks whether anybody is in the list.
    async fn take_out_if(
        &self,
        list: &[u8],
        delete: &TxnOp,
        mine: impl Fn() -> Compare,
    ) -> Result<Reply<TxnResponse>, Failure> {
        let txn = || {
            let any =
                GetOptions::new().with_range(end_of_claims(list)).with_limit(1).with_keys_only();
            Txn::new()
                .when([mine()])
                .and_then([delete.clone()])
                .or_else([TxnOp::get(list, Some(any))])
        };
        self.calls.txn_by(txn).await
    }

    /// The lease of a holder that is renewed by hand or not at all is its own, and goes with it: the
    /// one that is known here, or else that of the key that was taken out. That of a ticket is
    /// waited for, since the program may be at its end.
    async fn end_own_leases(&self, claim: &Claim, known: Option<Arc<Lease>>, answer: &TxnResponse) {
        let taken_out = answer.op_responses().into_iter().filter_map(|op| match op {
            TxnOpResponse::Delete(mut deleted) => deleted.take_prev_kvs().pop(),
            _ => None,
        });
        let entries = taken_out.map(|kv| Entry::of(&kv));
        let own = entries.filter(|e| e.value.as_ref().is_some_and(Value::is_holding));
        let mut leases: Vec<_> = known.into_iter().collect();
        for id in own.map(|entry| entry.lease) {
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

    pub(crate) async fn downgrade(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let mut renewal = Renewal::Ended(Ended::NotInLine);
        for _ in 0..LOOKS {
            renewal = self.renew_alone(claim).await?;
            if !matches!(renewal, Renewal::Holds(_)) {
                return Ok(renewal);
            }
            let Some(place) = self.place(claim.id) else {
                continue;
            };
            if place.entry.mode != Mode::Exclusive {
                return Ok(renewal);
            }
            let Some(value) = place.entry.value.clone() else {
                return Ok(renewal);
            };
            let Place { entry, lease, .. } = place;
            let moving = Moving { id: claim.id, entry, value: Some(value.shared()) };
            match self.relocate_one(&lease, moving).await {
                // (That it is on this lease may also be from before.)
                Ok(Moved::Done(moved)) if moved.mode == Mode::Shared => return Ok(renewal),
                Ok(_) | Err(Failure::LeaseGone) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        match renewal {
            Renewal::Holds(_) => {
                Err(Error::retryable(crate::calls::BACKEND, "others keep writing this claim"))
            }
            ended => Ok(ended),
        }
    }
}
