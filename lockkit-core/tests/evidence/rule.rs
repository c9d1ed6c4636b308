//! The rule by itself.

use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Evidence, ServerChanges, ServerHistory};
use lockkit_core::{LossReason, Margin};
use proptest::prelude::*;

use super::SECOND;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * MS)
}

fn of(run: &str) -> Evidence {
    Evidence::new(run, 1)
}

fn time(ms: u64) -> Evidence {
    of("one").with_time(Duration::from_millis(ms))
}

/// Takes one answer to a request sent and answered at these milliseconds.
fn hear(
    servers: &mut ServerHistory,
    before: &str,
    evidence: &Evidence,
    sent: u64,
    got: u64,
) -> ServerChanges {
    servers.hear([(Some(before), evidence)], at(sent), at(got), Margin::default())
}

#[test]
fn a_run_that_still_answers_is_not_gone() {
    // A shard handed a claim over to another one.
    let mut servers = ServerHistory::default();
    let (one, two) = (of("one"), of("two"));
    let answers = [(Some("one"), &two), (Some("one"), &one)];
    let judged = servers.hear(answers, at(0), at(1), Margin::default());
    assert!(judged.is_empty());
}

#[test]
fn a_claim_of_an_unknown_run_is_in_doubt_with_any() {
    let judged = hear(&mut ServerHistory::default(), "one", &of("two"), 0, 1);
    assert_eq!(judged.doubt(None), Some(LossReason::ServerChanged));
    assert_eq!(judged.doubt(Some("one")), Some(LossReason::ServerChanged));
    assert_eq!(judged.doubt(Some("two")), None);
    assert_eq!(judged.doubt(Some("three")), None);
}

#[test]
fn a_position_goes_back_only_behind_an_answer_that_had_come_before() {
    let mut servers = ServerHistory::default();
    let position = |n| of("one").with_position(n);
    assert!(hear(&mut servers, "one", &position(100), 0, 10).is_empty());
    // Both were under way at the same time.
    assert!(hear(&mut servers, "one", &position(90), 5, 15).is_empty());
    assert!(hear(&mut servers, "one", &position(100), 20, 30).is_empty());
    let judged = hear(&mut servers, "one", &position(99), 40, 50);
    assert_eq!(judged.doubt(Some("one")), Some(LossReason::ServerChanged));
    assert!(hear(&mut servers, "one", &position(99), 60, 70).is_empty(), "said once");
    assert!(hear(&mut servers, "two", &of("two").with_position(1), 80, 90).is_empty());
}

#[test]
fn clocks_of_other_connections_and_runs_are_not_compared() {
    for other in [Evidence::new("one", 2), Evidence::new("two", 1)] {
        let mut servers = ServerHistory::default();
        hear(&mut servers, "one", &time(0), 0, 1);
        let later = other.clone().with_time(Duration::from_secs(3_600));
        let judged = hear(&mut servers, &other.run, &later, 2_000, 2_001);
        assert!(judged.is_empty());
        assert_eq!(servers.rate(&later, Margin::default()), 1.0);
    }
}

#[test]
fn a_jump_counts_for_three_pairs() {
    let mut servers = ServerHistory::default();
    let mut theirs = 0;
    for n in 0..10 {
        // In 10 s their clock goes 20 s forward, once.
        theirs += if n == 3 { 20_000 } else { 10_000 };
        let judged = hear(&mut servers, "one", &time(theirs), n * 10_000, n * 10_000);
        assert_eq!(judged.doubt(Some("one")).is_some(), n == 3, "{n}");
        let rate = servers.rate(&time(theirs), Margin::default());
        assert_eq!(rate, if (3..6).contains(&n) { 2.0 } else { 1.0 }, "{n}");
    }
}

#[test]
fn what_the_margin_covers_and_what_is_too_close_together_counts_for_nothing() {
    let margin = Margin::new(10, Duration::from_millis(2)).unwrap();
    for (theirs, rate) in [(11_000, 1.0), (11_002, 1.0), (11_010, 1.101)] {
        let mut servers = ServerHistory::default();
        servers.hear([(None, &time(0))], at(0), at(0), margin);
        servers.hear([(None, &time(theirs))], at(10_000), at(10_000), margin);
        assert_eq!(servers.rate(&time(0), margin), rate, "{theirs}");
    }
    let mut servers = ServerHistory::default();
    servers.hear([(None, &time(0))], at(0), at(0), margin);
    servers.hear([(None, &time(300))], at(10), at(10), margin);
    assert_eq!(servers.rate(&time(0), margin), 1.0, "a small step within a moment");
}

proptest! {
    /// However slow the answers and whenever within each the clock was read, a clock whose rate the margin
    /// covers is never taken for fast, and none for faster than it is.
    #[test]
    fn the_rate_is_never_overestimated(
        rate in 0.5f64..2.5,
        offset in 0u64..1_000_000,
        answers in prop::collection::vec((0u64..20_000, 0u64..5_000, 0.0f64..=1.0), 2..12),
    ) {
        let margin = Margin::new(10, Duration::from_millis(2)).unwrap();
        let (mut servers, mut now) = (ServerHistory::default(), 0);
        for (pause, took, read) in answers {
            let sent = now + pause;
            let read = sent as f64 + took as f64 * read;
            let time = Duration::from_millis(offset) + Duration::from_secs_f64(read * rate / 1e3);
            let evidence = of("one").with_time(time);
            now = sent + took;
            servers.hear([(None, &evidence)], at(sent), at(now), margin);
            let seen = servers.rate(&evidence, margin);
            prop_assert!(seen <= rate.max(1.0) + 1e-6, "{seen}");
            prop_assert!(rate > 1.1 || seen == 1.0, "{seen}");
            prop_assert!((1.0..=3.0).contains(&seen));
        }
    }

    /// Quick answers show every rate above the margin, and one jump at most.
    #[test]
    fn a_fast_clock_is_seen(rate in 1.2f64..2.9, every in 2u64..30) {
        let margin = Margin::new(10, Duration::from_millis(2)).unwrap();
        let (mut servers, mut jumps) = (ServerHistory::default(), 0);
        for n in 0..10 {
            let now = n * every * 1_000;
            let time = Duration::from_secs_f64(now as f64 * rate / 1e3) + SECOND;
            let evidence = of("one").with_time(time);
            let judged = servers.hear([(Some("one"), &evidence)], at(now), at(now + 1), margin);
            jumps += u32::from(!judged.is_empty());
            if n > 0 {
                let seen = servers.rate(&evidence, margin);
                prop_assert!(seen > rate * 0.999 && seen <= rate + 1e-6, "{seen}");
            }
        }
        prop_assert_eq!(jumps, 1);
    }
}
