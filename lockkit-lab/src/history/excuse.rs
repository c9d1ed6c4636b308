//! Which faults excuse which violations: those that strike before the violation shows, cost the
//! promise that was broken, and touched somebody who took part. What a fault did to a lease is over
//! when that lease is; what it did to a counter is not.

use lockkit_core::capabilities::{Fault, Keeps};

use super::judge::{Promises, Rule, Violation, nanos};
use super::{Event, History, What};

/// A fault, from when to when.
#[derive(Clone, Debug)]
pub(super) struct Strike {
    pub(super) fault: Fault,
    pub(super) on: String,
    pub(super) begins: u64,
    /// The end of time when its end was not recorded.
    pub(super) ends: u64,
}

/// The faults of a history, in the order in which they begin.
pub(super) fn strikes(history: &History) -> Vec<Strike> {
    let mut strikes: Vec<Strike> = Vec::new();
    for Event { at, what, .. } in &history.events {
        match what {
            What::FaultBegins { fault, on } => {
                let (fault, on) = (*fault, on.clone());
                strikes.push(Strike { fault, on, begins: *at, ends: u64::MAX });
            }
            What::FaultEnds { fault, on } => {
                let this = |s: &&mut Strike| s.ends == u64::MAX && s.fault == *fault && s.on == *on;
                if let Some(strike) = strikes.iter_mut().find(this) {
                    strike.ends = *at;
                }
            }
            _ => {}
        }
    }
    strikes
}

/// What must be left of the promises for a rule to hold; `None` when no fault costs it.
pub(super) fn asks(rule: Rule) -> Option<Keeps> {
    match rule {
        Rule::Exclusion | Rule::Order => Some(Keeps::All),
        Rule::TokensGrow | Rule::TokenOnce | Rule::LostUpdate => Some(Keeps::Tokens),
        // The guarded registers are the judge's own: they keep their rules whatever the tokens are.
        Rule::Register | Rule::FreeAtEnd | Rule::Progress | Rule::Success | Rule::Sound => None,
    }
}

impl Strike {
    /// Whether this is why the violation could happen.
    pub(super) fn excuses(&self, violation: &Violation, promises: &Promises) -> bool {
        let Some(asked) = asks(violation.rule) else { return false };
        let costs_it = promises.keeps(self.fault) < asked;
        let before_it = self.begins <= violation.at;
        // Who came when the fault was over stands in a list that nothing happened to.
        let touches = violation.since <= self.ends;
        let lasting = asked == Keeps::Tokens
            || violation.at <= self.ends.saturating_add(nanos(promises.lease));
        costs_it && before_it && touches && lasting
    }
}
