//! How a claim of this process ends: what the answer to a renewal, its failure, and a deadline that
//! passes mean for it, and which reason its guard names.
//!
//! - An answer that the claim *holds* never ends it, and moves its deadline.
//! - An answer that it has ended ends it at once.
//! - No answer, or an error, ends nothing: the renewal is repeated, and the claim ends at its deadline.
//! - Another server, older data or a clock that jumped ([evidence](crate::evidence)) end nothing: the claim
//!   is renewed at once, and its deadline is lowered to a third of its ttl where another server answers.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::parts::GivenBack;
use super::{ClaimPhase, ClaimRecord, NEVER, RecordState};
use crate::LossReason;
use crate::clock::Moment;
use crate::deadline;
use crate::driver::{ClaimEnd, Renewal, ServerChanges};
use crate::observe;

impl ClaimRecord {
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
                let doubt = self.state().doubt.clone();
                self.lose(loss_of(ended, doubt, self.has_expired()))
            }
        }
    }

    /// The run (one start of a server process) that gave the last answer, where that is known.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        self.state().run.clone()
    }

    /// Notes which run of a server gives the answer that comes next, at which rate its clock goes compared with
    /// this one's, and the reason to doubt what it said before.
    pub(crate) fn answered_by(&self, run: &Arc<str>, rate: f64, doubt: Option<LossReason>) {
        let mut state = self.state();
        (state.run, state.rate, state.doubt) =
            (Some(run.clone()), rate, doubt.or(state.doubt.take()));
    }

    /// Where the last answer was to a request sent before `sent` and is in doubt: sets the next renewal to `due`
    /// at the latest, lowers the deadline if another server answers now, and returns true.
    pub(crate) fn doubt(&self, judged: &ServerChanges, sent: Moment, due: Moment) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        let why = judged.doubt(state.run.as_deref());
        let Some(why) = why.filter(|_| state.due != NEVER && state.asked < sent) else {
            return false;
        };
        state.due = state.due.min(due);
        if let ClaimPhase::Holding(h) = &mut state.phase
            && why == LossReason::ServerChanged
        {
            h.until = h.until.min(now.after(h.ttl / 3));
            h.deadline = h.deadline.min(h.until);
        }
        state.doubt = Some(why);
        true
    }

    /// A renewal failed: it is repeated soon, unless the lease is not renewed any more. If none succeeds before
    /// the deadline, the claim is lost for this reason.
    pub(crate) fn renewal_failed(&self, failing: &LossReason) {
        let now = self.clock.now();
        let mut state = self.state();
        state.failing = Some(failing.clone());
        state.failures = state.failures.saturating_add(1);
        if state.due != NEVER {
            state.due = now.after(deadline::backoff(state.failures));
        }
    }

    /// Marks the claim as lost, unless it has ended; says whether it was this call that did.
    pub(crate) fn lose(&self, why: LossReason) -> bool {
        self.end(self.state(), Some(why))
    }

    /// Marks the claim as given back, unless it has ended; says what it was until now.
    pub(crate) fn give_back(&self) -> GivenBack {
        let now = self.clock.now();
        let state = self.state();
        let over = reason_of_the_end(&state);
        let ttl = match &state.phase {
            ClaimPhase::Holding(h) => h.ttl,
            _ => Duration::ZERO,
        };
        let (lost, held_for, trusted) = match &state.phase {
            ClaimPhase::Holding(h) => {
                let lost = (now >= h.deadline).then(|| over.clone());
                (lost, Some(now.since(h.granted_at)), h.deadline)
            }
            ClaimPhase::Ended(why) => (why.clone(), None, NEVER),
            ClaimPhase::Waiting => (None, None, NEVER),
        };
        let claim = state.claim.clone();
        self.end(state, None);
        GivenBack { claim, lost, held_for, ttl, trusted, over }
    }

    fn end(&self, mut state: MutexGuard<'_, RecordState>, why: Option<LossReason>) -> bool {
        match state.phase {
            ClaimPhase::Ended(_) => return false,
            ClaimPhase::Holding(_) => observe::held(self.labels, -1.0),
            ClaimPhase::Waiting => observe::waiting(self.labels, -1.0),
        }
        state.phase = ClaimPhase::Ended(why);
        state.due = NEVER;
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// Ends a holding claim whose deadline has passed. Returns the reason, and the moment from which the
    /// backend may be asked to remove it; `None` when there is nothing to end.
    pub(crate) fn expire(&self, now: Moment) -> Option<(LossReason, Moment)> {
        let (why, lease_end) = {
            let state = self.state();
            let ClaimPhase::Holding(h) = &state.phase else {
                return None;
            };
            if now < h.deadline {
                return None;
            }
            let why = reason_of_the_end(&state);
            // At `max_hold` it is released at once. Otherwise the backend ends the lease, and nothing is
            // sent before that.
            let lease_end = match h.deadline >= h.stop {
                true => now,
                false => h.deadline.after(self.margin.of(h.ttl)),
            };
            (why, lease_end.after(self.lock_delay))
        };
        self.lose(why.clone()).then_some((why, lease_end))
    }

    /// Why it was lost, if it was: also where the deadline has passed and nothing has ended it yet.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        let now = self.clock.now();
        let state = self.state();
        match &state.phase {
            ClaimPhase::Ended(why) => why.clone(),
            ClaimPhase::Holding(h) if now >= h.deadline => Some(reason_of_the_end(&state)),
            _ => None,
        }
    }

    pub(super) fn has_expired(&self) -> bool {
        let now = self.clock.now();
        let state = self.state();
        match &state.phase {
            ClaimPhase::Holding(h) => now >= h.deadline,
            ClaimPhase::Ended(_) => true,
            ClaimPhase::Waiting => now >= state.asked.after(state.claim.wait_ttl),
        }
    }
}

