//! Counterexamples about members that come back with old data, told step by step.

use std::sync::Arc;

use lockkit_compose::QuorumDriver;
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, Mode};

use super::directed::{Flaws, nap, quorum, servers, take};
use super::network::{Flaw, Server};
use super::world::{TTL, claim, claim_on, named, open, runtime};

/// Whether a program of its own can take the lock now.
async fn can_take(servers: &[Arc<Server>], seed: u64, flaws: Flaws) -> bool {
    let other = quorum(servers, seed, flaws);
    let claim = claim(Mode::Exclusive);
    let answer = other.acquire(&claim, Patience::Try).await;
    let granted = answer.is_ok_and(|got| matches!(got.result, Acquisition::Granted(_)));
    let _ = other.release(&claim).await;
    granted
}

async fn holds(quorum: &QuorumDriver, claim: &Arc<Claim>) -> bool {
    matches!(quorum.renew_single(claim).await, Ok(Renewal::Holds(_)))
}

/// A holder is at members 0 and 1; 1 is killed, and comes back with what it had before. Says whether
/// another program holds as well then, and whether one does once the holder and a quarantine are over.
async fn old_data(flaws: Flaws) -> (bool, bool) {
    let servers = servers();
    let first = quorum(&servers, 0, flaws);
    open(&first).await;
    servers[1].stop_saving();
    servers[2].set_up(false);
    let held = claim(Mode::Exclusive);
    take(&first, &held).await;
    servers[1].bring_back_old_data();
    servers[2].set_up(true);
    let before = servers[1].admitted().await;
    let two = can_take(&servers, 1, flaws).await;
    let began = first.clock().now();
    for _ in 0..30 {
        // A round whose majority has that member in it fails.
        let other = claim_on(named("other"), Mode::Exclusive);
        let _ = first.acquire(&other, Patience::Try).await;
        let _ = first.release(&other).await;
        nap(TTL / 10).await;
        if servers[1].admitted().await != before {
            assert!(first.clock().now().since(began) >= TTL);
            break;
        }
    }
    servers[0].set_up(false);
    (two, can_take(&servers, 2, flaws).await)
}

#[test]
fn a_member_with_old_data_does_not_count_until_all_leases_that_it_forgot_are_over() {
    assert_eq!(runtime().block_on(old_data(&[])), (false, true));
    let (two, _) = runtime().block_on(old_data(&[Flaw::HidesRuns]));
    assert!(two, "it counts at once, and two hold");
}

#[test]
fn in_quarantine_a_claim_that_is_there_is_renewed_and_no_other_is_granted() {
    runtime().block_on(async {
        let servers = servers();
        let quorum = quorum(&servers, 0, &[]);
        open(&quorum).await;
        let held = claim(Mode::Exclusive);
        take(&quorum, &held).await;
        nap(TTL / 20).await; // until it is at all members
        servers[2].set_up(false);
        servers[1].restart();
        assert!(holds(&quorum, &held).await, "two members have it");
        // What that member does not have is not repaired there.
        servers[1].release_last().await;
        assert!(!holds(&quorum, &held).await);
        let other = claim_on(named("other"), Mode::Exclusive);
        let refused = quorum.acquire(&other, Patience::Try).await;
        assert!(refused.is_err(), "one member counts: {refused:?}");
    });
}

#[test]
fn members_that_keep_all_writes_are_restarted_one_by_one_without_a_pause() {
    runtime().block_on(async {
        let servers = servers();
        servers.iter().for_each(|server| server.set_keeps_writes());
        let quorum = quorum(&servers, 0, &[]);
        open(&quorum).await;
        let held = claim(Mode::Exclusive);
        take(&quorum, &held).await;
        for (round, server) in servers.iter().cycle().take(6).enumerate() {
            server.restart();
            assert!(holds(&quorum, &held).await);
            let other = claim_on(named("other"), Mode::Exclusive);
            take(&quorum, &other).await;
            quorum.release(&other).await.unwrap();
            let next = self::quorum(&servers, round as u64 + 1, &[]);
            take(&next, &claim_on(named(&format!("{round}")), Mode::Exclusive)).await;
        }
    });
}

/// A member with a quarantine in its data is started again: the time begins anew.
#[test]
fn a_quarantine_is_counted_from_the_start_of_the_run_that_it_is_for() {
    runtime().block_on(async {
        let servers = servers();
        let quorum = quorum(&servers, 0, &[]);
        open(&quorum).await;
        let before = servers[1].admitted().await;
        servers[1].restart();
        open(&quorum).await;
        nap(TTL * 9 / 10).await;
        servers[1].restart();
        let started = quorum.clock().now();
        while servers[1].admitted().await == before {
            open(&quorum).await;
            nap(TTL / 20).await;
        }
        assert!(quorum.clock().now().since(started) >= TTL);
    });
}

#[test]
fn a_quorum_whose_programs_kept_no_runs_goes_on_without_a_quarantine() {
    runtime().block_on(async {
        let servers = servers();
        servers.iter().for_each(|server| server.set_tells_run(false));
        let before = quorum(&servers, 0, &[]);
        open(&before).await;
        servers.iter().for_each(|server| server.set_tells_run(true));
        servers[2].set_up(false);
        assert!(can_take(&servers, 1, &[]).await, "also while it cannot be completed");
        servers[2].set_up(true);
        assert!(can_take(&servers, 2, &[]).await);
        servers[2].set_up(false);
        servers[1].restart();
        assert!(!can_take(&servers, 3, &[]).await, "from now on its runs are known");
    });
}
