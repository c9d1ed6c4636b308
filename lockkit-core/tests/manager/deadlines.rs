//! Every way to a deadline, with an answer that comes late: whatever core was told and when, a guard
//! says that it is valid only while the backend has its claim as the holder.

use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Guard, LockManager, LossReason, MemoryDriver, Mode};
use tokio::time::{sleep, timeout};

use super::moody::{Mood, Moody};
use super::{MS, SECOND, locks, manager_of, settle};

/// How late answers come.
const LATE: Duration = Duration::from_secs(4);

/// Cuts the client off, and looks in small steps at what it believes and what the backend has.
async fn trusted_only_while_held(driver: &Moody, guard: &Guard) {
    driver.cut_off();
    let key = guard.claim().key.clone();
    let mut believed = 0;
    for _ in 0..10_000 {
        let state = driver.store().inspect(&key).await.unwrap();
        if state.holders().next().is_none() {
            assert!(!guard.is_valid(), "valid for {:?} more", guard.remaining());
            assert!(believed > 0, "it was valid for a time");
            return;
        }
        believed += u32::from(guard.is_valid());
        sleep(10 * MS).await;
    }
    panic!("the lease does not end");
}

#[tokio::test(start_paused = true)]
async fn the_first_answer() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(LATE));
    let guard = locks.mutex("a").lock().await.unwrap();
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_answer() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::FailAfter);
    driver.next("acquire", Mood::Late(LATE));
    let guard = locks.mutex("a").lock().await.unwrap();
    trusted_only_while_held(&driver, &guard).await;
}

