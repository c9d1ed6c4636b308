//! One schedule: some clients on one store, whose connections misbehave for a while; then every lock must be
//! to be had again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::Mode;
use lockkit_core::driver::{Patience, locked};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};

use super::client::{SearchClient, SkewedClock, key};
use super::judge::Judge;
use super::{DISTURBED, PACE, TTL};
use crate::document::{SESSIONS, SessionDocument, decode, encode, shard_of};
use crate::rules::Rules;
use crate::store::{Store, StoreFacts};
use crate::testing::{Faults, TestStore};
use crate::{StoreDriver, StoreOptions};

const CLIENTS: usize = 3;
const SHARDS: u32 = 4;

/// Runs the schedule of a seed.
pub(super) async fn run(seed: u64, rules: Rules) -> Judge {
    let mut random = StdRng::seed_from_u64(seed);
    let judge = Arc::new(Mutex::new(Judge::new()));
    let store = if random.random_bool(0.5) { TestStore::ordered() } else { TestStore::new() };
    let mut facts = StoreFacts::of("searched");
    (facts.shards, facts.pace, facts.min_ttl) = (SHARDS, PACE, TTL);
    let store = store.with_facts(facts);
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = client(number, &store, &judge, (random.random(), rules)).await;
        clients.push(Arc::new(client));
    }
    let keepers: Vec<_> = clients.iter().map(|client| keep(client.clone())).collect();
    let keepers: Vec<_> = keepers.into_iter().map(tokio::spawn).collect();
    let until = Instant::now() + DISTURBED;
    let mut tasks = Vec::new();
    let kinds = some_kinds(&mut random);
    for client in &clients {
        let own = StdRng::seed_from_u64(random.random());
        tasks.push(tokio::spawn(work(client.clone(), own, until)));
        let own = StdRng::seed_from_u64(random.random());
        tasks.push(tokio::spawn(disturb(client.clone(), kinds.clone(), own, until)));
    }
    if random.random_bool(0.2) {
        let own = StdRng::seed_from_u64(random.random());
        tasks.push(tokio::spawn(clone_of_a_machine(store.clone(), own, until)));
    }
    for task in tasks {
        task.await.expect("a client does not panic");
    }
    check_liveness(&clients).await;
    keepers.iter().for_each(tokio::task::JoinHandle::abort);
    drop(clients);
    std::mem::replace(&mut *locked(&judge), Judge::new())
}

async fn client(
    number: usize,
    store: &TestStore,
    judge: &Arc<Mutex<Judge>>,
    (seed, rules): (u64, Rules),
) -> SearchClient {
    let mut random = StdRng::seed_from_u64(seed);
    let clock = Arc::new(SkewedClock {
        shift: Duration::from_secs(random.random_range(0..1_000)),
        rate: random.random_range(0.97..1.03),
    });
    let store = store.client(random.random());
    let mut options = StoreOptions::default().clock(clock.clone()).seed(random.random());
    options.rules = rules;
    options.skips_probe = true;
    let driver = StoreDriver::connect(Arc::new(store.clone()), options).await;
    let driver = driver.expect("nothing is disturbed yet");
    SearchClient { number, driver, store, clock, judge: judge.clone() }
}

/// Two locks of one shard, and one of another.
fn locks() -> [String; 3] {
    let name = |n: usize| format!("lock {n}");
    let shard = |n| shard_of(&key(&name(n)), SHARDS);
    let of = |wanted, from| (from..).find(|n| shard(*n) == wanted).unwrap_or(from);
    let first = of(0, 0);
    [name(first), name(of(0, first + 1)), name(of(1, 0))]
}

/// A claim that keeps the session of a client alive, in a shard of its own.
async fn keep(client: Arc<SearchClient>) {
    let own = |n: &usize| shard_of(&key(&format!("keeper {n}")), SHARDS) == 2;
    let name = (client.number * 1_000..).find(own).unwrap_or(0);
    loop {
        let claim = client.claim(&format!("keeper {name}"), Mode::Shared);
        let _ =
            lockkit_core::driver::LockDriver::acquire(&client.driver, &claim, Patience::Wait).await;
        client.hold(&claim, Duration::from_secs(3_600)).await;
        sleep(TTL / 4).await;
    }
}

