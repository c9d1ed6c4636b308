//! With all rules the search finds nothing; without one of them it finds a violation.
//!
//! `LOCKKIT_SEARCH_SCHEDULES` and `LOCKKIT_SEARCH_SEED` make the first one longer, and begin it elsewhere.

use std::time::Duration;

use super::search;
use crate::rules::StoreRule;

/// What the suite searches: about 20 s of one core. Built with `opt-level = 3` throughout, that many take 3.3 s,
/// and 100,000 some 9 minutes.
const SCHEDULES: u64 = 650;
/// No search is stopped before.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A search for a violation that must be there ends with it, or after this.
const LONG: Duration = Duration::from_secs(60);

fn is_found_without(rule: StoreRule) {
    let searched = search(Some(rule), 0..1_000_000, LONG);
    let Some((seed, violation)) = searched.violation else {
        panic!("nothing was found without {rule:?} in {} schedules", searched.schedules);
    };
    println!("without {rule:?}, schedule {seed}: {violation}");
}

#[test]
fn with_all_rules_no_schedule_has_a_violation() {
    let from_environment = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let schedules = from_environment("LOCKKIT_SEARCH_SCHEDULES").unwrap_or(SCHEDULES);
    let seed = from_environment("LOCKKIT_SEARCH_SEED").unwrap_or(0);
    let searched = search(None, seed..seed + schedules, DAY);
    if let Some((seed, violation)) = searched.violation {
        panic!("schedule {seed}: {violation}");
    }
    println!("{} schedules, {} grants", searched.schedules, searched.grants);
    assert!(searched.grants > searched.schedules, "locks were taken: {}", searched.grants);
}

macro_rules! found_without {
    ($($test:ident: $rule:ident,)*) => {
        $(#[test] fn $test() { is_found_without(StoreRule::$rule); })*
    };
}

found_without! {
    a_session_that_is_ended_at_another_version_than_was_watched_lets_two_hold: EndAtWatchedVersion,
    a_missing_session_that_counts_as_dead_lets_two_hold: MissingIsNoProof,
    an_observer_that_does_not_restart_at_a_beat_lets_two_hold: CountFromArrival,
    an_owner_that_counts_from_the_finding_of_its_beat_lets_two_hold: CountFromSending,
    a_denial_from_a_cache_leaves_a_lock_stuck: ReadBeforeDenial,
    a_denial_while_a_swap_is_unanswered_leaves_a_lock_stuck: SwapBeforeDenial,
    reads_that_go_back_are_found: ReadsGoForward,
    a_marked_claim_that_is_pruned_at_once_lets_two_hold: MarkedForOneTtl,
    a_living_session_that_is_removed_lets_two_hold: RemoveOnlyDead,
    shards_that_are_removed_are_found: KeepShards,
}
