//! From a claim to a guard, where the answer comes later than the lease lasts: that is no loss,
//! since nothing was held.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::{Error, LockManager, LossReason, MemoryDriver, Namespace, Space};
use tokio::time::{Instant, sleep, timeout};

use super::moody::{Mood, Moody};
use super::{MS, SECOND, claims, locks, manager_of, settle};

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_later_than_its_lease_is_asked_for_again() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Late(31 * SECOND));
    driver.next("acquire", Mood::Late(31 * SECOND));
    let guard = locks.mutex("a").lock().await.expect("it is free");
    assert!(guard.is_valid());
    settle().await;
    assert_eq!(claims(&driver, "a").await, 1, "what came too late was given back");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_asks_again_too_and_is_told_when_that_does_not_help() {
    let (driver, locks) = locks();
    // Too late to be trusted, and still there: it is not refused for its own claim.
    driver.next("acquire", Mood::Late(30 * SECOND - 250 * MS));
    driver.next("release", Mood::Slow(200 * MS));
    let guard = locks.mutex("a").try_lock().await.expect("it is free").expect("it is not busy");
    assert!(guard.is_valid());
    guard.release().await.unwrap();

    driver.always("acquire", Mood::Late(31 * SECOND));
    let error = locks.mutex("a").try_lock().await.expect_err("no answer comes in time");
    assert!(error.is_retryable(), "{error}");
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_limited_time_is_not_told_of_a_loss_either() {
    let (driver, locks) = locks();
    driver.always("acquire", Mood::Late(31 * SECOND));
    let got = locks.mutex("a").try_lock_for(100 * SECOND).await.expect("nothing was lost");
    assert!(got.is_none());
    settle().await;
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn who_is_lost_in_line_stands_in_line_again() {
    let (driver, locks) = locks();
    let others = LockManager::new(driver.store().clone());
    let holder = others.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    for _ in 0..40 {
        driver.next("renew", Mood::FailBefore); // for longer than it can be in line
    }
    sleep(12 * SECOND).await;
    assert_eq!(driver.calls("acquire"), [1, 1], "its first claim ended");
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap().expect("nothing was held");
    assert!(guard.is_valid());
}

/// Time that the test moves, beside tokio's.
#[derive(Clone, Debug, Default)]
struct Moved(Arc<AtomicU64>);

impl Clock for Moved {
    fn now(&self) -> Moment {
        TokioClock.now().after(Duration::from_nanos(self.0.load(Ordering::SeqCst)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_stood_still_when_it_was_granted_gets_no_guard_that_is_over() {
    let clock = Moved::default();
    let driver = Moody::new(MemoryDriver::with_clock(Arc::new(clock.clone())));
    let locks = manager_of(&driver);
    driver.always("granted", Mood::Silent);
    let holder = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let stands_still = Arc::new(AtomicBool::new(false));
    let waiting = tokio::spawn({
        let mut locking = Box::pin(async move { mutex.lock().await });
        let stands_still = stands_still.clone();
        std::future::poll_fn(move |context| {
            if stands_still.swap(false, Ordering::SeqCst) {
                clock.0.fetch_add(31_000_000_000, Ordering::SeqCst);
            }
            locking.as_mut().poll(context)
        })
    });
    settle().await;
    // A renewal finds that it holds; the task that waits runs half a minute later.
    stands_still.store(true, Ordering::SeqCst);
    holder.release().await.unwrap();
    let guard = timeout(60 * SECOND, waiting).await.expect("soon").unwrap().expect("no loss");
    assert!(!stands_still.load(Ordering::SeqCst));
    assert!(guard.is_valid(), "{:?}", guard.loss());
}

/// A holder's ttl below a waiter's: word of the turn is older than the lease that counts from the
/// last answer, so the backend is asked.
#[tokio::test(start_paused = true)]
async fn a_turn_that_was_told_late_is_asked_for_however_often_that_fails() {
    for mood in [Mood::FailBefore, Mood::FailAfter, Mood::Late(2 * SECOND)] {
        let (driver, locks) = locks();
        let holder = locks.mutex("a").lock().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = locks.mutex("a").ttl(SECOND);
            async move { mutex.lock().await }
        });
        sleep(2500 * MS).await;
        assert_eq!(driver.calls("renew"), [0; 0], "nothing was asked since it stood in line");
        driver.next("renew", mood);
        holder.release().await.unwrap();
        let guard = timeout(10 * SECOND, waiting).await.expect("soon").unwrap();
        let guard = guard.unwrap_or_else(|error| panic!("{mood:?}: {error}"));
        assert!(guard.is_valid(), "{mood:?}");
        assert!(!driver.calls("renew").is_empty(), "the backend was asked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_at_the_end_of_a_lease_says_that_it_ended() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    sleep(guard.remaining() - MS).await;
    assert!(guard.is_valid());
    driver.next("release", Mood::Slow(SECOND));
    let error = guard.release().await.expect_err("it ended before the request arrived");
    assert_eq!(error.loss(), Some(&LossReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_release_of_what_somebody_deleted_says_that_it_vanished() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    driver.store().release(&guard.claim()).await.unwrap();
    let error = guard.release().await.expect_err("it is gone");
    assert!(matches!(error, Error::Lost { reason: LossReason::Vanished, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_at_once_is_bounded_and_first_come_is_first_served() {
    let (driver, locks) = locks();
    driver.always("acquire", Mood::Slow(10 * MS));
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..2000 {
        let mutex = locks.mutex(format!("a{i}"));
        tasks.spawn(async move { mutex.lock().await });
    }
    let guards: Vec<_> = tasks.join_all().await.into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(guards.len(), 2000);
    let most = driver.most_at_once("acquire");
    assert!((100..=256).contains(&most), "{most} requests at once");

    let mut releases = tokio::task::JoinSet::new();
    driver.always("release", Mood::Slow(10 * MS));
    guards.into_iter().for_each(|guard| drop(releases.spawn(guard.release())));
    releases.join_all().await.into_iter().for_each(|released| released.unwrap());
    let most = driver.most_at_once("release");
    assert!((100..=256).contains(&most), "{most} releases at once");
}

#[tokio::test(start_paused = true)]
async fn acquires_without_an_answer_hold_up_no_renewal_and_no_release_and_others_not_for_long() {
    let (driver, locks) = locks();
    let held = locks.mutex("a").lock().await.unwrap();
    let released = locks.mutex("b").lock().await.unwrap();
    for _ in 0..600 {
        driver.next("acquire", Mood::Silent);
    }
    let mut stuck = tokio::task::JoinSet::new();
    for i in 0..600 {
        let mutex = locks.mutex(format!("stuck{i}"));
        stuck.spawn(async move { mutex.lock().await.map(drop) });
    }
    settle().await;
    let begun = Instant::now();
    released.release().await.unwrap();
    assert!(begun.elapsed() < 10 * MS, "{:?}", begun.elapsed());
    let mutex = locks.mutex("c");
    let other = tokio::spawn(async move { mutex.lock().await.unwrap() });
    let other = timeout(5 * SECOND, other).await.expect("not held up").unwrap();
    sleep(40 * SECOND).await;
    assert!(held.is_valid() && other.is_valid(), "they were renewed");
}

#[tokio::test(start_paused = true)]
async fn an_anchor_of_what_was_broken_says_so() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    assert!(
        locks.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await.unwrap()
    );
    let error = guard.anchor("memory").await.expect_err("it was broken");
    assert!(matches!(error.loss(), Some(LossReason::Broken(_))), "{error}");
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_anchor_has_the_token_that_the_backend_knows() {
    let driver = Moody::new(MemoryDriver::new());
    driver.store().raise_namespace_counter(&Namespace::default(), 1_000).await.unwrap();
    let guard = manager_of(&driver).mutex("a").lock().await.unwrap();
    let seen = driver.store().inspect(&guard.claim().key).await.unwrap();
    let anchor = guard.anchor("memory").await.unwrap();
    assert_eq!(Some(anchor.token), seen.holders().next().map(|holder| holder.token));
    assert!(guard.token().unwrap() > anchor.token, "users see it with the base");
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_no_anchor_in_a_backend_of_another_kind() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let error = guard.anchor("postgres").await.expect_err("it is in memory");
    assert!(matches!(error, Error::Unsupported { backend: "memory", .. }), "{error}");
    assert!(guard.is_valid());
}

/// Timers stand still while the machine is suspended, and the work may be ready before they are.
#[tokio::test(start_paused = true)]
async fn work_that_lost_its_lock_in_a_suspend_is_not_polled_again() {
    let clock = Moved::default();
    let driver = Moody::new(MemoryDriver::with_clock(Arc::new(clock.clone())));
    let locks = manager_of(&driver);
    let went_on = AtomicBool::new(false);
    let suspend = async || {
        settle().await; // the renewer sleeps
        clock.0.fetch_add(31_000_000_000, Ordering::SeqCst);
        tokio::task::yield_now().await;
        went_on.store(true, Ordering::SeqCst);
        Ok::<_, Error>(())
    };
    let run = locks.mutex("a").run(async |_| suspend().await).await;
    assert!(matches!(run, Err(Error::Lost { .. })), "{run:?}");
    let multi = locks.multi(["b", "c"]).run(async |_| suspend().await).await;
    assert!(matches!(multi, Err(Error::Lost { .. })), "{multi:?}");
    let mut terms = 0;
    let election = locks.election("d");
    let leading = election.run(|_| {
        terms += 1;
        let first = terms == 1;
        let suspend = &suspend;
        async move {
            match first {
                true => suspend().await,
                false => Ok(()),
            }
        }
    });
    leading.await.unwrap();
    assert_eq!(terms, 2, "it leads again");
    assert!(!went_on.load(Ordering::SeqCst), "the work was polled after the loss");
}

/// The machine is suspended while a renewal is under way, which the backend did in time: the guard was
/// invalid meanwhile, and work may have been left alone since then.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_over_is_not_revived_by_a_late_answer() {
    let clock = Moved::default();
    let driver = Moody::new(MemoryDriver::with_clock(Arc::new(clock.clone())));
    let locks = manager_of(&driver);
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    sleep(20_500 * MS).await;
    driver.next("renew", Mood::Late(100 * MS));
    let mut renewing = std::pin::pin!(guard.renew());
    super::begin(renewing.as_mut()).await;
    clock.0.fetch_add(12_000_000_000, Ordering::SeqCst);
    assert!(!guard.is_valid());
    assert!(renewing.await.is_err());
    assert!(!guard.is_valid(), "its lease lasts, and it was invalid");
    assert_eq!(guard.loss(), Some(LossReason::Expired));
}
