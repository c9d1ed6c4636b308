//! Putting claims in their queues.
//!
//! One transaction does all of it: it puts the key on the lease of a holder if the queue is empty;
//! otherwise on the lease of one that waits, unless it is there already, and shows the queue.
//! No client can come in between, so what is ahead is known and can only become less.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use lockkit_core::clock::Moment;
use lockkit_core::driver::{Acquire, Acquisition, ClaimData, Patience};
use lockkit_core::{Claim, Error, Lifetime, LossReason, Mode};

use crate::claim_cache::CachedClaim;
use crate::client::{EtcdError, EtcdResult, ranges};
use crate::key_suffixes::TakenSuffix;
use crate::keys::{end_of, fixed_limit_key, in_list, other_fixed_limits, other_limits};
use crate::lease_moves::{LeaseMove, LeaseMoveResult};
use crate::leases::EtcdLease;
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{QueueSnapshot, StoredClaim};
use crate::requests::{
    NextStep, TxnOutcome, created, delete, get_last, get_list, none_in, none_of, put,
    unexpected_response,
};

/// A claim on its way into its queue.
pub(crate) struct PendingAcquire {
    claim: Arc<Claim>,
    list: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Whether no request that puts it in was ever sent before.
    fresh: bool,
    hold: Arc<EtcdLease>,
    /// For one that may wait in the queue.
    wait: Option<Arc<EtcdLease>>,
    value: ClaimData,
    /// For a try that would hold beside others: the revision at which these were there.
    beside: Option<i64>,
}

impl PendingAcquire {
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<EtcdLease>> {
        std::iter::once(&self.hold).chain(&self.wait)
    }

