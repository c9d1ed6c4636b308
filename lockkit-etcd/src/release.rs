//! Taking claims out, and making exclusive ones shared.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use lockkit_core::driver::{Ended, Released, Renewal};
use lockkit_core::{Claim, Error, Mode};

use crate::calls::{Failure, ranges};
use crate::inner::{Inner, created, delete, odd};
use crate::keys::{end_of_claims, in_list};
use crate::wait::Moved;

/// How often a downgrade looks again while others write the key.
const LOOKS: usize = 3;

impl Inner {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released, Error> {
        let list = self.root.list(&claim.key);
        let known = self.places().get(&claim.id).map(|p| (p.entry.key.clone(), p.entry.created));
        let was_known = known.is_some();
        let (key, at) = known.unwrap_or_else(|| (in_list(&list, claim), 0));
        let txn = || {
            // No other claim ever has this key, so whatever stands there is this one.
            let mine = match was_known {
                true => created(&key, at),
                false => Compare::create_revision(&*key, CompareOp::Greater, 0),
            };
            let any =
                GetOptions::new().with_range(end_of_claims(&list)).with_limit(1).with_keys_only();
            Txn::new()
                .when([mine])
                .and_then([delete(&key)])
                .or_else([TxnOp::get(&*list, Some(any))])
        };
        let answer = self.calls.txn_by(txn).await?;
        if let Some(place) = self.forget(claim.id)
            && claim.lifetime != lockkit_core::Lifetime::Renewed
            && place.entry.is_holding()
        {
            place.lease.end();
        }
        // The first attempt may have done it, and its answer was lost.
        if answer.answer.succeeded() || (answer.repeated && was_known) {
            return Ok(Released::Removed);
        }
        let rest = ranges(&answer.answer).pop().ok_or_else(odd)?;
        Ok(match rest.count() {
            0 => Released::NoSuchLock,
            _ => Released::NotInLine,
        })
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
            match self.move_to(&place.entry, &place.lease, Some(value.shared())).await {
                Ok(Moved::Done(moved)) => {
                    // (That it is on this lease may also be from before.)
                    let done = moved.mode == Mode::Shared;
                    if let Some(place) = self.places().get_mut(&claim.id) {
                        place.entry = moved;
                    }
                    if done {
                        return Ok(renewal);
                    }
                }
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
