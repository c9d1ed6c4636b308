//! A lock that stays held for a time at least, whenever it is released.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::sync::MultiLock;
use lockkit_core::{Error, Guard, LockManager, LossReason, MemoryDriver, Settings};
use tokio::time::{Instant, sleep, timeout};

use super::moody::{Mood, Moody};
use super::{MS, SECOND, claims, locks, manager_of, settle};

const LEAST: Duration = Duration::from_secs(60);

/// After how long since the grant the lock is free.
async fn free_after(driver: &Moody, granted: Instant) -> Duration {
    while claims(driver, "a").await > 0 {
        sleep(100 * MS).await;
    }
    granted.elapsed()
}

fn is_about_least(held: Duration) {
    assert!(held >= LEAST && held < LEAST + SECOND, "free after {held:?}");
}

async fn held(locks: &LockManager) -> (Guard, Instant) {
    let guard = locks.mutex("a").at_least(LEAST).lock().await.unwrap();
    (guard, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn a_release_leaves_the_rest_to_the_backend_and_returns() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    sleep(5 * SECOND).await;
    guard.release().await.unwrap();
    assert_eq!(granted.elapsed(), 5 * SECOND, "it does not wait");
    assert_eq!(driver.calls("shorten").len(), 1);
    locks.shutdown().await;
    assert_eq!(granted.elapsed(), 5 * SECOND, "nor does the shutdown");
    is_about_least(free_after(&driver, granted).await);
    assert!(driver.calls("release").is_empty());
}

/// Most backends count whole milliseconds, and would drop the rest of one.
#[tokio::test(start_paused = true)]
async fn what_is_left_to_the_backend_is_in_whole_milliseconds_and_not_less() {
    let (_driver, locks) = locks();
    let (guard, _) = held(&locks).await;
    tokio::time::advance(Duration::from_micros(1_300)).await;
    guard.release().await.unwrap();
    let state = locks.inspect(lockkit_core::Space::Lock, "a").await.unwrap();
    assert_eq!(state.queue[0].expires_in, LEAST - MS);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_held_for_longer_is_released_at_once() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    sleep(LEAST + 5 * SECOND).await;
    assert!(guard.is_valid() && guard.least_remaining().is_zero());
    guard.release().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
    assert!(driver.calls("shorten").is_empty());
    assert_eq!(granted.elapsed(), LEAST + 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_stays_as_long() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    drop(guard);
    is_about_least(free_after(&driver, granted).await);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_it_too() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    sleep(SECOND).await;
    locks.shutdown().await;
    assert_eq!(granted.elapsed(), SECOND);
    assert!(!guard.is_valid());
    is_about_least(free_after(&driver, granted).await);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_leaves_a_lease_that_lasts() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    driver.cut_off();
    let free = free_after(&driver, granted).await;
    assert!(free >= LEAST, "the ttl is 30 s, and it lasted for {free:?}");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_left_in_the_background() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    driver.next("shorten", Mood::FailBefore);
    let released = guard.release().await;
    assert!(matches!(&released, Err(error) if error.is_retryable()), "{released:?}");
    is_about_least(free_after(&driver, granted).await);
}

#[tokio::test(start_paused = true)]
async fn where_no_lease_can_be_left_the_release_waits_and_goes_on_renewing() {
    let driver = Moody::new(MemoryDriver::new()).without_shorten();
    let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
    let (guard, granted) = held(&locks).await;
    guard.release().await.unwrap();
    is_about_least(granted.elapsed());
    assert_eq!(claims(&driver, "a").await, 0, "and then it is released");
    let (guard, granted) = held(&locks).await;
    drop(guard);
    is_about_least(free_after(&driver, granted).await);
}

/// The lease counts from the request, which came to the backend some time before the answer did.
#[tokio::test(start_paused = true)]
async fn a_dropped_guard_stays_as_long_where_no_lease_can_be_left() {
    let driver = Moody::new(MemoryDriver::new()).without_shorten();
    let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
    driver.next("acquire", Mood::Late(2 * SECOND));
    let (guard, granted) = held(&locks).await;
    drop(guard);
    is_about_least(free_after(&driver, granted).await);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_renewed_is_held_for_as_long_and_is_not_lost_by_it() {
    let driver = Moody::new(MemoryDriver::new()).without_shorten();
    let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
    let guard = locks.mutex("a").at_least(LEAST).auto_renew(false).lock().await.unwrap();
    let granted = Instant::now();
    guard.release().await.unwrap();
    is_about_least(free_after(&driver, granted).await);
}

#[tokio::test(start_paused = true)]
async fn it_has_no_ticket() {
    let (driver, locks) = locks();
    let (guard, granted) = held(&locks).await;
    assert!(matches!(guard.detach(), Err(Error::Config(_))));
    is_about_least(free_after(&driver, granted).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_after_a_break() {
    let (driver, locks) = locks();
    let (guard, _) = held(&locks).await;
    let others = manager_of(&driver);
    let (token, space) = (guard.token().unwrap(), lockkit_core::Space::Lock);
    let how = lockkit_core::driver::BreakMode::Forced;
    assert!(others.admin().break_lock(space, "a", token, how, None).await.unwrap());
    let released = guard.release().await;
    assert!(
        matches!(released, Err(Error::Lost { reason: LossReason::Broken(_), .. })),
        "{released:?}"
    );
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_before_any_request() {
    let (driver, locks) = locks();
    let detached = locks.mutex("a").at_least(LEAST).detached().try_lock().await;
    assert!(matches!(detached, Err(Error::Config(_))), "{detached:?}");
    let hung = locks.mutex("a").at_least(LEAST).max_hold(LEAST / 2).try_lock().await;
    assert!(matches!(hung, Err(Error::Config(_))), "{hung:?}");
    assert!(driver.calls("acquire").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slot_stays_with_its_permit() {
    let locks = LockManager::new(MemoryDriver::new());
    let slots = locks.slots("gpu", 1).at_least(LEAST);
    let slot = slots.acquire().await.unwrap();
    let granted = Instant::now();
    slot.release().await.unwrap();
    assert!(slots.try_acquire().await.unwrap().is_none());
    drop(slots.acquire().await.unwrap());
    is_about_least(granted.elapsed());
}

fn both(locks: &LockManager) -> MultiLock {
    let mutex = |name| locks.mutex(name).at_least(LEAST);
    MultiLock::new([mutex("a"), mutex("b")]).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_keeps_nothing_of_what_it_gives_back() {
    let (driver, locks) = locks();
    let both = both(&locks);
    // The second is busy.
    let holder = locks.mutex("b").lock().await.unwrap();
    assert!(both.try_lock().await.unwrap().is_none());
    assert_eq!(claims(&driver, "a").await, 0, "after a try");
    assert!(both.try_lock_for(SECOND).await.unwrap().is_none());
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0, "after a wait that was dropped");
    holder.release().await.unwrap();
    // The first is had, and the second not answered yet.
    driver.next("acquire", Mood::Slow(10 * MS));
    driver.next("acquire", Mood::Slow(100 * MS));
    let dropped = timeout(50 * MS, both.lock()).await;
    assert!(dropped.is_err());
    sleep(100 * MS).await;
    assert_eq!(claims(&driver, "a").await, 0, "after a future that was dropped at once");
    // The first is busy, and the second is had at once.
    let holder = locks.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn(async move { both.lock().await });
    settle().await;
    assert_eq!((claims(&driver, "a").await, claims(&driver, "b").await), (2, 0));
    let freed = Instant::now();
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid() && freed.elapsed() < SECOND, "{:?}", freed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_was_had_stays_as_long() {
    let (driver, locks) = locks();
    for wait in [Duration::ZERO, SECOND] {
        let guard = both(&locks).try_lock_for(wait).await.unwrap().expect("both are free");
        let granted = Instant::now();
        guard.release().await.unwrap();
        assert_eq!(claims(&driver, "b").await, 1);
        is_about_least(free_after(&driver, granted).await);
        assert_eq!(claims(&driver, "b").await, 0);
    }
}
