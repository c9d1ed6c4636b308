//! The judge is judged: histories that are wrong on purpose, one for each rule and its edges, must
//! be convicted by that rule; right ones that look suspicious must be acquitted.

#[path = "../second/mod.rs"]
mod second;
mod tale;

use std::time::Duration;

use lockkit_core::capabilities::Fault;
use lockkit_lab::history::violation::Invariant;
use lockkit_lab::history::{Event, EventKind, HeldMode, History, draw};

use tale::{LEASE, MS, S, Tale, X, nanos, tale};

#[test]
fn a_drawing_says_whose_lock_was_lost() {
    let drawn = |tale: Tale| draw::svg(&History::new(tale.0), &[]);
    let lost = tale().asks(10, 1, 1, X).granted(11, 1, 1, 7, 500).loses(500, 1, 1);
    assert!(drawn(lost).contains(">lost</text>"));
    assert!(!drawn(tale().holds(1, 1, X, 7, 11, 500)).contains(">lost</text>"));
    let refused = tale().asks(10, 1, 1, X).tell(20, 1, EventKind::Refused { op: 1 });
    assert!(!drawn(refused).contains(">lost</text>"));
}

macro_rules! convicted {
    ($($name:ident: $rule:ident, $tale:expr;)*) => { $(
        #[test]
        fn $name() { $tale.convicted_of(Invariant::$rule); }
    )* };
}

macro_rules! acquitted {
    ($($name:ident: $tale:expr;)*) => { $(
        #[test]
        fn $name() { $tale.acquitted(); }
    )* };
}

