//! One manager in several runtimes, of which one is blocked, or driven by nobody: the others keep their
//! locks, and it loses its own as it would alone. In real time, since a paused clock belongs to one
//! runtime.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkit_core::{LockManager, MemoryDriver};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};

use super::SECOND;

const TTL: Duration = SECOND;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_runtime_that_nobody_drives_loses_its_own_guards_only() {
    let locks = LockManager::new(MemoryDriver::new());
    let (first, second) = (runtime(), runtime());
    let one = first.block_on(locks.mutex("a").ttl(TTL).lock()).unwrap();
    let two = second.block_on(locks.mutex("b").ttl(TTL).lock()).unwrap();
    second.block_on(async {
        sleep(3 * TTL).await;
        assert!(two.is_valid(), "{:?}", two.loss());
        assert!(!one.is_valid(), "its runtime hangs");
        let next = timeout(TTL, locks.mutex("a").ttl(TTL).lock()).await;
        next.expect("its lease is over").unwrap().release().await.unwrap();
    });
}

#[test]
fn a_runtime_that_was_blocked_goes_on_and_disturbs_nobody() {
    let locks = LockManager::new(MemoryDriver::new());
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let blocked = thread::spawn({
        let locks = locks.clone();
        move || {
            runtime().block_on(async {
                let lost = locks.mutex("a").ttl(TTL).lock().await.unwrap();
                tell.send(()).unwrap();
                thread::sleep(3 * TTL);
                assert!(!lost.is_valid(), "nobody renewed it for three ttls");
                let again = locks.mutex("a").ttl(TTL).lock().await.unwrap();
                while ended.try_recv().is_err() {
                    sleep(TTL / 20).await;
                }
                assert!(again.is_valid(), "{:?}", again.loss());
            });
        }
    });
    told.recv().unwrap();
    let second = runtime();
    second.block_on(async {
        let two = locks.mutex("b").ttl(TTL).lock().await.unwrap();
        sleep(6 * TTL).await;
        assert!(two.is_valid(), "{:?}", two.loss());
        end.send(()).unwrap();
    });
    blocked.join().unwrap();
}

#[test]
fn what_is_dropped_beside_a_blocked_runtime_is_released_within_a_ttl() {
    let store = MemoryDriver::new();
    let locks = LockManager::new(store.clone());
    let (first, second) = (runtime(), runtime());
    let one = first.block_on(locks.mutex("a").ttl(2 * TTL).wait_ttl(2 * TTL).lock()).unwrap();
    second.block_on(async {
        let mutex = locks.mutex("b").ttl(20 * TTL).wait_ttl(20 * TTL);
        drop(mutex.lock().await.unwrap());
        let others = LockManager::new(store);
        let next = timeout(2 * TTL, others.mutex("b").lock()).await;
        assert!(next.is_ok(), "released where somebody still runs");
    });
    drop(one);
}

#[test]
fn a_shutdown_ends_beside_a_blocked_runtime() {
    let locks = LockManager::new(MemoryDriver::new());
    let (first, second) = (runtime(), runtime());
    let one = first.block_on(locks.mutex("a").ttl(TTL).wait_ttl(TTL).lock()).unwrap();
    let begun = Instant::now();
    second.block_on(async { timeout(10 * TTL, locks.shutdown()).await.expect("it ends") });
    assert!(begun.elapsed() < 3 * TTL, "{:?}", begun.elapsed());
    assert!(!one.is_valid());
}

#[test]
fn the_renewer_comes_back_when_the_second_runtime_is_blocked() {
    let locks = LockManager::new(MemoryDriver::new());
    let (first, second) = (runtime(), runtime());
    let two = second.block_on(locks.mutex("b").ttl(TTL).lock()).unwrap();
    let one = first.block_on(locks.mutex("a").ttl(TTL).lock()).unwrap();
    first.block_on(async { sleep(3 * TTL).await });
    assert!(one.is_valid() && !two.is_valid());
    let again = second.block_on(locks.mutex("b").ttl(TTL).lock()).unwrap();
    second.block_on(async { sleep(3 * TTL).await });
    assert!(again.is_valid() && !one.is_valid());
}

#[test]
fn one_runtime_has_one_task() {
    let locks = LockManager::new(MemoryDriver::new());
    let alone = runtime();
    let guards = alone.block_on(async {
        let guards =
            [locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap()];
        sleep(SECOND / 10).await;
        guards
    });
    assert_eq!(alone.metrics().num_alive_tasks(), 1, "the renewer");
    drop(guards);
}
