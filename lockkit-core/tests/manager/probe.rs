//! The trial of everything that locks need.

use lockkit_core::driver::RegisterKey;
use lockkit_core::state::Severity;
use lockkit_core::{LockManager, MemoryDriver, Name, Namespace, Space};

const NAME: &str = "lockkit.doctor";

#[tokio::test(start_paused = true)]
async fn nothing_is_found_or_left_where_locks_work() {
    let store = MemoryDriver::new();
    let (locks, other) = (LockManager::new(store.clone()), LockManager::new(store));
    assert_eq!(locks.probe(&other).await.unwrap(), []);
    let state = locks.inspect(Space::Lock, NAME).await.unwrap();
    assert!(state.is_free(), "{state:?}");
    let at = RegisterKey { namespace: Namespace::default(), name: Name::new(NAME).unwrap() };
    assert!(locks.driver().registers().unwrap().load(&at).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn another_trial_is_waited_for_but_not_for_ever() {
    let store = MemoryDriver::new();
    let (locks, other) = (LockManager::new(store.clone()), LockManager::new(store.clone()));
    let third = LockManager::new(store);
    let guard = third.mutex(NAME).lock().await.unwrap();
    let found = locks.probe(&other).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Note);
    guard.release().await.unwrap();
    assert_eq!(locks.probe(&other).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn who_drops_it_leaves_the_lock_free() {
    let store = MemoryDriver::new();
    let (locks, other) = (LockManager::new(store.clone()), LockManager::new(store.clone()));
    for steps in 1..40 {
        // Given up at each point at which it waits for anything.
        let mut probing = std::pin::pin!(locks.probe(&other));
        for _ in 0..steps {
            let waits = std::future::poll_fn(|context| {
                std::task::Poll::Ready(probing.as_mut().poll(context).is_pending())
            });
            if !waits.await {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let third = LockManager::new(store);
    let guard = third.mutex(NAME).lock().await.expect("it becomes free");
    guard.release().await.unwrap();
}
