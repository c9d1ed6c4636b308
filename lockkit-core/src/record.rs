//! What core knows of one claim of this process: its phase, its deadline, when it is to be
//! renewed. No I/O; the renewer, the guard and the acquiring task all meet here.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::concurrency::locked;
use crate::deadline::{self, Margin};
use crate::driver::Grant;
use crate::observe::{self, Labels};
use crate::{Claim, LossReason, Token};

mod gate;
mod loss;
mod parts;
mod state;
mod stay;

use gate::GateState;
pub(crate) use parts::{GivenBack, RecordOptions};

/// A claim of this process, from the moment it is in its queue until it has ended.
pub(crate) struct ClaimRecord {
    state: Mutex<RecordState>,
    /// Told of every change of phase.
    changed: Notify,
    margin: Margin,
    clock: Arc<dyn Clock>,
    /// What is added to the backend's tokens in this namespace.
    base: u64,
    /// Whether it is renewed in the background while it is held.
    renew: bool,
    /// How much of each lease is never trusted.
    lock_delay: Duration,
    pub(crate) labels: Labels,
    /// Where it was asked for.
    runtime: Option<Handle>,
}

struct RecordState {
    claim: Arc<Claim>,
    phase: ClaimPhase,
    /// When the last request about this claim was sent that the backend answered.
    asked: Moment,
    /// How long the last answer took, from the sending of its request.
    round_trip: Duration,
    /// Next renewal; `NEVER` when there is none to come.
    due: Moment,
    /// Renewals that failed since the last one that did not, and what it means if they go on
    /// failing until the lease ends.
    failures: u32,
    failing: Option<LossReason>,
    /// Whether a guard of it was handed out: then a deadline that has passed stays passed.
    handed_out: bool,
    /// How long it may hold at most, from the grant on.
    max_hold: Option<Duration>,
    /// How long it holds at least, from the grant on, and when that is over.
    at_least: Option<Duration>,
    least_end: Option<Moment>,
    /// Where requests without an answer may put the claim into its queue again: how many times it may yet be
    /// removed (once as it is there, and once for each of them), and until when they may arrive.
    ambiguous: (u32, Moment),
    /// The run of a server that gave the last answer, where that is known; how many times faster than
    /// ours its clock runs; and what puts that answer in doubt.
    run: Option<Arc<str>>,
    rate: f64,
    doubt: Option<LossReason>,
    gate: GateState,
}

enum ClaimPhase {
    Waiting,
    Holding(HeldLease),
    /// With a reason when it was lost, without one when it was given back.
    Ended(Option<LossReason>),
}

#[derive(Clone, Copy)]
struct HeldLease {
    token: Token,
    ttl: Duration,
    /// Until when it may be trusted.
    deadline: Moment,
    /// The same, were it not for `stop`.
    until: Moment,
    granted_at: Moment,
    /// Where `max_hold` ends it, whatever the lease says.
    stop: Moment,
    /// Answers to requests sent before this do not move the deadline: it was lowered since.
    lowered: Moment,
}

/// What a grant leaves to its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LeaseLeft {
    /// The claim has ended, or its lease is over.
    Nothing,
    /// Too little for work: a guard is handed out after a renewal.
    Little,
    Enough,
}

pub(crate) const NEVER: Moment = Moment::from_nanos(u64::MAX);

impl ClaimRecord {
    pub(crate) fn new(
        claim: Arc<Claim>,
        asked: Moment,
        clock: Arc<dyn Clock>,
        how: RecordOptions,
    ) -> Self {
        let due = deadline::renewal_due(asked, claim.wait_ttl);
        let RecordOptions { margin, base, renew, max_hold, at_least, lock_delay, labels } = how;
        let ambiguous = (0, asked);
        let phase = ClaimPhase::Waiting;
        let state = RecordState {
            claim,
            phase,
            asked,
            round_trip: Duration::ZERO,
            due,
            failures: 0,
            failing: None,
            handed_out: false,
            max_hold,
            at_least,
            least_end: None,
            ambiguous,
            run: None,
            rate: 1.0,
            doubt: None,
            gate: GateState::default(),
        };
        observe::waiting(labels, 1.0);
        let (state, changed) = (Mutex::new(state), Notify::new());
        let runtime = Handle::try_current().ok();
        Self { state, changed, margin, clock, base, renew, lock_delay, labels, runtime }
    }

