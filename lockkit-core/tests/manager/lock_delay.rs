//! A name that stays closed for a time after its lock was lost, and not after a release.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::{
    Error, Guard, Key, LockManager, LossReason, MemoryDriver, Name, Namespace, Settings, Space,
};
use tokio::time::{Instant, sleep};

use super::moody::{Mood, Moody};
use super::{MS, SECOND, claims, locks, manager_of};

const TTL: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_secs(40);

async fn held(locks: &LockManager) -> Guard {
    locks.mutex("a").ttl(TTL).lock_delay(DELAY).lock().await.unwrap()
}

/// Nothing about this claim reaches the backend for as long as its name is to stay closed.
async fn stays_closed(driver: &Moody, lost: Instant) {
    let (releases, renewals) = (driver.calls("release").len(), driver.calls("renew").len());
    while claims(driver, "a").await > 0 {
        assert_eq!(driver.calls("release").len(), releases, "after {:?}", lost.elapsed());
        assert_eq!(driver.calls("renew").len(), renewals, "after {:?}", lost.elapsed());
        sleep(100 * MS).await;
    }
    assert!(lost.elapsed() >= DELAY, "open after {:?}", lost.elapsed());
    assert!(lost.elapsed() < DELAY + TTL, "open after {:?}", lost.elapsed());
}

/// Loses the lock by a silence of the backend, which then works again.
async fn lost(driver: &Moody, guard: &Guard) -> Instant {
    driver.always("renew", Mood::FailBefore);
    let reason = guard.lost().await;
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
    driver.recovers("renew");
    Instant::now()
}

#[tokio::test(start_paused = true)]
async fn the_guard_trusts_its_ttl_only() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    assert!(guard.remaining() < TTL, "{:?}", guard.remaining());
    assert!(guard.remaining() > TTL / 2);
    assert_eq!(guard.granted_ttl(), TTL);
    sleep(TTL * 5).await;
    assert!(guard.is_valid(), "it is renewed as ever");
    assert!(driver.calls("renew").len() >= 12, "at a third of the ttl, not of the sum");
    let state = locks.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!((state.queue[0].ttl, state.queue[0].lock_delay), (TTL, DELAY));
    assert_eq!(state.queue[0].note, None);
}

