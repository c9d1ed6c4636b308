//! How many requests locks cost over an hour: what `lockkit compare` multiplies by prices.

use std::time::Duration;

use lockkit_core::LockManager;
use lockkit_store::StoreFacts;
use lockkit_store::testing::{RequestCount, TestStore};
use tokio::time::sleep;

use crate::claims::driver;

const HOUR: Duration = Duration::from_secs(3_600);

/// With lockkit's usual TTL of 30 s, on a store that is polled each second.
async fn locks(store: &TestStore) -> LockManager {
    LockManager::new(driver(store).await)
}

fn store() -> TestStore {
    let mut facts = StoreFacts::of("a bucket");
    facts.pace = Duration::from_secs(1);
    TestStore::new().with_facts(facts)
}

/// Reads and swaps between two counts.
fn between(before: RequestCount, after: RequestCount) -> (u64, u64) {
    (after.reads - before.reads, after.swaps - before.swaps)
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_costs_a_swap_and_a_read_each_ten_seconds() {
    let ours = store().client(1);
    let locks = locks(&ours).await;
    let guard = locks.mutex("a").lock().await.expect("it is free");
    let before = ours.requests();
    sleep(HOUR).await;
    let (reads, swaps) = between(before, ours.requests());
    println!("an hour of holding: {reads} reads, {swaps} swaps");
    assert!((355..=370).contains(&reads) && (355..=370).contains(&swaps), "{reads}, {swaps}");
    guard.release().await.expect("it is held");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_costs_three_reads_each_two_seconds_and_a_swap_each_ten() {
    let store = store();
    let (theirs, ours) = (locks(&store).await, store.client(1));
    let _held = theirs.mutex("a").lock().await.expect("it is free");
    let locks = locks(&ours).await;
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    sleep(Duration::from_secs(10)).await;
    let before = ours.requests();
    sleep(HOUR).await;
    let (reads, swaps) = between(before, ours.requests());
    println!("an hour of waiting: {reads} reads, {swaps} swaps");
    assert!((4_900..=5_400).contains(&reads) && swaps <= 370, "{reads}, {swaps}");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pair_costs_two_swaps() {
    const PAIRS: u64 = 1_000;
    let ours = store().client(1);
    let locks = locks(&ours).await;
    let before = ours.requests();
    for _ in 0..PAIRS {
        let guard = locks.mutex("a").lock().await.expect("it is free");
        guard.release().await.expect("it is held");
    }
    let (reads, swaps) = between(before, ours.requests());
    println!("{PAIRS} pairs: {reads} reads, {swaps} swaps");
    assert!(reads <= 5 && swaps <= PAIRS * 2 + 5, "{reads}, {swaps}");
}
