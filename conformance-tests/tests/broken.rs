//! The suite can fail: every driver that is wrong on purpose is caught by the case made for it, and
//! the same driver without its flaw passes everything.

use std::sync::Arc;

use lockkit_conformance::broken::{FLAWS, Flaw, ToyHarness};
use lockkit_conformance::{Case, Harness, Outcome, Time, run};

mod the_sound_one {
    use super::*;
    lockkit_conformance::suite!(ToyHarness::sound());
}

fn outcome(harness: ToyHarness, case: &str) -> Outcome {
    let case = Case::named(case).unwrap_or_else(|| panic!("there is no case {case}"));
    let harness: Arc<dyn Harness> = Arc::new(harness);
    run::runtime(Time::Paused).block_on(run::case(harness, case)).outcome
}

#[test]
fn every_broken_driver_is_caught_by_the_case_made_for_it() {
    let mut escaped = Vec::new();
    for caught in FLAWS {
        let outcome = outcome(ToyHarness::with(caught.flaw), caught.by);
        if !matches!(outcome, Outcome::Failed(_)) {
            escaped.push((caught.flaw, caught.by));
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}

#[test]
fn a_driver_that_denies_what_it_does_is_not_let_off_as_not_applicable() {
    let case = "register_02_of_16_racing_writers_one_wins";
    let outcome = outcome(ToyHarness::with(Flaw::DeniesWhatItDoes), case);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

#[test]
fn a_driver_that_does_twice_what_it_is_asked_twice_fails_when_answers_are_lost() {
    let case = "robust_01_an_answer_is_lost_after_any_call_acted";
    let outcome = outcome(ToyHarness::with(Flaw::QueuesTwiceWhenAskedTwice), case);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

#[test]
fn what_stands_on_locks_and_registers_falls_with_them() {
    for (flaw, case) in [
        (Flaw::RegisterIgnoresVersions, "latch_04_all_of_many_at_once_are_counted"),
        (Flaw::RegisterForgetsWrites, "register_08_a_write_whose_answer_was_lost_is_done_once"),
        (Flaw::GrantsTwo, "once_01_of_many_one_runs_and_all_learn_the_decision"),
        (Flaw::ForgetsExpiry, "once_03_a_runner_that_died_is_followed_after_its_lease"),
        (Flaw::ForgetsExpiry, "barrier_03_a_participant_that_died_does_not_count"),
        (Flaw::ForgetsExpiry, "election_04_a_leader_that_is_cut_off_knows_and_is_followed"),
        (Flaw::GrantsTwo, "multi_02_crossing_callers_never_deadlock"),
    ] {
        // Some of them show only where two come at the same moment: one time in a few.
        let convicted = || matches!(outcome(ToyHarness::with(flaw), case), Outcome::Failed(_));
        assert!((0..50).any(|_| convicted()), "{flaw:?} escaped {case}");
    }
}

#[test]
fn whoever_promotes_a_claim_gives_it_the_lease_of_a_holder() {
    let cases = lockkit_conformance::CASES.iter().filter(|case| case.name.contains("promoted"));
    let mut tried = 0;
    for case in cases {
        let outcome = outcome(ToyHarness::with(Flaw::PromotesForTheWaitingTtl), case.name);
        assert!(matches!(outcome, Outcome::Failed(_)), "{}: {outcome:?}", case.name);
        tried += 1;
    }
    assert_eq!(tried, 4);
}

#[test]
fn random_commands_tell_most_flaws_of_the_list_from_the_model() {
    let differs = [
        Flaw::GrantsTwo,
        Flaw::QueuesTwiceWhenAskedTwice,
        Flaw::TokenStandsStill,
        Flaw::TokenRepeatsAfterCleanUp,
        Flaw::TryOvertakes,
        Flaw::ReadersOvertakeWriters,
        Flaw::RenewsAnothers,
        Flaw::ReleasesWithoutId,
        Flaw::SaysNoSuchLockToStrangers,
        Flaw::GracefulBreakActsAtOnce,
        Flaw::GracefulBreakIsForgotten,
        Flaw::ForcedBreakWaits,
    ];
    for flaw in differs {
        let case = "model_01_random_commands_are_answered_as_the_model_answers";
        let outcome = outcome(ToyHarness::with(flaw), case);
        assert!(matches!(outcome, Outcome::Failed(_)), "{flaw:?}: {outcome:?}");
    }
    for flaw in [Flaw::SemaphoreCountsOneMore, Flaw::SmallOvertakesLarge, Flaw::AcceptsAnotherLimit]
    {
        let case = "model_02_semaphores_are_answered_as_the_model_answers";
        let outcome = outcome(ToyHarness::with(flaw), case);
        assert!(matches!(outcome, Outcome::Failed(_)), "{flaw:?}: {outcome:?}");
    }
}

#[test]
fn there_are_at_least_fifteen_broken_drivers_and_no_flaw_stands_twice() {
    let flaws: std::collections::HashSet<_> = FLAWS.iter().map(|c| c.flaw).collect();
    assert!(flaws.len() >= 15 && flaws.len() == FLAWS.len());
}
