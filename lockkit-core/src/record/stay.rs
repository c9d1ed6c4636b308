//! For how long a claim stays held, or its name closed, when its guard is used no more: least hold and
//! lock delay.

use std::time::Duration;

use super::{ClaimPhase, ClaimRecord, GivenBack, NEVER};
use crate::clock::Moment;

impl ClaimRecord {
    /// When the lease that is known here ends, with its lock delay; `None` of a claim that does not hold.
    pub(crate) fn lease_end(&self) -> Option<Moment> {
        match &self.state().phase {
            ClaimPhase::Holding(h) => Some(self.closed_until(h.deadline, h.ttl)),
            _ => None,
        }
    }

    /// Until when the name stays closed after a guard that was trusted until `deadline`.
    pub(crate) fn closed_until(&self, deadline: Moment, ttl: Duration) -> Moment {
        deadline.after(self.margin.of(ttl)).after(self.lock_delay)
    }

    /// How long a lease lasts at the backend of which the guard trusts so much.
    pub(crate) fn with_lock_delay(&self, ttl: Duration) -> Duration {
        ttl.saturating_add(self.lock_delay)
    }

    /// Whether its name stays closed after a loss: then a claim that was lost is neither renewed nor
    /// released before that time is over.
    pub(crate) fn has_lock_delay(&self) -> bool {
        !self.lock_delay.is_zero()
    }

    /// Whether it has ended, or what is known of its lease ends before this.
    pub(crate) fn is_over_at(&self, moment: Moment) -> bool {
        match &self.state().phase {
            ClaimPhase::Ended(_) => true,
            ClaimPhase::Holding(h) => moment >= h.deadline,
            ClaimPhase::Waiting => false,
        }
    }

    /// Whether it was asked to hold for a time at least.
    pub(crate) fn has_at_least(&self) -> bool {
        self.state().at_least.is_some()
    }

    /// Changes how long it holds at least.
    pub(crate) fn set_at_least(&self, at_least: Option<Duration>) {
        let mut state = self.state();
        state.at_least = at_least;
        state.least_end = match (&state.phase, at_least) {
            (ClaimPhase::Holding(h), Some(d)) => Some(h.granted_at.after(d)),
            _ => None,
        };
    }

    /// Until when it is to stay held, whenever it is given back; `None` once that is over.
    pub(crate) fn least_end(&self) -> Option<Moment> {
        let now = self.clock.now();
        self.state().least_end.filter(|end| *end > now)
    }
}

impl GivenBack {
    /// When a lost claim ended that nothing has taken note of yet; `None` where the loss was noticed before.
    pub(crate) fn unnoticed_loss(&self) -> Option<Moment> {
        (self.lost.is_some() && self.trusted != NEVER).then_some(self.trusted)
    }
}
