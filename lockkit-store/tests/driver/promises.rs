//! What the driver promises beyond the suite: requests counted at the store, the end of claims whose process
//! died or that core gave up, data loss, refusals, full shards, contention.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Batch, LockDriver, Patience, Released, Renewal, submit_each,
};
use lockkit_core::{Claim, Error, LockManager, Settings};
use lockkit_store::testing::{Faults, TestStore};
use lockkit_store::{Store, StoreDriver, StoreFacts, StoreOptions};
use tokio::time::{Instant, sleep, timeout};

use crate::claims::{TTL, attempt, claim, driver, granted, take};

/// Reads and swaps since the last time.
struct Counted(TestStore, u64, u64);

impl Counted {
    fn since(&mut self) -> (u64, u64) {
        let now = self.0.requests();
        let since = (now.reads - self.1, now.swaps - self.2);
        (self.1, self.2) = (now.reads, now.swaps);
        since
    }
}

#[tokio::test(start_paused = true)]
async fn operations_cost_what_the_page_says() {
    let store = TestStore::new();
    let (ours, theirs) = (store.client(1), store.client(2));
    let (driver, other) = (driver(&ours).await, driver(&theirs).await);
    let (first, second) = (claim("a"), claim("a"));
    take(&driver, &first).await;
    driver.release(&first).await.expect("it works");
    let mut counted = Counted(ours.clone(), 0, 0);
    let mut others = Counted(theirs.clone(), 0, 0);
    counted.since();
    take(&driver, &first).await;
    assert_eq!(counted.since(), (0, 1), "an acquire");
    others.since();
    assert_eq!(attempt(&other, &second, Patience::Try).await, Acquisition::Busy);
    // The session of this one, and the read.
    let (reads, swaps) = others.since();
    assert!((1..=2).contains(&reads) && swaps <= 1, "a first try: {reads} reads, {swaps} swaps");
    assert_eq!(attempt(&other, &second, Patience::Try).await, Acquisition::Busy);
    let (reads, swaps) = others.since();
    assert!(reads <= 2 && swaps == 0, "a try: {reads} reads, {swaps} swaps");
    counted.since();
    assert_eq!(driver.release(&first).await.expect("it works"), Released::Removed);
    assert_eq!(counted.since(), (0, 1), "a release");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_claims_are_renewed_by_one_swap_and_a_read_for_each_shard() {
    let store = TestStore::new();
    let ours = store.client(1);
    let driver = driver(&ours).await;
    let claims: Vec<_> = (0..1_000).map(|n| claim(&format!("lock {n}"))).collect();
    let acquire = |claim: &Arc<Claim>| {
        let (driver, claim) = (driver.clone(), claim.clone());
        async move { driver.acquire(&claim, Patience::Try).await }
    };
    for acquired in futures_util::future::join_all(claims.iter().map(acquire)).await {
        assert!(matches!(acquired.expect("it works").result, Acquisition::Granted(_)));
    }
    let mut counted = Counted(ours, 0, 0);
    counted.since();
    sleep(TTL / 3).await;
    for renewed in driver.renew(&claims).await.expect("it works") {
        assert!(matches!(renewed, Ok(Renewal::Holds(_))), "{renewed:?}");
    }
    let (reads, swaps) = counted.since();
    assert!(reads <= u64::from(store.facts().shards) && swaps == 1, "{reads} reads, {swaps} swaps");
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_process_that_died_is_free_within_the_ttl_and_the_slack() {
    let store = TestStore::new();
    let dead = driver(&store.client(1)).await;
    take(&dead, &claim("a")).await;
    drop(dead);
    let driver = driver(&store.client(2)).await;
    let (waiter, begun) = (claim("a"), Instant::now());
    let queued = attempt(&driver, &waiter, Patience::Wait).await;
    assert_eq!(queued, Acquisition::Queued { ahead: 1 });
    let renewing = async {
        loop {
            sleep(TTL / 3).await;
            driver.renew_single(&waiter).await.expect("the store works");
        }
    };
    tokio::select! {
        granted = driver.granted(&waiter) => drop(granted.expect("it is granted")),
        () = renewing => {}
    }
    let slack = driver.capabilities().expiry_slack;
    assert!(begun.elapsed() >= TTL, "not before its lease was over: {:?}", begun.elapsed());
    assert!(begun.elapsed() <= TTL + slack, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_core_gave_up_ends_although_its_session_lives() {
    let store = TestStore::new();
    let driver = driver(&store).await;
    let (forgotten, kept) = (claim("a"), claim("b"));
    take(&driver, &forgotten).await;
    take(&driver, &kept).await;
    for _ in 0..4 {
        sleep(TTL / 3).await;
        let renewed = driver.renew_single(&kept).await.expect("it works");
        assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
    }
    assert!(driver.inspect(&forgotten.key).await.expect("it works").is_free());
    let ended = driver.renew_single(&forgotten).await.expect("it works");
    assert!(matches!(ended, Renewal::Ended(_)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_caller_is_gone_does_not_come_after_its_release() {
    let mut facts = StoreFacts::of("single");
    (facts.shards, facts.min_ttl) = (1, TTL);
    let store = TestStore::new().with_facts(facts);
    let ours = store.client(1);
    let driver = driver(&ours).await;
    take(&driver, &claim("other")).await;
    // A beat that is fresh enough for all of this, and a shard that is busy with another operation.
    ours.set_faults(Faults { is_partitioned: true, ..Faults::default() });
    let (busy, gone) = (claim("busy"), claim("a"));
    let held_up = async { driver.acquire(&busy, Patience::Try).await };
    let given_up = async {
        sleep(Duration::from_millis(20)).await;
        let limit = Duration::from_millis(20);
        assert!(timeout(limit, driver.acquire(&gone, Patience::Try)).await.is_err());
        tokio::join!(driver.release(&gone), async {
            sleep(Duration::from_millis(20)).await;
            ours.set_faults(Faults::default());
        })
    };
    let (held_up, (released, ())) = tokio::join!(held_up, given_up);
    held_up.expect("it works again");
    released.expect("it works again");
    assert!(driver.inspect(&gone.key).await.expect("it works").is_free());
}

#[tokio::test(start_paused = true)]
async fn after_data_loss_tokens_grow_and_holders_are_told() {
    let store = TestStore::new();
    let driver = driver(&store).await;
    let held = claim("a");
    let before = take(&driver, &held).await;
    store.lose_all();
    // On paused time the clock, from which tokens begin, has not moved yet.
    sleep(Duration::from_millis(1)).await;
    let told = driver.renew_single(&held).await.expect("it works");
    assert!(matches!(told, Renewal::Ended(_)), "{told:?}");
    assert!(take(&driver, &claim("a")).await > before);
}

/// A server lost its last writes, or a backup was restored, while a client was connected.
#[tokio::test(start_paused = true)]
async fn after_older_data_is_restored_connected_clients_go_on() {
    let store = TestStore::ordered();
    let client = store.client(1);
    // As NATS, a conflict does not say what is stored.
    client.set_faults(Faults { bare_conflicts: 1.0, ..Faults::default() });
    let driver = driver(&client).await;
    let (before, after) = (claim("before"), claim("after"));
    take(&driver, &before).await;
    sleep(Duration::from_millis(1)).await;
    let backup = Instant::now();
    sleep(Duration::from_millis(1)).await;
    let lost = take(&driver, &after).await;
    assert!(matches!(driver.renew_single(&before).await, Ok(Renewal::Holds(_))));
    store.lose_since(backup);
    sleep(Duration::from_millis(1)).await;
    let told = driver.renew_single(&before).await.expect("the store works");
    assert!(matches!(told, Renewal::Ended(_)), "the last beat is lost: {told:?}");
    let again = claim("after");
    let token = timeout(TTL, async {
        loop {
            let acquired = driver.acquire(&again, Patience::Try).await;
            if let Ok(Acquisition::Granted(grant)) = acquired.map(|it| it.result) {
                return grant.token.get();
            }
        }
    });
    assert!(token.await.expect("the lock is free") > lost);
    // The first one's session is watched for its TTL.
    let next = claim("before");
    assert!(matches!(attempt(&driver, &next, Patience::Wait).await, Acquisition::Queued { .. }));
    timeout(TTL * 3, granted(&driver, &next)).await.expect("its turn comes");
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_a_permanent_error_and_a_hold_ends_in_time() {
    let store = TestStore::new();
    let ours = store.client(1);
    let settings = Settings::default().ttl(TTL);
    let locks =
        LockManager::with(Arc::new(driver(&ours).await), settings).expect("these are valid");
    let guard = locks.mutex("a").lock().await.expect("it is free");
    ours.set_faults(Faults { read_only: true, ..Faults::default() });
    let refused = locks.mutex("b").lock().await.expect_err("nothing can be written");
    assert!(!refused.is_retryable(), "{refused}");
    assert!(refused.to_string().contains("right to write"), "{refused}");
    let reason = timeout(TTL, guard.lost()).await.expect("it ends with its lease");
    assert!(reason.to_string().contains("right to write"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_full_shard_refuses_acquires_and_takes_releases() {
    let mut facts = StoreFacts::of("small");
    (facts.shards, facts.most_bytes) = (1, 20_000);
    (facts.pace, facts.min_ttl) = (Duration::from_millis(50), Duration::from_millis(500));
    let driver = driver(&TestStore::new().with_facts(facts)).await;
    let neighbour = claim("neighbour");
    take(&driver, &neighbour).await;
    let mut waiting = Vec::new();
    let full = loop {
        let waiter = claim("crowded");
        match driver.acquire(&waiter, Patience::Wait).await {
            Ok(_) => waiting.push(waiter),
            Err(error) => break error,
        }
    };
    assert!(full.is_retryable() && full.to_string().contains("too many claims"), "{full}");
    assert!(waiting.len() > 20, "{} claims", waiting.len());
    let renewed = driver.renew_single(&neighbour).await.expect("it works");
    assert!(matches!(renewed, Renewal::Holds(_)));
    assert_eq!(driver.release(&neighbour).await.expect("it works"), Released::Removed);
    let batch = Batch { releases: &waiting, acquires: &[] };
    let released = submit_each(
        batch,
        async |_| unreachable!("there are no acquires"),
        async |claim| Ok(driver.release(&claim).await.expect("it works").into()),
    );
    assert!(released.await.released.iter().all(Result::is_ok));
    take(&driver, &neighbour).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_of_another_format_is_refused() {
    let store = TestStore::new();
    let newer = br#"{"format":9,"shards":16,"id":"00"}"#;
    store.put_if("meta", newer, None).await;
    let options = StoreOptions::default();
    let refused = StoreDriver::connect(Arc::new(store), options).await.expect_err("it is newer");
    assert!(matches!(refused, Error::Backend { retryable: false, .. }), "{refused}");
    assert!(refused.to_string().contains("format 9"), "{refused}");
}
