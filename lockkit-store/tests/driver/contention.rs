//! Processes whose locks share a shard on a slow store: each gets on, none waits for long, and a failure that
//! was only conflicts is certain.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, BatchError, LockDriver, Patience, Renewal,
};
use lockkit_store::testing::{Faults, TestStore};
use lockkit_store::{ReadOutcome, Store, StoreDriver, StoreFacts};
use tokio::time::{Instant, sleep};

use crate::claims::{claim, connect, options};

/// A request of S3 takes 80 ms both ways, a fifth more or less. Of times that vary much more, some are so short that
/// a shard is swapped twice as often.
const LEAST_LATENCY: Duration = Duration::from_millis(32);
const LATENCY: Duration = Duration::from_millis(16);

fn store() -> TestStore {
    let mut facts = StoreFacts::of("slow");
    facts.shards = 1;
    TestStore::new().with_facts(facts)
}

fn slow(bare_conflicts: f64) -> Faults {
    let (latency, least_latency) = (LATENCY, LEAST_LATENCY);
    Faults { latency, least_latency, bare_conflicts, ..Faults::default() }
}

async fn driver(store: &TestStore, seed: u64) -> StoreDriver {
    connect(store.clone(), options().seed(seed)).await
}

#[derive(Debug)]
struct Contended {
    /// When each had its first lock, in order.
    first: Vec<Duration>,
    least: u32,
    most: u32,
    swaps_a_grant: f64,
}

impl Contended {
    fn ratio(&self) -> f64 {
        f64::from(self.least) / f64::from(self.most)
    }
}

/// Processes on paused time.
async fn contend(processes: u64, bare_conflicts: f64, seed: u64) -> Contended {
    let store = store();
    let mut drivers = Vec::new();
    let mut clients = Vec::new();
    for process in 0..processes {
        let client = store.client(seed * processes + process);
        client.set_faults(slow(bare_conflicts));
        drivers.push(driver(&client, seed * processes + process).await);
        clients.push(client);
    }
    let swaps = || clients.iter().map(|client| client.requests().swaps).sum();
    each_takes_its_own(drivers, Duration::from_secs(60), swaps).await
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
    let mut first: Vec<_> = all.iter().map(|(first, _)| *first).collect();
    first.sort_unstable();
    Contended {
        first,
        least: grants().min().unwrap_or(0),
        most: grants().max().unwrap_or(0),
        swaps_a_grant: swaps() as f64 / f64::from(sum),
    }
}

/// `LOCKKIT_CONTENTION_SEEDS` tries more of them.
#[tokio::test(start_paused = true)]
async fn of_32_processes_on_one_shard_each_gets_its_lock_within_ten_seconds() {
    let seeds = std::env::var("LOCKKIT_CONTENTION_SEEDS").ok();
    let seeds: u64 = seeds.and_then(|text| text.parse().ok()).unwrap_or(2);
    for bare_conflicts in [0.0, 1.0] {
        let mut all = Vec::new();
        for seed in 0..seeds {
            all.push(contend(32, bare_conflicts, seed).await);
        }
        let mut first: Vec<_> = all.iter().flat_map(|it| &it.first).copied().collect();
        first.sort_unstable();
        let (slowest, median) = (first[first.len() - 1], first[first.len() / 2]);
        let ratio = all.iter().map(Contended::ratio).fold(1.0, f64::min);
        let swaps = all.iter().map(|it| it.swaps_a_grant);
        let (most_swaps, mean) =
            (swaps.clone().fold(0.0, f64::max), swaps.sum::<f64>() / seeds as f64);
        println!(
            "bare conflicts {bare_conflicts}, {seeds} seeds: first locks after {slowest:?} at most, {median:?} in \
             the median; {ratio:.2} of the grants of the busiest at least; {mean:.1} swaps a grant, {most_swaps:.1} \
             at most"
        );
        assert!(slowest <= Duration::from_secs(10), "{all:#?}");
        assert!(ratio >= 0.25, "{all:#?}");
        assert!(most_swaps <= 20.0, "{all:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn few_processes_on_one_shard_all_get_on() {
    for (processes, most_swaps) in [(2, 4.0), (4, 7.0), (8, 10.0)] {
        let Contended { first, least, most, swaps_a_grant } = contend(processes, 1.0, 0).await;
        println!(
            "{processes}: the slowest after {:?}, grants {least} to {most}, {swaps_a_grant:.1} swaps a grant",
            first.last()
        );
        assert!(first.iter().all(|first| *first <= Duration::from_secs(10)), "{first:?}");
        assert!(least >= 5 && swaps_a_grant <= most_swaps, "{least}, {swaps_a_grant}");
    }
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
    ours.set_faults(slow(0.0));
    let begun = Instant::now();
    let failed = tokio::select! {
        failed = failure(&driver, &contended) => failed,
        () = others_write(&store) => unreachable!("it writes for ever"),
    };
    let took = begun.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(7)).contains(&took), "{took:?}");
    assert_eq!(failed.ambiguous, 0, "{failed:?}");
    assert!(failed.error.is_retryable(), "{failed:?}");
    assert!(failed.error.to_string().contains("other clients keep writing"), "{failed:?}");
}

/// The renewal of a lock whose session is well does not wait until the acquire of another one wins.
#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_wait_for_an_acquire_that_meets_conflicts() {
    for bare_conflicts in [0.0, 1.0] {
        let store = store();
        let ours = store.client(1);
        let driver = driver(&ours, 1).await;
        let held = claim("held");
        driver.acquire(&held, Patience::Try).await.expect("the store works");
        ours.set_faults(slow(bare_conflicts));
        let renewed = async {
            // The acquire is in its conflicts by then.
            sleep(Duration::from_millis(500)).await;
            let begun = Instant::now();
            let renewed = driver.renew_single(&held).await.expect("the store works");
            assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
            begun.elapsed()
        };
        let contended = claim("a");
        let took = tokio::select! {
            took = renewed => took,
            failed = failure(&driver, &contended) => panic!("{failed:?}"),
            () = others_write(&store) => unreachable!("it writes for ever"),
        };
        // A beat, a swap that meets a conflict, and a read at most.
        assert!(took < Duration::from_millis(1_000), "{took:?}");
    }
}

/// Changes the shard again and again.
async fn others_write(store: &TestStore) {
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

/// The failure of an acquire, with what it says of requests without an answer.
async fn failure(driver: &StoreDriver, claim: &Arc<Claim>) -> BatchError {
    let acquires = [Acquire { claim: claim.clone(), patience: Patience::Try }];
    let outcome = driver.submit(Batch { releases: &[], acquires: &acquires }).await;
    let outcome = outcome.expect("each operation has an outcome of its own");
    let acquired = outcome.acquired.into_iter().next().expect("there is one");
    acquired.expect_err("every swap meets a conflict")
}
