//! No guard is handed out with a lease that is nearly over: it is renewed before that. Every way to a
//! deadline, with an answer that comes after almost the whole lease. On a clock that the test moves:
//! tokio's paused one.

use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Guard, LockManager, MemoryDriver};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::moody::{Mood, Moody};
use super::{MS, SECOND, claims, locks, manager_of, settle};

/// 99 % of the lease of 30 s, and of what is trusted of it.
const LATE: Duration = Duration::from_millis(29_600);

/// A guard that was just handed out is worth having: most of its lease is left.
fn is_fresh(guard: &Guard) {
    assert!(guard.is_valid());
    assert!(guard.remaining() > 25 * SECOND, "{:?}", guard.remaining());
}

/// The guard says that it is valid only while the backend has its claim.
async fn trusted_only_while_held(driver: &Moody, guard: &Guard) {
    driver.cut_off();
    let key = guard.claim().key.clone();
    for _ in 0..10_000 {
        if driver.store().inspect(&key).await.unwrap().holders().next().is_none() {
            assert!(!guard.is_valid(), "valid for {:?} more", guard.remaining());
            return;
        }
        sleep(10 * MS).await;
    }
    panic!("the lease does not end");
}

fn waiter(locks: &LockManager, auto_renew: bool) -> JoinHandle<Guard> {
    let mutex = locks.mutex("a").auto_renew(auto_renew);
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn a_first_answer_at_the_end_of_its_lease_is_renewed_before_the_guard_is_handed_out() {
    for auto_renew in [true, false] {
        let (driver, locks) = locks();
        driver.next("acquire", Mood::Late(LATE));
        let guard = waiter(&locks, auto_renew).await.unwrap();
        is_fresh(&guard);
        assert_eq!(driver.calls("acquire"), [1], "its own claim was saved");
        assert_eq!(driver.calls("renew"), [1]);
        trusted_only_while_held(&driver, &guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_answered_at_the_end_of_its_lease_is_renewed_too() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(LATE));
    let guard = locks.mutex("a").try_lock().await.unwrap().expect("it is free");
    is_fresh(&guard);
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_answer_at_the_end_of_its_lease() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::FailAfter);
    driver.next("acquire", Mood::Late(LATE));
    driver.next("renew", Mood::Late(50 * MS));
    let guard = waiter(&locks, true).await.unwrap();
    is_fresh(&guard);
    trusted_only_while_held(&driver, &guard).await;
}

/// The word of the turn counts from the last answer, which was the one that put it in the queue.
#[tokio::test(start_paused = true)]
async fn a_push_at_the_end_of_its_lease_is_renewed_before_the_guard_is_handed_out() {
    for auto_renew in [true, false] {
        let (driver, locks) = locks();
        let holder = manager_of(&driver).mutex("a").lock().await.unwrap();
        let mutex = locks.mutex("a").wait_ttl(100 * SECOND).auto_renew(auto_renew);
        let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
        sleep(LATE).await;
        let before = driver.calls("renew").len();
        holder.release().await.unwrap();
        let guard = waiting.await.unwrap();
        is_fresh(&guard);
        assert!(driver.calls("renew").len() > before);
        trusted_only_while_held(&driver, &guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_that_is_late_itself() {
    let (driver, locks) = locks();
    let holder = locks.mutex("a").lock().await.unwrap();
    driver.next("granted", Mood::Late(LATE));
    driver.always("renew", Mood::FailBefore);
    let waiting = waiter(&locks, true);
    settle().await;
    holder.release().await.unwrap();
    sleep(29 * SECOND).await;
    driver.always("renew", Mood::Late(100 * MS));
    let guard = waiting.await.unwrap();
    is_fresh(&guard);
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_a_renewal_of_the_waiter_found_at_the_end_of_its_lease() {
    let (driver, locks) = locks();
    let holder = manager_of(&driver).mutex("a").lock().await.unwrap();
    driver.always("granted", Mood::Silent);
    let mutex = locks.mutex("a").ttl(3 * SECOND).wait_ttl(30 * SECOND);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    settle().await;
    holder.release().await.unwrap();
    sleep(9 * SECOND).await;
    // Of 3 s, whose trusted part ends after 2.968 s.
    driver.next("renew", Mood::Late(2_960 * MS));
    let guard = waiting.await.unwrap();
    assert!(guard.remaining() > 2 * SECOND, "{:?}", guard.remaining());
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_resumed_at_the_end_of_its_lease() {
    let (driver, locks) = locks();
    let ticket = locks.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    driver.next("renew", Mood::Late(LATE));
    let guard = manager_of(&driver).resume(&ticket).await.unwrap();
    is_fresh(&guard);
    trusted_only_while_held(&driver, &guard).await;
}

/// A renewal of a guard that is in use: nothing is late about it as long as it comes in time.
#[tokio::test(start_paused = true)]
async fn a_renewal_at_the_end_of_its_lease() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    driver.next("renew", Mood::Late(LATE));
    guard.renew().await.unwrap();
    assert!(guard.remaining() < SECOND, "it counts from the sending: {:?}", guard.remaining());
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_at_the_end_of_its_lease() {
    let (driver, locks) = locks();
    let writer = locks.rwlock("a").write().await.unwrap();
    driver.always("renew", Mood::FailBefore);
    driver.next("downgrade", Mood::Late(LATE));
    let guard = writer.downgrade().await.unwrap();
    trusted_only_while_held(&driver, &guard).await;
}

/// A tenth is left: the guard is there at once, and its renewal leaves at the same moment.
#[tokio::test(start_paused = true)]
async fn what_is_only_somewhat_late_waits_for_no_renewal() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(9 * SECOND));
    driver.next("renew", Mood::Late(SECOND));
    let begun = Instant::now();
    let guard = waiter(&locks, true).await.unwrap();
    assert!(begun.elapsed() <= 9 * SECOND + 10 * MS, "{:?}", begun.elapsed());
    settle().await;
    assert_eq!(driver.calls("renew").len(), 0, "a third of the lease is not over");
    sleep(2 * SECOND).await;
    assert_eq!(driver.calls("renew").len(), 1);
    drop(guard);

    let (driver, locks) = super::locks();
    let holder = manager_of(&driver).mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a").ttl(4 * SECOND);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    sleep(3 * SECOND).await;
    let before = driver.calls("renew").len();
    driver.next("renew", Mood::Late(SECOND / 2));
    let begun = Instant::now();
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
    settle().await;
    assert_eq!(driver.calls("renew").len(), before + 1, "the renewal left at the same moment");
    sleep(SECOND).await;
    assert!(guard.is_valid());
}

/// With a fixed lifetime nothing renews it afterwards, so less than half is little.
#[tokio::test(start_paused = true)]
async fn what_is_not_renewed_later_is_renewed_once_when_less_than_half_is_left() {
    for (late, renewals) in [(14 * SECOND, 0), (16 * SECOND, 1)] {
        let (driver, locks) = locks();
        driver.next("acquire", Mood::Late(late));
        let guard = waiter(&locks, false).await.unwrap();
        assert_eq!(driver.calls("renew").len(), renewals, "{late:?}");
        assert!(guard.remaining() > 14 * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_repeated_as_long_as_the_lease_lasts() {
    for mood in [Mood::FailBefore, Mood::FailAfter, Mood::Refused, Mood::Silent] {
        let (driver, locks) = locks();
        driver.next("acquire", Mood::Late(28 * SECOND));
        driver.next("renew", mood);
        driver.next("renew", mood);
        let guard = waiter(&locks, true).await.unwrap();
        is_fresh(&guard);
        assert_eq!(driver.calls("acquire"), [1], "{mood:?}: it was not given back");
        assert_eq!(driver.calls("renew").len(), 3, "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_saved_is_asked_for_again() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(28 * SECOND));
    driver.always("renew", Mood::FailBefore);
    let guard = waiter(&locks, true).await.unwrap();
    is_fresh(&guard);
    assert_eq!(driver.calls("acquire"), [1, 1]);
    settle().await;
    assert_eq!(claims(&driver, "a").await, 1);
}

/// Every answer comes after 60 % of a lease: nothing is given back as long as it lasts, so that the
/// lock is had.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_late_for_all_still_gives_locks() {
    for auto_renew in [true, false] {
        let (driver, locks) = locks();
        driver.always("acquire", Mood::Late(18 * SECOND));
        driver.always("renew", Mood::Late(18 * SECOND));
        let guard = timeout(60 * SECOND, waiter(&locks, auto_renew)).await.expect("it is had");
        assert!(guard.unwrap().remaining() > 11 * SECOND);
        assert_eq!(driver.calls("acquire"), [1]);
        assert!(driver.calls("release").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_of_a_try_begins_after_one_ttl() {
    let (driver, locks) = locks();
    driver.always("acquire", Mood::Late(31 * SECOND));
    let begun = Instant::now();
    let error = locks.mutex("a").try_lock().await.expect_err("none is in time");
    assert!(error.is_retryable(), "{error}");
    assert!(begun.elapsed() <= 32 * SECOND, "{:?}", begun.elapsed());
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_while_its_lease_is_renewed_leaves_nothing() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(28 * SECOND));
    driver.always("renew", Mood::Silent);
    let waiting = waiter(&locks, true);
    sleep(28 * SECOND + 500 * MS).await;
    assert_eq!(driver.at_once("renew"), 1, "it is being renewed");
    waiting.abort();
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_renewal_before_a_guard() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(28 * SECOND));
    driver.always("renew", Mood::FailBefore);
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(28 * SECOND + 200 * MS).await;
    let begun = Instant::now();
    locks.shutdown().await;
    assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert_eq!(claims(&driver, "a").await, 0);
}

/// After that the first one's lease may be over, and another claim may hold: it would hold again, with an answer
/// of the time when it did.
#[tokio::test(start_paused = true)]
async fn an_acquire_without_an_answer_is_repeated_with_its_claim_only_while_its_lease_may_last() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::FailAfter);
    driver.always("acquire", Mood::FailBefore);
    let waiting = tokio::spawn({
        let mutex = locks.mutex("a").ttl(2 * SECOND).wait_ttl(10 * SECOND);
        async move { mutex.lock().await.unwrap() }
    });
    sleep(1_500 * MS).await;
    let first = driver.claims_of("a");
    assert_eq!(first.len(), 1, "{first:?}");
    sleep(1_500 * MS).await;
    driver.recovers("acquire");
    let guard = waiting.await.unwrap();
    assert_ne!(first[0], guard.claim().id);
}

/// Its session has no longer ttl while it waits.
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_in_a_session_is_renewed_within_the_ttl_of_the_session() {
    let driver = Moody::new(MemoryDriver::new()).in_sessions();
    let locks = manager_of(&driver);
    let holder = manager_of(&driver).mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a").ttl(3 * SECOND).wait_ttl(30 * SECOND);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    sleep(10 * SECOND).await;
    assert_eq!(driver.claims_of("a").len(), 2, "it keeps its place");
    assert!(driver.calls("renew").len() >= 8, "{:?}", driver.calls("renew"));
    holder.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}
