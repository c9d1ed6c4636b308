//! What changes for who moves from one set-up to another: a sentence for each difference, and what to
//! change in ttl or code because of it. What is equal is not mentioned.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{Fault, Guarantee, LeaseClock, LeaseScope, WakeUp};
use serde::Serialize;

use super::ComparedSetUp;
use super::tables::{rate, seconds, without_notes};
use crate::semantics::span;

/// A difference between two set-ups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What differs, in a word or two.
    pub about: &'static str,
    /// How.
    pub sentence: String,
    /// What to change because of it; `None` where nothing need be.
    pub change: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.sentence)?;
        self.change.iter().try_for_each(|change| write!(f, " {change}"))
    }
}

/// Rates and times closer to each other than this are the same.
const NOISE: f64 = 1.5;

/// A dead holder's lock that is free so much later is nothing to plan for.
const NOTICED: Duration = Duration::from_millis(500);

pub(super) fn between(from: &ComparedSetUp, to: &ComparedSetUp) -> Vec<Difference> {
    let mut found = Differences { from, to, all: Vec::new() };
    found.faults();
    found.leases();
    found.waiting();
    found.tokens();
    found.abilities();
    found.costs();
    found.all
}

struct Differences<'a> {
    from: &'a ComparedSetUp,
    to: &'a ComparedSetUp,
    all: Vec<Difference>,
}

impl<'a> Differences<'a> {
    fn add(&mut self, about: &'static str, sentence: String, change: Option<&str>) {
        let change = change.map(str::to_owned);
        self.all.push(Difference { about, sentence, change });
    }

    fn both(&self) -> [&'a Capabilities; 2] {
        [&self.from.capabilities, &self.to.capabilities]
    }

    /// Faults that change in the same way share a sentence.
    fn faults(&mut self) {
        let mut changes: Vec<([Option<Guarantee>; 2], Vec<String>)> = Vec::new();
        for fault in Fault::ALL {
            let guarantee = [self.from, self.to].map(|set_up| set_up.promises.guarantee(fault));
            // What cannot happen and what does no harm are the same to a program that moves.
            if guarantee[0] == guarantee[1]
                || guarantee.iter().all(|kept| *kept >= Some(Guarantee::All))
            {
                continue;
            }
            let title = without_notes(fault.title());
            match changes.iter_mut().find(|(same, _)| *same == guarantee) {
                Some((_, titles)) => titles.push(title),
                None => changes.push((guarantee, vec![title])),
            }
        }
        for (guarantee, titles) in changes {
            let about = match guarantee {
                [None, _] | [_, None] => "Unknown under faults",
                [old, new] if new > old => "Safer under faults",
                _ => "Less safe under faults",
            };
            let [old, new] = guarantee.map(kept);
            let (from, to) = (&self.from.name, &self.to.name);
            let when = titles.join("”, “");
            let sentence = format!("“{when}”: with {from}, {old}; with {to}, {new}.");
            let change = match guarantee {
                [None, _] | [_, None] => Some(
                    "`lockkit doctor --promises` names the setting: look at it on the servers.",
                ),
                [Some(Guarantee::Tokens), Some(Guarantee::All | Guarantee::Impossible)] => {
                    Some("Keep checking tokens where you do: other faults still need it.")
                }
                [old, new] if new > old => None,
                [_, Some(Guarantee::Tokens)] => Some(
                    "Check the token at everything that the lock protects: `fence`, \
                     `store_with(&guard, …)`, or a column that only grows.",
                ),
                _ => Some(
                    "No token helps here: prevent this fault, and restart the holders when it has \
                     happened.",
                ),
            };
            self.add(about, sentence, change);
        }
    }

