//! What the primitives made of locks and registers promise where somebody is slow: a participant
//! that leaves late, a count that is stored late, a decision that is made late.

use std::time::Duration;

use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, LossReason, Space};
use tokio::time::{Instant, sleep};

use super::moody::Mood;
use super::{MS, SECOND, claims, locks, manager_of, settle};

#[tokio::test(start_paused = true)]
async fn who_has_passed_a_barrier_and_not_left_yet_does_not_count_for_the_next_round() {
    let (driver, locks) = locks();
    driver.always("release", Mood::Silent);
    let start = locks.barrier("start", 2);
    let round = tokio::spawn({
        let start = start.clone();
        async move { tokio::join!(start.wait(), start.wait()) }
    });
    sleep(SECOND).await;
    assert_eq!(claims(&driver, "start").await, 2, "both stand there still");
    assert_eq!(start.waiting().await.unwrap(), 0, "for no round");
    let early = start.wait_timeout(2 * SECOND).await.unwrap();
    assert!(!early, "nobody else came");
    let (first, second) = round.await.unwrap();
    first.and(second).expect("they were let through");
}

#[tokio::test(start_paused = true)]
async fn a_count_that_was_meant_for_the_latch_before_its_reset_does_not_count_for_the_new_one() {
    let (driver, locks) = locks();
    let latch = locks.latch("boot", 2);
    driver.next("store", Mood::Slow(100 * MS));
    let counting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.count_down_as("late").await }
    });
    sleep(10 * MS).await;
    manager_of(&driver).latch("boot", 2).reset(2).await.unwrap();
    let counted = counting.await.unwrap();
    assert!(matches!(counted, Err(Error::Conflict { .. })), "{counted:?}");
    assert_eq!(latch.count().await.unwrap(), 2);
    latch.reset(3).await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 3, "each reset is another latch");
    assert_eq!(latch.count_down_as("late").await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_decides_late_learns_what_was_decided_and_changes_nothing() {
    let (driver, locks) = locks();
    let job = locks.once("job");
    let late = job.lock().lock().await.unwrap();
    let others = manager_of(&driver);
    let token = late.token().unwrap();
    assert!(
        others
            .admin()
            .break_lock(Space::Lock, "job", token, BreakMode::Forced, None)
            .await
            .unwrap()
    );
    let first = others.once("job").run(async |_| Ok::<_, Error>("first")).await.unwrap();
    assert!(late.is_valid(), "it has not heard of it yet");
    assert_eq!(job.decide(&late, "late").await.unwrap(), first);
    assert_eq!(job.decision().await.unwrap().unwrap().value, b"first");
}

/// What borrows, changes and uses `?` in its work, and is spawned.
#[tokio::test(start_paused = true)]
async fn work_may_borrow_and_change_what_is_around_it() {
    let (_, locks) = locks();
    let task = tokio::spawn(async move {
        let mut tokens = Vec::new();
        let name = String::from("a");
        locks
            .mutex(&name)
            .run(async |lock| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                tokens.push((name.as_str(), lock.token()?));
                "7".parse::<u32>()?;
                Ok(())
            })
            .await?;
        assert_eq!(tokens.len(), 1);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    });
    task.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_leader_may_change_what_is_around_it() {
    let (_, locks) = locks();
    let lead = locks.election("a");
    let count = tokio::spawn(async move {
        let mut terms = 0;
        lead.run(|_: lockkit_core::HeldLock| {
            terms += 1;
            async move { Ok::<_, Error>(terms) }
        })
        .await
    });
    assert_eq!(count.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn work_under_a_guard_is_dropped_when_the_lock_is_lost() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").try_lock_for(SECOND).await.unwrap().expect("it is free");
    let token = guard.token().unwrap();
    let broken = tokio::spawn(async move {
        guard.run(async |_| std::future::pending::<Result<(), lockkit_core::Error>>().await).await
    });
    settle().await;
    assert!(
        locks.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await.unwrap()
    );
    let error = broken.await.unwrap().expect_err("it was broken");
    assert!(matches!(error.loss(), Some(LossReason::Broken(_))), "{error}");
    let next = locks.mutex("a").try_lock().await.unwrap().expect("it was released");
    let done = next.run(async |lock| lock.token()).await.unwrap();
    assert!(done > token);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some(), "it was released again");
}

#[tokio::test(start_paused = true)]
async fn an_outage_while_the_limit_is_read_is_neither_no_permit_nor_the_end_of_a_wait() {
    let (driver, locks) = locks();
    driver.always("resize", Mood::FailBefore);
    // A permit for each that waits, whoever comes first.
    let pool = || locks.semaphore("pool", 3).resizable();
    // What waits for nothing says that the backend did not answer.
    pool().try_acquire().await.expect_err("it cannot know the limit");
    pool().try_acquire_for(Duration::ZERO).await.expect_err("it cannot know the limit");
    let work = async |_| Ok::<_, Error>(());
    pool().try_run(work).await.expect_err("it cannot know the limit");
    // What waits goes on for as long as it would for a permit.
    let begun = Instant::now();
    let limit = Duration::from_secs(300);
    assert!(
        pool().try_acquire_for(limit).await.expect("a time that is over is no error").is_none()
    );
    assert!(begun.elapsed() > limit / 2, "it ended after {:?}", begun.elapsed());
    let waits = [pool(), pool()].map(|pool| tokio::spawn(async move { pool.acquire().await }));
    let bounded = pool();
    let bounded = tokio::spawn(async move { bounded.try_acquire_for(limit).await });
    sleep(100 * SECOND).await;
    driver.recovers("resize");
    for waiter in waits {
        waiter.await.unwrap().expect("it outlives an outage").release().await.unwrap();
    }
    assert!(bounded.await.unwrap().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_could_not_be_kept_is_refused_before_the_work() {
    let (driver, locks) = locks();
    for keep in [Duration::ZERO, Duration::MAX] {
        let job = locks.once("job").keep(keep);
        let work = async |_| -> Result<&str, Error> { panic!("it is done in vain") };
        let done = job.run(work).await;
        assert!(matches!(done, Err(Error::Config(_))), "{done:?}");
        assert!(matches!(job.decision().await, Err(Error::Config(_))), "{keep:?}");
    }
    assert!(driver.calls("load").is_empty() && driver.calls("acquire").is_empty());
}