convicted! {
    two_writers_at_once: Exclusion, tale().holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60);
    a_reader_beside_a_writer: Exclusion, tale().holds(1, 1, X, 1, 10, 50).holds(2, 1, S, 2, 40, 60);
    a_writer_beside_the_second_of_two_readers: Exclusion,
        tale().holds(1, 1, S, 1, 10, 30).holds(2, 1, S, 2, 10, 50).holds(3, 1, X, 3, 40, 60);
    a_guard_that_was_silent_but_valid_to_its_deadline: Exclusion,
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 100).holds(2, 1, X, 2, 90, 120);
    a_guard_whose_renewal_made_it_valid_longer: Exclusion,
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 50).valid(40, 1, 1, 100)
            .holds(2, 1, X, 2, 90, 120);
    a_loss_noticed_too_late: Exclusion,
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 100).loses(60, 1, 1).holds(2, 1, X, 2, 59, 70);
    one_client_with_two_guards: Exclusion, tale().holds(1, 1, X, 1, 10, 50).holds(1, 2, X, 2, 40, 60);
    one_permit_too_many: Exclusion,
        tale().holds(1, 1, HeldMode::Permits(2, 3), 1, 10, 50).holds(2, 1, HeldMode::Permits(2, 3), 2, 20, 60);
    the_third_of_two_permits: Exclusion,
        tale().holds(1, 1, HeldMode::Permits(1, 2), 1, 10, 50).holds(2, 1, HeldMode::Permits(1, 2), 2, 20, 60)
            .holds(3, 1, HeldMode::Permits(1, 2), 3, 49, 60);
    exclusion_broken_under_a_fault_that_excuses_nothing: Exclusion,
        tale().fault(5, Fault::ClientDies).holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60);
    two_holders_long_before_a_failover: Exclusion,
        tale().holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60).fault(9_000, Fault::Failover);
    two_holders_who_both_came_after_a_failover: Exclusion,
        tale().fault(5, Fault::Failover).holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60);
    two_holders_between_two_failovers: Exclusion,
        tale().fault(5, Fault::Failover).holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60)
            .fault(100, Fault::Failover);
    two_holders_when_every_lease_from_before_the_failover_is_over: Exclusion,
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 40_000).fault(30, Fault::Failover)
            .asks(10_999, 2, 1, X).granted(11_000, 2, 1, 2, 12_000);
    a_token_that_goes_back_between_two_who_came_after_data_was_lost: TokensGrow,
        tale().fault(5, Fault::DataLost).holds(1, 1, X, 7, 10, 20).holds(2, 1, X, 3, 30, 40);
    a_token_that_goes_back_before_data_is_lost: TokensGrow,
        tale().holds(1, 1, X, 7, 10, 20).holds(2, 1, X, 3, 30, 40).fault(50, Fault::DataLost);
    a_token_that_goes_back_long_after_data_was_lost: TokensGrow,
        tale().holds(1, 1, X, 900, 10, 20).fault(30, Fault::DataLost)
            .holds(2, 1, X, 1, 10_032, 10_033);
    a_token_that_goes_back_a_second_time_long_after_data_was_lost: TokensGrow,
        tale().holds(1, 1, X, 900, 10, 20).fault(30, Fault::DataLost).holds(2, 1, X, 5, 40, 50)
            .holds(2, 2, X, 4, 25_000, 25_010);
    a_token_that_goes_back_on_another_server_than_the_one_that_lost_its_data: TokensGrow,
        tale().holds(1, 1, X, 9, 10, 20).fault_on(30, Fault::DataLost, "redis-2", "b")
            .holds(2, 1, X, 1, 40, 50);
    a_token_given_to_two_of_another_lock_than_the_lost_one: TokenOnce,
        tale().holds(1, 1, S, 7, 10, 20).fault_on(30, Fault::DataLost, "redis-1", "b")
            .holds(2, 1, S, 7, 40, 50);
    two_holders_of_a_lock_on_another_server_than_the_one_that_failed_over: Exclusion,
        tale().fault_on(30, Fault::Failover, "redis-2", "b").holds(1, 1, X, 1, 10, 50)
            .holds(2, 1, X, 2, 40, 60);
    a_token_given_again_long_after_data_was_lost: TokenOnce,
        tale().holds(1, 1, X, 7, 10, 20).fault(30, Fault::DataLost).holds(2, 1, X, 7, 10_032, 10_033);
    an_update_lost_long_after_data_was_lost: LostUpdate,
        tale().reads(10, 1, 1, 5, 0).reads(12, 2, 1, 5, 0).fault(14, Fault::DataLost)
            .writes(20, 2, 2, 5, 1).writes(10_030, 1, 2, 5, 1);
    a_waiter_overtaken_200_times: Order,
        tale().asks(1, 1, 1, X).waits(5, 1, 1, 7).many_hold(200, 10).granted(3_000, 1, 1, 999, 9_000);
    a_waiter_overtaken_and_never_served: Order,
        tale().asks(1, 1, 1, X).waits(5, 1, 1, 7).many_hold(20, 10).waits(400, 1, 1, 7);
    a_writer_overtaken_by_a_reader: Order,
        tale().holds(1, 1, S, 1, 2, 50).asks(3, 2, 1, X).waits(5, 2, 1, 7).holds(3, 1, S, 3, 10, 20)
            .granted(51, 2, 1, 4, 90);
    a_large_request_overtaken_by_one_that_leaves_no_room_for_it: Order,
        tale().asks(3, 2, 1, HeldMode::Permits(3, 4)).waits(5, 2, 1, 7)
            .holds(3, 1, HeldMode::Permits(2, 4), 3, 10, 20).granted(51, 2, 1, 4, 90);
    a_waiter_overtaken_after_a_failover_was_over: Order,
        tale().fault(2, Fault::Failover).asks(4, 1, 1, X).waits(5, 1, 1, 7).many_hold(2, 10)
            .granted(90, 1, 1, 999, 9_000);
    a_backend_on_which_nearly_everything_fails: Success, tale().many_hold(4, 10).many_fail(96, 200);
    a_backend_that_fails_one_time_in_ten: Success, tale().many_hold(90, 10).many_fail(10, 2_000);
    a_backend_that_fails_when_the_fault_is_long_over: Success,
        tale().fault(5, Fault::DataLost).many_hold(30, 30_500).many_fail(10, 31_000);
    a_backend_that_grants_nothing_all_along_a_fault: Success,
        tale().fault(5, Fault::Partition).many_fail(100, 10);
    a_backend_that_always_says_busy: Success, (0..100).fold(tale(), |tale, i| {
        tale.asks(10 * i, 1, i, X).tell(10 * i + 1, 1, EventKind::Refused { op: i })
    });
    guards_that_are_lost_although_nothing_happened: Success, (0..30).fold(tale(), |tale, i| {
        let at = 10 + 10 * i;
        tale.asks(at - 1, 1, i, X).granted(at, 1, i, 1 + i, at + 9_000).loses(at + 5, 1, i)
    });
    a_token_that_goes_back: TokensGrow, tale().holds(1, 1, X, 7, 10, 20).holds(2, 1, X, 3, 30, 40);
    a_token_that_goes_back_after_a_long_time: TokensGrow,
        tale().holds(1, 1, X, 7, 10, 20).holds(2, 1, X, 8, 30, 40).holds(3, 1, X, 9, 50, 60)
            .holds(4, 1, X, 2, 9000, 9001);
    a_reader_with_an_older_token_than_the_writer_before_it: TokensGrow,
        tale().holds(1, 1, X, 7, 10, 20).holds(2, 1, S, 6, 30, 40);
    a_token_that_goes_back_under_a_failover: TokensGrow,
        tale().fault(5, Fault::Failover).holds(1, 1, X, 7, 10, 20).holds(2, 1, X, 3, 30, 40);
    a_token_given_to_two: TokenOnce, tale().holds(1, 1, S, 7, 10, 20).holds(2, 1, S, 7, 12, 40);
    a_token_given_again: TokenOnce, tale().holds(1, 1, X, 7, 10, 20).holds(2, 1, X, 7, 30, 40);
    a_stale_write_that_was_taken: Register, tale().writes(10, 1, 1, 5, 1).writes(20, 2, 1, 4, 2);
    a_write_that_vanished: Register, tale().writes(10, 1, 1, 5, 1).reads(20, 2, 1, 6, 0);
    an_update_done_over_another: LostUpdate,
        tale().reads(10, 1, 1, 5, 0).reads(12, 2, 1, 5, 0).writes(20, 1, 2, 5, 1).writes(30, 2, 2, 5, 1);
    a_refusal_for_no_reason: Register,
        tale().register(10, 1, 1, 5, Some(1)).stale(11, 1, 1, 4);
    a_value_that_was_read_before_it_was_written: Register,
        tale().reads(10, 1, 1, 5, 1).writes(20, 2, 1, 6, 1);
    an_unanswered_write_that_came_and_went: Register,
        tale().register(5, 1, 1, 1, Some(1)).reads(10, 2, 1, 2, 1).reads(20, 2, 2, 2, 0);
    a_lock_that_stays_held: FreeAtEnd,
        tale().holds(1, 1, X, 1, 10, 20).tell(90_000, 0, EventKind::Inspected { lock: "a".into(), free: false });
    a_waiter_at_a_free_lock: Progress,
        tale().holds(1, 1, X, 1, 10, 20).asks(15, 2, 1, X)
            .tell(40_000, 0, EventKind::Inspected { lock: "b".into(), free: true });
    a_waiter_that_got_a_free_lock_too_late: Progress,
        tale().holds(1, 1, X, 1, 10, 20).asks(15, 2, 1, X).granted(30_021, 2, 1, 2, 31_000);
    waiters_that_take_turns_in_giving_up_at_a_free_lock: Progress, (0..11).fold(tale(), |tale, i| {
        tale.asks(3_000 * i, 1 + i as u32, 1, X).refused(3_000 * (i + 1) + 1, 1 + i as u32, 1)
    });
    a_free_lock_that_is_not_granted_while_another_one_is: Progress,
        (0..40).fold(tale().asks(5, 1, 1, X), |tale, i| tale.holds_beside(2, i, 1 + i, 1_000 * i))
            .refused(39_900, 1, 1);
    a_lock_that_was_granted_once_and_then_not_for_long: Progress,
        tale().asks(1, 1, 1, X).asks(1, 2, 1, X).holds(3, 1, X, 1, 10, 20)
            .refused(30_030, 1, 1).refused(30_031, 2, 1);
    a_waiter_at_a_free_lock_for_longer_than_a_fault_accounts_for: Progress,
        tale().asks(10, 1, 1, X).fault_for(100, 5_000, Fault::Partition).granted(65_011, 1, 1, 1, 66_000);
    a_waiter_that_is_forgotten_when_an_answer_is_lost: Progress,
        tale().asks(10, 1, 1, X).fault_for(100, 5_000, Fault::ConnectionCut)
            .fault_for(20_000, 5_000, Fault::ConnectionCut).granted(30_011, 1, 1, 1, 36_000);
    a_waiter_at_a_free_lock_long_after_a_fault: Progress,
        tale().fault_for(10, 5_000, Fault::Partition).asks(5_020, 1, 1, X)
            .granted(35_021, 1, 1, 1, 36_000);
    readers_that_wait_at_a_free_lock: Progress,
        tale().asks(1, 1, 1, S).asks(2, 2, 1, S).granted(30_010, 1, 1, 1, 31_000)
            .granted(30_010, 2, 1, 2, 31_000);
    an_answer_to_nobody: Sound, tale().granted(10, 1, 1, 1, 20);
}

