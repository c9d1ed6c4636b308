//! An owner that enters again does not wait for itself, and leaves nothing behind.

use std::pin::pin;

use tokio::time::{Instant, timeout};

use super::moody::Mood;
use super::{MS, SECOND, begin, claims, locks};

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