/// Why a claim is lost whose deadline passes now.
pub(super) fn reason_of_the_end(state: &RecordState) -> LossReason {
    match &state.phase {
        ClaimPhase::Holding(h) if h.deadline >= h.stop => LossReason::MaxHold,
        ClaimPhase::Holding(h) if state.gate_failing(h.until).is_some() => {
            state.gate_failing(h.until).unwrap_or(LossReason::Expired)
        }
        // Doubt has lowered the deadline, so doubt is the reason, whatever failed since.
        _ if state.doubt == Some(LossReason::ServerChanged) => LossReason::ServerChanged,
        _ => {
            let why = state.failing.as_ref().or(state.doubt.as_ref());
            why.cloned().unwrap_or(LossReason::Expired)
        }
    }
}

/// The reason for an answer that a claim has ended, by whether the claim was in doubt or past its deadline.
fn loss_of(ended: &ClaimEnd, doubt: Option<LossReason>, expired: bool) -> LossReason {
    match (ended, doubt) {
        (ClaimEnd::NotFound | ClaimEnd::SessionEnded, Some(doubt)) => doubt,
        (ClaimEnd::NotFound, None) if !expired => LossReason::Vanished,
        (ended, _) => ended.clone().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, TokioClock};
    use crate::driver::{Grant, LeaseStart};
    use crate::observe::Labels;
    use crate::record::RecordOptions;
    use crate::{Claim, ClientIdentity, Key, Margin, Mode, Name, Namespace, Space, Token};

    const TTL: Duration = Duration::from_secs(30);

    /// Older data of a backend say so, or an answer that was overtaken by a grant.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_is_told_that_it_waits_is_renewed_soon_and_never_at_once() {
        let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
        let me = Arc::new(ClientIdentity::unknown());
        let claim = Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, me));
        let how = RecordOptions {
            margin: Margin::default(),
            base: 0,
            renew: true,
            max_hold: None,
            at_least: None,
            lock_delay: Duration::ZERO,
            labels: Labels { backend: "x", kind: "mutex", class: None },
        };
        let record = ClaimRecord::new(claim, TokioClock.now(), TokioClock::shared(), how);
        let (start, margin) = (LeaseStart::LastAnswered, Duration::ZERO);
        let grant = Grant { token: Token::new(1).unwrap(), ttl: TTL, start, margin };
        record.grant(&grant, Some(TokioClock.now()));
        let usual = record.next_event();
        let waits = Renewal::Waits { ahead: 1 };
        assert!(!record.renewed(&waits, TokioClock.now()));
        assert_eq!(record.next_event(), usual, "the grant was faster");
        tokio::time::sleep(TTL / 3).await;
        for _ in 0..20 {
            let now = TokioClock.now();
            assert!(record.next_event() <= now.after(Duration::from_secs(1)));
            tokio::time::sleep(record.next_event().since(now)).await;
            assert!(!record.renewed(&waits, TokioClock.now()));
            assert!(record.next_event() > TokioClock.now(), "it is not asked without a pause");
        }
    }
}
