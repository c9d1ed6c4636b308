//! The search for counterexamples to `docs/quorum.md`: clients and memory members on a simulated
//! network that loses, delays, reorders and repeats messages, with restarts that keep the data and
//! restarts that lose it, drawn from a seed, on tokio's paused clock. It must find none while all
//! guards are up, and one for each guard that is taken down.
//!
//! The quorum itself has no switch for a guard: the search takes one down by a [`Flaw`] of the
//! members, which do something else than what the guard relies on. Guards that no member can take
//! down are changes in `xtask/mutants.txt`, whose tests are here.
//!
//! `LOCKKIT_QUORUM_SEED=n` runs that seed alone; `LOCKKIT_QUORUM_SEEDS=n` as many.

mod directed;
mod ledger;
mod network;
mod quarantine;
mod waiting;
mod world;

use network::Flaw;
use world::{Faults, Plan, run};

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match read("LOCKKIT_QUORUM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..read("LOCKKIT_QUORUM_SEEDS").unwrap_or(usual),
    }
}

/// Nothing may go wrong on any seed. Also shows that the runs are about something.
fn finds_nothing(members: usize, faults: Faults, usual: u64) {
    let plan = Plan { members, faults, flaws: &[] };
    let (mut grants, mut runs) = (0, 0);
    for seed in seeds(usual) {
        runs += 1;
        match run(seed, plan) {
            Ok(some) => grants += some,
            Err(found) => panic!("seed {seed}: {found}"),
        }
    }
    assert!(grants > runs, "there must be grants to judge: {grants}");
}

/// With these flaws, some seed must show that a guard is down.
fn finds(members: usize, faults: Faults, flaws: &'static [Flaw], what: &str) {
    let plan = Plan { members, faults, flaws };
    let found = (0..5_000).find_map(|seed| run(seed, plan).err().map(|found| (seed, found)));
    let (_, found) = found.expect("the search must notice that a guard is down");
    assert!(found.contains(what), "something else was found: {found}");
}

#[test]
fn three_members_keep_all_promises_while_one_fails_in_any_way() {
    finds_nothing(3, Faults { data_loss: true, ..Faults::NETWORK }, 120);
}

#[test]
fn five_members_keep_all_promises_while_one_fails_in_any_way() {
    finds_nothing(5, Faults { data_loss: true, ..Faults::NETWORK }, 40);
}

#[test]
fn members_that_come_back_with_old_data_cost_no_promise() {
    finds_nothing(3, Faults { old_data: true, ..Faults::NETWORK }, 80);
}

#[test]
fn restarts_of_members_that_keep_all_writes_cost_no_promise() {
    finds_nothing(3, Faults { runs: true, ..Faults::NETWORK }, 80);
}

#[test]
fn with_old_data_that_votes_at_once_two_hold() {
    finds(3, Faults { old_data: true, ..Faults::NETWORK }, &[Flaw::HidesRuns], "hold");
}

#[test]
fn tokens_grow_even_where_locks_are_broken_by_force() {
    finds_nothing(3, Faults { breaks: true, ..Faults::NETWORK }, 80);
}

#[test]
fn without_any_raise_tokens_go_back() {
    finds(3, Faults::NETWORK, &[Flaw::RaisesNothing], "token");
}

#[test]
fn with_an_empty_member_that_votes_at_once_two_hold() {
    finds(3, Faults { data_loss: true, ..Faults::NETWORK }, &[Flaw::HidesLoss], "hold");
}

#[test]
fn with_one_id_for_all_rounds_a_late_release_lets_two_hold() {
    finds(3, Faults::NETWORK, &[Flaw::OneId], "hold");
}
