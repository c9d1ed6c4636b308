//! What each bug is in words, and the case that catches it. Nothing but the list.

use super::InjectedBug;

/// A bug, what it is, and the case that was made for it.
#[derive(Clone, Copy, Debug)]
pub struct Caught {
    /// The bug.
    pub bug: InjectedBug,
    /// In words.
    pub says: &'static str,
    /// The name of the case that catches it.
    pub by: &'static str,
}

const fn caught(bug: InjectedBug, says: &'static str, by: &'static str) -> Caught {
    Caught { bug, says, by }
}

/// Every bug, with the case that catches it.
pub const BUGS: &[Caught] = &[
    caught(
        InjectedBug::ForgetsExpiry,
        "never ends a lease",
        "lease_01_a_lease_ends_after_its_ttl_and_not_before",
    ),
    caught(
        InjectedBug::ExpiresEarly,
        "ends a lease at nine tenths of its ttl",
        "lease_01_a_lease_ends_after_its_ttl_and_not_before",
    ),
    caught(
        InjectedBug::GrantsTwo,
        "grants an exclusive claim beside one holder",
        "exclusion_02_a_second_claim_is_refused_or_queued",
    ),
    caught(
        InjectedBug::QueuesTwiceWhenAskedTwice,
        "puts a claim into the list again when asked again",
        "exclusion_01_a_free_lock_is_granted",
    ),
    caught(
        InjectedBug::TokenNeverGrows,
        "gives the same token to everybody",
        "token_02_every_conflicting_holder_has_a_greater_one",
    ),
    caught(
        InjectedBug::TokenRepeatsAfterCleanUp,
        "forgets the counter together with the list",
        "token_05_it_grows_across_the_clean_up_of_the_name",
    ),
    caught(
        InjectedBug::LeaksOnCancel,
        "an acquire that is dropped half way leaves a claim that no release finds",
        "cancel_03_an_operation_dropped_at_any_await_point_leaves_nothing",
    ),
    caught(
        InjectedBug::LosesRequestOnCancel,
        "a dropped wait takes the claim's place in line with it",
        "cancel_03_an_operation_dropped_at_any_await_point_leaves_nothing",
    ),
    caught(
        InjectedBug::WakesTheLastFirst,
        "hands the lock to who came last",
        "order_01_waiters_are_granted_in_the_order_of_the_queue",
    ),
    caught(
        InjectedBug::WakesOneReaderOnly,
        "lets only one of the readers in front enter",
        "order_06_readers_at_the_front_enter_together",
    ),
    caught(
        InjectedBug::ForgetsToWakeAfterGivingUp,
        "does not look again when a waiter leaves",
        "order_03_a_waiter_that_gave_up_is_skipped",
    ),
    caught(
        InjectedBug::TryOvertakes,
        "a try looks at the holders only, not at who waits",
        "order_02_a_try_never_overtakes_a_queue",
    ),
    caught(
        InjectedBug::ReadersOvertakeWriters,
        "a reader enters beside readers although a writer waits",
        "order_05_readers_that_come_after_a_waiting_writer_wait",
    ),
    caught(
        InjectedBug::RenewsAnothers,
        "renews by name, not by id",
        "release_04_only_the_id_releases_or_renews",
    ),
    caught(
        InjectedBug::RevivesExpired,
        "a renewal brings an expired claim back",
        "lease_12_a_renewal_never_revives_an_expired_claim",
    ),
    caught(
        InjectedBug::RenewsOnlyHolders,
        "a renewed waiter is not kept in line",
        "order_07_no_claim_starves_under_a_mix_of_readers_and_writers",
    ),
    caught(
        InjectedBug::ShorterRenewalShortens,
        "the expiry is set, not raised",
        "lease_11_renewals_that_overtake_each_other_never_shorten",
    ),
    caught(
        InjectedBug::RenewsHolderAsWaiter,
        "gives a holder the ttl of a waiter",
        "lease_10_a_late_renewal_as_a_waiter_does_not_shorten",
    ),
    caught(
        InjectedBug::ReleasesWithoutId,
        "takes out whoever holds",
        "release_03_an_old_guard_never_frees_its_successor",
    ),
    caught(
        InjectedBug::ReleaseFailsTheSecondTime,
        "an error for who releases again",
        "release_01_releasing_twice_is_harmless",
    ),
    caught(
        InjectedBug::SaysNoSuchLockToStrangers,
        "does not tell another's lock from none",
        "release_04_only_the_id_releases_or_renews",
    ),
    caught(InjectedBug::FoldsCase, "A is a", "names_04_case_matters"),
    caught(InjectedBug::TrimsSpaces, "'a ' is 'a'", "names_05_trailing_spaces_matter"),
    caught(
        InjectedBug::CutsLongNames,
        "names end after 255 bytes",
        "names_02_a_name_may_have_512_bytes",
    ),
    caught(
        InjectedBug::ListsByPattern,
        "% in a prefix stands for anything",
        "names_08_a_listing_finds_prefixes_literally",
    ),
    caught(
        InjectedBug::ListsOnlyTheFirstPage,
        "says that there is no next page",
        "inspect_03_many_locks_are_listed_in_pages",
    ),
    caught(
        InjectedBug::SemaphoreCountsOneMore,
        "gives one permit more than the limit",
        "modes_04_a_semaphore_never_gives_more_than_its_limit",
    ),
    caught(
        InjectedBug::SmallOvertakesLarge,
        "a small request that fits enters before a large one that waits",
        "modes_06_a_large_request_in_front_is_not_overtaken_by_small_ones",
    ),
    caught(
        InjectedBug::AcceptsAnotherLimit,
        "judges each claim by its own limit",
        "modes_10_another_limit_is_refused_while_the_semaphore_is_in_use",
    ),
    caught(
        InjectedBug::DowngradeGoesToTheEnd,
        "downgrades by leaving and coming again",
        "modes_03_a_downgrade_keeps_other_writers_out_all_the_way",
    ),
    caught(
        InjectedBug::DowngradeKeepsTheLease,
        "answers a downgrade like a renewal, and does not renew",
        "lease_15_a_downgrade_renews_the_lease",
    ),
    caught(
        InjectedBug::GracefulBreakActsAtOnce,
        "a graceful break takes the holder out",
        "inspect_04_a_graceful_break_waits_for_the_holder",
    ),
    caught(
        InjectedBug::GracefulBreakIsForgotten,
        "a gracefully broken claim is renewed on",
        "inspect_04_a_graceful_break_waits_for_the_holder",
    ),
    caught(
        InjectedBug::PromotesTheBroken,
        "a broken waiter that is promoted gets the lease of a holder",
        "inspect_10_a_waiter_broken_gracefully_gets_no_lease_for_holding",
    ),
    caught(
        InjectedBug::GrantsTheBroken,
        "a broken waiter that is promoted is granted",
        "inspect_10_a_waiter_broken_gracefully_gets_no_lease_for_holding",
    ),
    caught(
        InjectedBug::ForcedBreakWaits,
        "a forced break waits for the lease to end",
        "inspect_05_a_forced_break_frees_at_once",
    ),
    caught(
        InjectedBug::OldTokenBreaksTheSuccessor,
        "breaks whoever holds, whatever the token",
        "inspect_06_a_break_with_an_old_token_breaks_no_claim",
    ),
    caught(
        InjectedBug::ForgetsWhoBroke,
        "tells a broken holder only that it is gone",
        "loss_06_lost_says_why",
    ),
    caught(
        InjectedBug::RenewsNoFixedClaim,
        "says that it renews a claim of a fixed lifetime, and does not",
        "loss_11_what_was_granted_late_is_renewed_before_its_guard",
    ),
    caught(
        InjectedBug::ReleaseForgetsWhoBroke,
        "forgets the break of a claim when that is released",
        "loss_10_a_release_that_finds_a_broken_lock_says_who_broke_it",
    ),
    caught(
        InjectedBug::InspectingRenews,
        "who looks at a lock keeps it alive",
        "inspect_07_inspecting_never_disturbs_the_lock",
    ),
    caught(
        InjectedBug::SpacesMeet,
        "the semaphore a is the lock a",
        "exclusion_09_the_lock_and_the_semaphore_of_one_name_do_not_meet",
    ),
    caught(
        InjectedBug::KeepsEndedClaims,
        "never removes what has ended",
        "lease_09_ended_claims_leave_nothing_behind",
    ),
    caught(
        InjectedBug::ReportsALongerTtl,
        "reports twice the ttl that it gave",
        "lease_08_the_ttl_that_was_granted_is_reported",
    ),
    caught(
        InjectedBug::CountsAPushedLeaseFromItsArrival,
        "a pushed grant counts from when the message came",
        "loss_09_the_local_deadline_passes_before_the_server_s",
    ),
    caught(
        InjectedBug::ClaimsWhatItCannot,
        "says that it raises tokens, and does not",
        "token_10_a_raise_applies_to_this_token_and_all_later_ones",
    ),
    caught(
        InjectedBug::RaiseForgetsWaiters,
        "a raise lifts later tokens, but not those of claims that already wait",
        "token_11_a_raise_applies_to_claims_that_already_wait",
    ),
    caught(
        InjectedBug::DeniesWhatItDoes,
        "says that it has no registers, and has",
        "register_01_what_is_stored_is_loaded_byte_for_byte",
    ),
    caught(
        InjectedBug::RegisterForgetsTokens,
        "a store without a token wipes the highest one",
        "register_04_tokens_are_remembered_across_overwriting",
    ),
    caught(
        InjectedBug::RegisterIgnoresVersions,
        "stores whatever version was expected",
        "register_02_of_16_racing_writers_one_wins",
    ),
    caught(
        InjectedBug::RegisterForgetsWrites,
        "takes a repeated write for a conflict",
        "register_06_a_lost_answer_is_distinguished_from_a_conflict",
    ),
    caught(
        InjectedBug::RegisterMissesEarlierChanges,
        "waits for the next change although one was missed",
        "register_05_changed_wakes_on_a_store_and_misses_none",
    ),
    caught(
        InjectedBug::RegisterAcceptsOldTokens,
        "stores whatever the token",
        "register_07_a_stale_holder_cannot_store",
    ),
    caught(
        InjectedBug::RegisterRepeatsOverLaterWrites,
        "applies a repeated write although somebody may have written since",
        "register_10_a_repeated_write_never_lands_over_a_later_one",
    ),
    caught(
        InjectedBug::RegisterKeepsValues,
        "never ends a value",
        "once_04_what_was_decided_is_kept_for_a_time",
    ),
    caught(
        InjectedBug::SecondLockEndsTheFirst,
        "a session has one lock at a time, as in old MySQL",
        "multi_01_it_gets_all_or_none",
    ),
    caught(
        InjectedBug::KeepsTheFirstNote,
        "shows the note of the first who came to all who come later",
        "election_02_observers_see_the_leaders_in_order",
    ),
    caught(
        InjectedBug::MissesWhoTookOver,
        "tells observers how many there are, not who",
        "election_02_observers_see_the_leaders_in_order",
    ),
    caught(
        InjectedBug::DeniesThatItResizes,
        "says that it cannot resize, and does",
        "resize_01_a_raise_lets_in_at_once_whom_it_has_room_for",
    ),
    caught(
        InjectedBug::ForgetsTheLimitWhenEmpty,
        "keeps the limit with the claims, and forgets it with the last one",
        "resize_06_a_handle_that_remembers_an_old_limit_works_on_under_the_new_one",
    ),
    caught(
        InjectedBug::ResizeIsForNewcomersOnly,
        "judges who stands in line by the limit that it came with",
        "resize_01_a_raise_lets_in_at_once_whom_it_has_room_for",
    ),
    caught(
        InjectedBug::LoweringEvicts,
        "takes out holders until the rest is within the new limit",
        "resize_02_lowering_evicts_no_holder_and_admits_none_until_permits_are_free",
    ),
    caught(
        InjectedBug::FirstUseResizes,
        "the first use of a handle sets the limit that it names",
        "resize_05_the_first_use_gives_the_limit_and_later_ones_do_not",
    ),
    caught(
        InjectedBug::PromotesForTheWaitingTtl,
        "a promoted claim keeps the lease of a waiter",
        "queue_01_a_waiter_promoted_by_a_release_holds_for_its_hold_ttl",
    ),
    caught(
        InjectedBug::ShortensWithOthersInLine,
        "the expiry is set, not raised, where others are queued",
        "queue_05_a_renewal_with_others_queued_never_shortens",
    ),
    caught(
        InjectedBug::RevivesWithOthersInLine,
        "a renewal brings an expired claim back to the front of those who wait",
        "queue_06_an_expired_holder_with_others_queued_is_not_revived",
    ),
    caught(
        InjectedBug::WakesLate,
        "tells who waits five seconds late",
        "time_01_a_release_hands_over_within_the_declared_time",
    ),
    caught(
        InjectedBug::ExpiresLate,
        "ends a lease ten seconds late",
        "time_02_a_dead_holder_s_lock_is_handed_over_within_the_declared_time",
    ),
    caught(
        InjectedBug::HidesABreak,
        "tells who was broken at the fourth renewal",
        "time_03_a_holder_learns_of_a_break_within_a_renewal_interval",
    ),
    caught(
        InjectedBug::FailsNowAndThen,
        "fails one call in five, and works when it is asked again",
        "exclusion_05_tasks_are_never_inside_together",
    ),
    caught(
        InjectedBug::AnswersBatchesBackwards,
        "answers the operations of a batch in another order",
        "batch_01_every_operation_has_its_own_outcome",
    ),
    caught(
        InjectedBug::OneOperationFailsItsBatch,
        "an operation that fails takes its batch along",
        "batch_02_an_operation_that_fails_affects_no_other",
    ),
    caught(
        InjectedBug::CallsARefusalAmbiguous,
        "says that a refused operation may have been carried out",
        "batch_07_a_refused_operation_has_no_ambiguous_attempt",
    ),
    caught(
        InjectedBug::RegistersAreListedByPattern,
        "% in the beginning of a register's name stands for anything",
        "register_11_registers_with_a_value_are_listed_in_pages",
    ),
    caught(
        InjectedBug::ListsDeletedRegisters,
        "lists a register whose value is gone",
        "register_11_registers_with_a_value_are_listed_in_pages",
    ),
    caught(
        InjectedBug::SkipsARegisterBetweenPages,
        "leaves one out of each page of registers that is not the last",
        "register_11_registers_with_a_value_are_listed_in_pages",
    ),
    caught(
        InjectedBug::DeniesThatItListsNamespaces,
        "says that it cannot list namespaces, and does",
        "inspect_09_a_namespace_with_a_lock_or_a_register_is_listed_once",
    ),
    caught(
        InjectedBug::ListsNamespacesOfLocksOnly,
        "does not list a namespace in which there are registers only",
        "inspect_09_a_namespace_with_a_lock_or_a_register_is_listed_once",
    ),
    caught(
        InjectedBug::ListsANamespaceForEachLock,
        "lists a namespace as often as there are locks in it",
        "inspect_09_a_namespace_with_a_lock_or_a_register_is_listed_once",
    ),
];
