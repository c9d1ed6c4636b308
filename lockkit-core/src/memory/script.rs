//! Faults that a test asks of a memory driver; [`testing`](crate::testing) is how it asks.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use super::MemoryDriver;
use crate::clock::Moment;
use crate::concurrency::locked;
use crate::driver::no_answer;
use crate::{Claim, Error};

/// The faults that are still to come, by the name of the lock.
#[derive(Debug, Default)]
pub(crate) struct Script {
    refusals: Mutex<HashMap<String, VecDeque<Error>>>,
    silent_until: Mutex<HashMap<String, Moment>>,
}

impl Script {
    /// The next acquire of this lock fails with the error; several are used up one after the other.
    pub(crate) fn refuse(&self, name: &str, error: Error) {
        locked(&self.refusals).entry(name.to_owned()).or_default().push_back(error);
    }

    /// Renewals of this lock get no answer until then.
    pub(crate) fn silence_until(&self, name: &str, until: Moment) {
        locked(&self.silent_until).insert(name.to_owned(), until);
    }
}

impl MemoryDriver {
    /// The error for an acquire of this claim, if a test has asked for one.
    pub(super) fn refusal(&self, claim: &Claim) -> Option<Error> {
        let mut refusals = locked(&self.script.as_ref()?.refusals);
        refusals.get_mut(claim.key.name.as_str())?.pop_front()
    }

    /// The error for a renewal of this claim, where a test wants that it gets no answer now.
    pub(super) fn silence(&self, claim: &Claim, now: Moment) -> Option<Error> {
        let until = *locked(&self.script.as_ref()?.silent_until).get(claim.key.name.as_str())?;
        (now < until).then(|| no_answer("memory"))
    }
}