    fn state(&self) -> MutexGuard<'_, RecordState> {
        locked(&self.state)
    }

    pub(crate) fn claim(&self) -> Arc<Claim> {
        self.state().claim.clone()
    }

    pub(crate) fn set_claim(&self, claim: Arc<Claim>) {
        self.state().claim = claim;
    }

    pub(crate) fn margin(&self) -> Margin {
        self.margin
    }

    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.renew
    }

    /// The backend's token of one that users see.
    pub(crate) fn without_base(&self, token: Token) -> Option<Token> {
        Token::new(token.get().checked_sub(self.base)?)
    }

    /// Remembers that so many requests may put the claim, which is in its queue, into it again until then.
    pub(crate) fn set_ambiguous(&self, requests: u32, until: Moment) {
        self.state().ambiguous = (requests + 1, until);
    }

    /// It was removed from its queue.
    pub(crate) fn removed(&self) {
        let ambiguous = &mut self.state().ambiguous.0;
        *ambiguous = ambiguous.saturating_sub(1);
    }

    /// How many times it may yet be removed where requests may put it into its queue again; 0 otherwise.
    pub(crate) fn ambiguous(&self) -> u32 {
        let (removals, until) = self.state().ambiguous;
        if removals > 0 && self.clock.now() < until { removals } else { 0 }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Takes a grant that was pushed, or that answered the request sent at `asked`; says what is left
    /// of its lease.
    pub(crate) fn grant(&self, grant: &Grant, asked: Option<Moment>) -> LeaseLeft {
        let now = self.clock.now();
        let mut state = self.state();
        state.round_trip = asked.map_or(state.round_trip, |asked| now.since(asked));
        let asked = asked.unwrap_or(state.asked);
        let is_fast = state.rate > 1.0;
        // How long the lease lasts by our clock.
        let leased = grant.ttl.saturating_sub(self.lock_delay);
        let ours = Grant { ttl: leased.div_f64(state.rate), ..*grant };
        let until = deadline::grant_until(&ours, asked, self.margin);
        let (max_hold, handed_out) = (state.max_hold, state.handed_out);
        let gate_until = state.gate_until();
        let is_latest = asked >= state.asked;
        let holding = match &mut state.phase {
            ClaimPhase::Ended(_) => return LeaseLeft::Nothing,
            phase @ ClaimPhase::Waiting => {
                if until <= now {
                    return LeaseLeft::Nothing;
                }
                let Some(token) = Token::new(grant.token.get().saturating_add(self.base)) else {
                    return LeaseLeft::Nothing;
                };
                let stop = max_hold.map_or(NEVER, |d| now.after(d));
                let deadline = until.min(stop);
                let (ttl, lowered) = (leased, Moment::from_nanos(0));
                let h = HeldLease { token, ttl, deadline, until, granted_at: now, stop, lowered };
                *phase = ClaimPhase::Holding(h);
                self.changed.notify_waiters();
                observe::waiting(self.labels, -1.0);
                observe::held(self.labels, 1.0);
                h
            }
            ClaimPhase::Holding(h) => {
                if h.deadline <= now && (handed_out || until <= now || h.stop <= now) {
                    return LeaseLeft::Nothing; // the answer came too late to save it
                }
                if asked < h.lowered {
                    return LeaseLeft::Enough;
                }
                h.ttl = leased;
                // An answer that it holds never ends it.
                h.until = match is_fast && is_latest && until > now {
                    true => until,
                    false => h.until.max(until),
                };
                h.deadline = h.until.min(h.stop).min(gate_until);
                *h
            }
        };
        if state.least_end.is_none() {
            state.least_end = state.at_least.map(|d| holding.granted_at.after(d));
        }
        (state.failures, state.failing) = (0, None);
        state.doubt = is_fast.then_some(LossReason::ClockJump);
        state.asked = state.asked.max(asked);
        state.due = match self.renew && holding.deadline < holding.stop {
            true => deadline::renewal_due(grant.start.or(asked), ours.ttl).max(now),
            false => NEVER,
        };
        self.left_of(&holding, state.round_trip, now)
    }

    /// What is left of the lease, compared with what is trusted of one that has just begun.
    fn left_of(&self, holding: &HeldLease, round_trip: Duration, now: Moment) -> LeaseLeft {
        let trusted = holding.ttl.saturating_sub(self.margin.of(holding.ttl));
        self.lease_left_of(holding.until.since(now), trusted, round_trip)
    }

    fn lease_left_of(
        &self,
        remaining: Duration,
        trusted: Duration,
        round_trip: Duration,
    ) -> LeaseLeft {
        let enough = match self.renew {
            // Its renewal leaves at once, and comes in time.
            true => remaining >= trusted / 10 && remaining >= round_trip * 2,
            false => remaining >= trusted / 2,
        };
        match enough {
            _ if remaining.is_zero() => LeaseLeft::Nothing,
            true => LeaseLeft::Enough,
            false => LeaseLeft::Little,
        }
    }

    /// What is left now of the lease of a claim that holds.
    pub(crate) fn lease_left(&self) -> LeaseLeft {
        let now = self.clock.now();
        let state = self.state();
        match &state.phase {
            ClaimPhase::Holding(h) => self.left_of(h, state.round_trip, now),
            _ => LeaseLeft::Nothing,
        }
    }

    /// How long its lease can be trusted from the sending of the request that set it.
    pub(crate) fn trusted(&self) -> Duration {
        let state = self.state();
        let ttl = match &state.phase {
            ClaimPhase::Holding(h) => h.ttl,
            _ => state.claim.hold_ttl.saturating_sub(self.lock_delay),
        };
        ttl.saturating_sub(self.margin.of(ttl))
    }

    /// A guard of it is about to be handed out.
    pub(crate) fn hand_out(&self) {
        self.state().handed_out = true;
    }

    /// An answer says that it waits, to the request sent at `sent`.
    pub(crate) fn waits(&self, sent: Moment) {
        let now = self.clock.now();
        let mut state = self.state();
        state.round_trip = now.since(sent);
        if matches!(state.phase, ClaimPhase::Waiting) {
            state.asked = state.asked.max(sent);
            (state.failures, state.failing, state.doubt) = (0, None, None);
            state.due = deadline::renewal_due(sent, state.claim.wait_ttl);
        } else if state.due != NEVER {
            // A grant was faster than this answer, or the backend has older data: it is asked again.
            state.failures = state.failures.saturating_add(1);
            state.due = state.due.max(now.after(deadline::backoff(state.failures)));
        }
    }

    /// Lowers the deadline to that of a lease of `ttl` from `now`; never raises it.
    pub(crate) fn lower(&self, now: Moment, ttl: Duration) {
        let until = deadline::trusted_until(now, ttl, self.margin);
        let mut state = self.state();
        if let ClaimPhase::Holding(h) = &mut state.phase {
            h.deadline = h.deadline.min(until);
            h.until = h.until.min(until);
            h.ttl = h.ttl.min(ttl);
            h.lowered = now;
            state.due = NEVER;
            state.postpone_gate(NEVER);
        }
    }

    /// Its renewal is not due before this.
    pub(crate) fn postpone(&self, until: Moment) {
        let mut state = self.state();
        state.due = state.due.max(until);
        state.postpone_gate(until);
    }

    /// The ttl that its state has.
    pub(crate) fn ttl(&self) -> Duration {
        let state = self.state();
        match &state.phase {
            ClaimPhase::Holding(h) => h.ttl,
            _ => state.claim.wait_ttl,
        }
    }

    /// When something is to be done about this claim: a renewal, or its end.
    pub(crate) fn next_event(&self) -> Moment {
        let state = self.state();
        match &state.phase {
            ClaimPhase::Waiting => state.due,
            ClaimPhase::Holding(h) => state.renewal_due().min(h.deadline),
            ClaimPhase::Ended(_) => NEVER,
        }
    }

    /// Whether the claim may as well be renewed now, when others have to be: its renewal is due
    /// within half the usual interval.
    pub(crate) fn renewable(&self, now: Moment) -> bool {
        let state = self.state();
        let interval = match &state.phase {
            ClaimPhase::Waiting => state.claim.wait_ttl / 3,
            ClaimPhase::Holding(h) => h.ttl / 3,
            ClaimPhase::Ended(_) => return false,
        };
        state.renewal_due() <= now.after(interval / 2)
    }

    /// How long until the claim cannot be saved any more.
    pub(crate) fn savable_for(&self, now: Moment) -> Duration {
        let state = self.state();
        match &state.phase {
            ClaimPhase::Holding(h) => h.deadline.since(now),
            _ => state.asked.after(state.claim.wait_ttl).since(now),
        }
    }
}
