//! One request in flight for each key: what that makes of one contended lock, of other keys, and of a
//! request that is stuck.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lockkit_core::driver::{Acquire, Batch, BatchLimits, Batcher, LockDriver, Patience};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::moody::{Mood, Moody};
use crate::{MS, SECOND, manager_of, settle};

/// Several batches at once, which take several acquires of a key or not.
fn batching(same_key: bool) -> Moody {
    let mut limits = BatchLimits::of(64, 8);
    limits.same_key = same_key;
    Moody::batching(limits)
}

/// Tasks that take the same lock again and again, with nothing to do while they hold it.
async fn contend(locks: &LockManager, tasks: usize, rounds: usize) {
    let mut contending = JoinSet::new();
    for _ in 0..tasks {
        let mutex = locks.mutex("hot");
        contending.spawn(async move {
            for _ in 0..rounds {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        });
    }
    contending.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn one_request_is_a_hand_over_of_a_lock_for_which_many_tasks_wait() {
    for same_key in [false, true] {
        let driver = batching(same_key);
        let locks = manager_of(&driver);
        driver.always("batch", Mood::Late(MS));
        contend(&locks, 64, 40).await;
        let (grants, requests) = (64 * 40, driver.batches().len());
        // What is left over: the first acquires, and the last releases.
        assert!(requests <= grants + 66, "same_key: {same_key}, {requests} requests");
    }
}

#[tokio::test]
async fn one_request_is_a_hand_over_on_a_backend_that_answers_at_once() {
    let driver = batching(true);
    contend(&manager_of(&driver), 64, 40).await;
    let (grants, requests) = (64 * 40, driver.batches().len());
    assert!(requests <= grants + 66, "{requests} requests");
}

#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_lock_need_two_requests_for_a_hand_over_at_most() {
    let driver = batching(true);
    let locks = manager_of(&driver);
    driver.always("batch", Mood::Late(MS));
    contend(&locks, 2, 100).await;
    assert!(driver.batches().len() <= 2 * 200, "{}", driver.batches().len());
}

fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, mode, 30 * SECOND, 10 * SECOND, identity))
}

/// Submits one acquire of this name.
async fn acquire(batcher: &Batcher, driver: &Moody, name: &str, mode: Mode) {
    let acquires = [Acquire { claim: claim(name, mode), patience: Patience::Wait }];
    let latest = driver.clock().now().after(10 * SECOND);
    let submitted = batcher.submit(Batch { releases: &[], acquires: &acquires }, latest);
    let outcome = timeout(10 * SECOND, submitted).await.expect("it is submitted");
    assert!(outcome.acquired.iter().all(Result::is_ok), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_request_in_flight_and_holds_up_no_other() {
    let driver = batching(true);
    let batcher = Batcher::new(Arc::new(driver.clone()));
    driver.next("batch", Mood::Late(10 * MS));
    let first = tokio::spawn({
        let (batcher, driver) = (batcher.clone(), driver.clone());
        async move { acquire(&batcher, &driver, "hot", Mode::Exclusive).await }
    });
    settle().await;
    let begun = Instant::now();
    let mut behind = JoinSet::new();
    for name in ["hot", "hot", "cold"] {
        let (batcher, driver) = (batcher.clone(), driver.clone());
        behind.spawn(async move {
            acquire(&batcher, &driver, name, Mode::Exclusive).await;
            (name, begun.elapsed())
        });
    }
    let elapsed: HashMap<_, _> = behind.join_all().await.into_iter().collect();
    assert!(elapsed["cold"].is_zero(), "{elapsed:?}");
    first.await.unwrap();
    let sent: Vec<Vec<_>> = driver.batches().iter().map(|it| names(it)).collect();
    assert_eq!(sent, [vec!["hot"], vec!["cold"], vec!["hot", "hot"]]);
}

fn names(batch: &[crate::moody::Sent]) -> Vec<String> {
    batch.iter().map(|it| it.name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_holds_up_its_key_for_a_second_at_most() {
    let driver = batching(true);
    let batcher = Batcher::new(Arc::new(driver.clone()));
    driver.next("batch", Mood::Silent);
    let mut stuck = JoinSet::new();
    for _ in 0..2 {
        let (batcher, driver) = (batcher.clone(), driver.clone());
        stuck.spawn(async move { acquire(&batcher, &driver, "hot", Mode::Exclusive).await });
    }
    settle().await;
    let begun = Instant::now();
    acquire(&batcher, &driver, "hot", Mode::Exclusive).await;
    assert!(begun.elapsed() < 1_300 * MS, "{:?}", begun.elapsed());
    assert!(begun.elapsed() > 900 * MS, "it waited for the one before: {:?}", begun.elapsed());
    // The key is free, and stays so when the stuck request is dropped.
    stuck.abort_all();
    settle().await;
    let begun = Instant::now();
    acquire(&batcher, &driver, "hot", Mode::Exclusive).await;
    assert!(begun.elapsed().is_zero(), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn shared_claims_are_in_flight_together_where_a_batch_takes_one_of_a_key() {
    let driver = batching(false);
    let locks = manager_of(&driver);
    driver.always("batch", Mood::Late(MS));
    let begun = Instant::now();
    let mut readers = JoinSet::new();
    for _ in 0..64 {
        let lock = locks.rwlock("read");
        readers.spawn(async move { lock.read().await.unwrap() });
    }
    let guards = readers.join_all().await;
    assert!(begun.elapsed() <= 10 * MS, "8 at once: {:?}", begun.elapsed());
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn the_operations_of_a_key_keep_their_order_whatever_else_is_in_flight() {
    let driver = batching(true);
    let locks = manager_of(&driver);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for nth in 0..200 {
        // A later request would overtake those before it.
        driver.next("batch", Mood::Slow(MS * (10 - (nth % 10))));
        let (mutex, other) = (locks.mutex("hot"), locks.mutex(format!("{nth}")));
        let order = order.clone();
        tasks.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push(nth);
            guard.release().await.unwrap();
        });
        tasks.spawn(async move { other.lock().await.unwrap().release().await.unwrap() });
    }
    tasks.join_all().await;
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted(), "{order:?}");
}
