//! What core knows of one claim of this process: its phase, its deadline, when it is to be
//! renewed. No I/O; the renewer, the guard and the acquiring task all meet here.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::concurrency::locked;
use crate::deadline::{self, Margin};
use crate::driver::{ClaimEnd, Grant, Judgement, Renewal};
use crate::observe::{self, Labels};
use crate::{Claim, LossReason, Token};

mod parts;
mod state;
mod stay;

pub(crate) use parts::{GivenBack, How};

/// A claim of this process, from the moment it is in line until it has ended.
pub(crate) struct Record {
    term: Mutex<Term>,
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

struct Term {
    claim: Arc<Claim>,
    phase: Phase,
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
    /// Requests that may put the claim in line again after its release, and until when.
    ambiguous: (u32, Moment),
    /// The run of a server that gave the last answer, where that is known; how many times faster than
    /// ours its clock runs; and what puts that answer in doubt.
    run: Option<Arc<str>>,
    rate: f64,
    doubt: Option<LossReason>,
}

enum Phase {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The claim has ended, or its lease is over.
    Nothing,
    /// Too little for work: a guard is handed out after a renewal.
    Little,
    Enough,
}

pub(crate) const NEVER: Moment = Moment::from_nanos(u64::MAX);

impl Record {
    pub(crate) fn new(claim: Arc<Claim>, asked: Moment, clock: Arc<dyn Clock>, how: How) -> Self {
        let due = deadline::renewal_due(asked, claim.wait_ttl);
        let How { margin, base, renew, max_hold, at_least, lock_delay, labels } = how;
        let ambiguous = (0, asked);
        let phase = Phase::Waiting;
        let term = Term {
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
        };
        observe::waiting(labels, 1.0);
        let (term, changed) = (Mutex::new(term), Notify::new());
        let runtime = Handle::try_current().ok();
        Self { term, changed, margin, clock, base, renew, lock_delay, labels, runtime }
    }

    fn term(&self) -> MutexGuard<'_, Term> {
        locked(&self.term)
    }

    pub(crate) fn claim(&self) -> Arc<Claim> {
        self.term().claim.clone()
    }

