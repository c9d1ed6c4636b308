//! What the registry has the renewer release: at once, when a lease is over, or when a least hold or a lock
//! delay is.

use std::sync::Arc;
use std::time::Duration;

use super::{RELEASE, Registry, Release};
use crate::background::PendingGuard;
use crate::clock::Moment;
use crate::concurrency::locked;
use crate::driver::Renewal;
use crate::error::in_time;
use crate::record::{ClaimRecord, GivenBack};
use crate::{Capabilities, Claim, Error, Lifetime};

impl Registry {
    /// A claim is released from now on, until this is dropped: a shutdown waits for that. To be had before the
    /// claim is given back, since a shutdown that finds it in the records releases it itself.
    pub(crate) fn releasing(&self) -> PendingGuard {
        PendingGuard::new(&self.pending)
    }

    /// Has a claim released in the background. Works outside a runtime too: then the renewer does
    /// it when it runs, and the lease ends by itself when it does not.
    pub(crate) fn release(&self, release: Release) {
        let pending = self.releasing();
        locked(&self.releases).push((release, pending));
        self.wake.notify_one();
    }

    /// The same at once, of a claim that was held, or waited for, under this record.
    pub(crate) fn release_of(&self, record: &ClaimRecord) {
        let (claim, ambiguous) = (record.claim(), record.ambiguous());
        let not_before = self.clock.now();
        let least = record.least_end();
        let give_up = least.unwrap_or(not_before).after(claim.hold_ttl);
        let is_gate_ambiguous = record.is_gate_ambiguous();
        self.release(Release { claim, not_before, give_up, ambiguous, is_gate_ambiguous, least });
    }

    /// Takes a claim that was lost, with a lock delay, out of its list when the delay is over: a session
    /// that lives on would keep it for ever. Nothing where that was ordered before.
    pub(crate) fn release_after_loss(&self, record: &ClaimRecord, given: &GivenBack) {
        if let Some(deadline) = given.unnoticed_loss() {
            self.release_at(given.claim.clone(), record.closed_until(deadline, given.ttl));
        }
    }

    pub(super) fn release_at(&self, claim: Arc<Claim>, lease_end: Moment) {
        self.release(Release::of(claim, lease_end));
    }

    /// Whether this claim has a lease of its own that needs no process and can be made to end early.
    pub(crate) fn can_leave_lease(&self, claim: &Claim) -> bool {
        let Capabilities { detached, shorten, .. } = *self.driver.capabilities();
        detached && shorten && claim.lifetime == Lifetime::Detached
    }

    /// Makes the lease of a claim end at `until`, in bounded time.
    pub(crate) async fn leave_lease(
        &self,
        claim: &Arc<Claim>,
        until: Moment,
    ) -> Result<Renewal, Error> {
        // Most backends count whole milliseconds, and drop what is less.
        let rest = until.since(self.clock.now()).as_nanos().div_ceil(1_000_000);
        let rest = Duration::from_millis(u64::try_from(rest).unwrap_or(u64::MAX));
        let rest = rest.max(self.driver.capabilities().min_ttl);
        let answer = in_time(self.backend(), RELEASE, self.driver.shorten(claim, rest)).await;
        if answer.is_ok() {
            self.outages.answered();
        }
        answer
    }

    /// Renews a claim that stays held until its least hold is over: its lease counts from a request that was
    /// sent before the grant was known, and would end sooner.
    pub(crate) async fn renew_released(&self, claim: &Arc<Claim>) {
        let renewal = self.driver.renew(std::slice::from_ref(claim));
        if in_time(self.backend(), RELEASE, renewal).await.is_ok() {
            self.outages.answered();
        }
    }

    pub(crate) fn take_releases(&self) -> Vec<(Release, PendingGuard)> {
        std::mem::take(&mut *locked(&self.releases))
    }
}
