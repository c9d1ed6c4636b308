//! Batches: many operations in one request come to what they come to one by one.

use std::collections::BTreeSet;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, LockDriver, Patience,
    Released, Renewal,
};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace};
use lockkit_lab::proxy::{Counts, Fault, Protocol, Proxy, When};
use lockkit_lab::raw::resp;
use lockkit_lab::{Group, Kind, Layout, Server};
use lockkit_redis::RedisDriver;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(30);

fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), mode.space(), Name::new(name).unwrap());
    let ttl = Duration::from_secs(300);
    Arc::new(Claim::new(key, mode, ttl, ttl, ClientIdentity::of_this_process().into()))
}

fn claims(count: usize) -> Vec<Arc<Claim>> {
    (0..count).map(|i| claim(&format!("invoice/{i}"), Mode::Exclusive)).collect()
}

fn waiting(claims: &[Arc<Claim>]) -> Vec<Acquire> {
    let acquire = |claim: &Arc<Claim>| Acquire { claim: claim.clone(), patience: Patience::Wait };
    claims.iter().map(acquire).collect()
}

async fn submit(
    driver: &impl LockDriver,
    releases: &[Arc<Claim>],
    acquires: &[Acquire],
) -> BatchOutcome {
    driver.submit(Batch { releases, acquires }).await.unwrap()
}

async fn acquire_all(
    driver: &impl LockDriver,
    claims: &[Arc<Claim>],
) -> Vec<Result<Attempted<Acquisition>, BatchError>> {
    submit(driver, &[], &waiting(claims)).await.acquired
}

async fn release_all(
    driver: &impl LockDriver,
    claims: &[Arc<Claim>],
) -> Vec<Result<Attempted<Released>, BatchError>> {
    submit(driver, claims, &[]).await.released
}

async fn connect(url: &str) -> RedisDriver {
    RedisDriver::connect(&format!("{url}?timeout=30s")).await.unwrap()
}

async fn start() -> (Server, RedisDriver) {
    let server = Server::start(Kind::Redis).await.unwrap();
    let driver = connect(&server.url()).await;
    (server, driver)
}

