//! What the control of `lockkit::testing` does to a program's locks.

use std::time::Duration;

use futures_util::FutureExt;
use lockkit_core::{Error, LossReason, Space, testing};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_invalid_and_free_for_the_next_with_a_greater_token() {
    let (locks, control) = testing::locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let other = locks.mutex("b").lock().await.unwrap();
    let token = guard.token().unwrap();
    let begun = Instant::now();
    assert!(control.lose("a", LossReason::SessionEnded).await);
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await, LossReason::SessionEnded);
    let next = control.others().mutex("a").try_lock().await.unwrap().expect("it is free");
    assert!(next.token().unwrap() > token);
    assert!(other.is_valid(), "no other lock is concerned");
    assert_eq!(begun.elapsed(), Duration::ZERO, "no time passes");
    assert!(!control.lose("a", LossReason::Expired).await, "the program holds it no more");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn permits_and_readers_are_lost_too() {
    let (locks, control) = testing::locks();
    let permit = locks.semaphore("pool", 2).acquire().await.unwrap();
    let reader = locks.rwlock("config").read().await.unwrap();
    assert!(control.lose("pool", LossReason::Expired).await);
    assert!(control.lose("config", LossReason::Expired).await);
    assert!(!permit.is_valid() && !reader.is_valid());
    assert!(control.others().semaphore("pool", 2).try_acquire_many(2).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_was_overtaken_learns_it_at_its_next_renewal() {
    let (locks, control) = testing::locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let stale = guard.token().unwrap();
    let other = control.overtake("a").await.unwrap();
    assert!(guard.is_valid(), "it has not noticed");
    assert!(other.token().unwrap() > stale);
    assert!(matches!(guard.lost().await, LossReason::Broken(_)));
    assert!(other.is_valid());
}

#[tokio::test(start_paused = true)]
async fn the_next_acquire_is_refused_and_the_one_after_it_is_not() {
    let (locks, control) = testing::locks();
    control.refuse_next("a", Error::permanent("test", "the disk is full"));
    let refused = locks.mutex("a").lock().await.unwrap_err();
    assert_eq!(refused.to_string(), "test: the disk is full");
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    control.refuse_next("a", Error::retryable("test", "a cut connection"));
    assert!(locks.mutex("a").try_lock().await.unwrap_err().is_retryable());
    control.refuse_next("a", Error::retryable("test", "a cut connection"));
    assert!(locks.mutex("b").try_lock().await.unwrap().is_some(), "another name");
    assert!(locks.mutex("a").lock().await.is_ok(), "lock() repeats it");
}

#[tokio::test(start_paused = true)]
async fn renewals_that_are_held_up_for_long_lose_the_lock_and_for_short_do_not() {
    let (locks, control) = testing::locks();
    let short = locks.mutex("short").ttl(30 * SECOND).lock().await.unwrap();
    let long = locks.mutex("long").ttl(30 * SECOND).lock().await.unwrap();
    control.hold_up_renewals("short", 15 * SECOND);
    control.hold_up_renewals("long", 60 * SECOND);
    let begun = Instant::now();
    assert!(matches!(long.lost().await, LossReason::Unreachable(_)));
    assert!(begun.elapsed() < 30 * SECOND, "before the store hands it on");
    tokio::time::sleep(60 * SECOND).await;
    assert!(short.is_valid(), "it was renewed afterwards");
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_no_locks_and_leaves_those_of_its_parent_alone() {
    let (locks, control) = testing::locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let dropped = locks.mutex("b").lock().await.unwrap();
    let waiting = locks.mutex("a");
    let mut waiting = Box::pin(waiting.lock());
    assert!((&mut waiting).now_or_never().is_none());
    control.fork();
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.loss(), Some(LossReason::Forked));
    assert_eq!(guard.lost().await, LossReason::Forked);
    assert!(matches!(guard.token(), Err(Error::Lost { reason: LossReason::Forked, .. })));
    assert!(matches!(locks.mutex("c").lock().await, Err(Error::Forked)));
    assert!(matches!(locks.mutex("c").try_lock().await, Err(Error::Forked)));
    assert!(matches!(locks.register("c").load().await, Err(Error::Forked)));
    let released = guard.release().await.expect_err("it is the parent's");
    assert_eq!(released.loss(), Some(&LossReason::Forked));
    drop((dropped, waiting));
    locks.shutdown().await;
    drop(locks);
    tokio::time::sleep(5 * SECOND).await;
    for name in ["a", "b"] {
        let state = control.others().inspect(Space::Lock, name).await.unwrap();
        assert!(state.holders().next().is_some(), "{name} is still the parent's");
    }
}
