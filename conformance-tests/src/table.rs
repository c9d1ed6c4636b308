//! The one list of all cases. The test macro, the binary and the table of broken drivers read it;
//! nothing else may name cases in bulk.

use std::future::Future;
use std::pin::Pin;

use serde::Serialize;

use crate::context::CaseContext;
use crate::need::Need;

/// One case of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its id and the sentence that it proves: `order_02_a_try_never_overtakes_a_queue`.
    pub name: &'static str,
    /// `exclusion`, `order`, `modes` …
    pub group: &'static str,
    /// What it needs to be run.
    pub kind: CaseKind,
    /// What the driver or the harness must be able to do for it to apply.
    pub need: Need,
    /// The case.
    pub run: fn(CaseContext) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Case {
    /// The case of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }

    /// How many errors that may pass there may be, although the case stages none at the backend. None,
    /// but where futures are dropped in the middle of a request: what becomes of a connection that
    /// carried it is the driver's business.
    pub fn errors_that_may_pass(&self) -> usize {
        match self.group {
            "cancel" | "robust" => 100,
            // The shortest lease that there is may be over before its grant is known.
            "lease" if self.name.starts_with("lease_07") => 1_000,
            _ => 0,
        }
    }
}

/// The three kinds of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseKind {
    /// Any driver, nothing staged.
    Semantics,
    /// Messages are counted on the wire.
    Cost,
    /// The server or the network misbehaves.
    Fault,
}

/// What the group's cases need.
const fn kind_of(group: &str) -> CaseKind {
    match group.as_bytes() {
        b"robust" => CaseKind::Fault,
        _ => CaseKind::Semantics,
    }
}