/// Returns once nothing more passes: what a driver says when it begins has been said.
async fn is_quiet(proxy: &Proxy) {
    let mut before = None;
    loop {
        let Counts { requests, answers, .. } = proxy.counts();
        if before == Some((requests, answers)) {
            return;
        }
        before = Some((requests, answers));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn ask(server: &Server, words: &[&str]) -> resp::RespReply {
    resp::ask(server.addr(), words).await.unwrap()
}

/// The tokens of these claims, which all hold.
fn tokens(acquired: &[Result<Attempted<Acquisition>, BatchError>]) -> Vec<u64> {
    let token = |acquired: &Result<Attempted<Acquisition>, BatchError>| match acquired {
        Ok(Attempted { result: Acquisition::Granted(grant), .. }) => grant.token.get(),
        other => panic!("it is free: {other:?}"),
    };
    acquired.iter().map(token).collect()
}

fn is_released(released: &Result<Attempted<Released>, BatchError>) -> bool {
    matches!(released, Ok(Attempted { result: Released::Removed, .. }))
}

/// What became of each operation, without what differs between backends, and without what depends on the
/// order in which the releases of a batch are carried out: whether others are still in the queue of a claim
/// that is not.
fn outcomes(outcome: BatchOutcome) -> Vec<String> {
    let released = outcome.released.into_iter().map(|released| match released.unwrap().result {
        Released::Removed => "removed".to_owned(),
        _ => "not there".to_owned(),
    });
    let acquired = outcome.acquired.into_iter().map(|acquired| match acquired {
        Ok(Attempted { result: Acquisition::Granted(_), .. }) => "granted".to_owned(),
        Ok(Attempted { result, .. }) => format!("{result:?}"),
        Err(BatchError { error: Error::LimitMismatch { in_use, .. }, ambiguous: 0, .. }) => {
            format!("limit {in_use}")
        }
        Err(other) => panic!("{other:?}"),
    });
    released.chain(acquired).collect()
}

/// A random batch: releases of claims that were asked for before, then acquires, some of them repeated
/// or of a key that the batch has already.
fn batch(random: &mut StdRng, known: &mut Vec<Arc<Claim>>) -> (Vec<Arc<Claim>>, Vec<Acquire>) {
    let (mut releases, mut acquires, mut named) = (Vec::new(), Vec::new(), BTreeSet::new());
    for _ in 0..random.random_range(0..12) {
        if let Some(claim) = known.choose(random)
            && named.insert(claim.id.to_hex())
        {
            releases.push(claim.clone());
        }
    }
    for _ in 0..random.random_range(0..20) {
        let patience = if random.random_bool(0.4) { Patience::Try } else { Patience::Wait };
        let repeated = known.choose(random).filter(|_| random.random_bool(0.2)).cloned();
        let claim = repeated.unwrap_or_else(|| {
            let mode = match random.random_range(0..10) {
                0..5 => Mode::Exclusive,
                5..7 => Mode::Shared,
                7..9 => Mode::Permits { permits: random.random_range(1..3), limit: 3 },
                _ => Mode::Permits { permits: 1, limit: 4 },
            };
            claim(["a", "b", "c", "d", "e", "f"].choose(random).unwrap(), mode)
        });
        if named.insert(claim.id.to_hex()) {
            acquires.push(Acquire { claim: claim.clone(), patience });
            known.push(claim);
        }
    }
    (releases, acquires)
}

#[tokio::test]
async fn a_batch_comes_to_what_its_operations_come_to_one_by_one() {
    let (server, driver) = start().await;
    let warm = claims(1);
    acquire_all(&driver, &warm).await;
    release_all(&driver, &warm).await; // the scripts are known
    for seed in 0..30 {
        ask(&server, &["FLUSHALL"]).await;
        let model = MemoryDriver::new();
        let (mut random, mut known) = (StdRng::seed_from_u64(seed), Vec::new());
        for _ in 0..20 {
            let (releases, acquires) = batch(&mut random, &mut known);
            let mut expected = Vec::new();
            for claim in &releases {
                expected.extend(outcomes(submit(&model, from_ref(claim), &[]).await));
            }
            for acquire in &acquires {
                expected.extend(outcomes(submit(&model, &[], from_ref(acquire)).await));
            }
            let outcome = outcomes(submit(&driver, &releases, &acquires).await);
            assert_eq!(outcome, expected, "seed {seed}: {releases:#?} {acquires:#?}");
            for claim in &known {
                let (ours, theirs) =
                    (driver.inspect(&claim.key).await.unwrap(), model.inspect(&claim.key).await);
                let queue = |state: lockkit_core::state::LockState| -> Vec<_> {
                    state.queue.iter().map(|it| (it.mode, it.holds())).collect()
                };
                assert_eq!(queue(ours), queue(theirs.unwrap()), "seed {seed}");
            }
        }
    }
}

#[tokio::test]
async fn an_empty_batch_has_an_empty_outcome() {
    let (_server, driver) = start().await;
    let outcome = submit(&driver, &[], &[]).await;
    assert!(outcome.released.is_empty() && outcome.acquired.is_empty());
}

/// Claims of one bucket and one batch have tokens that differ, whatever the clock says.
#[tokio::test]
async fn tokens_of_a_batch_are_in_the_order_of_its_acquires() {
    let (_server, driver) = start().await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut before = 0;
        for _ in 0..4 {
            let queue: Vec<_> = (0..20).map(|_| claim("a", mode)).collect();
            acquire_all(&driver, &queue).await;
            for state in driver.inspect(&queue[0].key).await.unwrap().queue {
                assert!(state.token.get() > before, "{state:?} after {before}");
                before = state.token.get();
            }
            assert!(release_all(&driver, &queue).await.iter().all(is_released));
        }
    }
}

#[tokio::test]
async fn a_batch_is_one_round_trip_and_the_tokens_of_a_name_grow() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = connect(&server.url_at(proxy.addr())).await;
    let most = driver.capabilities().batches.operations;
    let (mut held, mut last) = (Vec::new(), Vec::new());
    let [warm, next] = [claims(1), claims(1)];
    acquire_all(&driver, &warm).await;
    submit(&driver, &warm, &waiting(&next)).await;
    release_all(&driver, &next).await;
    for count in [1, 2, most, most, most] {
        let next = claims(count);
        // The scripts are known, and so are the counters.
        for claim in next.iter().filter(|_| held.is_empty()) {
            driver.acquire(claim, Patience::Wait).await.unwrap();
            driver.release(claim).await.unwrap();
        }
        is_quiet(&proxy).await;
        proxy.reset();
        let outcome = submit(&driver, &held, &waiting(&next)).await;
        assert_eq!(proxy.counts().round_trips, 1, "{count}");
        assert!(outcome.released.iter().all(is_released), "{outcome:?}");
        let tokens = tokens(&outcome.acquired);
        for (token, before) in tokens.iter().zip(&last) {
            assert!(token > before, "{tokens:?} after {last:?}"); // of the same name
        }
        last = tokens;
        held = next;
    }
}

