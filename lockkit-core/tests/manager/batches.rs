//! Operations of many tasks in one request: when a batch is sent, what is in it, and that nothing
//! which befalls one operation, one batch or one task costs the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::BatchLimits;
use lockkit_core::{Error, LockManager, Settings};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::moody::{Mood, Moody, Sent};
use crate::{MS, SECOND, begin, claims, manager_of, settle};

/// At most this many operations, one batch at a time.
fn batching(steps: usize) -> (Moody, LockManager) {
    let driver = Moody::batching(BatchLimits::of(steps, 1));
    let locks = manager_of(&driver);
    (driver, locks)
}

fn names(batch: &[Sent]) -> Vec<String> {
    batch.iter().map(|it| it.name().to_owned()).collect()
}

fn sizes(driver: &Moody) -> Vec<usize> {
    driver.batches().iter().map(Vec::len).collect()
}

/// Locks these names at once, each in a task of its own.
fn lock_all(locks: &LockManager, names: impl Iterator<Item = String>) -> JoinSet<Outcome> {
    let mut tasks = JoinSet::new();
    for name in names {
        let mutex = locks.mutex(name);
        tasks.spawn(async move { mutex.lock().await });
    }
    tasks
}

type Outcome = Result<lockkit_core::Guard, Error>;

fn numbered(prefix: &str, from: usize, to: usize) -> impl Iterator<Item = String> {
    (from..to).map(move |i| format!("{prefix}{i}"))
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_alone_is_sent_by_itself() {
    let (driver, locks) = batching(64);
    let guard = locks.mutex("a").lock().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(sizes(&driver), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn tasks_in_step_share_every_batch() {
    let (driver, locks) = batching(64);
    driver.always("batch", Mood::Late(MS));
    for _ in 0..10 {
        locks.mutex("alone").lock().await.unwrap().release().await.unwrap();
    }
    let before = driver.batches().len();
    let mut tasks = JoinSet::new();
    for i in 0..64 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = locks.mutex(format!("a{i}")).lock().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let sizes = sizes(&driver).split_off(before);
    assert_eq!(sizes.iter().sum::<usize>(), 64 * 20 * 2);
    assert!(sizes.len() <= 2 * 20 + 5, "{sizes:?}");
}

/// As on several threads, where those who were answered together come back one after the other.
#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_again_when_the_tasks_that_come_back_late_are_there_too() {
    let (driver, locks) = batching(64);
    driver.always("batch", Mood::Late(MS));
    let mut tasks = JoinSet::new();
    for i in 0..6 {
        let mutex = locks.mutex(format!("a{i}"));
        tasks.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            for _ in 0..i % 3 {
                tokio::task::yield_now().await;
            }
            guard.release().await.unwrap();
        });
    }
    tasks.join_all().await;
    assert_eq!(sizes(&driver), [6, 6]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_batch_is_in_flight_leaves_at_once_where_there_is_room() {
    let driver = Moody::batching(BatchLimits::of(64, 2));
    let locks = manager_of(&driver);
    driver.always("batch", Mood::Late(MS));
    let mut tasks = Vec::new();
    for batch in 1..=2 {
        tasks.push(lock_all(&locks, numbered(&format!("{batch}/"), 0, 2)));
        // No time passes as long as there is something to do.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert_eq!(sizes(&driver), vec![2; batch]);
    }
    for tasks in tasks {
        assert!(tasks.join_all().await.iter().all(Result::is_ok));
    }
}

/// A program that blocks a thread of its runtime costs what runs there, and nobody else.
#[tokio::test]
async fn a_thread_that_is_blocked_between_two_batches_holds_up_no_other() {
    let driver = Moody::batching(BatchLimits::of(64, 2));
    driver.always("batch", Mood::Late(10 * MS));
    let locks = manager_of(&driver);
    let (blocked, is_blocked) = tokio::sync::oneshot::channel();
    let (unblock, unblocked) = std::sync::mpsc::channel::<()>();
    let theirs = locks.clone();
    let blocking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut tasks = lock_all(&theirs, numbered("a", 0, 3));
            // It is told right before its next batch would be sent.
            let first = tasks.join_next().await.unwrap().unwrap().unwrap();
            blocked.send(()).unwrap();
            let _ = unblocked.recv();
            drop((first, tasks.join_all().await));
        });
    });
    is_blocked.await.unwrap();
    for _ in 0..3 {
        let ours = lock_all(&locks, numbered("b", 0, 3)).join_all();
        let ours = timeout(10 * SECOND, ours).await.expect("nothing stands in their way");
        for guard in ours {
            guard.unwrap().release().await.unwrap();
        }
    }
    unblock.send(()).unwrap();
    blocking.join().unwrap();
}