async fn waiter(locks: &LockManager) -> tokio::task::JoinHandle<Guard> {
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    settle().await;
    waiting
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant() {
    let (driver, locks) = locks();
    let holder = locks.mutex("a").lock().await.unwrap();
    driver.next("granted", Mood::Late(2 * SECOND));
    let waiting = waiter(&locks).await;
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert!(driver.calls("renew").is_empty(), "nothing but the word of the turn");
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_a_renewal_found() {
    let (driver, locks) = locks();
    let holder = locks.mutex("a").lock().await.unwrap();
    driver.always("granted", Mood::Silent);
    let waiting = waiter(&locks).await;
    driver.next("renew", Mood::Late(LATE));
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap();
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_asked_for_since_its_word_was_old() {
    let (driver, locks) = locks();
    let holder = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a").ttl(2 * SECOND).wait_ttl(3 * SECOND).auto_renew(false);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    driver.always("renew", Mood::FailBefore);
    sleep(2500 * MS).await;
    driver.next("renew", Mood::Late(800 * MS));
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap();
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    driver.next("renew", Mood::Late(LATE));
    sleep(10 * SECOND + LATE + MS * 100).await;
    assert_eq!(driver.calls("renew"), [1]);
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_by_hand_and_a_check() {
    for by_hand in [true, false] {
        let (driver, locks) = locks();
        let guard = locks.mutex("a").lock().await.unwrap();
        driver.next("renew", Mood::Late(LATE));
        match by_hand {
            true => guard.renew().await.unwrap(),
            false => drop(guard.verify().await.unwrap()),
        }
        trusted_only_while_held(&driver, &guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_of_what_is_not_renewed() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    driver.next("inspect", Mood::Late(LATE));
    guard.verify().await.unwrap();
    assert!(driver.calls("renew").is_empty());
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_resumed_ticket() {
    let (driver, locks) = locks();
    let ticket = locks.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    driver.next("renew", Mood::Late(LATE));
    let guard = manager_of(&driver).resume(&ticket).await.unwrap();
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_downgrade() {
    let (driver, locks) = locks();
    let writer = locks.rwlock("a").write().await.unwrap();
    driver.next("downgrade", Mood::Late(LATE));
    let guard = writer.downgrade().await.unwrap();
    assert_eq!(guard.mode(), Mode::Shared);
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease() {
    for mood in [Mood::Late(LATE), Mood::FailAfter, Mood::Silent] {
        let (driver, locks) = locks();
        let guard = locks.mutex("a").lock().await.unwrap();
        driver.next("shorten", mood);
        let shortening = guard.shorten(6 * SECOND);
        let answer = timeout(5 * SECOND, shortening).await;
        assert!(guard.remaining() < 6 * SECOND, "{answer:?}");
        trusted_only_while_held(&driver, &guard).await;
    }
}

/// A renewal was sent before the lease was shortened, and is answered after that.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_shortening_overtook() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    driver.next("renew", Mood::Late(LATE));
    sleep(11 * SECOND).await;
    assert_eq!(driver.at_once("renew"), 1, "it is under way");
    guard.shorten(6 * SECOND).await.unwrap();
    sleep(LATE).await;
    assert_eq!(driver.at_once("renew"), 0);
    trusted_only_while_held(&driver, &guard).await;
}

/// A renewal by hand overtook the one in the background, whose answer says less.
#[tokio::test(start_paused = true)]
async fn an_answer_that_another_overtook_takes_nothing_back() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    driver.next("renew", Mood::Late(LATE));
    sleep(12 * SECOND).await;
    assert_eq!(driver.at_once("renew"), 1, "it is under way");
    guard.renew().await.unwrap();
    let before = guard.remaining();
    sleep(3 * SECOND).await;
    assert_eq!(driver.at_once("renew"), 0, "it was answered");
    assert_eq!(guard.remaining(), before - 3 * SECOND);
    trusted_only_while_held(&driver, &guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_limited_to_less_than_a_lease() {
    for waits in [false, true] {
        let (_, locks) = locks();
        let holder = match waits {
            true => Some(locks.mutex("a").lock().await.unwrap()),
            false => None,
        };
        let mutex = locks.mutex("a").max_hold(5 * SECOND);
        let limited = tokio::spawn(async move { mutex.lock().await.unwrap() });
        settle().await;
        drop(holder);
        let guard = limited.await.unwrap();
        assert!(guard.remaining() <= 5 * SECOND, "{:?}", guard.remaining());
        let next = timeout(6 * SECOND, locks.mutex("a").lock()).await.expect("in time").unwrap();
        assert!(!guard.is_valid() && next.is_valid());
        assert_eq!(guard.loss(), Some(LossReason::MaxHold));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// In real time, since a paused clock belongs to one runtime.
#[test]
fn a_guard_is_renewed_on_when_the_runtime_of_the_renewer_ends() {
    let locks = LockManager::new(MemoryDriver::new());
    let (first, second) = (runtime(), runtime());
    let one = first.block_on(locks.mutex("a").ttl(2 * SECOND).lock()).unwrap();
    let two = second.block_on(locks.mutex("b").ttl(2 * SECOND).lock()).unwrap();
    drop(first);
    second.block_on(async { sleep(5 * SECOND).await });
    assert!(two.is_valid(), "{:?}", two.loss());
    assert!(one.is_valid(), "{:?}", one.loss());
}

/// In real time, since a paused clock belongs to one runtime.
#[test]
fn a_loss_is_told_where_nobody_renews_any_more() {
    let locks = LockManager::new(MemoryDriver::new());
    let first = runtime();
    let guard = first.block_on(locks.mutex("a").ttl(SECOND / 2).lock()).unwrap();
    drop(first);
    let told = runtime().block_on(async { timeout(20 * SECOND, guard.lost()).await });
    assert!(told.is_ok(), "nobody else would tell");
}

/// A renewal was sent before the lease was shortened, and fails after that: it is not repeated.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_after_a_shortening() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    driver.next("renew", Mood::FailAfterWaiting(LATE));
    sleep(11 * SECOND).await;
    assert_eq!(driver.at_once("renew"), 1, "it is under way");
    guard.shorten(6 * SECOND).await.unwrap();
    sleep(LATE).await;
    assert_eq!(driver.at_once("renew"), 0, "it has failed");
    sleep(SECOND).await;
    assert_eq!(driver.calls("renew"), [1]);
    trusted_only_while_held(&driver, &guard).await;
}

/// A renewal of the waiting claim is answered after a push has granted it: a lease that is not renewed is not
/// renewed by that either.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_told_after_the_grant_renews_nothing() {
    let (driver, locks) = locks();
    let holder = manager_of(&driver).mutex("a").lock().await.unwrap();
    driver.next("renew", Mood::Late(LATE));
    let mutex = locks.mutex("a").auto_renew(false);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    sleep(4 * SECOND).await;
    assert_eq!(driver.at_once("renew"), 1, "of the waiting claim");
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap();
    sleep(25 * SECOND).await;
    assert_eq!(driver.calls("renew"), [1]);
    trusted_only_while_held(&driver, &guard).await;
}