    pub(crate) fn set_claim(&self, claim: Arc<Claim>) {
        self.term().claim = claim;
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

    /// Remembers that the claim may be put in line again after its release.
    pub(crate) fn set_ambiguous(&self, requests: u32, until: Moment) {
        self.term().ambiguous = (requests, until);
    }

    /// How many requests may still put the claim in line, and until when.
    pub(crate) fn ambiguous(&self) -> (u32, Moment) {
        self.term().ambiguous
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Takes a grant that was pushed, or that answered the request sent at `asked`; says what is left
    /// of its lease.
    pub(crate) fn grant(&self, grant: &Grant, asked: Option<Moment>) -> Left {
        let now = self.clock.now();
        let mut term = self.term();
        term.round_trip = asked.map_or(term.round_trip, |asked| now.since(asked));
        let asked = asked.unwrap_or(term.asked);
        let is_fast = term.rate > 1.0;
        // How long the lease lasts by our clock.
        let leased = grant.ttl.saturating_sub(self.lock_delay);
        let ours = Grant { ttl: leased.div_f64(term.rate), ..*grant };
        let until = deadline::grant_until(&ours, asked, self.margin);
        let (max_hold, handed_out) = (term.max_hold, term.handed_out);
        let is_latest = asked >= term.asked;
        let holding = match &mut term.phase {
            Phase::Ended(_) => return Left::Nothing,
            phase @ Phase::Waiting => {
                if until <= now {
                    return Left::Nothing;
                }
                let Some(token) = Token::new(grant.token.get().saturating_add(self.base)) else {
                    return Left::Nothing;
                };
                let stop = max_hold.map_or(NEVER, |d| now.after(d));
                let deadline = until.min(stop);
                let (ttl, lowered) = (leased, Moment::from_nanos(0));
                let h = HeldLease { token, ttl, deadline, until, granted_at: now, stop, lowered };
                *phase = Phase::Holding(h);
                self.changed.notify_waiters();
                observe::waiting(self.labels, -1.0);
                observe::held(self.labels, 1.0);
                h
            }
            Phase::Holding(h) => {
                if h.deadline <= now && (handed_out || until <= now || h.stop <= now) {
                    return Left::Nothing; // the answer came too late to save it
                }
                if asked < h.lowered {
                    return Left::Enough;
                }
                h.ttl = leased;
                // An answer that it holds never ends it.
                h.until = match is_fast && is_latest && until > now {
                    true => until,
                    false => h.until.max(until),
                };
                h.deadline = h.until.min(h.stop);
                *h
            }
        };
        if term.least_end.is_none() {
            term.least_end = term.at_least.map(|d| holding.granted_at.after(d));
        }
        (term.failures, term.failing) = (0, None);
        term.doubt = is_fast.then_some(LossReason::ClockJump);
        term.asked = term.asked.max(asked);
        term.due = match self.renew && holding.deadline < holding.stop {
            true => deadline::renewal_due(grant.start.or(asked), ours.ttl).max(now),
            false => NEVER,
        };
        self.left_of(&holding, term.round_trip, now)
    }

    /// What is left of the lease, compared with what is trusted of one that has just begun.
    fn left_of(&self, holding: &HeldLease, round_trip: Duration, now: Moment) -> Left {
        let left = holding.until.since(now);
        let trusted = holding.ttl.saturating_sub(self.margin.of(holding.ttl));
        let enough = match self.renew {
            // Its renewal leaves at once, and comes in time.
            true => left >= trusted / 10 && left >= round_trip * 2,
            false => left >= trusted / 2,
        };
        match enough {
            _ if left.is_zero() => Left::Nothing,
            true => Left::Enough,
            false => Left::Little,
        }
    }

    /// What is left now of the lease of a claim that holds.
    pub(crate) fn lease_left(&self) -> Left {
        let now = self.clock.now();
        let term = self.term();
        match &term.phase {
            Phase::Holding(h) => self.left_of(h, term.round_trip, now),
            _ => Left::Nothing,
        }
    }

    /// How long its lease can be trusted from the sending of the request that set it.
    pub(crate) fn trusted(&self) -> Duration {
        let term = self.term();
        let ttl = match &term.phase {
            Phase::Holding(h) => h.ttl,
            _ => term.claim.hold_ttl.saturating_sub(self.lock_delay),
        };
        ttl.saturating_sub(self.margin.of(ttl))
    }

    /// A guard of it is about to be handed out.
    pub(crate) fn hand_out(&self) {
        self.term().handed_out = true;
    }

    /// An answer says that it waits, to the request sent at `sent`.
    pub(crate) fn waits(&self, sent: Moment) {
        let now = self.clock.now();
        let mut term = self.term();
        term.round_trip = now.since(sent);
        term.asked = term.asked.max(sent);
        (term.failures, term.failing, term.doubt) = (0, None, None);
        term.due = deadline::renewal_due(sent, term.claim.wait_ttl);
    }

    /// Takes the answer to a renewal that was sent at `sent`; says whether it ended the claim.
    pub(crate) fn renewed(&self, answer: &Renewal, sent: Moment) -> bool {
        match answer {
            Renewal::Holds(grant) => {
                self.grant(grant, Some(sent));
                false
            }
            Renewal::Waits { .. } => {
                self.waits(sent);
                false
            }
            Renewal::Ended(ended) => {
                let doubt = self.term().doubt.clone();
                self.lose(loss_of(ended, doubt, self.has_expired()))
            }
        }
    }

    /// The run of a server that gave the last answer, where that is known.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        self.term().run.clone()
    }

    /// Takes note of who gives the answer that is about to be taken, and of what that puts in doubt.
    pub(crate) fn heard(&self, run: &Arc<str>, rate: f64, doubt: Option<LossReason>) {
        let mut term = self.term();
        (term.run, term.rate, term.doubt) = (Some(run.clone()), rate, doubt.or(term.doubt.take()));
    }

    /// Says whether the last answer is in doubt, one to a request sent before `sent`: the claim is then
    /// renewed at `due`.
    pub(crate) fn doubt(&self, judged: &Judgement, sent: Moment, due: Moment) -> bool {
        let now = self.clock.now();
        let mut term = self.term();
        let why = judged.doubt(term.run.as_deref());
        let Some(why) = why.filter(|_| term.due != NEVER && term.asked < sent) else {
            return false;
        };
        term.due = term.due.min(due);
        if let Phase::Holding(h) = &mut term.phase
            && why == LossReason::ServerChanged
        {
            h.until = h.until.min(now.after(h.ttl / 3));
            h.deadline = h.deadline.min(h.until);
        }
        term.doubt = Some(why);
        true
    }

    /// A renewal failed, for what is the reason of a loss unless a later one succeeds: try again soon.
    pub(crate) fn renewal_failed(&self, failing: &LossReason) {
        let now = self.clock.now();
        let mut term = self.term();
        term.failing = Some(failing.clone());
        term.failures = term.failures.saturating_add(1);
        term.due = now.after(deadline::backoff(term.failures));
    }

    /// Marks the claim as lost, unless it has ended; says whether it was this call that did.
    pub(crate) fn lose(&self, why: LossReason) -> bool {
        self.end(self.term(), Some(why))
    }

    /// Marks the claim as given back, unless it has ended; says what it was until now.
    pub(crate) fn give_back(&self) -> GivenBack {
        let now = self.clock.now();
        let term = self.term();
        let over = reason_of_the_end(&term);
        let ttl = match &term.phase {
            Phase::Holding(h) => h.ttl,
            _ => Duration::ZERO,
        };
        let (lost, held_for, trusted) = match &term.phase {
            Phase::Holding(h) => {
                let lost = (now >= h.deadline).then(|| over.clone());
                (lost, Some(now.since(h.granted_at)), h.deadline)
            }
            Phase::Ended(why) => (why.clone(), None, NEVER),
            Phase::Waiting => (None, None, NEVER),
        };
        let claim = term.claim.clone();
        self.end(term, None);
        GivenBack { claim, lost, held_for, ttl, trusted, over }
    }

    fn end(&self, mut term: MutexGuard<'_, Term>, why: Option<LossReason>) -> bool {
        match term.phase {
            Phase::Ended(_) => return false,
            Phase::Holding(_) => observe::held(self.labels, -1.0),
            Phase::Waiting => observe::waiting(self.labels, -1.0),
        }
        term.phase = Phase::Ended(why);
        term.due = NEVER;
        drop(term);
        self.changed.notify_waiters();
        true
    }

    /// Ends a holding claim whose deadline has passed, with the reason and with the moment from
    /// which the backend may be told; `None` when there is nothing to end.
    pub(crate) fn expire(&self, now: Moment) -> Option<(LossReason, Moment)> {
        let (why, lease_end) = {
            let term = self.term();
            let Phase::Holding(h) = &term.phase else {
                return None;
            };
            if now < h.deadline {
                return None;
            }
            let why = reason_of_the_end(&term);
            // At `max_hold` the lock is given back at once; a lease that simply ends, ends in full.
            let lease_end = match h.deadline >= h.stop {
                true => now,
                false => h.deadline.after(self.margin.of(h.ttl)),
            };
            (why, lease_end.after(self.lock_delay))
        };
        self.lose(why.clone()).then_some((why, lease_end))
    }

    /// Lowers the deadline to that of a lease of `ttl` from `now`; never raises it.
    pub(crate) fn lower(&self, now: Moment, ttl: Duration) {
        let until = deadline::trusted_until(now, ttl, self.margin);
        let mut term = self.term();
        if let Phase::Holding(h) = &mut term.phase {
            h.deadline = h.deadline.min(until);
            h.until = h.until.min(until);
            h.ttl = h.ttl.min(ttl);
            h.lowered = now;
            term.due = NEVER;
        }
    }

    /// Its renewal is not due before this.
    pub(crate) fn postpone(&self, until: Moment) {
        let mut term = self.term();
        term.due = term.due.max(until);
    }

    /// The ttl that its state has.
    pub(crate) fn ttl(&self) -> Duration {
        let term = self.term();
        match &term.phase {
            Phase::Holding(h) => h.ttl,
            _ => term.claim.wait_ttl,
        }
    }

    /// When something is to be done about this claim: a renewal, or its end.
    pub(crate) fn next_event(&self) -> Moment {
        let term = self.term();
        match &term.phase {
            Phase::Waiting => term.due,
            Phase::Holding(h) => term.due.min(h.deadline),
            Phase::Ended(_) => NEVER,
        }
    }

    /// Whether the claim may as well be renewed now, when others have to be: its renewal is due
    /// within half the usual interval.
    pub(crate) fn renewable(&self, now: Moment) -> bool {
        let term = self.term();
        let interval = match &term.phase {
            Phase::Waiting => term.claim.wait_ttl / 3,
            Phase::Holding(h) => h.ttl / 3,
            Phase::Ended(_) => return false,
        };
        term.due <= now.after(interval / 2)
    }

    /// How long until the claim cannot be saved any more.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        let term = self.term();
        match &term.phase {
            Phase::Holding(h) => h.deadline.since(now),
            _ => term.asked.after(term.claim.wait_ttl).since(now),
        }
    }
}

/// Why a claim is lost whose deadline passes now.
fn reason_of_the_end(term: &Term) -> LossReason {
    match &term.phase {
        Phase::Holding(h) if h.deadline >= h.stop => LossReason::MaxHold,
        // It was trusted for a shorter time than the server's silence would have taken.
        _ if term.doubt == Some(LossReason::ServerChanged) => LossReason::ServerChanged,
        _ => {
            let why = term.failing.as_ref().or(term.doubt.as_ref());
            why.cloned().unwrap_or(LossReason::Expired)
        }
    }
}

/// What the backend's word means for a claim that is, or is not, past its own deadline, and in doubt.
fn loss_of(ended: &ClaimEnd, doubt: Option<LossReason>, expired: bool) -> LossReason {
    match (ended, doubt) {
        (ClaimEnd::NotFound | ClaimEnd::SessionEnded, Some(doubt)) => doubt,
        (ClaimEnd::NotFound, None) if !expired => LossReason::Vanished,
        (ended, _) => ended.clone().into(),
    }
}