/// Otherwise they are sent together from then on, and nothing is prepared while the backend works.
#[tokio::test(start_paused = true)]
async fn of_two_batches_that_are_answered_together_one_is_sent_again_before_the_tasks_of_the_other_are_told()
 {
    let driver = Moody::batching(BatchLimits::of(2, 2));
    let locks = manager_of(&driver);
    driver.always("batch", Mood::Late(MS));
    let mut tasks = JoinSet::new();
    for name in numbered("a", 0, 4) {
        let (mutex, driver) = (locks.mutex(name), driver.clone());
        tasks.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let sent = driver.batches().len();
            guard.release().await.unwrap();
            sent
        });
    }
    let mut sent = tasks.join_all().await;
    sent.sort_unstable();
    assert_eq!(sent, [2, 2, 3, 3]);
    assert_eq!(sizes(&driver), [2, 2, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_locks_one_thing_after_the_other_waits_for_no_other() {
    let (driver, locks) = batching(64);
    driver.always("batch", Mood::Late(MS));
    for round in 0..6 {
        let before = driver.batches().len();
        let mutex = locks.mutex("a");
        let mut lock = Box::pin(mutex.lock());
        begin(lock.as_mut()).await;
        let is_sent = driver.batches().len() > before;
        assert_eq!(is_sent, round >= 2, "{round}: it waits for others while there may be some");
        lock.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_multi_lock_are_sent_together_both_ways() {
    let (driver, locks) = batching(64);
    for _ in 0..10 {
        locks.mutex("alone").lock().await.unwrap().release().await.unwrap();
    }
    let before = driver.batches().len();
    let held = locks.multi(numbered("a", 0, 40)).lock().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(sizes(&driver).split_off(before), [40, 40]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_batch_is_in_flight_leaves_with_the_next_releases_first() {
    let (driver, locks) = batching(8);
    let held: Vec<_> = lock_all(&locks, numbered("held", 0, 3)).join_all().await;
    let before = driver.batches().len();
    driver.next("batch", Mood::Late(MS));
    let mut tasks = lock_all(&locks, numbered("first", 0, 2));
    settle().await;
    for i in 0..6 {
        let mutex = locks.mutex(format!("next{i}"));
        tasks.spawn(async move { mutex.lock().await });
    }
    settle().await;
    let mut releases = JoinSet::new();
    held.into_iter().for_each(|guard| drop(releases.spawn(guard.unwrap().release())));
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    assert!(releases.join_all().await.iter().all(Result::is_ok));
    let batches = driver.batches().split_off(before);
    assert_eq!(names(&batches[0]), ["first0", "first1"]);
    let second = names(&batches[1]);
    assert!(second[..3].iter().all(|name| name.starts_with("held")), "{second:?}");
    assert_eq!(second[3..], ["next0", "next1", "next2", "next3", "next4"]);
    assert_eq!(names(&batches[2])[..1], ["next5"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_each_key_once_where_the_backend_asks_for_that() {
    let (driver, locks) = batching(64);
    driver.next("batch", Mood::Late(MS));
    let first = lock_all(&locks, numbered("other", 0, 2));
    settle().await;
    let mut crowd = JoinSet::new();
    for i in 0..10 {
        let mutex = locks.mutex(format!("a{}", i % 2));
        crowd.spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
    }
    crowd.join_all().await;
    first.join_all().await;
    for batch in driver.batches() {
        let acquires = batch.iter().filter(|it| it.is_acquire());
        let mut keys = HashSet::new();
        for it in acquires {
            assert!(keys.insert(it.claim.key.clone()), "{:?}", names(&batch));
        }
    }
    assert_eq!(names(&driver.batches()[1]), ["a0", "a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_weighs_no_more_than_the_backend_takes() {
    let mut limits = BatchLimits::of(64, 1);
    limits.bytes = 4000;
    let driver = Moody::batching(limits);
    let locks = manager_of(&driver);
    assert!(lock_all(&locks, numbered("a", 0, 64)).join_all().await.iter().all(Result::is_ok));
    let weight = |batch: &Vec<Sent>| batch.iter().map(|it| it.claim.weight()).sum();
    let weights: Vec<usize> = driver.batches().iter().map(weight).collect();
    let (last, full) = weights.split_last().unwrap();
    assert!(*last <= 4000 && full.iter().all(|w| (3000..=4000).contains(w)), "{weights:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_dropped_before_its_batch_left_is_never_sent() {
    let (driver, locks) = batching(64);
    driver.next("batch", Mood::Late(10 * MS));
    let sent = lock_all(&locks, numbered("first", 0, 2));
    settle().await;
    let mutex = locks.mutex("dropped");
    let mut dropped = Box::pin(mutex.lock());
    begin(dropped.as_mut()).await;
    settle().await;
    drop(dropped);
    sent.join_all().await;
    sleep(SECOND).await;
    let sent: Vec<_> = driver.batches().iter().flat_map(|batch| names(batch)).collect();
    assert!(!sent.contains(&"dropped".to_owned()), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_dropped_while_its_batch_was_in_flight_is_taken_back() {
    for mood in [Mood::Late(10 * MS), Mood::Slow(10 * MS), Mood::StuckFor(300 * MS)] {
        let (driver, locks) = batching(64);
        driver.next("batch", mood);
        let other = lock_all(&locks, numbered("other", 0, 2));
        let mutex = locks.mutex("dropped");
        let mut dropped = Box::pin(mutex.lock());
        begin(dropped.as_mut()).await;
        settle().await;
        drop(dropped);
        let others = other.join_all().await;
        assert!(others.iter().all(Result::is_ok));
        sleep(2 * SECOND).await;
        assert_eq!(claims(&driver, "dropped").await, 0, "{mood:?}");
        assert_eq!(claims(&driver, "other0").await, 1, "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_sending_of_the_batch() {
    let (driver, locks) = batching(64);
    driver.next("batch", Mood::Late(300 * MS));
    driver.next("batch", Mood::Late(400 * MS));
    let first = lock_all(&locks, numbered("first", 0, 2));
    settle().await;
    let asked = Instant::now();
    let mut ttl_ten = JoinSet::new();
    for i in 0..2 {
        let mutex = locks.mutex(format!("a{i}")).ttl(10 * SECOND);
        ttl_ten.spawn(async move { mutex.lock().await });
    }
    let guards = ttl_ten.join_all().await;
    assert_eq!(asked.elapsed(), 700 * MS);
    for guard in guards {
        // 300 ms pending, then 400 ms in flight: the lease began when it was sent at the
        // earliest, and 102 ms of ten seconds are the margin.
        let left = guard.unwrap().remaining();
        assert_eq!(left, 10 * SECOND - 400 * MS - 102 * MS);
    }
    first.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn batches_without_an_answer_hold_up_no_renewal_and_others_not_for_long() {
    let (driver, locks) = batching(64);
    let held = locks.mutex("held").lock().await.unwrap();
    for _ in 0..3 {
        driver.next("batch", Mood::Silent);
    }
    let _stuck = lock_all(&locks, numbered("stuck", 0, 3 * 64));
    settle().await;
    let begun = Instant::now();
    let mutex = locks.mutex("other");
    let other = timeout(10 * SECOND, mutex.lock()).await.expect("not for long").unwrap();
    assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());
    sleep(60 * SECOND).await;
    assert!(held.is_valid() && other.is_valid(), "they were renewed");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_not_polled_holds_up_no_other() {
    // Left at each point of its way: pending, alone in flight, or in a batch with others.
    for polls in 1..4 {
        for idle in [1, 10] {
            let (driver, locks) = batching(64);
            driver.next("batch", Mood::Slow(MS));
            let mutexes: Vec<_> = (0..idle).map(|i| locks.mutex(format!("idle{i}"))).collect();
            let mut idle: Vec<_> = mutexes.iter().map(|mutex| Box::pin(mutex.lock())).collect();
            for _ in 0..polls {
                for future in &mut idle {
                    begin(future.as_mut()).await;
                }
                tokio::task::yield_now().await;
            }
            let others = lock_all(&locks, numbered("other", 0, 5)).join_all();
            let others = timeout(SECOND / 2, others).await.expect("not held up");
            assert!(others.iter().all(Result::is_ok));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_operation_that_the_backend_refuses_fails_alone() {
    let driver = Moody::batching(BatchLimits::of(64, 1)).refusing("poison");
    let locks = manager_of(&driver);
    let mut names: Vec<_> = numbered("a", 0, 40).collect();
    names.insert(17, "poison".to_owned());
    let answers = lock_all(&locks, names.into_iter()).join_all().await;
    let (granted, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((granted.len(), failed.len()), (40, 1));
    let error = failed.into_iter().next().unwrap().expect_err("it was refused");
    assert!(error.to_string().contains("too much"), "{error}");
    assert!(driver.batches().len() <= 14, "{:?}", sizes(&driver));
    drop(granted);
    sleep(2 * SECOND).await;
    assert_eq!(
        claims(&driver, "a3").await,
        0,
        "also what was submitted more than once is released"
    );
    // The first batch may still be carried out: it is released again until its lease would be over.
    let of_a3 = |it: &&Sent| !it.is_acquire() && it.name() == "a3";
    let released = driver.batches().iter().flatten().filter(of_a3).count();
    assert!(released > 1, "{released}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_answer_was_lost_is_followed_by_one_batch() {
    let (driver, locks) = batching(64);
    driver.next("batch", Mood::FailAfter);
    let answers = lock_all(&locks, numbered("a", 0, 40)).join_all().await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(sizes(&driver), [40, 40]);
    let releases: Vec<_> = answers.into_iter().map(|guard| guard.unwrap().release()).collect();
    for release in releases {
        release.await.unwrap();
    }
    sleep(2 * SECOND).await;
    assert_eq!(claims(&driver, "a7").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_no_loss() {
    let (driver, locks) = batching(64);
    driver.send_twice();
    let guards = lock_all(&locks, numbered("a", 0, 4)).join_all().await;
    let mut releases = JoinSet::new();
    guards.into_iter().for_each(|guard| drop(releases.spawn(guard.unwrap().release())));
    for released in releases.join_all().await {
        released.expect("the first attempt took it out");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_in_a_batch_that_failed_as_a_whole_is_no_loss() {
    let driver = Moody::batching(BatchLimits::of(64, 1)).refusing("poison");
    let locks = manager_of(&driver);
    let guards = lock_all(&locks, numbered("a", 0, 4)).join_all().await;
    let mut releases = JoinSet::new();
    guards.into_iter().for_each(|guard| drop(releases.spawn(guard.unwrap().release())));
    let refused = lock_all(&locks, ["poison".to_owned()].into_iter());
    for released in releases.join_all().await {
        released.expect("the batch that failed took it out");
    }
    assert!(refused.join_all().await[0].is_err());
    assert_eq!(sizes(&driver)[..2], [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_what_was_not_sent() {
    let (driver, locks) = batching(64);
    driver.next("batch", Mood::Late(100 * MS));
    let sent = lock_all(&locks, numbered("first", 0, 2));
    settle().await;
    let waiting = lock_all(&locks, numbered("later", 0, 3));
    settle().await;
    locks.shutdown().await;
    for answer in waiting.join_all().await {
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    }
    for answer in sent.join_all().await {
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    }
    let sent: Vec<_> = driver.batches().iter().flat_map(|batch| names(batch)).collect();
    assert!(!sent.iter().any(|name| name.starts_with("later")), "{sent:?}");
    assert_eq!(claims(&driver, "first0").await, 0, "what was in flight was released");
}

/// On the real clock, with two runtimes: the one in which the requests are in flight ends.
#[test]
fn batches_go_on_when_their_runtime_ends() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    };
    let (ends, stays) = (runtime(), runtime());
    let driver = Moody::batching(BatchLimits::of(64, 1));
    let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
    driver.next("batch", Mood::Silent);
    ends.block_on(async {
        let _sent = lock_all(&locks, numbered("first", 0, 2));
        while driver.batches().is_empty() {
            sleep(MS).await;
        }
        // The set is dropped here, and the batch is in flight.
    });
    let begun = std::time::Instant::now();
    let waiting = stays.spawn({
        let locks = locks.clone();
        async move { lock_all(&locks, numbered("later", 0, 3)).join_all().await }
    });
    std::thread::sleep(100 * MS);
    ends.shutdown_background();
    let answers = stays.block_on(async { timeout(5 * SECOND, waiting).await });
    let answers = answers.expect("they see to themselves").unwrap();
    assert!(answers.iter().all(Result::is_ok));
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    stays.block_on(locks.shutdown());
}