/// Hands the list of cases to another macro of this crate, behind the tokens given.
#[doc(hidden)]
#[macro_export]
macro_rules! __every_case {
    ($then:ident $($args:tt)*) => {
        $crate::$then! { [$($args)*]
            exclusion {
                exclusion_01_a_free_lock_is_granted: Nothing,
                exclusion_02_a_second_claim_is_refused_or_queued: Nothing,
                exclusion_03_different_names_do_not_meet: Nothing,
                exclusion_04_a_lock_is_free_again_right_after_its_release: Nothing,
                exclusion_05_tasks_are_never_inside_together: Nothing,
                exclusion_06_independent_managers_are_never_inside_together: Nothing,
                exclusion_07_processes_are_never_inside_together: Processes,
                exclusion_08_a_claim_does_not_release_another_of_its_connection: Nothing,
                exclusion_09_the_lock_and_the_semaphore_of_one_name_do_not_meet: Permits,
            }
            order {
                order_01_waiters_are_granted_in_the_order_of_the_queue: Fifo,
                order_02_a_try_never_overtakes_a_queue: Fifo,
                order_03_a_waiter_that_gave_up_is_skipped: Nothing,
                order_04_a_waiter_that_died_is_skipped_after_its_lease: Nothing,
                order_05_readers_that_come_after_a_waiting_writer_wait: Fifo,
                order_06_readers_at_the_front_enter_together: Nothing,
                order_07_no_claim_starves_under_a_mix_of_readers_and_writers: Fifo,
            }
            modes {
                modes_01_many_readers_hold_together: Nothing,
                modes_02_a_writer_excludes_readers_and_writers: Nothing,
                modes_03_a_downgrade_keeps_other_writers_out_all_the_way: Nothing,
                modes_04_a_semaphore_never_gives_more_than_its_limit: Permits,
                modes_05_several_permits_are_taken_at_once: Permits,
                modes_06_a_large_request_in_front_is_not_overtaken_by_small_ones: Permits,
                modes_07_more_permits_than_the_limit_is_an_error_at_once: Permits,
                modes_08_a_permit_expires_by_itself: Permits,
                modes_09_ten_thousand_permits_are_counted: Permits,
                modes_10_another_limit_is_refused_while_the_semaphore_is_in_use: Permits,
                modes_11_any_holder_that_leaves_wakes_the_next: Permits,
            }
            resize {
                resize_01_a_raise_lets_in_at_once_whom_it_has_room_for: Resize,
                resize_02_lowering_evicts_no_holder_and_admits_none_until_permits_are_free: Resize,
                resize_03_a_drained_semaphore_admits_none_until_it_is_raised_again: Resize,
                resize_04_of_racing_resizes_one_wins_and_all_agree: Resize,
                resize_05_the_first_use_gives_the_limit_and_later_ones_do_not: Resize,
                resize_06_a_handle_that_remembers_an_old_limit_works_on_under_the_new_one: Resize,
                resize_07_a_plain_semaphore_must_name_the_limit_in_force: Resize,
                resize_08_a_queued_claim_is_known_by_its_id_whatever_its_limit_was: Resize,
                resize_09_a_resize_whose_answer_was_lost_is_in_force: Resize,
                resize_10_permits_out_stay_within_a_limit_that_only_grows: Resize,
                resize_11_a_turn_that_comes_while_the_limit_is_lowered_came_or_did_not: Resize,
            }
            lease {
                lease_01_a_lease_ends_after_its_ttl_and_not_before: Nothing,
                lease_02_renewal_carries_a_lease_beyond_its_ttl: Nothing,
                lease_03_a_shortened_lease_ends_early: Nothing,
                lease_04_renewing_an_ended_claim_says_gone: Nothing,
                lease_05_a_waiter_gets_it_once_the_lease_ended: Nothing,
                lease_06_a_grant_that_arrives_after_its_own_end_is_an_error: Nothing,
                lease_07_odd_durations_are_errors_or_work: Nothing,
                lease_08_the_ttl_that_was_granted_is_reported: Nothing,
                lease_09_ended_claims_leave_nothing_behind: Leftovers,
                lease_10_a_late_renewal_as_a_waiter_does_not_shorten: Nothing,
                lease_11_renewals_that_overtake_each_other_never_shorten: Nothing,
                lease_12_a_renewal_never_revives_an_expired_claim: Nothing,
                lease_13_the_second_waiter_gets_it_when_holder_and_first_both_died: Nothing,
                lease_14_max_hold_ends_a_holder_that_hangs: Nothing,
                lease_15_a_downgrade_renews_the_lease: Nothing,
                lease_16_a_raise_renews_the_lease: Raise,
            }
            queue {
                queue_01_a_waiter_promoted_by_a_release_holds_for_its_hold_ttl: Leases,
                queue_02_a_waiter_promoted_by_an_expiry_holds_for_its_hold_ttl: Leases,
                queue_03_a_waiter_promoted_by_another_s_renewal_holds_for_its_hold_ttl: Leases,
                queue_04_readers_promoted_together_hold_for_their_hold_ttls: Leases,
                queue_05_a_renewal_with_others_queued_never_shortens: Fifo,
                queue_06_an_expired_holder_with_others_queued_is_not_revived: Fifo,
            }
            batch {
                batch_01_every_operation_has_its_own_outcome: Nothing,
                batch_02_an_operation_that_fails_affects_no_other: Permits,
                batch_03_a_batch_that_is_repeated_changes_nothing: Nothing,
                batch_04_releases_of_one_batch_wake_every_next: Nothing,
                batch_05_a_batch_of_the_declared_size_is_accepted: Nothing,
                batch_06_acquires_of_one_name_keep_their_order: Fifo,
                batch_07_a_refused_operation_has_no_ambiguous_attempt: Permits,
            }
            time {
                time_01_a_release_hands_over_within_the_declared_time: Nothing,
                time_02_a_dead_holder_s_lock_is_handed_over_within_the_declared_time: Nothing,
                time_03_a_holder_learns_of_a_break_within_a_renewal_interval: Nothing,
            }
            loss {
                loss_01_lost_fires_on_a_break: Nothing,
                loss_02_lost_fires_on_expiry: Nothing,
                loss_03_a_guard_ends_by_itself_when_the_backend_is_gone: Nothing,
                loss_04_lost_is_true_at_once_for_who_asks_late: Nothing,
                loss_05_lost_never_fires_on_an_orderly_release: Nothing,
                loss_06_lost_says_why: Nothing,
                loss_07_run_stops_its_future: Nothing,
                loss_08_a_stopped_process_finds_out_on_waking: Processes,
                loss_09_the_local_deadline_passes_before_the_server_s: Nothing,
                loss_10_a_release_that_finds_a_broken_lock_says_who_broke_it: Nothing,
                loss_11_what_was_granted_late_is_renewed_before_its_guard: Nothing,
            }
            release {
                release_01_releasing_twice_is_harmless: Nothing,
                release_02_releasing_an_ended_claim_says_so: Nothing,
                release_03_an_old_guard_never_frees_its_successor: Nothing,
                release_04_only_the_id_releases_or_renews: Nothing,
                release_05_a_release_meets_a_renewal_in_flight: Nothing,
                release_06_dropping_a_guard_releases_soon: Nothing,
                release_07_a_guard_dropped_outside_a_runtime_does_not_leak: RealTime,
                release_08_shutdown_releases_everything_and_waits: Nothing,
            }
            token {
                token_01_a_grant_has_a_token: Nothing,
                token_02_every_conflicting_holder_has_a_greater_one: Nothing,
                token_03_renewal_and_re_entry_keep_it: Nothing,
                token_04_it_grows_across_release_expiry_and_break: Nothing,
                token_05_it_grows_across_the_clean_up_of_the_name: Nothing,
                token_08_the_order_of_64_clients_grants_is_that_of_their_tokens: Nothing,
                token_09_it_fits_into_a_signed_64_bit_column: Nothing,
                token_10_a_raise_applies_to_this_token_and_all_later_ones: Raise,
                token_11_a_raise_applies_to_claims_that_already_wait: Raise,
            }
            reentrancy {
                reentrancy_01_an_owner_re_enters_without_a_round_trip: Nothing,
                reentrancy_02_it_is_held_until_the_last_guard_goes: Nothing,
                reentrancy_03_other_owners_stay_out: Nothing,
                reentrancy_04_plain_handles_do_not_re_enter: Nothing,
                reentrancy_05_what_cannot_be_re_entered_is_an_error: Nothing,
                reentrancy_06_a_detached_claim_is_resumed_from_its_ticket: Detached,
            }
            cancel {
                cancel_01_a_lock_dropped_while_queued_leaves_nothing: Nothing,
                cancel_02_a_lock_dropped_while_being_granted_leaves_nothing: Nothing,
                cancel_03_an_operation_dropped_at_any_await_point_leaves_nothing: Nothing,
                cancel_04_a_timeout_comes_in_time_and_leaves_nothing: Nothing,
                cancel_05_timeout_busy_and_failure_are_distinct: Nothing,
                cancel_06_an_acquire_that_arrives_after_its_release_leaves_no_ghost: Nothing,
            }
            names {
                names_01_an_unusable_name_is_an_error_before_any_io: Nothing,
                names_02_a_name_may_have_512_bytes: Nothing,
                names_03_special_characters_are_just_characters: Nothing,
                names_04_case_matters: Nothing,
                names_05_trailing_spaces_matter: Nothing,
                names_06_unicode_forms_are_different_names: Nothing,
                names_07_a_name_that_begins_another_does_not_meet_it: Nothing,
                names_08_a_listing_finds_prefixes_literally: Nothing,
            }
            inspect {
                inspect_01_everything_worth_knowing_is_shown: Nothing,
                inspect_02_a_free_lock_is_shown_as_free: Nothing,
                inspect_03_many_locks_are_listed_in_pages: Nothing,
                inspect_04_a_graceful_break_waits_for_the_holder: Nothing,
                inspect_05_a_forced_break_frees_at_once: Nothing,
                inspect_06_a_break_with_an_old_token_breaks_no_claim: Nothing,
                inspect_07_inspecting_never_disturbs_the_lock: Nothing,
                inspect_08_pages_of_any_length_show_both_spaces_once: Nothing,
                inspect_09_a_namespace_with_a_lock_or_a_register_is_listed_once: Namespaces,
                inspect_10_a_waiter_broken_gracefully_gets_no_lease_for_holding: Leases,
            }
            register {
                register_01_what_is_stored_is_loaded_byte_for_byte: Registers,
                register_02_of_16_racing_writers_one_wins: Registers,
                register_03_a_store_with_an_older_token_is_refused: Registers,
                register_04_tokens_are_remembered_across_overwriting: Registers,
                register_05_changed_wakes_on_a_store_and_misses_none: Registers,
                register_06_a_lost_answer_is_distinguished_from_a_conflict: Registers,
                register_07_a_stale_holder_cannot_store: Registers,
                register_10_a_repeated_write_never_lands_over_a_later_one: Registers,
                register_08_a_write_whose_answer_was_lost_is_done_once: Registers,
                register_09_a_watcher_sees_what_came_last: Registers,
                register_11_registers_with_a_value_are_listed_in_pages: Registers,
            }

            latch {
                latch_01_it_opens_at_zero_for_all: Registers,
                latch_02_a_participant_counts_once: Registers,
                latch_03_counting_below_zero_is_an_error: Registers,
                latch_04_all_of_many_at_once_are_counted: Registers,
                latch_05_a_reset_closes_it_for_everybody: Registers,
            }
            barrier {
                barrier_01_no_party_leaves_before_all_have_entered: Registers,
                barrier_02_one_too_few_wait_on: Registers,
                barrier_03_a_participant_that_died_does_not_count: Registers,
                barrier_04_who_lost_its_claim_is_not_let_through: Registers,
            }
            multi {
                multi_01_it_gets_all_or_none: Nothing,
                multi_02_crossing_callers_never_deadlock: Nothing,
                multi_03_it_is_lost_when_one_is_lost: Nothing,
                multi_04_dropped_while_it_waits_it_leaves_nothing: Nothing,
                multi_05_several_managers_are_taken_in_the_order_of_their_ids: Nothing,
                multi_06_free_ones_are_asked_for_at_once_together: Nothing,
            }
            slots {
                slots_01_a_slot_is_the_lowest_free_number_and_its_token_grows: Slots,
                slots_02_a_dead_holder_s_slot_is_free_after_its_lease: Slots,
                slots_03_no_two_of_many_workers_hold_one_number: Slots,
                slots_04_the_loss_of_permit_or_lock_is_the_slot_s: Slots,
            }
            stay {
                stay_01_a_released_lock_stays_for_its_least_hold: Nothing,
                stay_02_a_dead_holder_s_lock_stays_for_its_least_hold: Nothing,
                stay_03_a_lost_lock_stays_closed_for_its_lock_delay: Nothing,
                stay_04_a_release_and_a_forced_break_open_in_spite_of_a_lock_delay: Nothing,
            }
            election {
                election_01_there_is_one_leader_and_its_tokens_grow: Nothing,
                election_02_observers_see_the_leaders_in_order: Nothing,
                election_03_resigning_hands_over_at_once: Nothing,
                election_04_a_leader_that_is_cut_off_knows_and_is_followed: Nothing,
                election_05_run_campaigns_again_after_a_loss: Nothing,
            }
            once {
                once_01_of_many_one_runs_and_all_learn_the_decision: Registers,
                once_02_after_a_failure_the_next_begins_at_once: Registers,
                once_03_a_runner_that_died_is_followed_after_its_lease: Registers,
                once_04_what_was_decided_is_kept_for_a_time: Registers,
                once_05_work_is_stopped_when_its_lock_is_lost: Registers,
                once_06_who_decides_late_changes_nothing: Registers,
            }
            robust {
                robust_01_an_answer_is_lost_after_any_call_acted: Nothing,
                robust_02_the_connection_is_cut_at_any_call: Nothing,
            }
            model {
                model_01_random_commands_are_answered_as_the_model_answers: Nothing,
                model_02_semaphores_are_answered_as_the_model_answers: Permits,
                model_03_resized_semaphores_are_answered_as_the_model_answers: Resize,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __table {
    ([] $($group:ident { $($case:ident: $need:ident,)* })*) => {
        /// Every case, in the order of the catalogue.
        pub const CASES: &[Case] = &[$($(Case {
            name: stringify!($case),
            group: stringify!($group),
            kind: kind_of(stringify!($group)),
            need: Need::$need,
            run: |context| Box::pin($crate::cases::$group::$case(context)),
        },)*)*];
    };
}

crate::__every_case!(__table);

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ([$harness:expr] $($group:ident { $($case:ident: $need:ident,)* })*) => {
        $($(
            #[test]
            fn $case() {
                $crate::run::as_test(stringify!($case), || ::std::sync::Arc::new($harness));
            }
        )*)*
    };
}

/// Makes one test of every case, against the [`Harness`](crate::Harness) that the expression gives.
/// It is evaluated again for each case.
///
/// Each test is named after its case, has a runtime of its own, and needs no dependency but this
/// crate.
///
/// `suite!(driver: …)` leaves out the cases about what core builds on locks and registers: for another
/// layout, clock or set of members of a backend that has them all once. `suite!(groups: …, exclusion order;
/// except CASE)` makes one test of each group that is named, which runs its cases one after the other, without those
/// behind `except`.
#[macro_export]
macro_rules! suite {
    (driver: $harness:expr) => {
        $crate::__every_case! { __tests_of_driver $harness }
    };
    (groups: $harness:expr, $($group:ident)* $(; except $($case:ident)*)?) => {
        const EXCEPT: &[&str] = &[$($(stringify!($case)),*)?];
        $(#[test]
        fn $group() {
            $crate::run::group_as_test(stringify!($group), EXCEPT, || ::std::sync::Arc::new($harness));
        })*
    };
    ($harness:expr) => {
        $crate::__every_case! { __tests $harness }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests_of_driver {
    ([$harness:expr] $($group:ident { $($cases:tt)* })*) => {
        $($crate::__tests_of_group! { [$harness] $group { $($cases)* } })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests_of_group {
    ([$harness:expr] reentrancy $cases:tt) => {};
    ([$harness:expr] latch $cases:tt) => {};
    ([$harness:expr] barrier $cases:tt) => {};
    ([$harness:expr] multi $cases:tt) => {};
    ([$harness:expr] slots $cases:tt) => {};
    ([$harness:expr] election $cases:tt) => {};
    ([$harness:expr] once $cases:tt) => {};
    ([$harness:expr] $group:ident $cases:tt) => {
        $crate::__tests! { [$harness] $group $cases }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_named_after_its_group_and_stands_once() {
        let mut names = std::collections::HashSet::new();
        for case in CASES {
            let prefix = format!("{}_", case.group);
            assert!(case.name.starts_with(&prefix), "{}", case.name);
            let number = &case.name[prefix.len()..prefix.len() + 2];
            assert!(number.parse::<u8>().is_ok(), "{}", case.name);
            assert!(names.insert((case.group, number.to_owned())), "{}", case.name);
        }
    }
    /// One that is not in the table would never run, without a word.
    #[test]
    fn every_case_that_was_written_stands_in_the_table() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cases");
        let mut written = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for line in text.lines().filter_map(|line| line.strip_prefix("pub async fn ")) {
                let (name, _) = line.split_once('(').unwrap();
                assert!(CASES.iter().any(|case| case.name == name), "{name}");
                written += 1;
            }
        }
        assert_eq!(written, CASES.len());
    }
}
