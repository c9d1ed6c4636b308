//! Putting claims in line.
//!
//! One transaction does all of it: it puts the key on the lease of a holder if the list is empty;
//! otherwise on the lease of one that waits, unless it is there already, and shows the list.
//! Nobody can come in between, so what stands ahead is known and can only become less.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use lockkit_core::clock::Moment;
use lockkit_core::driver::{Acquire, Acquisition, ClaimData, Patience};
use lockkit_core::{Claim, Error, Lifetime, LossReason, Mode};

use crate::calls::{EtcdError, ranges};
use crate::claim_cache::Place;
use crate::keys::{end_of, given, in_list, other_given, other_limits};
use crate::leases::Lease;
use crate::line::{Entry, Line};
use crate::locks::Locks;
use crate::moves::{Moved, Moving};
use crate::requests::{
    NextStep, TxnOutcome, created, delete, get_last, get_list, none_in, none_of, put,
    unexpected_response,
};
use crate::tails::Taken;

/// A claim on its way into its list.
pub(crate) struct PendingAcquire {
    claim: Arc<Claim>,
    list: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Whether no request that puts it in was ever sent before.
    fresh: bool,
    hold: Arc<Lease>,
    /// For one that may stand in line.
    wait: Option<Arc<Lease>>,
    value: ClaimData,
    /// For a try that would hold beside others: the revision at which these were there.
    beside: Option<i64>,
}

impl PendingAcquire {
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        std::iter::once(&self.hold).chain(&self.wait)
    }

    pub(crate) fn txn(&self) -> Txn {
        let Self { claim, list, key, .. } = self;
        let free = match self.beside {
            None => nobody_there(claim, key, list),
            // Put it in if nobody has come or changed since. That somebody left does not matter.
            Some(revision) => {
                let old = Compare::mod_revision(&**list, CompareOp::Less, revision + 1);
                vec![created(key, 0), old.with_range(end_of(list))]
            }
        };
        let otherwise = match &self.wait {
            Some(wait) => {
                TxnOp::txn(at_the_end(claim, key, list, put(key, self.value.to_json(), wait.id)))
            }
            None => TxnOp::get(&**key, None),
        };
        let show = match claim.mode {
            // Who wants it alone waits for all to go: the one before and their number will do.
            Mode::Exclusive => get_last(list, 2),
            _ => get_list(list),
        };
        Txn::new()
            .when(free)
            .and_then([put(key, self.value.clone().holding().to_json(), self.hold.id)])
            .or_else([otherwise, show])
    }

    /// It does not need the lease that was made for it alone.
    pub(crate) fn abandon(&self) {
        if self.claim.lifetime != Lifetime::Renewed {
            self.hold.end();
        }
    }
}

impl Locks {
    /// A claim that is to be put in, with the leases that it needs.
    pub(crate) async fn pending_acquire(
        &self,
        acquire: &Acquire,
    ) -> Result<PendingAcquire, EtcdError> {
        let Acquire { claim, patience } = acquire;
        let list = self.root.list(&claim.key);
        let Taken { tail, fresh } = self.tails.take(claim);
        let key = in_list(&list, claim, &tail);
        let hold = self.leases.holding(claim).await?;
        let wait = match patience {
            Patience::Wait => Some(self.leases.waiting(claim).await?),
            Patience::Try => None,
        };
        let (claim, value) = (claim.clone(), ClaimData::of(claim).queued_now());
        Ok(PendingAcquire { claim, list, key, fresh, hold, wait, value, beside: None })
    }

