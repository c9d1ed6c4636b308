//! What is said of made-up set-ups.

use lockkit_core::capabilities::TokenSource;
use lockkit_core::promises::Promises;

use super::*;
use crate::compare::Measured;

fn set_up(name: &str, change: impl FnOnce(&mut Capabilities)) -> ComparedSetUp {
    let mut capabilities = Capabilities::of("test");
    change(&mut capabilities);
    let (name, place) = (name.to_owned(), String::new());
    let promises = Promises::of(&capabilities);
    ComparedSetUp {
        name,
        location: place,
        capabilities,
        promises,
        reports: Vec::new(),
        measured: Measured::default(),
    }
}

fn about<'a>(all: &'a [Difference], what: &str) -> Vec<&'a Difference> {
    all.iter().filter(|difference| difference.about == what).collect()
}

#[test]
fn equal_set_ups_differ_in_their_tokens_alone() {
    let (a, b) = (set_up("a", |_| ()), set_up("b", |_| ()));
    let all = between(&a, &b);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].change.as_ref().unwrap().contains("take-over"));
}

#[test]
fn faults_that_change_in_the_same_way_share_a_sentence() {
    let faults: &[_] =
        &[(Fault::Failover, Guarantee::Tokens), (Fault::SplitBrain, Guarantee::Tokens)];
    let (weak, strong) = (set_up("weak", |c| c.faults = faults), set_up("strong", |_| ()));
    let all = between(&weak, &strong);
    let safer = about(&all, "Safer under faults");
    assert_eq!(safer.len(), 1, "{all:?}");
    let sentence = &safer[0].sentence;
    assert!(sentence.contains("lagging replica”, “split brain"), "{sentence}");
    let all = between(&strong, &weak);
    let less = about(&all, "Less safe under faults");
    assert!(less[0].change.as_ref().unwrap().starts_with("Check the token"), "{less:?}");
}

#[test]
fn a_longer_slack_and_a_greater_least_ttl_say_what_to_do_with_the_ttl() {
    let from = set_up("from", |_| ());
    let to = set_up("to", |c| {
        c.min_ttl = Duration::from_secs(2);
        c.expiry_slack = Duration::from_secs(3);
        c.token_source = TokenSource::Revision;
    });
    let all = between(&from, &to);
    let change = |what| about(&all, what)[0].change.clone().unwrap();
    assert!(change("Least ttl").contains("below 2 s"), "{all:?}");
    assert!(change("After a crash").contains("by up to 2.9 s"), "{all:?}");
    let back = between(&to, &from);
    assert_eq!(about(&back, "After a crash")[0].change, None);
    assert_eq!(about(&back, "Least ttl")[0].change, None);
}

#[test]
fn what_is_missing_is_said_with_what_to_use_instead() {
    let from = set_up("from", |c| c.registers = true);
    let to = set_up("to", |c| c.permits = false);
    let all = between(&from, &to);
    let missing: Vec<_> = about(&all, "Missing").iter().map(|d| d.sentence.clone()).collect();
    assert_eq!(
        missing,
        ["to has no semaphores.", "to has no registers, and with them latch, barrier and once."]
    );
    assert_eq!(about(&between(&to, &from), "New").len(), 2);
}

#[test]
fn only_speeds_that_are_apart_are_mentioned() {
    let (mut from, mut to) = (set_up("from", |_| ()), set_up("to", |_| ()));
    (from.measured.one_task, to.measured.one_task) = (10_000.0, 9_000.0);
    (from.measured.many_tasks, to.measured.many_tasks) = (100_000.0, 10_000.0);
    let all = between(&from, &to);
    let speed = about(&all, "Speed");
    assert_eq!(
        speed[0].sentence,
        "In this run, 64 tasks lock and release 10,000/s instead of 100,000/s (10 times slower)."
    );
}
