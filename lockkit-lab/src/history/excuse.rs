//! Which fault excuses which violation: one that begins before the violation shows, costs the promise
//! that was broken, may have touched that lock while one of those who took part had it, and is over for
//! no longer than a lease lives. The one that is found is named in the report.

use std::fmt;
use std::time::Duration;

use lockkit_core::capabilities::{Fault, Guarantee};

use super::violation::{Invariant, RecordedPromises, Violation, nanos};
use super::{Event, EventKind, History};

/// A fault, from when to when.
#[derive(Clone, Debug)]
pub(super) struct FaultWindow {
    pub(super) fault: Fault,
    pub(super) on: String,
    /// The locks that it may have touched; none are named where it may be any.
    pub(super) locks: Vec<String>,
    pub(super) begins: u64,
    /// The end of time when its end was not recorded.
    pub(super) ends: u64,
}

/// Why a violation counts as none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excuse {
    /// The fault that may explain it.
    pub fault: Fault,
    /// The server that the fault struck.
    pub on: String,
    /// The locks whose claims the fault may have touched; empty when these are all.
    pub locks: Vec<String>,
    /// When the fault began, in nanoseconds since boot.
    pub from: u64,
    /// Until when it may explain what shows: one TTL and the backend's slack after it was over.
    pub until: u64,
}

/// A violation that a fault may explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excused {
    /// What happened.
    pub violation: Violation,
    /// Why it counts as none.
    pub by: Excuse,
}

impl fmt::Display for Excused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Excuse { fault, on, locks, from, until } = &self.by;
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let before = seconds(self.violation.at.saturating_sub(*from));
        let title = fault.title().trim_end_matches('²');
        write!(f, "{}; {before:.2} s before, {title} ({on}), which may explain ", self.violation)?;
        match locks.is_empty() {
            true => write!(f, "violations of all locks")?,
            false => write!(f, "violations of {}", locks.join(", "))?,
        }
        match *until {
            u64::MAX => write!(f, ", and whose end was not recorded"),
            until => write!(f, " for {:.2} s", seconds(until.saturating_sub(*from))),
        }
    }
}

/// The faults of a history, in the order in which they begin.
pub(super) fn fault_windows(history: &History) -> Vec<FaultWindow> {
    let mut fault_windows: Vec<FaultWindow> = Vec::new();
    for Event { at, what, .. } in &history.events {
        match what {
            EventKind::FaultBegins { fault, on, locks } => {
                let (fault, on, locks) = (*fault, on.clone(), locks.clone());
                fault_windows.push(FaultWindow { fault, on, locks, begins: *at, ends: u64::MAX });
            }
            EventKind::FaultEnds { fault, on } => {
                let this =
                    |s: &&mut FaultWindow| s.ends == u64::MAX && s.fault == *fault && s.on == *on;
                if let Some(window) = fault_windows.iter_mut().find(this) {
                    window.ends = *at;
                }
            }
            _ => {}
        }
    }
    fault_windows
}

/// What must be left of the promises for a rule to hold; `None` when no fault costs it.
pub(super) fn asks(invariant: Invariant) -> Option<Guarantee> {
    match invariant {
        Invariant::Exclusion | Invariant::Order => Some(Guarantee::All),
        Invariant::TokensGrow | Invariant::TokenOnce | Invariant::LostUpdate => {
            Some(Guarantee::Tokens)
        }
        // The guarded registers are the judge's own: they keep their rules whatever the tokens are.
        Invariant::Register
        | Invariant::FreeAtEnd
        | Invariant::Progress
        | Invariant::Success
        | Invariant::Sound => None,
    }
}

impl FaultWindow {
    /// What this fault may explain of the violation.
    pub(super) fn excuse(
        &self,
        violation: &Violation,
        promises: &RecordedPromises,
    ) -> Option<Excuse> {
        let costs_it = promises.guarantee(self.fault) < asks(violation.invariant)?;
        let touches_it = self.locks.is_empty() || self.locks.contains(&violation.of);
        let until = self.ends.saturating_add(nanos(promises.lease));
        let in_time = self.begins <= violation.at && violation.at <= until;
        // Nothing happened to claims that came when the fault was over.
        let touches_them = violation.since <= self.ends;
        (costs_it && touches_it && in_time && touches_them).then(|| {
            let (fault, on, locks) = (self.fault, self.on.clone(), self.locks.clone());
            Excuse { fault, on, locks, from: self.begins, until }
        })
    }
}