    /// What became of it.
    pub(crate) async fn acquired(
        self: &Arc<Self>,
        pending: PendingAcquire,
        outcome: TxnOutcome,
    ) -> Result<NextStep<PendingAcquire>, EtcdError> {
        let PendingAcquire { claim, key, fresh, hold, wait, value, .. } = &pending;
        let TxnOutcome { revision, sent, certain, .. } = outcome;
        if outcome.txn.succeeded() {
            let entry = made(key.clone(), value.clone().holding(), claim, hold.id, revision);
            let place = Place::seen(entry, hold.clone(), None, sent);
            return self.answer(claim, place, certain).await.map(NextStep::Done);
        }
        let mut shown = ranges(&outcome.txn);
        let list = shown.pop().ok_or_else(unexpected_response)?;
        let line = Line::of(list.kvs(), list.count(), revision);
        let there_before = !fresh || !certain;
        let Some(wait) = wait else {
            let is_there = shown.pop().is_some_and(|own| !own.kvs().is_empty());
            let fits = line.admits(claim);
            if !is_there && matches!(fits, Ok(true)) {
                return Ok(NextStep::Send(PendingAcquire { beside: Some(revision), ..pending }));
            }
            pending.abandon();
            if is_there {
                return self.tried_before(claim, there_before).await.map(NextStep::Done);
            }
            fits?;
            if certain {
                self.tails.sure(claim.id);
                self.tails.back(claim.id);
            }
            return Ok(NextStep::Done(Acquisition::Busy));
        };
        pending.abandon();
        match line.entries().last() {
            // The usual case: it has just been put at the end.
            Some(own) if own.key == *key && own.lease == wait.id && own.created == revision => {
                let place = Place::seen(own.clone(), wait.clone(), Some(line), sent);
                self.answer(claim, place, certain).await.map(NextStep::Done)
            }
            _ => self.already_there(claim, line, there_before).await.map(NextStep::Done),
        }
    }

    /// Notes a claim for whose answer nobody has waited: core has it released, or forgets it, and
    /// then it is swept.
    pub(crate) fn note_abandoned(&self, pending: &PendingAcquire, outcome: &TxnOutcome) {
        let PendingAcquire { claim, key, hold, value, .. } = pending;
        let shown = ranges(&outcome.txn);
        let entry = match outcome.txn.succeeded() {
            true => {
                Some(made(key.clone(), value.clone().holding(), claim, hold.id, outcome.revision))
            }
            false => shown.iter().flat_map(|r| r.kvs()).find(|kv| kv.key() == key).map(Entry::of),
        };
        // (What is not known for certain to have been sent once stands on a lease that is left.)
        if let Some(entry) = entry.filter(|_| outcome.certain)
            && let Some(lease) = self.leases.known(entry.lease)
        {
            let place = Place::seen(entry, lease, None, outcome.sent);
            self.places().entry(claim.id).or_insert(place);
        }
    }

    /// The answer about a claim that was put in just now: where nobody was, or into this line.
    async fn answer(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        place: Place,
        certain: bool,
    ) -> Result<Acquisition, EtcdError> {
        let created = place.entry.created;
        let line = place.line.as_ref();
        let (holds, ahead) = line.map_or((true, 0), |l| (l.holds(created), l.ahead(created)));
        self.note(claim.id, place);
        if certain {
            self.tails.sure(claim.id);
        }
        match holds {
            true => Ok(Acquisition::Granted(self.begin(claim).await?)),
            false => Ok(Acquisition::Queued { ahead }),
        }
    }

    /// The claim was there before, or was refused: an answer got lost, or a limit is another.
    /// Where nothing was ever `sent` before for the claim, what stands there is not the claim.
    async fn already_there(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        line: Line,
        sent: bool,
    ) -> Result<Acquisition, EtcdError> {
        let (key, _) = self.key_of(claim);
        if line.find(&key).is_none() {
            line.admits(claim)?;
        }
        let look = self.look(claim).await?;
        if let Some(record) = look.broken {
            return Err(Error::Lost { reason: LossReason::Broken(record) }.into());
        }
        match look.own {
            Some(_) if !sent => {
                self.tails.leave(claim.id);
                Err(EtcdError::LeaseGone)
            }
            Some(own) => {
                let place = self.adopt(claim, &own, look.line.clone(), look.sent).await?;
                let renewed = self.leases.keep(&place.lease).await?;
                if !renewed {
                    return Err(EtcdError::LeaseGone);
                }
                match look.line.holds(own.created) {
                    true => Ok(Acquisition::Granted(self.begin(claim).await?)),
                    false => Ok(Acquisition::Queued { ahead: look.line.ahead(own.created) }),
                }
            }
            None => {
                look.line.admits(claim)?;
                // It ended between the two looks, or who was in its way did: begin again.
                Err(EtcdError::LeaseGone)
            }
        }
    }

