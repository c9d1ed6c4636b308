//! The gate of a claim: while it is tried for, how long that waits; once it was taken, its own deadline,
//! which ends the guard as the claim's does.

use std::time::Duration;

use super::{ClaimPhase, ClaimRecord, LeaseLeft, NEVER, RecordState};
use crate::LossReason;
use crate::clock::Moment;
use crate::deadline;

/// What is known of the gate of a claim.
#[derive(Default)]
pub(super) struct GateState {
    /// A neighbour has it; with the moment at which its lease ends, where that is known.
    blocked: Option<Option<Moment>>,
    /// Once it was taken.
    lease: Option<GateLease>,
    /// Until when an attempt without an answer may still take it.
    ambiguous: Option<Moment>,
}

struct GateLease {
    /// Until when it may be trusted.
    until: Moment,
    /// Its next renewal.
    due: Moment,
    /// Renewals that failed since the last one that did not, and why it is lost if they go on failing.
    failures: u32,
    failing: Option<LossReason>,
}

impl RecordState {
    /// Until when the gate may be trusted; `NEVER` without one, which then sets no limit.
    pub(super) fn gate_until(&self) -> Moment {
        self.gate.lease.as_ref().map_or(NEVER, |lease| lease.until)
    }

    /// When claim or gate is to be renewed.
    pub(super) fn renewal_due(&self) -> Moment {
        self.gate.lease.as_ref().map_or(self.due, |lease| self.due.min(lease.due))
    }

    /// Has the gate renewed no more, or not before this.
    pub(super) fn postpone_gate(&mut self, until: Moment) {
        if let Some(lease) = &mut self.gate.lease {
            lease.due = lease.due.max(until);
        }
    }

    /// Why renewals of the gate fail, where its lease is what ends the claim.
    pub(super) fn gate_failing(&self, claim_until: Moment) -> Option<LossReason> {
        let lease = self.gate.lease.as_ref().filter(|lease| lease.until < claim_until)?;
        lease.failing.clone()
    }
}

impl ClaimRecord {
    /// A neighbour has the gate, for so long yet where that is known.
    pub(crate) fn blocked_at_gate(&self, remaining: Option<Duration>) {
        let now = self.clock.now();
        self.state().gate.blocked = Some(remaining.map(|remaining| now.after(remaining)));
    }

    /// Whether the claim holds and waits for a neighbour, and for how long that can take yet, where it is
    /// known.
    pub(crate) fn waits_for_neighbour(&self) -> Option<Option<Duration>> {
        let now = self.clock.now();
        let state = self.state();
        let holds = matches!(state.phase, ClaimPhase::Holding(_));
        let blocked = state.gate.blocked.filter(|_| holds && state.gate.lease.is_none())?;
        Some(blocked.map(|end| end.since(now)))
    }

    /// How long the lease of a gate lasts by our clock, and until when it may be trusted, when the request that
    /// set it was sent at `sent`.
    fn gate_lease(&self, state: &RecordState, ttl: Duration, sent: Moment) -> (Duration, Moment) {
        let ours = ttl.div_f64(state.rate);
        (ours, deadline::trusted_until(sent, ours, self.margin))
    }

    /// The gate was taken by a request sent at `sent`, with a lease of `ttl`. Hands the lock out if enough is
    /// left of both leases: `max_hold` counts from now on.
    pub(crate) fn pass_gate(
        &self,
        ttl: Duration,
        sent: Moment,
        max_hold: Option<Duration>,
    ) -> LeaseLeft {
        let now = self.clock.now();
        let mut state = self.state();
        let (ours, until) = self.gate_lease(&state, ttl, sent);
        let ClaimPhase::Holding(h) = &state.phase else { return LeaseLeft::Nothing };
        let mut h = *h;
        let trusted = ours.saturating_sub(self.margin.of(ours));
        let gate_left = self.lease_left_of(until.since(now), trusted, now.since(sent));
        let left = gate_left.min(self.left_of(&h, state.round_trip, now));
        if left != LeaseLeft::Enough {
            return left;
        }
        let due = deadline::renewal_due(sent, ours).max(now);
        state.gate.lease = Some(GateLease { until, due, failures: 0, failing: None });
        state.handed_out = true;
        h.granted_at = now;
        h.stop = max_hold.map_or(NEVER, |d| now.after(d));
        h.deadline = h.until.min(h.stop).min(until);
        state.phase = ClaimPhase::Holding(h);
        left
    }

    /// An answer says that the gate is there, to the request sent at `sent`. Never shortens.
    pub(crate) fn gate_kept(&self, ttl: Duration, sent: Moment) {
        let now = self.clock.now();
        let mut state = self.state();
        let (ours, until) = self.gate_lease(&state, ttl, sent);
        let RecordState { phase: ClaimPhase::Holding(h), gate, .. } = &mut *state else { return };
        let Some(lease) = gate.lease.as_mut() else { return };
        if h.deadline <= now || sent < h.lowered {
            return; // the answer came too late to save it
        }
        lease.until = lease.until.max(until);
        (lease.failures, lease.failing) = (0, None);
        h.deadline = h.until.min(h.stop).min(lease.until);
        lease.due = match h.deadline < h.stop {
            true => deadline::renewal_due(sent, ours).max(now),
            false => NEVER,
        };
    }

    /// A renewal of the gate failed, for what is the reason of a loss unless a later one succeeds.
    pub(crate) fn gate_failed(&self, failing: &LossReason) {
        let now = self.clock.now();
        let mut state = self.state();
        if let Some(lease) = state.gate.lease.as_mut() {
            lease.failing = Some(failing.clone());
            lease.failures = lease.failures.saturating_add(1);
            if lease.due != NEVER {
                lease.due = now.after(deadline::backoff(lease.failures));
            }
        }
    }

    /// Whether it has taken a gate.
    pub(crate) fn has_gate(&self) -> bool {
        self.state().gate.lease.is_some()
    }

    /// Remembers that an attempt without an answer may take the gate until then.
    pub(crate) fn set_gate_ambiguous(&self, until: Moment) {
        self.state().gate.ambiguous = Some(until);
    }

    /// Whether an attempt without an answer may still take the gate.
    pub(crate) fn is_gate_ambiguous(&self) -> bool {
        let now = self.clock.now();
        self.state().gate.ambiguous.is_some_and(|until| now < until)
    }
}
