//! The suite can fail: every driver that is wrong on purpose is caught by the case made for it, and
//! the same driver without its bug passes everything.

use std::sync::Arc;

use lockkit_conformance::broken::{BUGS, InjectedBug, ToyHarness};
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
    for caught in BUGS {
        let outcome = outcome(ToyHarness::with(caught.bug), caught.by);
        if !matches!(outcome, Outcome::Failed(_)) {
            escaped.push((caught.bug, caught.by));
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
}

#[test]
fn a_driver_that_denies_what_it_does_is_not_let_off_as_not_applicable() {
    let case = "register_02_of_16_racing_writers_one_wins";
    let outcome = outcome(ToyHarness::with(InjectedBug::DeniesWhatItDoes), case);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

#[test]
fn a_driver_that_does_twice_what_it_is_asked_twice_fails_when_answers_are_lost() {
    let case = "robust_01_an_answer_is_lost_after_any_call_acted";
    let outcome = outcome(ToyHarness::with(InjectedBug::QueuesTwiceWhenAskedTwice), case);
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

#[test]
fn what_stands_on_locks_and_registers_falls_with_them() {
    for (bug, case) in [
        (InjectedBug::RegisterIgnoresVersions, "latch_04_all_of_many_at_once_are_counted"),
        (
            InjectedBug::RegisterForgetsWrites,
            "register_08_a_write_whose_answer_was_lost_is_done_once",
        ),
        (InjectedBug::GrantsTwo, "once_01_of_many_one_runs_and_all_learn_the_decision"),
        (InjectedBug::ForgetsExpiry, "once_03_a_runner_that_died_is_followed_after_its_lease"),
        (InjectedBug::ForgetsExpiry, "barrier_03_a_participant_that_died_does_not_count"),
        (InjectedBug::ForgetsExpiry, "election_04_a_leader_that_is_cut_off_knows_and_is_followed"),
        (InjectedBug::GrantsTwo, "multi_02_crossing_callers_never_deadlock"),
        (InjectedBug::GrantsTwo, "slots_03_no_two_of_many_workers_hold_one_number"),
        (InjectedBug::ForgetsExpiry, "slots_02_a_dead_holder_s_slot_is_free_after_its_lease"),
        (InjectedBug::AcceptsAnotherLimit, "slots_04_the_loss_of_permit_or_lock_is_the_slot_s"),
        (InjectedBug::ExpiresEarly, "stay_02_a_dead_holder_s_lock_stays_for_its_least_hold"),
        (InjectedBug::ExpiresEarly, "stay_03_a_lost_lock_stays_closed_for_its_lock_delay"),
    ] {
        // Some of them show only where two come at the same moment: one time in a few.
        let convicted = || matches!(outcome(ToyHarness::with(bug), case), Outcome::Failed(_));
        assert!((0..50).any(|_| convicted()), "{bug:?} escaped {case}");
    }
}

#[test]
fn whoever_promotes_a_claim_gives_it_the_lease_of_a_holder() {
    let cases = lockkit_conformance::CASES.iter().filter(|case| case.name.contains("promoted"));
    let mut tried = 0;
    for case in cases {
        let outcome = outcome(ToyHarness::with(InjectedBug::PromotesForTheWaitingTtl), case.name);
        assert!(matches!(outcome, Outcome::Failed(_)), "{}: {outcome:?}", case.name);
        tried += 1;
    }
    assert_eq!(tried, 4);
}

#[test]
fn random_commands_tell_most_flaws_of_the_list_from_the_model() {
    let differs = [
        InjectedBug::GrantsTwo,
        InjectedBug::QueuesTwiceWhenAskedTwice,
        InjectedBug::TokenNeverGrows,
        InjectedBug::TokenRepeatsAfterCleanUp,
        InjectedBug::TryOvertakes,
        InjectedBug::ReadersOvertakeWriters,
        InjectedBug::RenewsAnothers,
        InjectedBug::ReleasesWithoutId,
        InjectedBug::SaysNoSuchLockToStrangers,
        InjectedBug::GracefulBreakActsAtOnce,
        InjectedBug::GracefulBreakIsForgotten,
        InjectedBug::ForcedBreakWaits,
    ];
    for bug in differs {
        let case = "model_01_random_commands_are_answered_as_the_model_answers";
        let outcome = outcome(ToyHarness::with(bug), case);
        assert!(matches!(outcome, Outcome::Failed(_)), "{bug:?}: {outcome:?}");
    }
    for bug in [
        InjectedBug::SemaphoreCountsOneMore,
        InjectedBug::SmallOvertakesLarge,
        InjectedBug::AcceptsAnotherLimit,
    ] {
        let case = "model_02_semaphores_are_answered_as_the_model_answers";
        let outcome = outcome(ToyHarness::with(bug), case);
        assert!(matches!(outcome, Outcome::Failed(_)), "{bug:?}: {outcome:?}");
    }
}

#[test]
fn there_are_at_least_fifteen_broken_drivers_and_no_flaw_stands_twice() {
    let bugs: std::collections::HashSet<_> = BUGS.iter().map(|c| c.bug).collect();
    assert!(bugs.len() >= 15 && bugs.len() == BUGS.len());
}
