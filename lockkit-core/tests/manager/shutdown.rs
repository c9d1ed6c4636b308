//! After a shutdown nothing of this manager appears in the backend any more, and nobody holds a
//! guard that says that it is valid.

use std::pin::pin;

use lockkit_core::{Error, LossReason};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::moody::Mood;
use super::{MS, SECOND, begin, claims, locks, manager_of, settle};

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_the_acquires_under_way_and_for_their_release() {
    for patient in [true, false] {
        let (driver, locks) = locks();
        driver.always("acquire", Mood::Slow(60 * MS));
        let mut tasks = JoinSet::new();
        for i in 0..10 {
            let mutex = locks.mutex(format!("a{i}"));
            tasks.spawn(async move {
                match patient {
                    true => mutex.lock().await.map(Some),
                    false => mutex.try_lock().await,
                }
            });
        }
        settle().await;
        assert_eq!(driver.at_once("acquire"), 10);
        driver.always("release", Mood::Slow(20 * MS));
        locks.shutdown().await;
        for _ in 0..200 {
            for i in 0..10 {
                assert_eq!(claims(&driver, &format!("a{i}")).await, 0, "after the shutdown");
            }
            sleep(MS).await;
        }
        for task in tasks.join_all().await {
            assert!(matches!(task, Err(Error::Closed)), "{task:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_shutdown_gives_no_guard() {
    for patient in [true, false] {
        let (driver, locks) = locks();
        driver.next("acquire", Mood::Late(60 * MS));
        let mutex = locks.mutex("a");
        let task = tokio::spawn(async move {
            match patient {
                true => mutex.lock().await.map(Some),
                false => mutex.try_lock().await,
            }
        });
        settle().await;
        locks.shutdown().await;
        let answer = task.await.unwrap();
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
        assert_eq!(claims(&driver, "a").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_answered_after_the_shutdown_gives_no_guard() {
    let (driver, locks) = locks();
    let other = manager_of(&driver);
    let ticket = other.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    driver.next("renew", Mood::Late(60 * MS));
    let resuming = tokio::spawn({
        let (locks, ticket) = (locks.clone(), ticket.clone());
        async move { locks.resume(&ticket).await }
    });
    settle().await;
    locks.shutdown().await;
    let answer = resuming.await.unwrap();
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    assert!(other.resume(&ticket).await.is_ok(), "the ticket is as good as before");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_no_longer_than_a_lease_for_who_does_not_go_on() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::Silent);
    let mutex = locks.mutex("a");
    let mut asking = pin!(mutex.lock());
    begin(asking.as_mut()).await;
    let begun = Instant::now();
    locks.shutdown().await;
    let took = begun.elapsed();
    assert!(took <= 31 * SECOND, "{took:?}");
    drop(driver);
}

#[tokio::test(start_paused = true)]
async fn who_stands_in_line_for_a_request_is_told_of_the_shutdown() {
    let (driver, locks) = locks();
    driver.always("acquire", Mood::Slow(60 * MS));
    let mut tasks = JoinSet::new();
    for i in 0..1000 {
        let mutex = locks.mutex(format!("a{i}"));
        tasks.spawn(async move { mutex.lock().await });
    }
    settle().await;
    let begun = Instant::now();
    locks.shutdown().await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    for task in tasks.join_all().await {
        assert!(matches!(task, Err(Error::Closed)), "{task:?}");
    }
    assert!(driver.calls("acquire").len() < 1000, "most were never sent");
}

#[tokio::test(start_paused = true)]
async fn guards_are_lost_and_waiters_told() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    locks.shutdown().await;
    assert_eq!(guard.loss(), Some(LossReason::ShutDown));
    assert!(guard.token().is_err());
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_every_release_and_shuts_for_good() {
    let (driver, locks) = locks();
    let held = locks.mutex("a").lock().await.unwrap();
    let dropped = locks.mutex("b").lock().await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").lock().await.map(drop) }
    });
    while claims(&driver, "a").await < 2 {
        sleep(SECOND / 1000).await;
    }
    driver.next("release", Mood::FailBefore);
    drop(dropped);
    locks.shutdown().await;
    assert_eq!((claims(&driver, "a").await, claims(&driver, "b").await), (0, 0));
    assert_eq!(held.lost().await, LossReason::ShutDown);
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(locks.mutex("c").lock().await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_the_releases_of_others_that_are_under_way() {
    for verb in ["release", "shorten"] {
        let (driver, locks) = locks();
        let mutex = locks.mutex("a");
        let mutex = if verb == "shorten" { mutex.at_least(2 * SECOND) } else { mutex };
        let guard = mutex.lock().await.unwrap();
        driver.next(verb, Mood::Slow(60 * MS));
        let releasing = tokio::spawn(guard.release());
        settle().await;
        assert_eq!(driver.at_once(verb), 1);
        locks.shutdown().await;
        assert_eq!(driver.at_once(verb), 0, "the answer to {verb} was waited for");
        releasing.await.unwrap().unwrap();
    }
}
