//! An owner that enters again does not wait for itself, and leaves nothing behind.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use futures_util::future::BoxFuture;
use lockkit_core::sync::RwLock;
use lockkit_core::{Error, Mode, WriteGuard};
use tokio::time::{Instant, timeout};

use super::moody::Mood;
use super::{MS, SECOND, begin, claims, locks, settle};

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_wait_behind_a_release_that_nobody_polls() {
    let (driver, locks) = locks();
    let job = locks.reentrant("job-42");
    let guard = job.mutex("a").lock().await.unwrap();
    driver.next("release", Mood::Slow(100 * MS));
    let mut releasing = pin!(guard.release());
    begin(releasing.as_mut()).await;
    let begun = Instant::now();
    let again = timeout(5 * SECOND, job.mutex("a").lock()).await.expect("the release goes on");
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    let again = again.unwrap();
    releasing.await.expect("it was held until then");
    assert!(again.is_valid());
    again.release().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_dropped_half_way_goes_on() {
    let (driver, locks) = locks();
    let job = locks.reentrant("job-42");
    let guard = job.mutex("a").lock().await.unwrap();
    driver.next("release", Mood::Slow(100 * MS));
    {
        let mut releasing = pin!(guard.release());
        begin(releasing.as_mut()).await;
    }
    let again = timeout(5 * SECOND, job.mutex("a").lock()).await.expect("soon").unwrap();
    assert_eq!(claims(&driver, "a").await, 1);
    again.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_enters_while_it_downgrades_is_a_reader_or_waits_for_itself() {
    let (driver, locks) = locks();
    let prices = locks.reentrant("job-42").rwlock("a");
    let writer = prices.write().await.unwrap();
    driver.next("downgrade", Mood::Slow(100 * MS));
    let mut downgrading = pin!(writer.downgrade());
    begin(downgrading.as_mut()).await;
    assert!(prices.try_write().await.unwrap().is_none());
    let mut writing = pin!(prices.write());
    begin(writing.as_mut()).await;
    let mut reading = pin!(prices.read());
    begin(reading.as_mut()).await;
    let reader = downgrading.await.unwrap();
    let writing = writing.await;
    assert!(matches!(writing, Err(Error::WouldDeadlock { .. })), "{writing:?}");
    let again = reading.await.unwrap();
    assert_eq!((reader.mode(), again.mode()), (Mode::Shared, Mode::Shared));
    assert_eq!(claims(&driver, "a").await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_has_entered_again_does_not_downgrade() {
    let (driver, locks) = locks();
    let prices = locks.reentrant("job-42").rwlock("a");
    let first = prices.write().await.unwrap();
    let second = prices.write().await.unwrap();
    let refused = first.downgrade().await;
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    assert!(driver.calls("downgrade").is_empty());
    assert!(second.is_valid() && second.mode() == Mode::Exclusive);
    second.downgrade().await.unwrap().release().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
}

/// Enters at the very moment at which it is woken, as a thread of its own may.
struct Entering(Mutex<BoxFuture<'static, Result<WriteGuard, Error>>>);

impl Entering {
    fn new(prices: RwLock) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Box::pin(async move { prices.write().await }))))
    }

    fn poll(&self, waker: &Waker) {
        let polled = self.0.lock().unwrap().as_mut().poll(&mut Context::from_waker(waker));
        assert!(polled.is_pending(), "{polled:?}");
    }
}

impl Wake for Entering {
    fn wake(self: Arc<Self>) {
        self.poll(Waker::noop());
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_enter_what_a_dropped_downgrade_gives_back() {
    let (driver, locks) = locks();
    let prices = locks.reentrant("job-42").rwlock("a");
    let writer = prices.write().await.unwrap();
    driver.next("downgrade", Mood::Late(100 * MS));
    let entering = Entering::new(prices.clone());
    {
        let mut downgrading = pin!(writer.downgrade());
        begin(downgrading.as_mut()).await;
        entering.poll(&Waker::from(entering.clone()));
    }
    settle().await;
    let entering = std::mem::replace(&mut *entering.0.lock().unwrap(), Box::pin(pending()));
    let entered = entering.await.unwrap();
    assert!(entered.is_valid() && entered.mode() == Mode::Exclusive);
    assert_eq!(claims(&driver, "a").await, 1, "a claim of its own");
    entered.release().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
}