    pub(crate) fn txn(&self) -> Txn {
        let Self { claim, list, key, .. } = self;
        let free = match self.beside {
            None => queue_is_empty(claim, key, list),
            // Put it in if no client has come or changed since. That a client left does not matter.
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
            // An exclusive claim waits for all to go: the last one ahead and their number will do.
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

impl EtcdLocks {
    /// A claim that is to be put in, with the leases that it needs.
    pub(crate) async fn pending_acquire(&self, acquire: &Acquire) -> EtcdResult<PendingAcquire> {
        let Acquire { claim, patience } = acquire;
        let list = self.root.list(&claim.key);
        let TakenSuffix { suffix, fresh } = self.suffixes.take(claim);
        let key = in_list(&list, claim, &suffix);
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
    ) -> EtcdResult<NextStep<PendingAcquire>> {
        let PendingAcquire { claim, key, fresh, hold, wait, value, .. } = &pending;
        let TxnOutcome { revision, sent, certain, .. } = outcome;
        if outcome.txn.succeeded() {
            let stored = made(key.clone(), value.clone().holding(), claim, hold.id, revision);
            let cached = CachedClaim::confirmed(stored, hold.clone(), None, sent);
            return self.answer(claim, cached, certain).await.map(NextStep::Done);
        }
        let mut shown = ranges(&outcome.txn);
        let list = shown.pop().ok_or_else(unexpected_response)?;
        let snapshot = QueueSnapshot::of(list.kvs(), list.count(), revision);
        let there_before = !fresh || !certain;
        let Some(wait) = wait else {
            let is_there = shown.pop().is_some_and(|own| !own.kvs().is_empty());
            let fits = snapshot.admits(claim);
            if !is_there && matches!(fits, Ok(true)) {
                return Ok(NextStep::Send(PendingAcquire { beside: Some(revision), ..pending }));
            }
            pending.abandon();
            if is_there {
                return self.try_again(claim, there_before).await.map(NextStep::Done);
            }
            fits?;
            if certain {
                self.suffixes.mark_certain(claim.id);
                self.suffixes.give_back(claim.id);
            }
            return Ok(NextStep::Done(Acquisition::Busy));
        };
        pending.abandon();
        match snapshot.entries().last() {
            // The usual case: it was just put at the end.
            Some(own) if own.key == *key && own.lease == wait.id && own.created == revision => {
                let cached =
                    CachedClaim::confirmed(own.clone(), wait.clone(), Some(snapshot), sent);
                self.answer(claim, cached, certain).await.map(NextStep::Done)
            }
            _ => self.already_there(claim, snapshot, there_before).await.map(NextStep::Done),
        }
    }

    /// Notes a claim for whose answer no client has waited: core has it released, or forgets it, and
    /// then it is swept.
    pub(crate) fn note_abandoned(&self, pending: &PendingAcquire, outcome: &TxnOutcome) {
        let PendingAcquire { claim, key, hold, value, .. } = pending;
        let shown = ranges(&outcome.txn);
        let stored = match outcome.txn.succeeded() {
            true => {
                Some(made(key.clone(), value.clone().holding(), claim, hold.id, outcome.revision))
            }
            false => {
                shown.iter().flat_map(|r| r.kvs()).find(|kv| kv.key() == key).map(StoredClaim::of)
            }
        };
        // (What is not known for certain to have been sent once is on a lease that is left.)
        if let Some(stored) = stored.filter(|_| outcome.certain)
            && let Some(lease) = self.leases.known(stored.lease)
        {
            let cached = CachedClaim::confirmed(stored, lease, None, outcome.sent);
            self.claims().entry(claim.id).or_insert(cached);
        }
    }

    /// The result for a claim that was put in just now: into an empty queue, or at the end of this one.
    async fn answer(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        cached: CachedClaim,
        certain: bool,
    ) -> EtcdResult<Acquisition> {
        let created = cached.stored.created;
        let snapshot = cached.snapshot.as_ref();
        let (holds, ahead) = snapshot.map_or((true, 0), |l| (l.holds(created), l.ahead(created)));
        self.cache_claim(claim.id, cached);
        if certain {
            self.suffixes.mark_certain(claim.id);
        }
        match holds {
            true => Ok(Acquisition::Granted(self.begin(claim).await?)),
            false => Ok(Acquisition::Queued { ahead }),
        }
    }

    /// The claim was there before, or was refused: an answer got lost, or a limit is another.
    /// Where nothing was ever `sent` before for the claim, what is stored there is not the claim.
    async fn already_there(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        snapshot: QueueSnapshot,
        sent: bool,
    ) -> EtcdResult<Acquisition> {
        let (key, _) = self.key_of(claim);
        if snapshot.find(&key).is_none() {
            snapshot.admits(claim)?;
        }
        let seen = self.inspect_claim(claim).await?;
        if let Some(record) = seen.broken {
            return Err(Error::lost(LossReason::Broken(record)).into());
        }
        match seen.own {
            Some(_) if !sent => {
                self.suffixes.replace(claim.id);
                Err(EtcdError::LeaseGone)
            }
            Some(own) => {
                let cached = self.adopt(claim, &own, seen.snapshot.clone(), seen.sent).await?;
                let renewed = self.leases.keep(&cached.lease).await?;
                if !renewed {
                    return Err(EtcdError::LeaseGone);
                }
                match seen.snapshot.holds(own.created) {
                    true => Ok(Acquisition::Granted(self.begin(claim).await?)),
                    false => Ok(Acquisition::Queued { ahead: seen.snapshot.ahead(own.created) }),
                }
            }
            None => {
                seen.snapshot.admits(claim)?;
                // It ended between the two reads, or the claim ahead of it did: begin again.
                Err(EtcdError::LeaseGone)
            }
        }
    }

    /// A try for a claim that is in its queue: it stays if it holds.
    async fn try_again(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        sent: bool,
    ) -> EtcdResult<Acquisition> {
        let seen = self.inspect_claim(claim).await?;
        match seen.own {
            Some(own) if sent && seen.broken.is_none() && !seen.snapshot.holds(own.created) => {
                let gone =
                    Txn::new().when([created(&own.key, own.created)]).and_then([delete(&own.key)]);
                self.client.txn(gone).await?;
                self.forget(claim.id);
                Ok(Acquisition::Busy)
            }
            _ => self.already_there(claim, seen.snapshot, sent).await,
        }
    }

    /// Notes a claim that was found in its queue, on a lease that this driver keeps alive.
    ///
    /// A claim may be on a lease that is retired, and about to be revoked, or on one of another
    /// driver, which may revoke it. It is moved to one of ours then, unless it has one of its own.
    pub(crate) async fn adopt(
        self: &Arc<Self>,
        claim: &Claim,
        own: &StoredClaim,
        snapshot: QueueSnapshot,
        seen: Moment,
    ) -> EtcdResult<CachedClaim> {
        let of_its_own = claim.lifetime != Lifetime::Renewed && own.is_holding();
        let lease = match self.leases.known(own.lease) {
            Some(lease) if !lease.is_gone() && !lease.is_retired() => Some(lease),
            _ if of_its_own => self.leases.find(own.lease).await?,
            _ => None,
        };
        if let Some(lease) = lease {
            return Ok(self.update_cached(claim, own, lease, Some(snapshot), seen));
        }
        self.update_cached(claim, own, self.leases.known_or(own.lease), Some(snapshot), seen);
        let target = match own.is_holding() {
            true => self.leases.holding(claim).await?,
            false => self.leases.waiting(claim).await?,
        };
        match self.relocate_one(&target, LeaseMove::as_it_is(claim, own.clone())).await? {
            LeaseMoveResult::Done(_) => self.cached(claim.id).ok_or(EtcdError::LeaseGone),
            // Others were at it as well: it is worth another read.
            LeaseMoveResult::Changed | LeaseMoveResult::NotFound => Err(EtcdError::LeaseGone),
        }
    }
}

/// "The queue is empty, and there is room for this claim."
fn queue_is_empty(claim: &Claim, key: &[u8], list: &[u8]) -> Vec<Compare> {
    let mut nobody = vec![none_of(list)];
    if let Mode::Permits { permits, limit } = claim.mode {
        nobody.extend(other_fixed_limits(list, limit).iter().map(|(from, to)| none_in(from, to)));
        if permits > limit {
            nobody.push(created(key, -1)); // never so: it has to wait
        }
    }
    nobody
}

/// Puts a claim at the end of its queue, unless it is in it, or the limit of the queue is another:
/// the one that it is fixed to, whatever the claims there once came with, or else the one of these.
fn at_the_end(claim: &Claim, key: &[u8], list: &[u8], put: TxnOp) -> Txn {
    let absent = created(key, 0);
    let Some(limit) = claim.mode.limit() else {
        return Txn::new().when([absent]).and_then([put]);
    };
    let others = other_limits(list, limit).into_iter().chain(other_fixed_limits(list, limit));
    let none = others.map(|(from, to)| none_in(&from, &to));
    let same_given = Compare::create_revision(fixed_limit_key(list, limit), CompareOp::Greater, 0);
    let counted = Txn::new().when([absent.clone(), same_given]).and_then([put.clone()]);
    Txn::new()
        .when([absent].into_iter().chain(none).collect::<Vec<_>>())
        .and_then([put])
        .or_else([TxnOp::txn(counted)])
}

/// A key as it was put just now.
fn made(key: Vec<u8>, value: ClaimData, claim: &Claim, lease: i64, revision: i64) -> StoredClaim {
    let (created, modified) = (revision, revision);
    StoredClaim { key, created, modified, lease, mode: claim.mode, value: Some(value) }
}