acquitted! {
    one_after_the_other: tale().holds(1, 1, X, 1, 10, 20).holds(2, 1, X, 2, 21, 30);
    the_next_at_the_very_instant_of_the_release:
        tale().holds(1, 1, X, 1, 10, 20).holds(2, 1, X, 2, 20, 30);
    the_next_at_the_very_instant_of_the_deadline:
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 50).holds(2, 1, X, 2, 50, 60);
    a_holder_that_never_says_goodbye:
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 50).holds(2, 1, X, 2, 51, 60);
    many_readers: tale().holds(1, 1, S, 1, 10, 50).holds(2, 1, S, 2, 20, 60).holds(3, 1, S, 3, 30, 40);
    readers_told_in_another_order_than_their_tokens:
        tale().asks(5, 1, 1, S).asks(5, 2, 1, S).granted(10, 1, 1, 9, 90).granted(11, 2, 1, 8, 90);
    writers_told_late_whose_times_of_asking_overlap:
        tale().asks(1, 1, 1, X).asks(2, 2, 1, X).granted(10, 2, 1, 1, 90).ends(20, 2, 1)
            .granted(21, 1, 1, 2, 90);
    a_dead_client_whose_lease_another_takes:
        tale().asks(9, 1, 1, X).granted(10, 1, 1, 1, 90).tell(20, 1, EventKind::ClientCrashed)
            .holds(2, 1, X, 2, 50, 60);
    a_grant_that_was_over_when_it_came:
        tale().asks(1, 1, 1, X).granted(50, 1, 1, 1, 40).holds(2, 1, X, 2, 45, 60);
    tokens_with_large_gaps: tale().holds(1, 1, X, 1, 10, 20).holds(2, 1, X, 1_000_000, 21, 30);
    permits_up_to_the_limit:
        tale().holds(1, 1, HeldMode::Permits(2, 3), 1, 10, 50).holds(2, 1, HeldMode::Permits(1, 3), 2, 20, 60);
    permits_whose_tokens_do_not_follow_time:
        tale().holds(1, 1, HeldMode::Permits(1, 3), 5, 10, 50).holds(2, 1, HeldMode::Permits(1, 3), 4, 20, 60);
    a_refused_try: tale().holds(1, 1, X, 1, 10, 50).asks(20, 2, 1, X).tell(21, 2, EventKind::Refused { op: 1 });
    a_failed_one_that_may_have_held:
        tale().asks(1, 1, 1, X).tell(5, 1, EventKind::Failed { op: 1, error: "cut".into() })
            .holds(2, 1, X, 2, 6, 9);
    two_holders_after_data_was_lost:
        tale().fault(30, Fault::DataLost).holds(1, 1, X, 9, 10, 50).holds(2, 1, X, 1, 40, 60);
    two_holders_after_a_failover_with_growing_tokens:
        tale().fault(30, Fault::Failover).holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60);
    a_token_that_goes_back_when_data_was_lost_and_grows_again_for_long:
        tale().holds(1, 1, X, 900, 10, 20).fault(30, Fault::DataLost).holds(2, 1, X, 1, 10_031, 10_032)
            .holds(2, 2, X, 2, 25_000, 25_010).holds(2, 3, X, 900, 30_000, 30_010);
    a_token_that_goes_back_on_the_server_that_lost_its_data:
        tale().holds(1, 1, X, 9, 10, 20).fault_on(30, Fault::DataLost, "redis-1", "a")
            .holds(2, 1, X, 1, 40, 50);
    two_holders_of_whom_the_first_got_it_on_the_old_leader_meanwhile: {
        let (fault, on) = (Fault::Failover, "server".to_owned());
        tale().tell(5, 0, EventKind::FaultBegins { fault, on: on.clone(), locks: vec![] })
            .holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60)
            .tell(90, 0, EventKind::FaultEnds { fault, on })
    };
    an_update_lost_because_a_token_was_given_again:
        tale().reads(10, 1, 1, 5, 0).reads(12, 2, 1, 5, 0).fault(14, Fault::DataLost)
            .writes(20, 1, 2, 5, 1).writes(30, 2, 2, 5, 1);
    one_who_asked_before_the_other_was_in_line:
        tale().asks(1, 1, 1, X).asks(4, 2, 1, X).waits(5, 1, 1, 7).granted(6, 2, 1, 1, 90)
            .ends(10, 2, 1).granted(11, 1, 1, 2, 90);
    a_waiter_that_lost_its_place_and_got_another:
        tale().asks(1, 1, 1, X).waits(5, 1, 1, 7).many_hold(3, 10).waits(50, 1, 1, 8)
            .granted(60, 1, 1, 999, 90);
    a_waiter_that_gave_up: tale().asks(1, 1, 1, X).waits(5, 1, 1, 7).many_hold(3, 10)
            .tell(50, 1, EventKind::Refused { op: 1 });
    a_reader_told_before_a_reader_that_asked_earlier:
        tale().asks(1, 1, 1, S).waits(5, 1, 1, 7).asks(6, 2, 1, S).granted(10, 2, 1, 2, 90)
            .granted(11, 1, 1, 1, 90);
    small_requests_beside_each_other_told_in_another_order:
        tale().asks(1, 1, 1, HeldMode::Permits(1, 4)).waits(5, 1, 1, 7).asks(6, 2, 1, HeldMode::Permits(1, 4))
            .granted(10, 2, 1, 2, 90).granted(11, 1, 1, 1, 90);
    a_waiter_overtaken_when_its_place_was_lost_in_a_failover:
        tale().asks(1, 1, 1, X).waits(5, 1, 1, 7).fault(8, Fault::Failover).many_hold(3, 10)
            .granted(90, 1, 1, 999, 9_000);
    failures_while_the_server_is_away:
        tale().many_hold(30, 10).fault(500, Fault::Partition).many_fail(100, 510);
    few_operations_say_nothing: tale().many_fail(10, 10);
    one_failure_in_fifty: tale().many_hold(49, 10).many_fail(1, 1_000);
    a_stale_write_that_was_refused:
        tale().writes(10, 1, 1, 5, 1).register(20, 2, 1, 4, Some(9)).stale(21, 2, 1, 5)
            .reads(30, 1, 2, 5, 1);
    an_equal_token_that_writes_again: tale().writes(10, 1, 1, 5, 1).writes(20, 1, 2, 5, 2);
    an_unanswered_write_that_shows_late:
        tale().register(5, 1, 1, 3, Some(1)).reads(10, 2, 1, 3, 0).reads(20, 2, 2, 3, 1);
    an_unanswered_write_that_never_shows:
        tale().register(5, 1, 1, 1, Some(1)).reads(10, 2, 1, 2, 0).writes(20, 2, 2, 2, 1);
    concurrent_reads_on_either_side_of_a_write:
        tale().register(10, 1, 1, 5, Some(1)).reads(11, 2, 1, 5, 0).reads(13, 3, 1, 5, 1)
            .done(20, 1, 1, 1);
    a_waiter_that_waits_behind_a_holder:
        tale().asks(1, 1, 1, X).granted(2, 1, 1, 1, 60_000).asks(5, 2, 1, X)
            .tell(61_000, 0, EventKind::Inspected { lock: "b".into(), free: true });
    a_waiter_that_got_a_free_lock_at_the_last_moment:
        tale().holds(1, 1, X, 1, 10, 20).asks(15, 2, 1, X).granted(30_020, 2, 1, 2, 31_000);
    a_waiter_behind_holders_for_long:
        (0..5).fold(tale().asks(5, 9, 1, X), |tale, i| {
            let (from, op) = (9_000 * i + 10, u64::from(i as u32));
            tale.asks(from - 1, 1, op, X).granted(from, 1, op, 1 + op, from + 8_900)
        }).refused(45_000, 9, 1);
    a_free_lock_that_nobody_waits_for:
        tale().holds(1, 1, X, 1, 10, 20).holds(2, 1, X, 2, 70_000, 70_010);
    waiters_with_time_between_them_at_a_free_lock: (0..11).fold(tale(), |tale, i| {
        tale.asks(3_000 * i, 1 + i as u32, 1, X).refused(3_000 * (i + 1) - 1, 1 + i as u32, 1)
    });
    a_waiter_at_a_free_lock_for_as_long_as_a_fault_accounts_for:
        tale().asks(10, 1, 1, X).fault_for(100, 5_000, Fault::Partition).granted(65_010, 1, 1, 1, 66_000);
    a_waiter_at_a_free_lock_through_two_faults:
        tale().asks(10, 1, 1, X).fault_for(100, 5_000, Fault::Partition)
            .fault_for(20_000, 1_000, Fault::ServerPaused).granted(50_000, 1, 1, 1, 51_000);
    a_waiter_that_died: tale().asks(1, 1, 1, X).tell(2, 1, EventKind::ClientCrashed)
            .tell(90_000, 0, EventKind::Inspected { lock: "a".into(), free: true });
}

