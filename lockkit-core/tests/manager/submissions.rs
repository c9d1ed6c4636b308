//! Where and when batches are sent when something goes wrong: without a runtime, beside a panic, after a
//! runtime ended, and wherever a future is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkit_core::driver::{
    Acquire, Batch, BatchError, BatchLimits, Batcher, LockDriver, Patience,
};
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, MemoryDriver, Mode, Name, Namespace, Settings,
    Space,
};
use proptest::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::moody::{Mood, Moody};
use crate::{MS, SECOND, begin, claims, manager_of, settle};

/// At most this many batches at a time, of up to 64 operations.
fn batching(at_once: usize) -> Moody {
    Moody::batching(BatchLimits::of(64, at_once))
}

fn acquire(name: &str) -> Acquire {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    let claim = Claim::new(key, Mode::Exclusive, 30 * SECOND, 10 * SECOND, identity);
    Acquire { claim: Arc::new(claim), patience: Patience::Try }
}

fn acquires(prefix: &str, count: usize) -> Vec<Acquire> {
    (0..count).map(|i| acquire(&format!("{prefix}{i}"))).collect()
}

/// Submits these acquires; the errors among the results.
async fn failed(batcher: &Batcher, acquires: &[Acquire]) -> Vec<BatchError> {
    let latest = acquires[0].claim.wait_ttl;
    let latest = MemoryDriver::new().clock().now().after(latest);
    let outcome = batcher.submit(Batch { releases: &[], acquires }, latest).await;
    assert_eq!(outcome.acquired.len(), acquires.len());
    outcome.acquired.into_iter().filter_map(Result::err).collect()
}

fn sizes(driver: &Moody) -> Vec<usize> {
    driver.batches().iter().map(Vec::len).collect()
}

#[test]
fn without_a_runtime_batches_are_sent_in_the_future_of_a_caller() {
    let driver = batching(1);
    let batcher = Batcher::new(Arc::new(driver.clone()));
    let (several, one) = (acquires("a", 150), acquires("b", 1));
    let mut futures = [pin!(failed(&batcher, &several)), pin!(failed(&batcher, &one))];
    let mut done = [false; 2];
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..20 {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if !*done && let Poll::Ready(errors) = future.as_mut().poll(&mut context) {
                assert!(errors.is_empty(), "{errors:?}");
                *done = true;
            }
        }
    }
    assert_eq!(done, [true; 2]);
    assert_eq!(sizes(&driver), [64, 64, 23]);
}

