//! What machines and processes suffer: clocks that are slewed or jump, processes that stand still between a
//! request and its answer, processes that end without a word, by the thousand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, Renewal};
use lockkit_core::state::Finding;
use lockkit_core::{Claim, ClientIdentity, Error, LockManager, Mode, Settings, Space};
use lockkit_store::testing::{Faults, TestStore};
use lockkit_store::{
    DocumentVersion, PutOutcome, ReadOutcome, Store, StoreDriver, StoreError, StoreFacts,
    StoreOptions,
};
use tokio::time::{Instant, sleep, timeout};

use crate::claims::{TTL, attempt, claim, connect, driver, granted, options, take};

/// Tries every 50 ms; says how long it took.
async fn taken_after(driver: &StoreDriver, name: &str) -> Duration {
    let begun = Instant::now();
    let tries = async {
        while attempt(driver, &claim(name), Patience::Try).await == Acquisition::Busy {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TTL * 10, tries).await.expect("a dead holder is followed");
    begun.elapsed()
}

/// A clock that is slewed, and that a suspend moves.
#[derive(Debug)]
struct Slewed {
    rate: f64,
    suspended_ms: AtomicU64,
}

impl Clock for Slewed {
    fn now(&self) -> Moment {
        let passed = TokioClock.now().as_nanos() as f64 * self.rate;
        let suspended = Duration::from_millis(self.suspended_ms.load(Ordering::SeqCst));
        Moment::from_nanos(passed as u64).after(suspended)
    }
}

/// How soon an observer on this boot clock takes the lock of a holder that beat just before it was cut off.
async fn taken_by_an_observer(rate: f64, suspended: Duration) -> Duration {
    let store = TestStore::new();
    let holders = store.client(1);
    let holder = driver(&holders).await;
    let held = claim("a");
    take(&holder, &held).await;
    let boot = Arc::new(Slewed { rate, suspended_ms: AtomicU64::new(0) });
    let options = StoreOptions::default().clock(boot.clone()).raw_clock(TokioClock::shared());
    let observer = connect(store.clone(), options).await;
    assert_eq!(attempt(&observer, &claim("a"), Patience::Try).await, Acquisition::Busy);
    sleep(TTL / 4).await;
    assert!(matches!(holder.renew_single(&held).await, Ok(Renewal::Holds(_))));
    let beat = Instant::now();
    holders.set_faults(Faults { is_partitioned: true, ..Faults::default() });
    assert_eq!(attempt(&observer, &claim("a"), Patience::Try).await, Acquisition::Busy);
    sleep(TTL / 4).await;
    let suspended = u64::try_from(suspended.as_millis()).expect("it is short");
    boot.suspended_ms.fetch_add(suspended, Ordering::SeqCst);
    taken_after(&observer, "a").await;
    beat.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_is_suspended_or_slewed_ends_no_lease_early() {
    for (rate, suspended) in [(1.0833, 0), (1.0, 60), (1.0833, 60), (0.9167, 60)] {
        let taken = taken_by_an_observer(rate, Duration::from_secs(suspended)).await;
        assert!(taken >= TTL, "rate {rate}, {suspended} s: after {taken:?}");
    }
}

/// A store whose answers do not arrive while its process stands still.
#[derive(Clone, Debug)]
struct Stopped {
    store: TestStore,
    stands_still: Arc<AtomicBool>,
}

impl Stopped {
    async fn arrive<T>(&self, answer: T) -> T {
        while self.stands_still.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(10)).await;
        }
        answer
    }
}

