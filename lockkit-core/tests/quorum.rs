//! The quorum as its users meet it: what a failing minority costs, breaks, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::compose::{QuorumDriver, QuorumOptions};
use lockkit_core::driver::{Force, LockDriver};
use lockkit_core::{Error, LockManager, LossReason, MemoryDriver, Settings, Space};

const TTL: Duration = Duration::from_secs(10);

/// A program of its own on these members.
fn manager(members: &[Arc<dyn LockDriver>]) -> LockManager {
    let driver = QuorumDriver::new(members.to_vec(), QuorumOptions::default()).unwrap();
    LockManager::with(Arc::new(driver), Settings::default().ttl(TTL)).unwrap()
}

fn members(count: usize) -> Vec<Arc<dyn LockDriver>> {
    (0..count).map(|_| Arc::new(MemoryDriver::new()) as Arc<dyn LockDriver>).collect()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_it_after_the_release_and_with_a_greater_token() {
    let members = members(3);
    let (ours, theirs) = (manager(&members), manager(&members));
    let guard = ours.mutex("a").lock().await.unwrap();
    let first = guard.token().unwrap();
    let waiting = tokio::spawn(async move { theirs.mutex("a").lock().await });
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_valid() && !waiting.is_finished());
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token().unwrap() > first);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_went_away_leaves_nothing() {
    let members = members(3);
    let (ours, theirs) = (manager(&members), manager(&members));
    let guard = ours.mutex("a").lock().await.unwrap();
    let none = theirs.mutex("a").try_lock_for(Duration::from_secs(1)).await.unwrap();
    assert!(none.is_none());
    guard.release().await.unwrap();
    theirs.shutdown().await;
    for member in &members {
        let key = ours.inspect(Space::Lock, "a").await.unwrap().key;
        assert!(member.inspect(&key).await.unwrap().is_free());
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_member_votes_again_after_its_quarantine_and_the_lock_goes_on() {
    let mut all = members(3);
    let before = manager(&all);
    let guard = before.mutex("a").lock().await.unwrap();
    let first = guard.token().unwrap();
    guard.release().await.unwrap();
    all[0] = Arc::new(MemoryDriver::new());
    let after = manager(&all);
    let guard = after.mutex("a").lock().await.unwrap();
    assert!(guard.token().unwrap() > first);
    let found = after.health().await.unwrap().findings;
    assert!(found.iter().any(|f| f.what.contains("Member 0 has no data")), "{found:?}");
    tokio::time::sleep(Duration::from_secs(70)).await;
    let found = after.health().await.unwrap().findings;
    assert!(!found.iter().any(|f| f.what.contains("has no data")), "{found:?}");
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_that_remembers_nothing_is_granted() {
    let mut all = members(3);
    let guard = manager(&all).mutex("a").lock().await.unwrap();
    all[0] = Arc::new(MemoryDriver::new());
    all[1] = Arc::new(MemoryDriver::new());
    let after = manager(&all);
    assert!(!matches!(after.mutex("b").try_lock().await, Ok(Some(_))));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_break_reaches_the_holder_and_frees_the_lock() {
    let members = members(5);
    let (ours, theirs) = (manager(&members), manager(&members));
    let guard = ours.mutex("a").note("why").lock().await.unwrap();
    let token = guard.token().unwrap();
    let state = theirs.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!(state.line[0].token, token);
    let broken = theirs.break_lock(Space::Lock, "a", token, Force::Immediate, None).await;
    assert!(broken.unwrap());
    let next = theirs.mutex("a").try_lock().await.unwrap().expect("it is free");
    assert!(next.token().unwrap() > token);
    assert!(matches!(guard.lost().await, LossReason::Broken(_)));
}

#[tokio::test(start_paused = true)]
async fn what_a_quorum_cannot_do_is_refused() {
    let two = QuorumDriver::new(members(2), QuorumOptions::default());
    assert!(matches!(two, Err(Error::Config(_))));
    let locks = manager(&members(3));
    let permits = locks.semaphore("s", 2).acquire().await;
    assert!(matches!(permits, Err(Error::Unsupported { .. })));
    let long = locks.mutex("a").ttl(Duration::from_secs(61)).try_lock().await;
    assert!(matches!(long, Err(Error::Config(_))));
}