    /// A try for a claim that is in line: it stays if it holds.
    async fn tried_before(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        sent: bool,
    ) -> Result<Acquisition, EtcdError> {
        let look = self.look(claim).await?;
        match look.own {
            Some(own) if sent && look.broken.is_none() && !look.line.holds(own.created) => {
                let gone =
                    Txn::new().when([created(&own.key, own.created)]).and_then([delete(&own.key)]);
                self.calls.txn(gone).await?;
                self.forget(claim.id);
                Ok(Acquisition::Busy)
            }
            _ => self.already_there(claim, look.line, sent).await,
        }
    }

    /// Notes a claim that was found in line, on a lease that this driver keeps alive.
    ///
    /// A claim may stand on a lease that is retired, and about to be revoked, or on one of another
    /// driver, which may revoke it. It is moved to one of ours then, unless it has one of its own.
    pub(crate) async fn adopt(
        self: &Arc<Self>,
        claim: &Claim,
        own: &Entry,
        line: Line,
        seen: Moment,
    ) -> Result<Place, EtcdError> {
        let of_its_own = claim.lifetime != Lifetime::Renewed && own.is_holding();
        let lease = match self.leases.known(own.lease) {
            Some(lease) if !lease.is_gone() && !lease.is_retired() => Some(lease),
            _ if of_its_own => self.leases.find(own.lease).await?,
            _ => None,
        };
        if let Some(lease) = lease {
            return Ok(self.settle(claim, own, lease, Some(line), seen));
        }
        self.settle(claim, own, self.leases.known_or(own.lease), Some(line), seen);
        let target = match own.is_holding() {
            true => self.leases.holding(claim).await?,
            false => self.leases.waiting(claim).await?,
        };
        match self.relocate_one(&target, Moving::as_it_is(claim, own.clone())).await? {
            Moved::Done(_) => self.place(claim.id).ok_or(EtcdError::LeaseGone),
            // Others were at it as well: it is worth another look.
            Moved::Elsewhere | Moved::Gone => Err(EtcdError::LeaseGone),
        }
    }
}

/// "The list is empty, and there is room for this claim."
fn nobody_there(claim: &Claim, key: &[u8], list: &[u8]) -> Vec<Compare> {
    let mut nobody = vec![none_of(list)];
    if let Mode::Permits { permits, limit } = claim.mode {
        nobody.extend(other_given(list, limit).iter().map(|(from, to)| none_in(from, to)));
        if permits > limit {
            nobody.push(created(key, -1)); // never so: it has to wait
        }
    }
    nobody
}

/// Puts a claim at the end of its list, unless it is in it, or the limit of the list is another:
/// the one that it was given, whatever the claims there once came with, or else the one of these.
fn at_the_end(claim: &Claim, key: &[u8], list: &[u8], put: TxnOp) -> Txn {
    let absent = created(key, 0);
    let Some(limit) = claim.mode.limit() else {
        return Txn::new().when([absent]).and_then([put]);
    };
    let others = other_limits(list, limit).into_iter().chain(other_given(list, limit));
    let none = others.map(|(from, to)| none_in(&from, &to));
    let same_given = Compare::create_revision(given(list, limit), CompareOp::Greater, 0);
    let counted = Txn::new().when([absent.clone(), same_given]).and_then([put.clone()]);
    Txn::new()
        .when([absent].into_iter().chain(none).collect::<Vec<_>>())
        .and_then([put])
        .or_else([TxnOp::txn(counted)])
}

/// A key as it was put just now.
fn made(key: Vec<u8>, value: ClaimData, claim: &Claim, lease: i64, revision: i64) -> Entry {
    let (created, modified) = (revision, revision);
    Entry { key, created, modified, lease, mode: claim.mode, value: Some(value) }
}