    fn leases(&mut self) {
        let [old, new] = self.both();
        let to = self.to.name.clone();
        let one = |c: &Capabilities| c.lease_scope == LeaseScope::Claim;
        match (one(old), one(new)) {
            (true, false) => self.add(
                "Leases",
                format!(
                    "With {to}, locks of one process with the same ttl live on one lease: renewing \
                     many is cheap, and they are lost together."
                ),
                Some(
                    "Give the ttl once, in the URL (`?ttl=`) or `Settings::ttl`, instead of another \
                     with each lock; treat the loss of one lock as the loss of all.",
                ),
            ),
            (false, true) => self.add(
                "Leases",
                format!("With {to}, each lock has a lease of its own and is lost by itself."),
                None,
            ),
            _ => {}
        }
        if old.lease_clock != new.lease_clock {
            let (was, is) = (clock(old.lease_clock), clock(new.lease_clock));
            let change = (new.lease_clock == LeaseClock::Server)
                .then_some("Let time servers slew the clock instead of stepping it.");
            self.add("Clock", format!("Leases end by {is}; no longer by {was}."), change);
        }
        if old.min_ttl != new.min_ttl || old.granularity != new.granularity {
            let (was, is) = (least(old), least(new));
            let change = (new.min_ttl > old.min_ttl).then(|| {
                let least = span(new.min_ttl);
                format!("Raise every ttl and wait_ttl below {least}: they are refused.")
            });
            self.add("Least ttl", format!("It is {is} instead of {was}."), change.as_deref());
        }
        if old.max_ttl != new.max_ttl && new.max_ttl < old.max_ttl {
            let longest = span(new.max_ttl);
            let sentence = format!("Leases longer than {longest} may be granted for less.");
            let change = "Nothing, if guards are renewed; tickets must be renewed that often.";
            self.add("Longest ttl", sentence, Some(change));
        }
        if old.expiry_slack != new.expiry_slack {
            let (was, is) = (span(old.expiry_slack), span(new.expiry_slack));
            let [old_seen, new_seen] = [self.from, self.to]
                .map(|s| (s.measured.dead_freed - s.measured.dead_ttl).max(0.0));
            let sentence = format!(
                "A dead holder's lock is free within its ttl and {is}, instead of its ttl and {was} \
                 (seen in this run: {} instead of {}).",
                seconds(new_seen),
                seconds(old_seen)
            );
            let more = new.expiry_slack.saturating_sub(old.expiry_slack);
            let change = (more > NOTICED).then(|| {
                let more = span(more);
                format!(
                    "If a crash may not hold up the next one longer than before, shorten the ttl by \
                     up to {more}, but not below the longest pause of a healthy holder."
                )
            });
            self.add("After a crash", sentence, change.as_deref());
        }
    }

    fn waiting(&mut self) {
        let [old, new] = self.both();
        let to = self.to.name.clone();
        if old.wake_up != new.wake_up {
            let sentence = match new.wake_up {
                WakeUp::Push => format!("{to} wakes the next waiter; no client polls."),
                WakeUp::Poll { within } => {
                    format!("With {to}, waiters poll: the next one knows within {}.", span(within))
                }
                _ => format!("Waiters of {to} learn in another way that they hold."),
            };
            let change = (new.wake_up != WakeUp::Push)
                .then_some("Hold locks for longer than that where many wait for one lock.");
            self.add("Waiting", sentence, change);
        }
        match (old.fifo, new.fifo) {
            (true, false) => self.add(
                "Order",
                format!("{to} keeps no queue: which claim gets the lock next is chance."),
                Some("Do not rely on fairness; bound each wait (`try_lock_for`, `run --wait`)."),
            ),
            (false, true) => {
                self.add("Order", format!("{to} grants in the order of asking."), None)
            }
            _ => {}
        }
    }

    fn tokens(&mut self) {
        let [old, new] = self.both();
        let mut sentence = "Tokens of two backends do not compare.".to_owned();
        if old.token_source != new.token_source {
            sentence = format!("{sentence} These come from another source, and look different.");
        }
        self.add(
            "Tokens",
            sentence,
            Some(
                "Move with `mirror:OLD,NEW` and one `lockkit take-over`, which lifts the new tokens \
                 above the old ones; or reset what your resources remember.",
            ),
        );
    }

    fn abilities(&mut self) {
        let [old, new] = self.both();
        let can = |c: &Capabilities| {
            [
                ("semaphores", c.permits, "Use a mutex, or keep semaphores on the old backend."),
                ("resizable semaphores", c.resize, "Give the limit with each semaphore."),
                (
                    "tickets (detached locks)",
                    c.detached,
                    "Hold by guards, in a process that lives.",
                ),
                (
                    "registers, and with them latch, barrier and once",
                    c.registers,
                    "Keep such values elsewhere, and check the token there.",
                ),
                ("locks between processes", c.shared_between_processes, "Use it for tests only."),
            ]
        };
        for ((what, could, instead), (_, can, _)) in can(old).into_iter().zip(can(new)) {
            match (could, can) {
                (true, false) => {
                    self.add("Missing", format!("{} has no {what}.", self.to.name), Some(instead));
                }
                (false, true) => self.add("New", format!("{} has {what}.", self.to.name), None),
                _ => {}
            }
        }
        let [old, new] = [fence(old.backend), fence(new.backend)];
        if old != new {
            let sentence = match new {
                Some(way) => {
                    format!("{} checks the lock in your own transaction: {way}.", self.to.name)
                }
                None => {
                    format!("{} cannot check the lock in a transaction of yours.", self.to.name)
                }
            };
            let change = match (new, old) {
                (Some(_), _) => {
                    "Call `guard.fence(&mut tx)` where the data is on the backend itself."
                }
                (None, _) => {
                    "Replace `guard.fence(…)` by a register's `store_with(&guard, …)`, or check \
                              the token at the resource."
                }
            };
            self.add("Fencing", sentence, Some(change));
        }
    }

