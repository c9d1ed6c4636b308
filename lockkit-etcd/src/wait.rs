//! Waiting in a queue, and what happens when it ends.
//!
//! What is ahead of a claim is known from the transaction that puts it in its queue, and only becomes less.
//!
//! Directly after a claim of the same driver an exclusive claim needs no watch: the driver takes that claim
//! out itself, and the same transaction lets the waiter hold (`heir.rs`). Only one that comes first after a
//! holder for a while watches, since others may end that holder.
//!
//! All others watch the one key that is ahead of them, and their own; for permits, all of the queue. A
//! client that holds alone says so in its key, so when its key goes the claim after it holds without a read.
//!
//! # The lease of a waiter, and of a holder
//! The two ttls of a claim are two leases. It is put in its queue on that of a waiter (unless it holds
//! at once), and when it holds its key is moved to that of a holder, from one revision of the key
//! to the next, so that no late or repeated request can move it back. That takes a round trip, for
//! which nothing waits: until it is done the claim may be trusted for as long as its old lease
//! lasts, and no longer than it will on the new one. Only claims that core does not renew wait for the
//! move, since the old lease may be too short for them; and those of whose time nothing is left.

use std::sync::Arc;

use etcd_client::KeyValue;
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{ClaimEnd, ClaimId, Grant};
use lockkit_core::{Claim, Error, Lifetime, LossReason, Mode, Result};
use tokio::sync::mpsc;

use crate::claim_cache::CachedClaim;
use crate::client::{EtcdError, EtcdResult};
use crate::keys::{end_of, fixed_limit_of};
use crate::lease_moves::{LeaseMove, LeaseMoveResult};
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{QueueSnapshot, StoredClaim};
use crate::watchers::{WatchEvent, WatchRange};
use crate::watches::WatchHandle;

/// What an event means to a waiter.
enum WaiterStep {
    Wait,
    Hold,
    Inspect,
}