#[async_trait]
impl Store for Stopped {
    fn facts(&self) -> &StoreFacts {
        self.store.facts()
    }

    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError> {
        let answer = self.store.get(key, unless).await;
        self.arrive(answer).await
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        let answer = self.store.put_if(key, document, expected).await;
        self.arrive(answer).await
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        let answer = self.store.remove(key).await;
        self.arrive(answer).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let answer = self.store.list(prefix, after, limit).await;
        self.arrive(answer).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_before_the_answer_to_its_swap_does_not_believe_it() {
    let store = TestStore::new();
    let stands_still = Arc::new(AtomicBool::new(false));
    let ours = Stopped { store: store.client(1), stands_still: stands_still.clone() };
    let settings = || Settings::default().ttl(TTL).wait_ttl(TTL);
    let manager = |driver| LockManager::with(Arc::new(driver), settings()).expect("it is valid");
    let (ours, theirs) = (manager(connect(ours, options()).await), manager(driver(&store).await));
    // So that its session has a beat, and the shard is known.
    ours.mutex("a").lock().await.expect("it is free").release().await.expect("it works");
    stands_still.store(true, Ordering::SeqCst);
    let stopped = tokio::spawn({
        let mutex = ours.mutex("a");
        async move { mutex.lock().await }
    });
    sleep(TTL / 10).await;
    let state = theirs.inspect(Space::Lock, "a").await.expect("it works");
    assert_eq!(state.holders().count(), 1, "its swap was carried out");
    let next = timeout(TTL * 2, theirs.mutex("a").lock()).await.expect("its lease ends");
    let next = next.expect("it works");
    sleep(TTL * 3).await;
    stands_still.store(false, Ordering::SeqCst);
    sleep(TTL).await;
    assert!(!stopped.is_finished(), "two hold");
    let token = next.token().expect("it is valid");
    next.release().await.expect("it is held");
    let last = timeout(TTL * 2, stopped).await.expect("it is free");
    let last = last.expect("it does not panic").expect("it waits on");
    assert!(last.token().expect("it is valid") > token);
}

#[tokio::test(start_paused = true)]
async fn a_swap_that_was_unanswered_when_its_driver_was_closed_closes_no_lock() {
    let store = TestStore::new();
    let ours = store.client(1);
    let closed = driver(&ours).await;
    let other = claim("other");
    take(&closed, &other).await;
    closed.release(&other).await.expect("it works");
    let late = Faults { late_effects: 1.0, late_by: TTL / 2, ..Faults::default() };
    ours.set_faults(late);
    let asking = tokio::spawn({
        let closed = closed.clone();
        async move { closed.acquire(&claim("a"), Patience::Try).await }
    });
    sleep(Duration::from_millis(10)).await;
    closed.close().await;
    asking.abort();
    drop(closed);
    let driver = driver(&store).await;
    sleep(TTL).await;
    let is_there = |(key, document): (String, Vec<u8>)| {
        key.starts_with("l/") && String::from_utf8_lossy(&document).contains("\"name\":\"a\"")
    };
    assert!(store.documents().into_iter().any(is_there), "the swap was carried out late");
    let slack = driver.capabilities().expiry_slack;
    assert!(taken_after(&driver, "a").await <= TTL + slack);
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_ten_thousand_fills_its_shard_and_its_neighbours_go_on() {
    const WAITERS: usize = 10_000;
    let mut facts = StoreFacts::of("crowded");
    (facts.shards, facts.pace, facts.min_ttl) = (1, Duration::from_millis(50), TTL / 12);
    facts.most_bytes = 2_500_000;
    let store = TestStore::new().with_facts(facts);
    let (driver_of_many, dead) = (driver(&store).await, driver(&store.client(1)).await);
    let (holder, neighbour, abandoned) = (claim("crowd"), claim("neighbour"), claim("abandoned"));
    take(&driver_of_many, &holder).await;
    take(&driver_of_many, &neighbour).await;
    take(&dead, &abandoned).await;
    drop(dead);
    let waiters: Vec<_> = (0..WAITERS).map(|_| claim("crowd")).collect();
    let acquired =
        join_all(waiters.iter().map(|it| driver_of_many.acquire(it, Patience::Wait))).await;
    let queued = acquired.iter().filter(|it| it.is_ok()).count();
    assert!(queued >= WAITERS / 2, "{queued} wait");
    let Some(refused) = acquired.into_iter().find_map(Result::err) else {
        panic!("all {queued} fit")
    };
    assert!(refused.is_retryable() && refused.to_string().contains("too many"), "{refused}");
    // What shrinks the shard, or leaves it as it is, always works.
    let renewed = driver_of_many.renew_single(&neighbour).await.expect("it works");
    assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
    let released = driver_of_many.release(&neighbour).await.expect("it works");
    assert_eq!(released, Released::Removed);
    let is_abandoned = async || {
        let state = driver_of_many.inspect(&abandoned.key).await.expect("it works");
        !state.is_free()
    };
    let pruned = async {
        while is_abandoned().await {
            driver_of_many.renew_single(&holder).await.expect("it works");
            sleep(TTL / 6).await;
        }
    };
    timeout(TTL * 3, pruned).await.expect("the dead neighbour is pruned");
    assert_eq!(driver_of_many.release(&holder).await.expect("it works"), Released::Removed);
}

#[tokio::test(start_paused = true)]
async fn the_sessions_of_ten_thousand_processes_that_crashed_are_removed() {
    const CRASHED: u32 = 10_000;
    let store = TestStore::new();
    for number in 0..CRASHED {
        // A few have to be watched for two hours until they may be removed: they hold up no other.
        let ttl = if number % 500 == 0 { Duration::from_secs(3_600) } else { TTL };
        let session = format!(
            r#"{{"write":"{number:032x}","beat":"{number:032x}","ttl_us":{},"dead":false}}"#,
            ttl.as_micros()
        );
        let spread = number.wrapping_mul(0x9E37_79B9);
        store.put_if(&format!("s/{spread:08x}{number:024x}"), session.as_bytes(), None).await;
    }
    let ours = store.client(1);
    let driver = driver(&ours).await;
    let held = claim("a");
    take(&driver, &held).await;
    let findings = driver.examine().await.expect("it works");
    assert!(findings.iter().any(|finding| finding.what.contains("sessions")), "{findings:?}");
    let sessions = || store.documents().iter().filter(|(key, _)| key.starts_with("s/")).count();
    let begun = Instant::now();
    let renewing = async {
        loop {
            let renewed = driver.renew_single(&held).await.expect("it works");
            assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
            sleep(TTL / 3).await;
        }
    };
    let removed = async {
        while sessions() > 1 {
            sleep(Duration::from_secs(60)).await;
        }
    };
    tokio::select! {
        () = removed => {}
        () = renewing => {}
        () = sleep(Duration::from_secs(6 * 3_600)) => panic!("{} are left", sessions()),
    }
    println!("{CRASHED} sessions are removed after {:?}, {:?}", begun.elapsed(), ours.requests());
    assert!(driver.examine().await.expect("it works").is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_first_try_after_the_ttl_gets_the_lock_of_a_dead_holder() {
    // Before a sweep, which would end the session as well, and after so long that sights could be forgotten.
    for pause in [TTL, TTL * 1_000] {
        let store = TestStore::new();
        let dead = driver(&store.client(1)).await;
        take(&dead, &claim("a")).await;
        drop(dead);
        let trying = driver(&store.client(2)).await;
        assert_eq!(attempt(&trying, &claim("a"), Patience::Try).await, Acquisition::Busy);
        sleep(pause).await;
        take(&trying, &claim("a")).await;
    }
}

/// Acquires, tries, releases and renewals in another runtime than the one in which the driver was made, which has
/// ended.
#[test]
fn a_driver_outlives_the_runtime_in_which_it_was_made() {
    const TTL: Duration = Duration::from_millis(600);
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let claim = |name: &str| {
        let key = claim(name).key.clone();
        let me = Arc::new(ClientIdentity::of_this_process());
        Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, me))
    };
    let store = TestStore::new();
    let first = runtime();
    let driver = first.block_on(async {
        let driver = driver(&store).await;
        take(&driver, &claim("first")).await;
        driver
    });
    drop(first);
    runtime().block_on(async {
        // From then on an acquire needs another beat.
        sleep(TTL / 3).await;
        let (kept, forgotten) = (claim("kept"), claim("forgotten"));
        take(&driver, &kept).await;
        take(&driver, &forgotten).await;
        let other = crate::claims::driver(&store.client(1)).await;
        let waits = async {
            let next = claim("forgotten");
            attempt(&other, &next, Patience::Wait).await;
            granted(&other, &next).await;
        };
        let renews = async {
            loop {
                sleep(TTL / 4).await;
                let renewed = driver.renew_single(&kept).await.expect("the store works");
                assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
            }
        };
        tokio::select! {
            () = waits => {}
            () = renews => unreachable!("it renews for ever"),
            () = sleep(TTL * 20) => panic!("a claim that is not renewed stays"),
        }
    });
}
