//! What a hand-over costs, by count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lockkit_core::{LockManager, Settings};

use lockkit_lab::ServerKind;

use super::scene::{KINDS, Scene};

/// Pairs of lock and release by so many tasks, of one lock.
async fn pairs(locks: &LockManager, tasks: u64, each: u64, before: impl Fn()) {
    let done = Arc::new(AtomicU64::new(0));
    let barrier = Arc::new(tokio::sync::Barrier::new(tasks as usize + 1));
    let task = || {
        let (locks, done, barrier) = (locks.clone(), done.clone(), barrier.clone());
        tokio::spawn(async move {
            for round in 0..=each {
                locks.mutex("hot").lock().await.unwrap().release().await.unwrap();
                if round == 0 {
                    barrier.wait().await;
                } else {
                    done.fetch_add(1, Relaxed);
                }
            }
        })
    };
    let running: Vec<_> = (0..tasks).map(|_| task()).collect();
    barrier.wait().await;
    before();
    for task in running {
        task.await.unwrap();
    }
    assert_eq!(done.load(Relaxed), tasks * each);
}

/// Requests and flushes for each pair.
async fn costs(scene: &Scene, tasks: u64, each: u64) -> [f64; 2] {
    scene.driver.close().await;
    let flushes = scene.flushes().await;
    let driver = scene.connect().await;
    let locks = LockManager::with(driver.clone(), Settings::default()).unwrap();
    let requests = AtomicU64::new(0);
    pairs(&locks, tasks, each, || requests.store(scene.requests(), Relaxed)).await;
    let requests = scene.requests() - requests.into_inner();
    // The server's processes tell what they did when their connections close.
    locks.shutdown().await;
    driver.close().await;
    let flushes = scene.flushes().await - flushes;
    let pairs = (tasks * each) as f64;
    println!(
        "{:?}, {tasks} tasks: {requests} requests, {flushes} flushes, {pairs} pairs",
        scene.kind
    );
    [requests as f64 / pairs, flushes as f64 / (pairs + tasks as f64)]
}

/// On one thread: with several, a release and the next acquire come from two, and do not always travel together.
#[tokio::test]
async fn a_hand_over_within_a_process_is_one_request_and_one_flush() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [requests, flushes] = costs(&scene, 64, 30).await;
        // MariaDB's first waiter polls: on a busy machine some polls come before the hand-over.
        let most = if matches!(kind, ServerKind::MariaDb) { 2.5 } else { 1.2 };
        assert!(requests < most, "{kind:?}: {requests} requests");
        assert!(flushes < 1.4, "{kind:?}: {flushes} flushes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_between_threads_is_never_more_than_its_two_operations() {
    let scene = Scene::on(ServerKind::Postgres).await;
    let [requests, _] = costs(&scene, 64, 30).await;
    assert!(requests < 2.02, "{requests} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_without_contention_is_two_requests_and_two_flushes() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let [requests, flushes] = costs(&scene, 1, 500).await;
        assert!(requests < 2.02, "{kind:?}: {requests} requests");
        assert!(flushes < 2.5, "{kind:?}: {flushes} flushes");
    }
}