impl EtcdLocks {
    /// Returns once the claim holds.
    pub(crate) async fn granted(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Grant> {
        loop {
            let cached = match self.cached(claim.id) {
                Some(cached) if cached.snapshot.is_some() || cached.stored.is_holding() => cached,
                _ => self.inspect_waiting(claim).await?,
            };
            if let Some(snapshot) = cached.snapshot.clone().filter(|_| !cached.stored.is_holding())
                && !snapshot.holds(cached.stored.created)
                && !self.wait(claim, &cached, QueueSnapshot::clone(&snapshot)).await?
            {
                self.inspect_waiting(claim).await?;
                continue;
            }
            // Its renewals may have moved it meanwhile.
            let cached = self.cached(claim.id).unwrap_or(cached);
            if cached.until() <= SteadyClock.now() {
                self.check(claim, &cached).await?;
            }
            return Ok(self.begin(claim).await?);
        }
    }

    /// Waits for the claim ahead. `true` when the claim then holds, `false` when that
    /// has to be read.
    async fn wait(
        &self,
        claim: &Arc<Claim>,
        cached: &CachedClaim,
        snapshot: QueueSnapshot,
    ) -> Result<bool> {
        let ahead = match claim.mode {
            Mode::Exclusive => snapshot.claim_ahead(cached.stored.created),
            _ => None,
        };
        let position = ahead.map(StoredClaim::position);
        let Some(following) = position.and_then(|ahead| self.successors.follow(ahead, claim))
        else {
            return self.wait_by_watch(claim, cached, snapshot).await;
        };
        tokio::select! {
            biased;
            () = following.woken() => return Ok(self.holds_by_now(claim)),
            () = following.relied_on(|ahead| self.certainly_waits(ahead)) => {}
        }
        tokio::select! {
            biased;
            () = following.woken() => Ok(self.holds_by_now(claim)),
            turn = self.wait_by_watch(claim, cached, snapshot) => turn,
        }
    }

    /// Whether a claim of this driver is in its queue, unless another client removed it, and waits.
    fn certainly_waits(&self, id: ClaimId) -> bool {
        let now = SteadyClock.now();
        self.cached(id).is_some_and(|it| !it.stored.is_holding() && it.until() > now)
    }

    /// Waits for the claim ahead by watching its key and the claim's own.
    async fn wait_by_watch(
        &self,
        claim: &Claim,
        cached: &CachedClaim,
        mut snapshot: QueueSnapshot,
    ) -> Result<bool> {
        let own = &cached.stored;
        let (to, mut events) = mpsc::unbounded_channel();
        let _watch = self.watch(claim, own, &snapshot, to);
        loop {
            let turn = match events.recv().await {
                None | Some(WatchEvent::Missed) => WaiterStep::Inspect,
                Some(WatchEvent::Deleted(key)) if key == own.key => {
                    return Err(self.lost(claim, cached).await);
                }
                // It was moved by a renewal, or broken gracefully.
                Some(WatchEvent::Changed(kv)) if kv.key() == own.key => WaiterStep::Inspect,
                // Its queue was given another limit.
                Some(WatchEvent::Deleted(key)) if fixed_limit_of(&key).is_some() => {
                    WaiterStep::Inspect
                }
                Some(WatchEvent::Deleted(key)) => {
                    let held_alone = snapshot.find(&key).is_some_and(StoredClaim::is_sole_holder);
                    snapshot.remove(&key);
                    match held_alone {
                        true => WaiterStep::Hold,
                        false => turn(&snapshot, own),
                    }
                }
                Some(WatchEvent::Changed(kv)) => changed(&mut snapshot, &kv, own),
            };
            match turn {
                WaiterStep::Wait => {}
                // Both may have gone at once, and the events come in any order.
                WaiterStep::Hold => match has_gone(&mut events, own) {
                    true => return Err(self.lost(claim, cached).await),
                    false => return Ok(true),
                },
                WaiterStep::Inspect => return Ok(false),
            }
        }
    }

    fn watch(
        &self,
        claim: &Claim,
        own: &StoredClaim,
        snapshot: &QueueSnapshot,
        to: mpsc::UnboundedSender<WatchEvent>,
    ) -> Vec<WatchHandle> {
        let from = snapshot.revision + 1;
        let Some(stored) = snapshot.claim_ahead(own.created) else {
            // All of the queue, itself included, in one watch that all waiters of it share. Where a
            // limit goes another one has come: so what is seen of both is seen in its order, and
            // no client takes a turn by a limit that was not in force any more when it came.
            let list = self.root.list(&claim.key);
            let all =
                WatchRange { end: end_of(&list), key: list, from, changes: false, content: None };
            return vec![self.watches.watch(all, to)];
        };
        // A reader may go on when a writer becomes a reader. And a writer that begins to hold has
        // nothing ahead of it: so when it leaves, the claim after it holds without a read.
        let changes =
            stored.mode == Mode::Exclusive && !stored.is_sole_holder() || own.mode == Mode::Shared;
        let one = |key: &[u8], changes| {
            let key = key.to_vec();
            WatchRange { key, end: Vec::new(), from, changes, content: None }
        };
        let (claim_ahead, mine) = (one(&stored.key, changes), one(&own.key, true));
        vec![self.watches.watch(mine, to.clone()), self.watches.watch(claim_ahead, to)]
    }

    /// Inspects a waiting claim.
    async fn inspect_waiting(self: &Arc<Self>, claim: &Claim) -> Result<CachedClaim> {
        let seen = self.inspect_ahead(claim).await?;
        if let Some(record) = seen.broken {
            self.forget(claim.id);
            return Err(Error::lost(LossReason::Broken(record)));
        }
        match seen.own {
            Some(own) => Ok(self.adopt(claim, &own, seen.snapshot, seen.sent).await?),
            None => {
                let cached = self.forget(claim.id);
                Err(Error::lost(self.why_gone(cached.as_ref()).await.into()))
            }
        }
    }

    /// Its lease may have ended while nothing was heard: asks, before a late grant.
    async fn check(self: &Arc<Self>, claim: &Claim, cached: &CachedClaim) -> Result<()> {
        let alive = self.leases.keep(&cached.lease).await?;
        match alive {
            true => self.inspect_waiting(claim).await.map(drop),
            false => Err(self.lost(claim, cached).await),
        }
    }

    /// The error for a claim whose key is gone.
    async fn lost(&self, claim: &Claim, cached: &CachedClaim) -> Error {
        self.forget(claim.id);
        let broken = self.inspect_claim(claim).await.ok().and_then(|seen| seen.broken);
        let reason = match broken {
            Some(record) => LossReason::Broken(record),
            None => self.why_gone(Some(cached)).await.into(),
        };
        Error::lost(reason)
    }

    /// Why a key is gone that no client broke: with its lease, and before that was over?
    pub(crate) async fn why_gone(&self, cached: Option<&CachedClaim>) -> ClaimEnd {
        let Some(cached) = cached.filter(|cached| cached.lease.until() > SteadyClock.now()) else {
            return ClaimEnd::NotFound;
        };
        let until = cached.lease.until();
        match self.leases.keep(&cached.lease).await {
            Ok(false) if until > SteadyClock.now() => ClaimEnd::SessionEnded,
            _ => ClaimEnd::NotFound,
        }
    }

    /// A claim begins to hold.
    pub(crate) async fn begin(self: &Arc<Self>, claim: &Arc<Claim>) -> EtcdResult<Grant> {
        let cached = self.cached(claim.id).ok_or(EtcdError::LeaseGone)?;
        if cached.stored.is_holding() {
            return self.grant_of(claim);
        }
        if claim.lifetime != Lifetime::Renewed || cached.until() <= SteadyClock.now() {
            self.promote(claim).await?;
            return self.grant_of(claim);
        }
        let grant = self.grant_of(claim)?;
        let (locks, claim) = (self.clone(), claim.clone());
        // When it fails, the next renewal does it.
        self.client.background.spawn(async move { drop(locks.promote(&claim).await) });
        Ok(grant)
    }

    /// Moves a claim that holds to the lease of a holder.
    pub(crate) async fn promote(self: &Arc<Self>, claim: &Arc<Claim>) -> EtcdResult<()> {
        let Some(cached) = self.cached(claim.id).filter(|cached| !cached.stored.is_holding())
        else {
            return Ok(());
        };
        let target = self.leases.holding(claim).await?;
        let moving = LeaseMove::to_hold(claim, cached.stored);
        match self.relocate_one(&target, moving).await? {
            LeaseMoveResult::Done(_) => Ok(()),
            LeaseMoveResult::Changed | LeaseMoveResult::NotFound => {
                if claim.lifetime != Lifetime::Renewed {
                    target.end();
                }
                Err(EtcdError::LeaseGone)
            }
        }
    }
}

/// Whether an event that has come in already says that this key has gone.
fn has_gone(events: &mut mpsc::UnboundedReceiver<WatchEvent>, own: &StoredClaim) -> bool {
    let mut come = std::iter::from_fn(|| events.try_recv().ok());
    come.any(|events| matches!(events, WatchEvent::Deleted(key) if key == own.key))
}

/// One of those ahead has gone.
fn turn(snapshot: &QueueSnapshot, own: &StoredClaim) -> WaiterStep {
    match (snapshot.holds(own.created), own.mode) {
        (true, _) => WaiterStep::Hold,
        // All of them are watched, so the queue is still complete.
        (false, Mode::Permits { .. }) => WaiterStep::Wait,
        (false, _) => WaiterStep::Inspect,
    }
}

/// One of those ahead was written: renewed in its lease, or downgraded.
fn changed(snapshot: &mut QueueSnapshot, kv: &KeyValue, own: &StoredClaim) -> WaiterStep {
    snapshot.update(kv);
    if snapshot.holds(own.created) {
        return WaiterStep::Hold;
    }
    match snapshot.claim_ahead(own.created).is_some_and(|stored| stored.key == kv.key()) {
        true => WaiterStep::Wait,
        false => WaiterStep::Inspect,
    }
}