#[tokio::test(start_paused = true)]
async fn operations_of_one_call_fill_every_batch() {
    let driver = batching(4);
    let batcher = Batcher::new(Arc::new(driver.clone()));
    driver.always("batch", Mood::Late(MS));
    assert!(failed(&batcher, &acquires("a", 1_000)).await.is_empty());
    let mut expected = vec![64; 15];
    expected.push(40);
    assert_eq!(sizes(&driver), expected);
    assert_eq!(driver.most_at_once("batch"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_of_one_name_are_served_in_their_order() {
    for same_key in [false, true] {
        let mut limits = BatchLimits::of(64, 4);
        limits.same_key = same_key;
        let driver = Moody::batching(limits);
        driver.always("batch", Mood::Late(MS));
        let locks = manager_of(&driver);
        let first = locks.mutex("one").lock().await.unwrap();
        let (served, mut serves) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for nth in 0..1_000 {
            let (mutex, served) = (locks.mutex("one"), served.clone());
            tasks.spawn(async move {
                let guard = mutex.lock().await.unwrap();
                served.send(nth).unwrap();
                guard.release().await.unwrap();
            });
        }
        settle().await;
        first.release().await.unwrap();
        tasks.join_all().await;
        for nth in 0..1_000 {
            assert_eq!(serves.recv().await, Some(nth), "same_key: {same_key}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_says_how_many_requests_got_no_answer() {
    let driver = batching(1);
    let batcher = Batcher::new(Arc::new(driver.clone()));
    for (mood, ambiguous) in [(Mood::Refused, 0), (Mood::FailAfter, 1)] {
        driver.next("batch", mood);
        let errors = failed(&batcher, &acquires("a", 1)).await;
        assert_eq!(errors[0].ambiguous, ambiguous, "{mood:?}: {errors:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_certainly_refused_leaves_nothing_to_release() {
    for (mood, released) in [(Mood::Refused, false), (Mood::FailAfter, true)] {
        let driver = Moody::new(MemoryDriver::new());
        let locks = manager_of(&driver);
        driver.next("acquire", mood);
        assert!(locks.mutex("a").try_lock().await.is_err());
        sleep(SECOND).await;
        assert_eq!(driver.calls("release").is_empty(), !released, "{mood:?}");
        assert_eq!(claims(&driver, "a").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_driver_is_a_permanent_error_of_its_batch_only() {
    let driver = batching(2);
    let locks = manager_of(&driver);
    driver.next("batch", Mood::Panic);
    let all = async |prefix: &str| {
        let mut tasks = JoinSet::new();
        for i in 0..3 {
            let mutex = locks.mutex(format!("{prefix}{i}"));
            tasks.spawn(async move { mutex.try_lock().await });
        }
        tasks.join_all().await
    };
    for answer in all("a").await {
        assert!(answer.is_err_and(|error| !error.is_retryable()));
    }
    assert!(all("b").await.into_iter().all(|answer| answer.unwrap().is_some()));
    // Alone, in the future of its caller.
    driver.next("batch", Mood::Panic);
    let error = locks.mutex("c").try_lock().await.expect_err("it panicked");
    assert!(!error.is_retryable(), "{error}");
    locks.mutex("d").try_lock().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_future_that_was_dropped_while_others_counted_on_it_holds_them_up_not_at_all() {
    let driver = batching(1);
    let locks = manager_of(&driver);
    let (first, others) = (locks.mutex("first"), [locks.mutex("b"), locks.mutex("c")]);
    let mut first = Box::pin(first.lock());
    begin(first.as_mut()).await;
    let mut others = others.each_ref().map(|mutex| Box::pin(mutex.lock()));
    for other in &mut others {
        begin(other.as_mut()).await;
    }
    drop(first);
    settle().await;
    assert_eq!(sizes(&driver), [2], "without the first, and no time passed");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_long_holds_up_the_next_for_a_second_at_most() {
    let driver = batching(1);
    let batcher = Batcher::new(Arc::new(driver.clone()));
    driver.next("batch", Mood::Silent);
    let (stuck, next) = (acquires("stuck", 2), acquires("next", 2));
    let mut stuck = Box::pin(failed(&batcher, &stuck));
    begin(stuck.as_mut()).await;
    let _ = timeout(MS, stuck.as_mut()).await;
    let begun = tokio::time::Instant::now();
    assert!(failed(&batcher, &next).await.is_empty());
    assert!(begun.elapsed() < 1_300 * MS, "{:?}", begun.elapsed());
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// On the real clock: what a runtime left when it ended is pending again, or known to be unknown.
#[test]
fn a_manager_outlives_the_runtimes_in_which_it_is_used() {
    let driver = batching(1);
    let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
    for round in 0..5 {
        let ends = runtime();
        driver.next("batch", Mood::Silent);
        ends.block_on(async {
            for i in 0..round {
                let mutex = locks.mutex(format!("{round}/{i}"));
                tokio::spawn(async move { mutex.lock().await.map(std::mem::forget) });
            }
            tokio::task::yield_now().await;
        });
        ends.shutdown_background();
    }
    runtime().block_on(async {
        while timeout(100 * MS, locks.mutex("spends the moods").lock()).await.is_err() {}
        let locked = timeout(10 * SECOND, locks.mutex("other").lock()).await;
        locked.expect("nothing is left in its way").unwrap().release().await.unwrap();
    });
}

/// On the real clock and several threads, in two runtimes: tasks that lock, and give up anywhere.
#[test]
fn tasks_of_two_runtimes_that_give_up_anywhere_leave_nothing_and_lose_nothing() {
    let driver = batching(3);
    driver.always("batch", Mood::Late(Duration::from_micros(200)));
    let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
    let runtimes = [runtime(), runtime()];
    let crowd = |seed: u64| {
        let locks = locks.clone();
        async move {
            let mut tasks = JoinSet::new();
            for task in 0..40_u64 {
                let locks = locks.clone();
                tasks.spawn(async move {
                    for round in 0..60_u64 {
                        let number = (seed + task) * 7_919 + round * 104_729;
                        let mutex = locks.mutex(format!("{}", number % 23));
                        let patience = Duration::from_micros(number % 997);
                        if let Ok(guard) = timeout(patience, mutex.lock()).await {
                            drop(guard.unwrap());
                        }
                    }
                });
            }
            tasks.join_all().await;
        }
    };
    let running = [runtimes[0].spawn(crowd(1)), runtimes[1].spawn(crowd(2))];
    runtimes[0].block_on(async {
        for running in running {
            timeout(60 * SECOND, running).await.expect("it ends").unwrap();
        }
        for name in 0..23 {
            let mutex = locks.mutex(format!("{name}"));
            let guard = timeout(10 * SECOND, mutex.lock()).await.expect("it is free").unwrap();
            guard.release().await.unwrap();
        }
        locks.shutdown().await;
    });
    assert!(driver.most_at_once("batch") <= 3 + 1, "{}", driver.most_at_once("batch"));
}

/// An operation of a task, and how often it is polled before it is dropped.
#[derive(Clone, Debug)]
struct Drops {
    name: u8,
    polls: usize,
    waits: bool,
}

fn drops() -> impl Strategy<Value = Drops> {
    (0..4_u8, 0..8_usize, any::<bool>()).prop_map(|(name, polls, waits)| Drops {
        name,
        polls,
        waits,
    })
}

fn mood() -> impl Strategy<Value = Option<Mood>> {
    prop_oneof![
        Just(None),
        Just(Some(Mood::Late(MS))),
        Just(Some(Mood::Slow(MS))),
        Just(Some(Mood::StuckFor(30 * MS))),
        Just(Some(Mood::FailAfter)),
        Just(Some(Mood::FailBefore)),
        Just(Some(Mood::Refused)),
        Just(Some(Mood::Panic)),
    ]
}

async fn after_drops(at_once: usize, same_key: bool, moods: Vec<Option<Mood>>, script: Vec<Drops>) {
    let mut limits = BatchLimits::of(4, at_once);
    limits.same_key = same_key;
    let driver = Moody::batching(limits);
    let locks = manager_of(&driver);
    moods.into_iter().flatten().for_each(|mood| driver.next("batch", mood));
    let mutexes = [0, 1, 2, 3].map(|name| locks.mutex(format!("{name}")));
    type Locking = std::pin::Pin<Box<dyn Future<Output = Option<Result<(), Error>>> + Send>>;
    let mut under_test: Vec<(usize, Locking)> = Vec::new();
    for Drops { name, polls, waits } in script {
        let mutex = mutexes[usize::from(name)].clone();
        let locking = async move {
            match waits {
                true => Some(mutex.lock().await.map(drop)),
                false => mutex.try_lock().await.map(|guard| guard.map(drop)).transpose(),
            }
        };
        under_test.push((polls, Box::pin(locking)));
        // All go on by one poll, and those that had all of theirs are dropped.
        let mut kept = Vec::new();
        for (left, mut locking) in under_test {
            let is_done = std::future::poll_fn(|context| {
                Poll::Ready(locking.as_mut().poll(context).is_ready())
            });
            let is_done = is_done.await;
            if left > 0 && !is_done {
                kept.push((left - 1, locking));
            }
        }
        under_test = kept;
        sleep(if polls % 3 == 0 { MS } else { Duration::ZERO }).await;
    }
    drop(under_test);
    for mutex in mutexes.iter().chain(&[locks.mutex("another")]) {
        let guard = timeout(20 * SECOND, mutex.lock()).await.expect("not held up");
        // A batch may still meet one of the moods.
        if let Ok(guard) = guard {
            drop(guard);
        }
    }
    sleep(60 * SECOND).await;
    for name in ["0", "1", "2", "3", "another"] {
        assert_eq!(claims(&driver, name).await, 0, "no ghost of {name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_dropped_at_whatever_point_leaves_nothing_and_holds_up_no_other(
        at_once in 1..4_usize,
        same_key: bool,
        moods in prop::collection::vec(mood(), 0..6),
        script in prop::collection::vec(drops(), 1..25),
    ) {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(after_drops(at_once, same_key, moods, script));
    }
}