    fn costs(&mut self) {
        let [old, new] = self.both();
        if let (Some(was), Some(is)) = (old.round_trips, new.round_trips) {
            let all = [
                ("an acquire", was.acquire, is.acquire),
                ("a release", was.release, is.release),
                ("a refused try", was.refused_try, is.refused_try),
                ("a renewal of all locks", was.renew, is.renew),
                ("the next one, once woken,", was.once_woken, is.once_woken),
            ];
            let other = all.iter().filter(|(_, was, is)| was != is);
            let other: Vec<_> = other
                .map(|(what, was, is)| format!("{what} takes {is} instead of {was}"))
                .collect();
            if !other.is_empty() {
                let sentence = format!("In round trips: {}.", other.join(", "));
                self.add("Round trips", sentence, None);
            }
        }
        let [was, is] = [&self.from.measured, &self.to.measured];
        let mut sentences = Vec::new();
        for (what, was, is) in [
            ("one task locks and releases", was.one_task, is.one_task),
            ("64 tasks lock and release", was.many_tasks, is.many_tasks),
        ] {
            if was > 0.0 && is > 0.0 && apart(was, is) {
                let (by, was, is) = (times(was, is), rate(was), rate(is));
                sentences.push(format!("{what} {is} instead of {was} ({by})"));
            }
        }
        if apart(was.hand_over, is.hand_over) && was.hand_over > 0.0 {
            let (was, is) = (seconds(was.hand_over), seconds(is.hand_over));
            sentences.push(format!("a hand-over takes {is} instead of {was}"));
        }
        if sentences.is_empty() {
            return;
        }
        let slower = is.one_task < was.one_task;
        let change = slower.then_some(
            "If locks are taken thousands of times a second, hold one lock for more work, or take \
             several at once (`multi`).",
        );
        self.add("Speed", format!("In this run, {}.", sentences.join("; ")), change);
    }
}

fn kept(guarantee: Option<Guarantee>) -> &'static str {
    match guarantee {
        None => "a setting decides that cannot be read",
        Some(Guarantee::All) => "exclusion and tokens hold",
        Some(Guarantee::Tokens) => "two may hold at once, and the later one has the greater token",
        Some(Guarantee::Nothing) => "neither exclusion nor growing tokens are promised",
        Some(Guarantee::Impossible) => "it cannot happen",
    }
}

fn clock(clock: LeaseClock) -> &'static str {
    match clock {
        LeaseClock::Machine => "the machine's monotonic clock",
        LeaseClock::Server => "the server's wall clock, which can be stepped",
        LeaseClock::Leader => "the leader's monotonic clock, which cannot be stepped",
        LeaseClock::Members => "each member's own clock",
        LeaseClock::Observers => "the other clients' monotonic clocks",
        _ => "another clock",
    }
}

fn least(capabilities: &Capabilities) -> String {
    let least = span(capabilities.min_ttl);
    match capabilities.granularity.as_secs() {
        0 => least,
        _ => format!("{least}, in steps of {}", span(capabilities.granularity)),
    }
}

/// How a transaction of the user's checks the lock; the table *Fencing writes* of docs/semantics.md.
fn fence(backend: &str) -> Option<&'static str> {
    match backend {
        "sqlite" | "postgres" | "mysql" => Some("an sqlx transaction"),
        "etcd" => Some("the conditions of a Txn"),
        "zookeeper" => Some("a MultiWriter"),
        _ => None,
    }
}

fn apart(one: f64, other: f64) -> bool {
    one.max(other) > one.min(other) * NOISE
}

fn times(was: f64, is: f64) -> String {
    let by = was.max(is) / was.min(is);
    let by = if by < 9.5 { format!("{by:.1}") } else { format!("{by:.0}") };
    match is < was {
        true => format!("{by} times slower"),
        false => format!("{by} times faster"),
    }
}