#[tokio::test(start_paused = true)]
async fn a_release_opens_at_once_and_so_does_a_drop_and_a_forced_break() {
    let (driver, locks) = locks();
    held(&locks).await.release().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
    drop(held(&locks).await);
    sleep(100 * MS).await;
    assert_eq!(claims(&driver, "a").await, 0);
    let guard = held(&locks).await;
    let others = manager_of(&driver);
    let token = guard.token().unwrap();
    assert!(
        others.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await.unwrap()
    );
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_kept_after_its_loss_releases_nothing() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    let at = lost(&driver, &guard).await;
    stays_closed(&driver, at).await;
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_released_after_its_loss_sends_nothing() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    let at = lost(&driver, &guard).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    stays_closed(&driver, at).await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_after_its_loss_sends_nothing() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    let at = lost(&driver, &guard).await;
    drop(guard);
    stays_closed(&driver, at).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_after_the_loss_sends_nothing() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    let at = lost(&driver, &guard).await;
    let shutdown = tokio::spawn(async move { locks.shutdown().await });
    stays_closed(&driver, at).await;
    shutdown.await.unwrap();
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_nothing_has_noticed_releases_nothing_either() {
    // The thread was blocked until after the deadline: the guard's owner comes before the renewer.
    for kind in ["release", "drop", "shutdown"] {
        let clock = Arc::new(StandingStill::default());
        let driver = Moody::new(MemoryDriver::with_clock(clock.clone()));
        let locks = manager_of(&driver);
        let guard = held(&locks).await;
        clock.ahead.store(TTL.as_nanos() as u64, Ordering::SeqCst);
        let at = Instant::now();
        assert!(!guard.is_valid());
        match kind {
            "release" => assert!(guard.release().await.is_err()),
            "drop" => drop(guard),
            // Polled at once, since a task of its own would come after the renewer.
            _ => assert!(locks.shutdown().now_or_never().is_none()),
        }
        stays_closed(&driver, at - TTL / 10).await;
    }
}

/// Tokio's clock, which jumps at one of its readings: as for a thread that stands still there.
#[derive(Debug, Default)]
struct StandingStill {
    /// How many readings are left until then; 0 for never.
    left: AtomicU64,
    ahead: AtomicU64,
    driver: OnceLock<Moody>,
    /// How many renewals were sent before.
    renewals: OnceLock<usize>,
}

impl Clock for StandingStill {
    fn now(&self) -> Moment {
        let less = |left: u64| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if left == Ok(1) {
            self.ahead.store(TTL.as_nanos() as u64, Ordering::SeqCst);
            self.renewals.set(self.driver.get().unwrap().calls("renew").len()).unwrap();
        }
        TokioClock.now().after(Duration::from_nanos(self.ahead.load(Ordering::SeqCst)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewer_that_stands_still_before_it_sends_renews_no_lock_that_was_lost_by_then() {
    // At each of its readings of the clock, up to the one at which the renewal is already sent.
    for reading in 1.. {
        let clock = Arc::new(StandingStill::default());
        let driver = Moody::new(MemoryDriver::with_clock(clock.clone()));
        clock.driver.set(driver.clone()).unwrap();
        let locks = manager_of(&driver);
        let guard = held(&locks).await;
        sleep(TTL / 4).await;
        assert_eq!(driver.calls("renew").len(), 0, "its renewal is due after a third");
        clock.left.store(reading, Ordering::SeqCst);
        sleep(TTL / 6).await;
        let before = *clock.renewals.get().expect("it reads the clock as often");
        if before > 0 {
            assert!(reading > 3, "it was found to be due, and sent, after {reading} readings");
            return;
        }
        for _ in 0..30 {
            assert_eq!(driver.calls("renew").len(), 0, "lost at reading {reading}");
            assert_eq!(driver.calls("release").len(), 0, "lost at reading {reading}");
            assert_eq!(claims(&driver, "a").await, 1, "lost at reading {reading}");
            sleep(SECOND).await;
        }
        assert!(!guard.is_valid());
        sleep(TTL * 2).await;
        assert_eq!(claims(&driver, "a").await, 0, "open again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_hangs_at_its_max_hold_leaves_it_closed() {
    let (driver, locks) = locks();
    let lock = locks.mutex("a").ttl(TTL).lock_delay(DELAY).max_hold(SECOND * 15);
    let guard = lock.lock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    stays_closed(&driver, Instant::now()).await;
}

#[tokio::test(start_paused = true)]
async fn a_graceful_break_leaves_it_closed_until_the_lease_is_over() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    let others = manager_of(&driver);
    let token = guard.token().unwrap();
    assert!(
        others
            .admin()
            .break_lock(Space::Lock, "a", token, BreakMode::Graceful, None)
            .await
            .unwrap()
    );
    let reason = guard.lost().await;
    assert!(matches!(reason, LossReason::Broken(_)), "{reason:?}");
    let at = Instant::now();
    drop(guard);
    sleep(DELAY - SECOND).await;
    assert_eq!(claims(&driver, "a").await, 1, "after {:?}", at.elapsed());
    sleep(TTL * 2).await;
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn it_is_the_manager_s_for_all_its_locks_and_the_sums_add() {
    let (driver, _) = locks();
    let settings = Settings::default().lock_delay(DELAY);
    let locks = LockManager::with(Arc::new(driver.clone()), settings).unwrap();
    let least = Duration::from_secs(100);
    let guard = locks.mutex("a").note("why").at_least(least).lock().await.unwrap();
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
    let stored = driver.store().inspect(&key).await.unwrap();
    assert_eq!(stored.queue[0].ttl, least + DELAY);
    let shown = locks.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!((shown.queue[0].ttl, shown.queue[0].note.as_deref()), (least, Some("why")));
    drop(guard);
    let none = locks.mutex("b").lock_delay(Duration::ZERO).lock().await.unwrap();
    assert_eq!(none.claim().hold_ttl, Duration::from_secs(30));
    let detached = locks.mutex("c").detached().try_lock().await;
    assert!(matches!(detached, Err(Error::Config(_))), "{detached:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_leaves_it_closed_as_long() {
    let (driver, locks) = locks();
    let guard = held(&locks).await;
    let longest = SECOND * 3600 * 24 * 365 * 10;
    let refused = guard.shorten(longest).await;
    assert!(matches!(refused, Err(Error::Config(_))), "too long with its delay: {refused:?}");
    guard.shorten(TTL / 2).await.unwrap();
    let at = Instant::now();
    driver.cut_off();
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert!(at.elapsed() <= TTL / 2, "valid for {:?}", at.elapsed());
    while claims(&driver, "a").await > 0 {
        sleep(100 * MS).await;
    }
    assert!(at.elapsed() >= TTL / 2 + DELAY, "open after {:?}", at.elapsed());
    assert!(at.elapsed() < TTL / 2 + DELAY + SECOND, "open after {:?}", at.elapsed());
}