#[test]
fn a_promise_that_held_better_than_stated_is_reported() {
    let judgement = tale().fault(30, Fault::Failover).holds(1, 1, X, 1, 10, 20).acquitted();
    assert_eq!(judgement.better, [Invariant::Exclusion]);
    assert_eq!(judgement.counts["granted"], 1);
}

#[test]
fn order_is_judged_where_it_is_promised() {
    let tale = tale().asks(1, 1, 1, X).waits(5, 1, 1, 7).many_hold(20, 10);
    let judgement = tale.granted(3_000, 1, 1, 999, 9_000).judged_on(|c| c.fifo = false);
    assert!(judgement.acquitted(), "{:#?}", judgement.violations);
}

#[test]
fn the_longest_time_at_a_free_lock_is_reported_for_each_lock() {
    let judgement = tale()
        .holds(1, 1, X, 1, 10, 20)
        .asks(15, 2, 1, X)
        .granted(520, 2, 1, 2, 600)
        .holds_beside(3, 1, 3, 700)
        .acquitted();
    let longest = &judgement.longest_waits;
    assert_eq!(longest["a"], Duration::from_millis(500), "from the release to the next grant");
    assert_eq!(longest["beside"], Duration::from_millis(1));
}

#[test]
fn how_much_happened_away_from_all_faults_is_counted() {
    let judgement = tale().many_hold(7, 10).fault(200, Fault::ClientDies).acquitted();
    assert_eq!(judgement.counts["calm"], 7);
    let judgement = tale().fault(2, Fault::ClientDies).many_hold(7, 10).acquitted();
    assert_eq!(judgement.counts["calm"], 0);
}

