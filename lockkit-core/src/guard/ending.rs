//! What a release does beside the request: leaves a least hold to the backend, and finds why a lock was not
//! there any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::HeldClaim;
use crate::clock::{Moment, unix_ms};
use crate::driver::{ClaimEnd, Renewal};
use crate::error::in_time;
use crate::observe;
use crate::record::GivenBack;
use crate::{BreakRecord, Error, LossReason};

/// How long a release that found nothing waits for the reason.
const EXPLANATION: Duration = Duration::from_secs(2);

impl HeldClaim {
    /// Leaves the claim to a lease that ends at `until`, which needs this process no more.
    pub(super) async fn leave_lease(self, until: Moment) -> Result<(), Error> {
        let (record, registry) = (&self.lease.record, &self.core.registry);
        let given = self.give_back();
        let claim = &given.claim;
        observe::released(record.labels, claim.key.name.as_str(), given.held_for);
        registry.remove(claim.id, record);
        if record.ambiguous() > 0 {
            // A request that is still under way could lengthen the lease: dropped, this releases at `until`.
            return Ok(());
        }
        // From here to the answer, dropping this future drops `self`, which is still armed.
        match registry.leave_lease(claim, until).await {
            Ok(Renewal::Holds(_)) => {
                self.releases_on_drop.store(false, Ordering::Relaxed);
                Ok(())
            }
            Ok(Renewal::Waits { .. }) => Ok(()),
            Ok(Renewal::Ended(ClaimEnd::NotFound)) => {
                self.releases_on_drop.store(false, Ordering::Relaxed);
                Err(Error::Lost { reason: self.missing(given).await })
            }
            Ok(Renewal::Ended(ended)) => {
                self.releases_on_drop.store(false, Ordering::Relaxed);
                Err(Error::Lost { reason: ended.into() })
            }
            Err(error) => Err(error),
        }
    }

    /// Why the backend did not have the claim when it was released. Asks whether it was broken.
    pub(super) async fn missing(&self, given: GivenBack) -> LossReason {
        let now = self.core.clock().now();
        let explained = in_time(self.core.backend(), EXPLANATION, self.break_of(&given)).await;
        match explained {
            Ok(Some(record)) => LossReason::Broken(record),
            _ => given.missing(now),
        }
    }

    async fn break_of(&self, given: &GivenBack) -> Result<Option<BreakRecord>, Error> {
        let driver = self.core.driver();
        match driver.renew_single(&given.claim).await? {
            Renewal::Ended(ClaimEnd::Broken(record)) => return Ok(Some(record)),
            Renewal::Ended(_) => {}
            // An acquire of it that was under way arrived meanwhile.
            _ => {
                self.releases_on_drop.store(true, Ordering::Relaxed);
                return Ok(None);
            }
        }
        // A quorum forgets what it released. The last break of the lock is that of this claim if it
        // was made since the grant; the clock of its maker may differ from this one.
        let state = driver.inspect(&given.claim.key).await?;
        let since = given.held_for.unwrap_or_default() + Duration::from_secs(60);
        let earliest = u128::from(unix_ms()).saturating_sub(since.as_millis());
        Ok(state.last_break.filter(|record| u128::from(record.at_unix_ms) >= earliest))
    }
}
