//! What a record is made with, and what is left of it after its release.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::deadline::Margin;
use crate::observe::Labels;
use crate::{Claim, LossReason};

/// What a record is made with, beside its claim.
#[derive(Clone, Copy)]
pub(crate) struct RecordOptions {
    pub(crate) margin: Margin,
    pub(crate) base: u64,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    /// How much of the lease is never trusted: for so long the name stays closed after a loss.
    pub(crate) lock_delay: Duration,
    pub(crate) labels: Labels,
}

/// A claim that has been given back.
pub(crate) struct GivenBack {
    pub(crate) claim: Arc<Claim>,
    /// Why it was lost before that, if it was.
    pub(crate) lost: Option<LossReason>,
    pub(crate) held_for: Option<Duration>,
    pub(crate) ttl: Duration,
    /// Until when it could be trusted, and what became of it after that.
    pub(super) trusted: Moment,
    pub(super) over: LossReason,
}

impl GivenBack {
    /// Why the backend said by now that it does not have it.
    pub(crate) fn missing(self, now: Moment) -> LossReason {
        match now < self.trusted {
            true => LossReason::Vanished,
            false => self.over,
        }
    }
}