#[tokio::test]
async fn waiters_are_notified_when_their_locks_are_released_together() {
    let (_server, driver) = start().await;
    let (held, queued) = (claims(20), claims(20));
    let acquired = acquire_all(&driver, &[held.clone(), queued.clone()].concat()).await;
    let granted = tokens(&acquired[..20]);
    assert!(release_all(&driver, &held).await.iter().all(is_released));
    // The leases last for minutes: only a message tells.
    let grants = queued.iter().map(|claim| driver.granted(claim));
    let grants = tokio::time::timeout(LONG, futures_util::future::try_join_all(grants)).await;
    for (grant, before) in grants.expect("they are notified").unwrap().iter().zip(granted) {
        assert!(grant.token.get() > before);
    }
}

#[tokio::test]
async fn what_the_server_cannot_do_for_one_claim_it_does_for_the_others() {
    let (server, driver) = start().await;
    let all = claims(5);
    acquire_all(&driver, &all).await;
    let keys = ask(&server, &["KEYS", "lockkit:lock:*invoice/2"]).await;
    let resp::RespReply::Array(keys) = keys else { panic!("KEYS") };
    let key = keys[0].text();
    ask(&server, &["DEL", key]).await;
    ask(&server, &["HSET", key, "holders", "0"]).await;
    let renewed = driver.renew(&all).await.unwrap();
    let released = release_all(&driver, &all).await;
    let acquired = acquire_all(&driver, &all).await;
    for i in 0..5 {
        // A claim whose key is not lockkit's is gone; a new one gets an error.
        let holds = matches!(renewed[i], Ok(Renewal::Holds(_)));
        let fine = (holds, is_released(&released[i]), acquired[i].is_ok());
        assert_eq!(fine, (i != 2, i != 2, i != 2), "{i}: {renewed:?} {released:?} {acquired:?}");
        assert!(renewed[i].is_ok() && released[i].is_ok(), "{i}: {renewed:?} {released:?}");
    }
}

#[tokio::test]
async fn with_full_memory_the_releases_of_a_batch_go_through_and_its_acquires_are_refused() {
    let (server, driver) = start().await;
    let (held, queued, next) = (claims(4), claims(2), claims(4));
    acquire_all(&driver, &[held.clone(), queued].concat()).await;
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let outcome = submit(&driver, &held, &waiting(&next)).await;
    assert!(outcome.released.iter().all(is_released), "{outcome:?}");
    let mut acquired = outcome.acquired.into_iter();
    // Those of locks that are passed on take the room of the claims that left.
    for acquired in acquired.by_ref().take(2) {
        assert!(matches!(acquired.unwrap().result, Acquisition::Queued { ahead: 1 }));
    }
    for refused in acquired {
        let BatchError { error, ambiguous, .. } = refused.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("maxmemory"), "{error}");
        assert_eq!(ambiguous, 0, "the server refused it");
    }
    for claim in &next[2..] {
        assert!(driver.inspect(&claim.key).await.unwrap().is_free());
    }
}

#[tokio::test]
async fn a_thousand_free_names_of_a_multi_lock_are_acquired_in_batches() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = RedisDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let batches = 1_000_u64.div_ceil(driver.capabilities().batches.operations as u64);
    let locks = LockManager::new(driver);
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    is_quiet(&proxy).await;
    let (before, begun) = (proxy.counts().requests, Instant::now());
    let all = locks.multi((0..1_000).map(|n| format!("n{n}")));
    let guard = all.try_lock_for(LONG).await.unwrap().expect("all are free");
    let (locked, took) = (proxy.counts().requests - before, begun.elapsed());
    guard.release().await.unwrap();
    let released = proxy.counts().requests - before - locked;
    println!("1,000 names: {locked} requests in {took:?}, released by {released}");
    // In addition a script that the server does not know, and a renewal.
    assert!((batches..=batches + 8).contains(&locked), "{locked} requests for {batches} batches");
    assert!((batches..=batches + 8).contains(&released), "{released} requests");
}