#[test]
fn what_a_fault_excuses_is_told_apart() {
    let tale =
        tale().fault(30, Fault::Failover).holds(1, 1, X, 1, 10, 50).holds(2, 1, X, 2, 40, 60);
    let judgement = tale.acquitted();
    let [excused] = &judgement.excused[..] else { panic!("{:#?}", judgement.excused) };
    assert_eq!(excused.violation.invariant, Invariant::Exclusion);
    let by = &excused.by;
    assert_eq!((by.fault, &*by.on, &by.locks[..]), (Fault::Failover, "server", &[][..]));
    assert_eq!((by.from, by.until), (30 * MS, 31 * MS + nanos(LEASE)), "a lease after its end");
}

#[test]
fn a_report_says_what_was_excused_and_why() {
    let lost = tale().fault_on(1_000, Fault::DataLost, "redis-1", "a");
    let judgement = lost.holds(1, 1, X, 7, 900, 1_200).holds(2, 1, X, 8, 1_100, 1_300).acquitted();
    let said = judgement.excused[0].to_string();
    assert_eq!(
        said,
        "Exclusion of \"a\": client 2 got it while valid with client 1; 0.10 s before, data \
         loss (redis-1), which may explain violations of a for 10.00 s"
    );
}

#[test]
fn a_history_survives_its_file_and_a_line_cut_short() {
    use lockkit_lab::history::Recorder;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    let recorder = Recorder::open(&path, 3).unwrap();
    let what =
        EventKind::Asked { op: 1, lock: "ä/\"b\"".to_owned(), how: HeldMode::Permits(2, 5) };
    recorder.record_at(7, what.clone()).unwrap();
    std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"at\":8,\"cli");
    std::fs::write(&path, text).unwrap();
    let history = History::load([&path]).unwrap();
    assert_eq!(history.events, [Event { at: 7, client: 3, what }]);
}
