//! The gate, with one that this test makes: a claim that was granted is no guard before it has the gate
//! too, both deadlines count, both are renewed, and the gate goes first.

use std::time::Duration;

use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, HeldLock, LockManager, LossReason, MemoryDriver, NeighbourWait, Space};
use tokio::time::{Instant, sleep, timeout};

use super::fake_gate::{FakeGate, GateMood, NEIGHBOUR};
use super::moody::{Mood, Moody};
use super::{MS, SECOND, claims, manager_of, settle};

fn gated() -> (Moody, FakeGate, LockManager) {
    let gate = FakeGate::default();
    let driver = Moody::new(MemoryDriver::new()).with_gate(gate.clone());
    let locks = manager_of(&driver);
    (driver, gate, locks)
}

/// Why the lock is lost, which it is within a few renewals.
async fn loss(guard: &HeldLock) -> LossReason {
    timeout(100 * SECOND, guard.lost()).await.expect("it is lost")
}

/// Waits for what comes soon, and does not change it.
async fn until(what: impl AsyncFn() -> bool) {
    let came = timeout(20 * SECOND, async {
        while !what().await {
            sleep(10 * MS).await;
        }
    });
    came.await.expect("it comes soon");
}

#[tokio::test(start_paused = true)]
async fn the_guard_comes_when_claim_and_gate_are_had_and_the_gate_goes_first() {
    let (driver, gate, locks) = gated();
    gate.seize(3600 * SECOND);
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until(async || locks.neighbour_wait("a").is_some()).await;
    let NeighbourWait { remaining, .. } = locks.neighbour_wait("a").unwrap();
    assert!(remaining.is_some_and(|left| left > 3500 * SECOND), "{remaining:?}");
    let state = locks.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!(state.holders().count(), 1, "it was granted before");
    assert_eq!(locks.neighbour_wait("b"), None);
    // Longer than any lease: the claim is renewed meanwhile.
    sleep(200 * SECOND).await;
    assert!(!waiting.is_finished());
    gate.delete();
    let freed = Instant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(freed.elapsed() <= 500 * MS, "{:?}", freed.elapsed());
    assert_eq!(gate.owner(), Some(guard.claim().gate_owner()));
    assert!(guard.remaining() > 25 * SECOND, "{:?}", guard.remaining());
    assert_eq!(locks.neighbour_wait("a"), None);
    gate.next("give", GateMood::Slow(SECOND));
    let release = tokio::spawn(guard.release());
    sleep(900 * MS).await;
    assert_eq!(claims(&driver, "a").await, 1, "the claim stays until the gate was given back");
    release.await.unwrap().unwrap();
    assert_eq!((claims(&driver, "a").await, gate.owner()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn only_the_claim_that_was_granted_tries_the_gate_and_a_free_one_costs_one_call() {
    let (driver, gate, locks) = gated();
    let first = locks.mutex("a").lock().await.unwrap();
    assert_eq!((gate.calls("take"), gate.calls("keep"), gate.calls("give")), (1, 0, 0));
    let others = manager_of(&driver);
    let second = tokio::spawn(async move { others.mutex("a").lock().await });
    sleep(8 * SECOND).await;
    assert_eq!(gate.calls("take"), 1, "who waits in the queue does not try");
    first.release().await.unwrap();
    assert_eq!(gate.calls("give"), 1);
    let second = second.await.unwrap().unwrap();
    assert_eq!(gate.calls("take"), 2);
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_try_that_meets_a_neighbour_is_busy_and_leaves_nothing() {
    let (driver, gate, locks) = gated();
    gate.seize(100 * SECOND);
    let began = Instant::now();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(locks.mutex("a").try_lock_for(5 * SECOND).await.unwrap().is_none());
    assert_eq!(began.elapsed(), 5 * SECOND);
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0);
    assert_eq!(gate.owner().as_deref(), Some(NEIGHBOUR));
    gate.delete();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_the_sending_of_each_request() {
    // The gate's first answer is late: of 30 s, 9 have passed. The claim was renewed after that was sent.
    let (driver, gate, locks) = gated();
    gate.seize(3600 * SECOND);
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(4 * SECOND).await;
    gate.next("take", GateMood::Late(9 * SECOND));
    gate.delete();
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(driver.calls("renew").len(), 1);
    assert!(guard.remaining() <= 21 * SECOND, "{:?}", guard.remaining());
    sleep(1500 * MS).await;
    assert!(guard.remaining() > 28 * SECOND, "it was renewed soon: {:?}", guard.remaining());
    guard.release().await.unwrap();
    // The answer to a renewal is late, and again the claim is renewed meanwhile.
    let (driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    gate.next("keep", GateMood::Late(4 * SECOND));
    sleep(12 * SECOND).await;
    gate.always("keep", GateMood::FailBefore);
    assert!(guard.renew().await.unwrap_err().is_retryable(), "nothing is known of the gate");
    sleep(2100 * MS).await;
    assert!(guard.remaining() <= 26 * SECOND, "{:?}", guard.remaining());
    assert!(guard.remaining() > 24 * SECOND, "{:?}", guard.remaining());
    // From now on nothing is answered: it ends before the gate does.
    driver.always("renew", Mood::FailBefore);
    let owner = gate.owner();
    loss(&guard).await;
    assert_eq!(gate.owner(), owner, "the gate's lease runs yet");
}

#[tokio::test(start_paused = true)]
async fn a_gate_whose_answer_comes_after_its_lease_is_taken_again_before_the_guard_comes() {
    let (_driver, gate, locks) = gated();
    gate.next("take", GateMood::Late(29 * SECOND));
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(guard.remaining() > 20 * SECOND, "{:?}", guard.remaining());
    assert_eq!(gate.owner(), Some(guard.claim().gate_owner()));
}

#[tokio::test(start_paused = true)]
async fn renewals_keep_both_and_either_one_lost_ends_the_guard() {
    let (driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..300 {
        sleep(SECOND).await;
        assert!(guard.is_valid());
        assert_eq!(gate.owner(), Some(guard.claim().gate_owner()));
    }
    let renewals = driver.calls("renew").len();
    assert!((25..35).contains(&renewals), "{renewals}");
    assert!(gate.calls("keep").abs_diff(renewals) <= 1, "{}", gate.calls("keep"));
    // The claim is renewed, the gate is not.
    gate.always("keep", GateMood::FailBefore);
    let reason = loss(&guard).await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
    assert!(gate.owner().is_some(), "it ended before the gate");
    drop(guard);
    let (driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    // The gate is renewed, the claim is not.
    driver.always("renew", Mood::FailBefore);
    loss(&guard).await;
    assert_eq!(claims(&driver, "a").await, 1, "it ended before the claim");
    assert!(gate.owner().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_failing_gate_is_renewed_again_soon_and_not_in_a_storm() {
    let (driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    gate.always("keep", GateMood::FailBefore);
    sleep(25 * SECOND).await;
    assert!(guard.is_valid());
    assert!((5..60).contains(&gate.calls("keep")), "{}", gate.calls("keep"));
    gate.recovers();
    sleep(2 * SECOND).await;
    assert!(guard.is_valid() && guard.remaining() > 25 * SECOND, "{:?}", guard.remaining());
    assert!(driver.calls("renew").len() < 80);
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_is_gone_or_anothers_is_a_loss_and_is_not_made_again() {
    for neighbour in [false, true] {
        let (driver, gate, locks) = gated();
        let guard = locks.mutex("a").lock().await.unwrap();
        match neighbour {
            true => gate.seize(3600 * SECOND),
            false => gate.delete(),
        }
        let began = Instant::now();
        assert_eq!(loss(&guard).await, LossReason::Neighbour);
        assert!(began.elapsed() <= 11 * SECOND, "at the next renewal");
        assert!(matches!(guard.token(), Err(Error::Lost { reason: LossReason::Neighbour, .. })));
        let takes = gate.calls("take");
        sleep(60 * SECOND).await;
        assert_eq!(gate.calls("take"), takes);
        assert_eq!(gate.owner().as_deref(), neighbour.then_some(NEIGHBOUR));
        // Its holder keeps it for the rest of the lease, and no longer.
        assert_eq!(claims(&driver, "a").await, 0);
        let lost = guard.release().await.unwrap_err();
        assert!(matches!(lost, Error::Lost { reason: LossReason::Neighbour, .. }), "{lost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_by_hand_keeps_both_and_says_what_was_lost() {
    let (_driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    sleep(5 * SECOND).await;
    guard.renew().await.unwrap();
    assert!(guard.remaining() > 26 * SECOND, "{:?}", guard.remaining());
    gate.next("keep", GateMood::FailBefore);
    assert!(guard.verify().await.unwrap_err().is_retryable(), "nothing is known of the gate");
    guard.verify().await.unwrap();
    gate.delete();
    let lost = guard.verify().await.unwrap_err();
    assert!(matches!(lost, Error::Lost { reason: LossReason::Neighbour, .. }), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_answer_was_lost_is_asked_for_again_and_leaves_no_gate() {
    let (_driver, gate, locks) = gated();
    gate.next("take", GateMood::FailAfter);
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(gate.calls("take"), 2);
    assert_eq!(gate.owner(), Some(guard.claim().gate_owner()));
    guard.release().await.unwrap();
    assert_eq!(gate.owner(), None);
    // One that arrives after the release.
    gate.next("take", GateMood::StuckFor(8 * SECOND));
    let guard = locks.mutex("a").lock().await.unwrap();
    sleep(SECOND).await;
    guard.release().await.unwrap();
    assert_eq!(gate.owner(), None);
    sleep(10 * SECOND).await;
    assert_eq!(gate.owner(), None, "it is given back when it arrives");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_at_the_gate_leaves_neither_claim_nor_gate() {
    let (driver, gate, locks) = gated();
    gate.seize(100 * SECOND);
    let mutex = locks.mutex("a");
    assert!(timeout(3 * SECOND, mutex.lock()).await.is_err());
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0);
    gate.delete();
    // In the middle of the request, which arrives later.
    gate.next("take", GateMood::Late(5 * SECOND));
    assert!(timeout(SECOND, mutex.lock()).await.is_err());
    sleep(SECOND).await;
    assert_eq!((claims(&driver, "a").await, gate.owner()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_gives_the_gate_back_again_and_again_and_the_claim_then() {
    let (driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    gate.always("give", GateMood::FailBefore);
    drop(guard);
    sleep(5 * SECOND).await;
    assert!(gate.calls("give") > 3);
    assert_eq!(claims(&driver, "a").await, 1, "not before the gate");
    gate.recovers();
    until(async || gate.owner().is_none() && claims(&driver, "a").await == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_break_or_a_shutdown_ends_the_wait_at_the_gate() {
    let (driver, gate, locks) = gated();
    gate.seize(3600 * SECOND);
    let wait = |locks: &LockManager| {
        let mutex = locks.mutex("a");
        tokio::spawn(async move { mutex.lock().await })
    };
    let waiting = wait(&locks);
    until(async || locks.neighbour_wait("a").is_some()).await;
    let token = locks.inspect(Space::Lock, "a").await.unwrap().queue[0].token;
    let admin = manager_of(&driver);
    assert!(
        admin.admin().break_lock(Space::Lock, "a", token, BreakMode::Graceful, None).await.unwrap()
    );
    let ended = waiting.await.unwrap().unwrap_err();
    assert!(matches!(ended, Error::Lost { reason: LossReason::Broken(_), .. }), "{ended:?}");
    until(async || claims(&driver, "a").await == 0).await;
    let waiting = wait(&locks);
    until(async || locks.neighbour_wait("a").is_some()).await;
    locks.shutdown().await;
    assert!(matches!(waiting.await.unwrap().unwrap_err(), Error::Closed));
    assert_eq!(claims(&driver, "a").await, 0);
}

/// Its holder winds up, and the neighbours wait for that.
#[tokio::test(start_paused = true)]
async fn a_break_leaves_the_gate_until_the_holder_lets_go_or_its_lease_is_over() {
    for lets_go in [true, false] {
        let (driver, gate, locks) = gated();
        let guard = locks.mutex("a").lock().await.unwrap();
        let (token, admin) = (guard.token().unwrap(), manager_of(&driver));
        let admin = admin.admin();
        assert!(
            admin.break_lock(Space::Lock, "a", token, BreakMode::Graceful, None).await.unwrap()
        );
        let reason = loss(&guard).await;
        assert!(matches!(reason, LossReason::Broken(_)), "{reason:?}");
        sleep(SECOND).await;
        assert!(gate.owner().is_some());
        match lets_go {
            true => drop(guard),
            false => sleep(30 * SECOND).await,
        }
        until(async || gate.owner().is_none() && claims(&driver, "a").await == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_lost_at_the_gate_is_asked_for_again() {
    let (driver, gate, locks) = gated();
    gate.seize(3600 * SECOND);
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    until(async || locks.neighbour_wait("a").is_some()).await;
    driver.always("renew", Mood::FailBefore);
    sleep(40 * SECOND).await;
    driver.recovers("renew");
    gate.delete();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
    assert_eq!(gate.owner(), Some(guard.claim().gate_owner()));
    sleep(60 * SECOND).await;
    assert!(guard.is_valid());
    assert_eq!(claims(&driver, "a").await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_counts_from_the_moment_at_which_both_are_had() {
    let (driver, gate, locks) = gated();
    gate.seize(3600 * SECOND);
    let mutex = locks.mutex("a").max_hold(20 * SECOND);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(50 * SECOND).await;
    gate.delete();
    let guard = waiting.await.unwrap().unwrap();
    let granted = Instant::now();
    assert_eq!(loss(&guard).await, LossReason::MaxHold);
    assert_eq!(granted.elapsed(), 20 * SECOND);
    until(async || gate.owner().is_none() && claims(&driver, "a").await == 0).await;
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn what_neighbours_locks_do_not_have_is_refused_before_anything_is_sent() {
    let (driver, gate, locks) = gated();
    let mutex = || locks.mutex("a");
    let refused = |name: &str, result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{name}: {error:?}");
        assert!(error.to_string().contains("neighbours"), "{name}: {error}");
    };
    refused("read", locks.rwlock("a").read().await.map(drop));
    refused("try_read", locks.rwlock("a").try_read().await.map(drop));
    refused("semaphore", locks.semaphore("a", 3).acquire().await.map(drop));
    refused("slots", locks.slots("a", 3).acquire().await.map(drop));
    refused("detached", mutex().detached().lock().await.map(drop));
    refused("fixed", mutex().auto_renew(false).lock().await.map(drop));
    refused("at_least", mutex().at_least(SECOND).lock().await.map(drop));
    refused("lock_delay", mutex().lock_delay(SECOND).lock().await.map(drop));
    assert!(locks.mutex("refused").lock().await.is_err());
    refused("multi", locks.multi(["twin 1", "b", "twin 2"]).lock().await.map(drop));
    let ticket = manager_without_gate().mutex("a").detached().lock().await.unwrap();
    let ticket = ticket.detach().unwrap();
    refused("resume", locks.resume(&ticket).await.map(drop));
    refused("release_ticket", locks.release_ticket(&ticket).await.map(drop));
    assert_eq!((driver.calls("acquire").len(), gate.calls("take")), (0, 0));
    let writing = locks.rwlock("a").write().await.unwrap();
    refused("downgrade", writing.downgrade().await.map(drop));
    assert!(driver.calls("downgrade").is_empty());
}

fn manager_without_gate() -> LockManager {
    LockManager::new(MemoryDriver::new())
}

#[tokio::test(start_paused = true)]
async fn several_locks_and_an_election_go_through_their_gates() {
    let (driver, gate, locks) = gated();
    // The fake gate is one for all names: so one after the other.
    let leader = locks.election("chief").campaign().await.unwrap();
    assert!(gate.owner().is_some());
    drop(leader);
    until(async || gate.owner().is_none()).await;
    let only = locks.multi(["a"]).lock().await.unwrap();
    assert!(gate.owner().is_some());
    only.release().await.unwrap();
    assert_eq!((gate.owner(), claims(&driver, "a").await), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_claim_that_goes_back_since_its_gate_is_busy() {
    let (driver, gate, locks) = gated();
    gate.seize(3600 * SECOND);
    driver.next("release", Mood::Slow(60 * MS));
    let mutex = locks.mutex("a");
    let trying = tokio::spawn(async move { mutex.try_lock().await });
    settle().await;
    assert_eq!(driver.at_once("release"), 1);
    locks.shutdown().await;
    assert_eq!(claims(&driver, "a").await, 0);
    assert!(trying.await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_the_gate_that_fails_after_a_shortening_is_not_repeated() {
    let (driver, gate, locks) = gated();
    let guard = locks.mutex("a").lock().await.unwrap();
    // It is given up after 5 s.
    gate.next("keep", GateMood::Slow(30 * SECOND));
    sleep(11 * SECOND).await;
    assert_eq!((driver.calls("renew").len(), gate.calls("keep")), (1, 1), "at a third of the ttl");
    guard.shorten(6 * SECOND).await.unwrap();
    sleep(5 * SECOND).await;
    assert!(guard.remaining() < SECOND, "{:?}", guard.remaining());
    assert_eq!((driver.calls("renew").len(), gate.calls("keep")), (1, 1));
}