#[tokio::test]
async fn a_batch_whose_answer_was_lost_is_sent_again_and_each_outcome_says_so() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = connect(&server.url_at(proxy.addr())).await;
    let held = claims(8);
    acquire_all(&driver, &held).await;
    release_all(&driver, &held[..1]).await; // the script is known
    acquire_all(&driver, &held).await;
    is_quiet(&proxy).await;
    let mut strike = proxy.fault(Fault::Cut, When::Answer(1));
    let released = release_all(&driver, &held).await;
    strike.struck().await;
    for released in released {
        assert_eq!(released.unwrap(), Attempted::after(1, Released::NoSuchLock));
    }
}

/// An error says how many requests may have been carried out.
#[tokio::test]
async fn an_error_says_how_many_requests_got_no_answer() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let url = format!("{}?timeout=1s", server.url_at(proxy.addr()));
    let driver = RedisDriver::connect(&url).await.unwrap();
    let held = claims(1);
    acquire_all(&driver, &held).await;
    release_all(&driver, &held).await; // the scripts are known
    let fails = async || {
        let acquires = waiting(&claims(1));
        match driver.submit(Batch { releases: &[], acquires: &acquires }).await {
            Ok(mut outcome) => outcome.acquired.remove(0).unwrap_err(),
            Err(error) => error,
        }
    };
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(fails().await.ambiguous, 0, "the server refused it");
    ask(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    is_quiet(&proxy).await;
    proxy.fault(Fault::Mute, When::Request(1));
    assert_eq!(fails().await.ambiguous, 1, "it was carried out, and the answer did not come");
    proxy.heal().await.unwrap();
    server.kill().await;
    // A connection that is open may be found to be dead by sending.
    assert!(fails().await.ambiguous <= 1);
    assert_eq!(fails().await.ambiguous, 0, "it was not sent");
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again_with_a_whole_batch() {
    let (server, driver) = start().await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let next = claims(8);
        let outcome = submit(&driver, &held, &waiting(&next)).await;
        tokens(&outcome.acquired);
        assert!(outcome.released.iter().all(is_released), "{outcome:?}");
        held = next;
        ask(&server, &["SCRIPT", "FLUSH"]).await;
    }
}

/// A master that became a replica refuses what it is to write; another server is the master by now.
#[tokio::test]
async fn a_batch_that_meets_a_replica_fails_as_a_whole_and_may_be_repeated() {
    let (server, driver) = start().await;
    let (held, queued) = (claims(4), claims(4));
    acquire_all(&driver, &[held.clone(), queued.clone()].concat()).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    for (releases, acquires) in [
        (held.clone(), Vec::new()),
        (Vec::new(), waiting(&queued)),
        (held.clone(), waiting(&claims(4))),
    ] {
        let is_refused = |error: &BatchError| error.error.is_retryable() && error.ambiguous == 0;
        match driver.submit(Batch { releases: &releases, acquires: &acquires }).await {
            Ok(BatchOutcome { released, acquired }) => {
                assert_eq!((released.len(), acquired.len()), (releases.len(), acquires.len()));
                assert!(released.iter().all(|it| it.as_ref().is_err_and(is_refused)));
                assert!(acquired.iter().all(|it| it.as_ref().is_err_and(is_refused)));
            }
            Err(error) => assert!(is_refused(&error), "{error:?}"),
        }
    }
    let opened = |stats: resp::RespReply| -> u64 {
        let text = stats.text().to_owned();
        let (_, rest) = text.split_once("total_connections_received:").unwrap();
        rest.lines().next().unwrap().trim().parse().unwrap()
    };
    let before = opened(ask(&server, &["INFO", "stats"]).await);
    driver.submit(Batch { releases: &queued, acquires: &[] }).await.unwrap_err();
    let after = opened(ask(&server, &["INFO", "stats"]).await);
    assert!(after > before + 1, "the connection is built anew, perhaps to another server");
}

#[tokio::test]
async fn in_a_cluster_the_operations_of_a_batch_go_to_their_nodes() {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let driver = connect(&group.url()).await;
    let mut held = Vec::new();
    for round in 0..3 {
        let next: Vec<_> = claims(40)
            .iter()
            .map(|it| claim(&format!("{round}/{}", it.key.name.as_str()), it.mode))
            .collect();
        let outcome = submit(&driver, &held, &waiting(&next)).await;
        tokens(&outcome.acquired);
        assert!(outcome.released.iter().all(is_released), "{outcome:?}");
        held = next;
    }
}
