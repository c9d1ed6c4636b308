//! Processes whose locks share a shard on a slow store: each gets on, none waits for long, and a failure that
//! was only conflicts is certain.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::driver::{Acquire, Acquisition, Batch, BatchError, LockDriver, Patience};
use lockkit_store::testing::{Faults, TestStore};
use lockkit_store::{ReadOutcome, Store, StoreDriver, StoreFacts};
use tokio::time::{Instant, sleep};

use crate::claims::{TTL, claim, connect, options};

/// How long a request takes one way at most; both ways, it is 80 ms on average.
const LATENCY: Duration = Duration::from_millis(80);

fn store() -> TestStore {
    let mut facts = StoreFacts::of("slow");
    (facts.shards, facts.pace, facts.min_ttl) = (1, Duration::from_secs(1), TTL);
    TestStore::new().with_facts(facts)
}

async fn driver(store: &TestStore, seed: u64) -> StoreDriver {
    connect(store.clone(), options().seed(seed)).await
}

struct Contended {
    slowest_first: Duration,
    least: u32,
    most: u32,
    swaps_a_grant: f64,
}

/// Processes on paused time.
async fn contend(processes: u64, bare_conflicts: f64, time: Duration) -> Contended {
    let store = store();
    let mut drivers = Vec::new();
    let mut clients = Vec::new();
    for process in 0..processes {
        let client = store.client(process);
        client.set_faults(Faults { latency: LATENCY, bare_conflicts, ..Faults::default() });
        drivers.push(driver(&client, process).await);
        clients.push(client);
    }
    let swaps = || clients.iter().map(|client| client.requests().swaps).sum();
    each_takes_its_own(drivers, time, swaps).await
}

/// Each takes and releases a lock of its own without a pause.
async fn each_takes_its_own(
    drivers: Vec<StoreDriver>,
    time: Duration,
    swaps: impl Fn() -> u64,
) -> Contended {
    let mut tasks = Vec::new();
    for (process, driver) in drivers.into_iter().enumerate() {
        tasks.push(tokio::spawn(async move {
            let (own, begun) = (format!("lock {process}"), Instant::now());
            let (mut first, mut grants) = (None, 0_u32);
            while begun.elapsed() < time {
                let held = claim(&own);
                let got = driver.acquire(&held, Patience::Try).await;
                if matches!(got, Ok(it) if matches!(it.result, Acquisition::Granted(_))) {
                    first.get_or_insert(begun.elapsed());
                    grants += 1;
                }
                while driver.release(&held).await.is_err() {}
            }
            (first.unwrap_or(Duration::MAX), grants)
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.expect("it does not panic"));
    }
    let grants = || all.iter().map(|(_, grants)| *grants);
    let sum: u32 = grants().sum();
    Contended {
        slowest_first: all.iter().map(|(first, _)| *first).max().unwrap_or(Duration::MAX),
        least: grants().min().unwrap_or(0),
        most: grants().max().unwrap_or(0),
        swaps_a_grant: swaps() as f64 / f64::from(sum),
    }
}

#[tokio::test(start_paused = true)]
async fn of_32_processes_on_one_shard_each_gets_its_lock_within_ten_seconds() {
    for bare_conflicts in [0.0, 1.0] {
        let Contended { slowest_first, least, most, swaps_a_grant } =
            contend(32, bare_conflicts, Duration::from_secs(60)).await;
        println!(
            "bare conflicts {bare_conflicts}: the slowest after {slowest_first:?}, grants {least} to {most}, \
             {swaps_a_grant:.1} swaps a grant"
        );
        assert!(slowest_first <= Duration::from_secs(10), "{slowest_first:?}");
        assert!(least * 4 >= most, "{least} to {most} grants");
        // 33 and 22 where no process gives way, 18 and 16 where they do.
        assert!(swaps_a_grant <= if bare_conflicts > 0.0 { 19.0 } else { 25.0 }, "{swaps_a_grant}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_processes_on_one_shard_both_get_on() {
    let Contended { slowest_first, least, most, swaps_a_grant } =
        contend(2, 0.0, Duration::from_secs(120)).await;
    println!(
        "two: the slowest after {slowest_first:?}, grants {least} to {most}, {swaps_a_grant:.1} swaps a grant"
    );
    assert!(slowest_first <= Duration::from_secs(10) && least >= 20, "{slowest_first:?}, {least}");
}

/// Other processes change the shard in between, every time.
#[tokio::test(start_paused = true)]
async fn an_operation_that_met_conflicts_only_fails_after_five_seconds_and_was_certainly_not_done()
{
    let store = store();
    let ours = store.client(1);
    let driver = driver(&ours, 1).await;
    let (before, contended) = (claim("before"), claim("a"));
    driver.acquire(&before, Patience::Try).await.expect("the store works");
    ours.set_faults(Faults { latency: LATENCY, ..Faults::default() });
    let writing = {
        let store = store.clone();
        async move {
            let mut number = 0_u64;
            loop {
                if let Ok(ReadOutcome::Document(shard)) = store.get("l/0", None).await {
                    let text = String::from_utf8_lossy(&shard.bytes).into_owned();
                    let (_, rest) = text.split_once(',').expect("it has several fields");
                    let text = format!("{{\"write\":\"{number:032x}\",{rest}");
                    store.put_if("l/0", text.as_bytes(), Some(&shard.version)).await;
                    number += 1;
                }
                sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let begun = Instant::now();
    let failed = tokio::select! {
        failed = failure(&driver, &contended) => failed,
        () = writing => unreachable!("it writes for ever"),
    };
    let took = begun.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(7)).contains(&took), "{took:?}");
    assert_eq!(failed.ambiguous, 0, "{failed:?}");
    assert!(failed.error.is_retryable(), "{failed:?}");
    assert!(failed.error.to_string().contains("other clients keep writing"), "{failed:?}");
}

/// The failure of an acquire, with what it says of requests without an answer.
async fn failure(driver: &StoreDriver, claim: &Arc<Claim>) -> BatchError {
    let acquires = [Acquire { claim: claim.clone(), patience: Patience::Try }];
    let outcome = driver.submit(Batch { releases: &[], acquires: &acquires }).await;
    let outcome = outcome.expect("each operation has an outcome of its own");
    let acquired = outcome.acquired.into_iter().next().expect("there is one");
    acquired.expect_err("every swap meets a conflict")
}
