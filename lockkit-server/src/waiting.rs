//! Requests that wait for an event: how many there are, in all and of one caller.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lockkit_http::wire::Code;

use crate::body::Refusal;
use crate::caller::Who;
use crate::settings::Limits;

/// The count.
#[derive(Debug)]
pub(crate) struct Waiting {
    limits: Limits,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    all: usize,
    by_caller: HashMap<Who, usize>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a>(&'a Waiting, Who);

impl Waiting {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, now: Mutex::default() }
    }

    /// How many wait now.
    pub(crate) fn count(&self) -> usize {
        self.now().all
    }

    /// A place for one more, or the refusal.
    pub(crate) fn enter(&self, who: &Who) -> Result<Place<'_>, Refusal> {
        let mut now = self.now();
        let own = now.by_caller.get(who).copied().unwrap_or(0);
        let full = |most: usize, of: &str| {
            let detail = format!("{most} requests {of} wait already: ask again later");
            Err(Refusal::new(Code::TooMany, detail))
        };
        if own >= self.limits.waiting_per_caller {
            return full(self.limits.waiting_per_caller, "of this caller");
        }
        if now.all >= self.limits.waiting {
            return full(self.limits.waiting, "of this server");
        }
        now.all += 1;
        now.by_caller.insert(who.clone(), own + 1);
        Ok(Place(self, who.clone()))
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut now = self.0.now();
        now.all -= 1;
        match now.by_caller.get_mut(&self.1) {
            Some(own) if *own > 1 => *own -= 1,
            // Nothing is kept for a caller that does not wait.
            _ => drop(now.by_caller.remove(&self.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_cannot_take_every_place_and_leaves_none_taken() {
        let limits = Limits { waiting: 3, waiting_per_caller: 2, ..Limits::default() };
        let waiting = Waiting::new(limits);
        let [a, b] = [Who::Named("a".into()), Who::Named("b".into())];
        let first = waiting.enter(&a).unwrap();
        let _second = waiting.enter(&a).unwrap();
        waiting.enter(&a).expect_err("a third of one caller");
        let _third = waiting.enter(&b).unwrap();
        waiting.enter(&b).expect_err("a fourth in all");
        drop(first);
        drop(waiting.enter(&a).unwrap());
        assert_eq!(waiting.count(), 2);
        drop((_second, _third));
        assert_eq!(waiting.count(), 0);
        assert!(waiting.now().by_caller.is_empty());
    }
}
