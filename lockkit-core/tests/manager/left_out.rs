//! Operations that a driver leaves out of a batch, since they would have to wait at the backend for what
//! another client has locked: they are sent again by themselves, and cost no other operation anything.

use std::sync::{Arc, Mutex};

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquire, Batch, BatchLimits, BatchOutcome, Batcher, LockDriver, Patience, Released,
};
use lockkit_core::{
    Claim, ClientIdentity, Error, Guard, Key, LockManager, Mode, Name, Namespace, Space,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::moody::{Mood, Moody, Sent};
use crate::{MS, SECOND, claims, manager_of, settle};

/// One batch at a time, of a driver that may wait for what another client has locked.
fn waiting_driver() -> Moody {
    let mut limits = BatchLimits::of(64, 1);
    (limits.same_key, limits.waits) = (true, true);
    Moody::batching(limits)
}

fn manager() -> (Moody, LockManager) {
    let driver = waiting_driver();
    let locks = manager_of(&driver);
    (driver, locks)
}

fn names(batch: &[Sent]) -> Vec<String> {
    batch.iter().map(|it| it.name().to_owned()).collect()
}

/// Locks these at once, each in a task of its own.
fn lock_all(locks: &LockManager, names: &[&str]) -> JoinSet<Result<Guard, Error>> {
    let mut tasks = JoinSet::new();
    for name in names {
        let mutex = locks.mutex(name);
        tasks.spawn(async move { mutex.lock().await });
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_left_out_delays_no_other() {
    let (driver, locks) = manager();
    driver.lock("locked");
    let begun = Instant::now();
    let mut tasks = lock_all(&locks, &["a", "locked", "b"]);
    for _ in 0..2 {
        drop(tasks.join_next().await.unwrap().unwrap().unwrap());
    }
    // Nor does it hold up the next batches.
    for _ in 0..3 {
        for guard in lock_all(&locks, &["c", "d"]).join_all().await {
            guard.unwrap().release().await.unwrap();
        }
    }
    assert!(begun.elapsed().is_zero(), "no time passed");
    assert_eq!(names(&driver.batches()[0]), ["a", "locked", "b"]);
    assert_eq!(names(&driver.batches()[1]), ["locked"], "it is sent again by itself");
    driver.unlock("locked");
    let guard = tasks.join_next().await.unwrap().unwrap().unwrap();
    assert!(guard.is_valid());
    assert_eq!(claims(&driver, "locked").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_single_operation_that_waits_makes_room_for_others() {
    let (driver, locks) = manager();
    // One at a time is in flight, but what may wait at the backend soon does not count.
    driver.lock("first");
    driver.lock("second");
    let mut waiting = JoinSet::new();
    for name in ["first", "second"] {
        let mutex = locks.mutex(name);
        waiting.spawn(async move { mutex.lock().await });
    }
    sleep(50 * MS).await;
    assert_eq!(driver.at_once("batch"), 2);
    let begun = Instant::now();
    let _other = locks.mutex("other").lock().await.unwrap();
    assert!(begun.elapsed() <= 50 * MS, "{:?}", begun.elapsed());
    driver.unlock("first");
    driver.unlock("second");
    assert!(waiting.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn the_operations_of_a_key_keep_their_order_while_one_is_sent_by_itself() {
    let (driver, locks) = manager();
    driver.lock("a");
    let granted = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    let mut wait = |name: &str, nth: u32| {
        let (mutex, granted) = (locks.mutex(name), granted.clone());
        tasks.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            granted.lock().unwrap().push(nth);
            match nth {
                0 => std::mem::forget(guard),
                _ => guard.release().await.unwrap(),
            }
        });
    };
    // The first two are left out of one batch, with another key's operation.
    wait("a", 1);
    wait("a", 2);
    wait("other", 0);
    settle().await;
    assert_eq!(driver.batches().len(), 2, "only the first is sent again");
    // The others come later.
    wait("a", 3);
    settle().await;
    wait("a", 4);
    wait("another", 0);
    settle().await;
    let sent: Vec<_> = driver.batches().iter().map(|batch| names(batch)).collect();
    assert_eq!(sent, [vec!["a", "other", "a"], vec!["a"], vec!["another"]]);
    assert_eq!(driver.at_once("batch"), 1);
    driver.unlock("a");
    tasks.join_all().await;
    let mut granted = granted.lock().unwrap().clone();
    granted.retain(|nth| *nth > 0);
    assert_eq!(granted, [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_was_left_out_and_dropped_is_never_sent_again() {
    let (driver, locks) = manager();
    driver.lock("a");
    let tasks = lock_all(&locks, &["a", "other"]);
    let mutex = locks.mutex("a");
    let dropped = tokio::spawn(async move { mutex.lock().await });
    settle().await;
    let sent: Vec<_> = driver.batches().iter().map(|batch| names(batch)).collect();
    assert_eq!(sent, [vec!["a", "other", "a"], vec!["a"]]);
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    driver.unlock("a");
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    sleep(SECOND).await;
    let sent = driver.batches()[1..].concat();
    let acquires = sent.iter().filter(|it| it.is_acquire());
    assert_eq!(names(&acquires.cloned().collect::<Vec<_>>()), ["a"], "the other task's");
}

/// Otherwise the last of many would be answered when each before it has waited.
#[tokio::test(start_paused = true)]
async fn those_that_were_blocked_by_an_operation_that_waited_in_vain_fail_with_it() {
    let (driver, locks) = manager();
    driver.lock("a");
    driver.next("batch", Mood::Late(MS));
    driver.next("batch", Mood::FailAfterWaiting(SECOND));
    let mut tasks = JoinSet::new();
    for name in ["a", "other", "a", "a", "a"] {
        let mutex = locks.mutex(name);
        tasks.spawn(async move { mutex.try_lock().await });
    }
    let begun = Instant::now();
    let answers = tasks.join_all().await;
    assert_eq!(begun.elapsed(), SECOND + MS);
    let failed = answers.iter().filter(|answer| answer.as_ref().is_err_and(Error::is_retryable));
    assert_eq!(failed.count(), 4);
    let sent: Vec<_> = driver.batches()[..2].iter().map(|batch| names(batch)).collect();
    assert_eq!(sent, [vec!["a", "other", "a", "a", "a"], vec!["a"]]);
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, 30 * SECOND, 10 * SECOND, identity))
}

fn acquire(claim: &Arc<Claim>) -> Acquire {
    Acquire { claim: claim.clone(), patience: Patience::Wait }
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_overtake_the_acquire_of_its_claim_that_was_left_out() {
    let driver = waiting_driver();
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(10 * SECOND);
    driver.lock("a");
    let (late, other) = (claim("a"), claim("other"));
    let acquiring = submitted(&batcher, vec![], vec![acquire(&late), acquire(&other)], latest);
    settle().await;
    // The acquire is in flight by itself.
    assert_eq!(driver.batches().len(), 2);
    let releasing = submitted(&batcher, vec![late.clone()], vec![], latest);
    settle().await;
    assert_eq!(driver.batches().len(), 2, "the release is blocked by it");
    driver.unlock("a");
    assert!(acquiring.await.unwrap().acquired.iter().all(Result::is_ok));
    let released = releasing.await.unwrap().released.pop().unwrap().unwrap();
    assert_eq!(released.result, Released::Removed);
    assert_eq!(claims(&driver, "a").await, 0, "no ghost");
}

/// Submits these in a task of its own.
fn submitted(
    batcher: &Batcher,
    releases: Vec<Arc<Claim>>,
    acquires: Vec<Acquire>,
    latest: Moment,
) -> JoinHandle<BatchOutcome> {
    let batcher = batcher.clone();
    tokio::spawn(async move {
        batcher.submit(Batch { releases: &releases, acquires: &acquires }, latest).await
    })
}

/// A request that was sent twice may have acted, also on an operation that the second answer leaves out.
#[tokio::test(start_paused = true)]
async fn ambiguous_attempts_count_also_when_the_operation_was_left_out() {
    let driver = waiting_driver();
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(10 * SECOND);
    driver.lock("a");
    driver.send_twice();
    let claims = [claim("a"), claim("other")];
    let acquiring = submitted(&batcher, vec![], claims.iter().map(acquire).collect(), latest);
    settle().await;
    driver.unlock("a");
    let acquired = acquiring.await.unwrap().acquired;
    let ambiguous: Vec<_> = acquired.into_iter().map(|it| it.unwrap().ambiguous).collect();
    assert_eq!(ambiguous, [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_what_was_left_out_and_not_sent_again() {
    let (driver, locks) = manager();
    driver.lock("a");
    let mut tasks = lock_all(&locks, &["a", "a", "a", "other"]);
    settle().await;
    tasks.join_next().await.unwrap().unwrap().unwrap().release().await.unwrap();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown().await }
    });
    settle().await;
    driver.unlock("a");
    for answer in tasks.join_all().await {
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    }
    closing.await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
    let sent = driver.batches()[1..].concat();
    let acquires = sent.iter().filter(|it| it.is_acquire());
    let sent = names(&acquires.cloned().collect::<Vec<_>>());
    assert_eq!(sent.iter().filter(|name| *name == "a").count(), 1, "{sent:?}");
}
