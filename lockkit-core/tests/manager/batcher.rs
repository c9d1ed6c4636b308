//! Batches of a program that carries out the operations of others.

use std::sync::Arc;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchLimits, Batcher, LockDriver, Patience,
    Released,
};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};

use crate::moody::{Mood, Moody};
use crate::{MS, SECOND, begin, claims};

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, 30 * SECOND, 10 * SECOND, identity))
}

fn acquire(name: &str) -> Acquire {
    Acquire { claim: claim(name), patience: Patience::Try }
}

/// Submits these acquires.
async fn acquired(batcher: &Batcher, acquires: &[Acquire], latest: Moment) -> Acquired {
    batcher.submit(Batch { releases: &[], acquires }, latest).await.acquired
}

type Acquired = Vec<Result<Attempted<Acquisition>, BatchError>>;

fn granted(result: &Result<Attempted<Acquisition>, BatchError>) -> bool {
    matches!(result, Ok(Attempted { result: Acquisition::Granted(_), .. }))
}

#[tokio::test(start_paused = true)]
async fn the_operations_of_callers_that_know_nothing_of_each_other_share_a_batch() {
    let driver = Moody::batching(BatchLimits::of(64, 1));
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(SECOND);
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..40 {
        let batcher = batcher.clone();
        let acquires = [acquire(&format!("a{caller}"))];
        callers.spawn(async move { acquired(&batcher, &acquires, latest).await });
    }
    for acquired in callers.join_all().await {
        assert!(acquired.iter().all(granted));
    }
    let sizes: Vec<_> = driver.batches().iter().map(Vec::len).collect();
    assert_eq!(sizes, [40]);
}

#[tokio::test(start_paused = true)]
async fn several_operations_of_one_caller_are_answered_in_their_order() {
    let driver = Moody::batching(BatchLimits::of(64, 1));
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(SECOND);
    let (first, others) = (acquire("first"), [acquire("first"), acquire("second")]);
    acquired(&batcher, std::slice::from_ref(&first), latest).await.pop().unwrap().unwrap();
    let all = Batch { releases: &[first.claim, claim("other")], acquires: &others };
    let outcome = batcher.submit(all, latest).await;
    assert!(outcome.acquired.iter().all(granted), "{outcome:?}");
    let released: Vec<_> = outcome.released.into_iter().map(|it| it.unwrap().result).collect();
    assert_eq!(released, [Released::Removed, Released::NoSuchLock]);
    assert_eq!(driver.batches().last().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_could_not_leave_in_time_never_does() {
    let driver = Moody::batching(BatchLimits::of(2, 1));
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let now = driver.clock().now();
    // Two that share a batch, so that it is in a task of its own; its answer takes long.
    driver.next("batch", Mood::Late(500 * MS));
    let slow = [acquire("slow"), acquire("too")];
    let mut slow = Box::pin(acquired(&batcher, &slow, now.after(10 * SECOND)));
    begin(slow.as_mut()).await;
    tokio::task::yield_now().await;
    let late = [acquire("late")];
    let refused = acquired(&batcher, &late, now.after(100 * MS)).await.pop().unwrap();
    let refused = refused.unwrap_err();
    assert!(refused.error.is_retryable() && refused.ambiguous == 0, "{refused:?}");
    assert!(slow.await.iter().all(Result::is_ok));
    assert_eq!(claims(&driver, "late").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_before_its_operation_was_sent_leaves_nothing() {
    let driver = Moody::batching(BatchLimits::of(2, 1));
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let latest = driver.clock().now().after(10 * SECOND);
    driver.next("batch", Mood::Late(500 * MS));
    let slow = [acquire("slow"), acquire("too")];
    let mut slow = Box::pin(acquired(&batcher, &slow, latest));
    begin(slow.as_mut()).await;
    tokio::task::yield_now().await;
    let gone = [acquire("gone")];
    {
        let mut gone = Box::pin(acquired(&batcher, &gone, latest));
        begin(gone.as_mut()).await;
    }
    assert!(slow.await.iter().all(Result::is_ok));
    assert!(acquired(&batcher, &[acquire("last")], latest).await.iter().all(granted));
    assert_eq!(claims(&driver, "gone").await, 0);
}