async fn work(client: Arc<SearchClient>, mut random: StdRng, until: Instant) {
    let locks = locks();
    while Instant::now() < until {
        let lock = &locks[[0, 0, 0, 1, 2][random.random_range(0..5)]];
        match random.random_range(0..20) {
            0 => client.break_one(lock).await,
            1 => drop(client.driver.inner.context.sweep(true).await),
            _ => client.cycle(lock, &mut random).await,
        }
        sleep(TTL.mul_f64(random.random_range(0.0..0.5))).await;
    }
}

/// A few kinds of faults of all: a schedule that has them often finds more than one that has each now and then.
fn some_kinds(random: &mut StdRng) -> Vec<u32> {
    let count = random.random_range(1..=3);
    (0..count).map(|_| random.random_range(0..7)).collect()
}

/// Changes how the connection of a client misbehaves.
async fn disturb(client: Arc<SearchClient>, kinds: Vec<u32>, mut random: StdRng, until: Instant) {
    while Instant::now() < until {
        let mut faults = Faults { latency: TTL / 60, stale_by: TTL * 2, ..Faults::default() };
        let kind = kinds[random.random_range(0..kinds.len())];
        if random.random_bool(0.8) {
            match kind {
                0 => faults.lost_answers = 0.3,
                1 => (faults.late_effects, faults.late_by) = (0.3, TTL * 3),
                2 => (faults.late_effects, faults.late_by) = (0.95, TTL * 3),
                3 => faults.latency = TTL.mul_f64(random.random_range(0.1..1.2)),
                4 => faults.stale_reads = 0.6,
                5 => (faults.throttled, faults.bare_conflicts) = (0.2, 0.5),
                _ => faults.is_partitioned = true,
            }
        }
        client.store.set_faults(faults);
        sleep(TTL.mul_f64(random.random_range(0.1..2.5))).await;
    }
    client.store.set_faults(Faults::default());
}

/// A copy of a machine beats a session of another process.
async fn clone_of_a_machine(store: TestStore, mut random: StdRng, until: Instant) {
    while Instant::now() < until {
        sleep(TTL.mul_f64(random.random_range(0.2..3.0))).await;
        let sessions = store.list(SESSIONS, None, 100).await.unwrap_or_default();
        if sessions.is_empty() {
            continue;
        }
        let session = &sessions[random.random_range(0..sessions.len())];
        let found = store.get(session, None).await;
        let Ok(crate::ReadOutcome::Document(found)) = found else { continue };
        let document: Result<SessionDocument, _> = decode("searched", "a session", &found.bytes);
        let Ok(mut document) = document else { continue };
        if !document.dead {
            document.write = format!("{:032x}", random.random::<u128>());
            document.beat.clone_from(&document.write);
            store.put_if(session, &encode(&document), Some(&found.version)).await;
        }
    }
}

/// Once nothing misbehaves, each client gets each lock, one after the other.
async fn check_liveness(clients: &[Arc<SearchClient>]) {
    // Requests that are late come to their end, the last after three TTLs. Claims without an owner end
    // within the limit.
    sleep(TTL * 4).await;
    let limit = TTL * 4 + PACE * 24;
    for lock in locks() {
        for client in clients {
            if !client.gets(&lock, limit).await {
                let stored = client.store.documents();
                let stored = stored
                    .iter()
                    .map(|(key, bytes)| format!("\n    {key}: {}", String::from_utf8_lossy(bytes)));
                let stored = stored.collect::<String>();
                let why = format!("it was not free within {limit:?}{stored}");
                return locked(&client.judge).stuck(client.number, &lock, &why);
            }
        }
    }
}
