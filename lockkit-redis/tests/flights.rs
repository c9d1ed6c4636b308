//! Flights: what many steps in one request come to is what they come to one by one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{
    Acquisition, Attempted, LockDriver, Patience, Released, Renewal, Replies, Reply, Step,
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

fn waits(claim: &Arc<Claim>) -> Step {
    acquire(claim, Patience::Wait)
}

fn acquire(claim: &Arc<Claim>, patience: Patience) -> Step {
    Step::Acquire { claim: claim.clone(), patience }
}

fn release(claim: &Arc<Claim>) -> Step {
    Step::Release { claim: claim.clone() }
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

async fn ask(server: &Server, words: &[&str]) -> resp::Reply {
    resp::ask(server.addr(), words).await.unwrap()
}

/// The tokens of those who hold now; nobody else is among the answers.
fn tokens(replies: &Replies) -> Vec<u64> {
    let token = |reply: &Result<Attempted<Reply>, Error>| match reply {
        Ok(Attempted { result: Reply::Acquired(Acquisition::Granted(grant)), .. }) => {
            grant.token.get()
        }
        other => panic!("it is free: {other:?}"),
    };
    replies.iter().map(token).collect()
}

fn is_released(reply: &Result<Attempted<Reply>, Error>) -> bool {
    matches!(reply, Ok(Attempted { result: Reply::Released(Released::Removed), .. }))
}

/// An answer without what differs between backends, and without what depends on the order in which the
/// releases of a flight are carried out: whether others are still in the list of one who is not.
fn told(reply: Result<Attempted<Reply>, Error>) -> String {
    match reply.map(|reply| reply.result) {
        Ok(Reply::Acquired(Acquisition::Granted(_))) => "granted".to_owned(),
        Ok(Reply::Released(Released::NotFound | Released::NoSuchLock)) => "not there".to_owned(),
        Ok(reply) => format!("{reply:?}"),
        Err(Error::LimitMismatch { in_use, .. }) => format!("limit {in_use}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// A random flight: releases of some who were asked for before, then acquires, some of them repeated
/// or of a key that the flight has already.
fn flight(random: &mut StdRng, known: &mut Vec<Arc<Claim>>) -> Vec<Step> {
    let (mut steps, mut named) = (Vec::new(), BTreeSet::new());
    for _ in 0..random.random_range(0..12) {
        if let Some(claim) = known.choose(random)
            && named.insert(claim.id.to_hex())
        {
            steps.push(release(claim));
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
            steps.push(acquire(&claim, patience));
            known.push(claim);
        }
    }
    steps
}

#[tokio::test]
async fn a_flight_comes_to_what_its_steps_come_to_one_by_one() {
    let (server, driver) = start().await;
    let warm = claims(1);
    for step in [waits(&warm[0]), release(&warm[0])] {
        driver.carry(&[step]).await.unwrap(); // the scripts are known
    }
    for seed in 0..30 {
        ask(&server, &["FLUSHALL"]).await;
        let model = MemoryDriver::new();
        let (mut random, mut known) = (StdRng::seed_from_u64(seed), Vec::new());
        for _ in 0..20 {
            let steps = flight(&mut random, &mut known);
            let mut expected = Vec::new();
            for step in &steps {
                expected
                    .push(told(model.carry(std::slice::from_ref(step)).await.unwrap().remove(0)));
            }
            let replies = driver.carry(&steps).await.unwrap();
            let replies: Vec<_> = replies.into_iter().map(told).collect();
            assert_eq!(replies, expected, "seed {seed}: {steps:#?}");
            for claim in &known {
                let (ours, theirs) =
                    (driver.inspect(&claim.key).await.unwrap(), model.inspect(&claim.key).await);
                let line = |state: lockkit_core::state::LockState| -> Vec<_> {
                    state.line.iter().map(|it| (it.mode, it.holds())).collect()
                };
                assert_eq!(line(ours), line(theirs.unwrap()), "seed {seed}");
            }
        }
    }
}

#[tokio::test]
async fn a_flight_of_nothing_is_answered_by_nothing() {
    let (_server, driver) = start().await;
    assert!(driver.carry(&[]).await.unwrap().is_empty());
}

/// Claims of one bucket and one flight have tokens that differ, whatever the clock says.
#[tokio::test]
async fn tokens_of_a_flight_are_in_the_order_of_its_acquires() {
    let (_server, driver) = start().await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut before = 0;
        for _ in 0..4 {
            let line: Vec<_> = (0..20).map(|_| claim("a", mode)).collect();
            let steps: Vec<_> = line.iter().map(waits).collect();
            driver.carry(&steps).await.unwrap();
            let state = driver.inspect(&line[0].key).await.unwrap();
            for standing in state.line {
                assert!(standing.token.get() > before, "{standing:?} after {before}");
                before = standing.token.get();
            }
            let steps: Vec<_> = line.iter().map(release).collect();
            assert!(driver.carry(&steps).await.unwrap().iter().all(is_released));
        }
    }
}

#[tokio::test]
async fn a_flight_is_one_round_trip_and_the_tokens_of_a_name_grow() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = connect(&server.url_at(proxy.addr())).await;
    let most = driver.capabilities().flights.steps;
    let (mut held, mut last) = (Vec::new(), Vec::new());
    for count in [1, 2, most, most, most] {
        let next = claims(count);
        let steps: Vec<_> = held.iter().map(release).chain(next.iter().map(waits)).collect();
        // The scripts are known, and so are the counters.
        for claim in next.iter().filter(|_| held.is_empty()) {
            driver.acquire(claim, Patience::Wait).await.unwrap();
            driver.release(claim).await.unwrap();
        }
        is_quiet(&proxy).await;
        proxy.reset();
        let mut replies = driver.carry(&steps).await.unwrap();
        assert_eq!(proxy.counts().round_trips, 1, "{count}");
        let granted = replies.split_off(held.len());
        assert!(replies.iter().all(is_released), "{replies:?}");
        let tokens = tokens(&granted);
        for (token, before) in tokens.iter().zip(&last) {
            assert!(token > before, "{tokens:?} after {last:?}"); // of the same name
        }
        last = tokens;
        held = next;
    }
}

#[tokio::test]
async fn who_waits_is_told_when_its_locks_are_released_together() {
    let (_server, driver) = start().await;
    let (held, waiting) = (claims(20), claims(20));
    let steps: Vec<_> = held.iter().chain(&waiting).map(waits).collect();
    let replies = driver.carry(&steps).await.unwrap();
    let granted = tokens(&replies[..20].iter().map(|reply| Ok(*reply.as_ref().unwrap())).collect());
    let steps: Vec<_> = held.iter().map(release).collect();
    assert!(driver.carry(&steps).await.unwrap().iter().all(is_released));
    // The leases last for minutes: only a message tells.
    let told = waiting.iter().map(|claim| driver.granted(claim));
    let told = tokio::time::timeout(LONG, futures_util::future::try_join_all(told)).await;
    for (grant, before) in told.expect("they were told").unwrap().iter().zip(granted) {
        assert!(grant.token.get() > before);
    }
}

#[tokio::test]
async fn what_the_server_cannot_do_for_one_claim_it_does_for_the_others() {
    let (server, driver) = start().await;
    let all = claims(5);
    driver.carry(&all.iter().map(waits).collect::<Vec<_>>()).await.unwrap();
    let keys = ask(&server, &["KEYS", "lockkit:lock:*invoice/2"]).await;
    let resp::Reply::Array(keys) = keys else { panic!("KEYS") };
    let key = keys[0].text();
    ask(&server, &["DEL", key]).await;
    ask(&server, &["HSET", key, "holders", "0"]).await;
    ask(&server, &["SET", &key.replacen(":lock:", ":lock.ends:", 1), "no set"]).await;
    let renewed = driver.renew(&all).await.unwrap();
    let steps: Vec<_> = all.iter().map(release).collect();
    let released = driver.carry(&steps).await.unwrap();
    let steps: Vec<_> = all.iter().map(waits).collect();
    let acquired = driver.carry(&steps).await.unwrap();
    for i in 0..5 {
        // Whose key is not lockkit's is told that it is gone; who comes gets an error.
        let holds = matches!(renewed[i], Ok(Renewal::Holds(_)));
        let fine = (holds, is_released(&released[i]), acquired[i].is_ok());
        assert_eq!(fine, (i != 2, i != 2, i != 2), "{i}: {renewed:?} {released:?} {acquired:?}");
        assert!(renewed[i].is_ok() && released[i].is_ok(), "{i}: {renewed:?} {released:?}");
    }
}

#[tokio::test]
async fn with_full_memory_the_releases_of_a_flight_go_through_and_its_acquires_are_refused() {
    let (server, driver) = start().await;
    let (held, waiting, next) = (claims(4), claims(2), claims(4));
    let steps: Vec<_> = held.iter().chain(&waiting).map(waits).collect();
    driver.carry(&steps).await.unwrap();
    ask(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let steps: Vec<_> = held.iter().map(release).chain(next.iter().map(waits)).collect();
    let replies = driver.carry(&steps).await.unwrap();
    assert!(replies[..4].iter().all(is_released), "{replies:?}");
    for refused in &replies[4..] {
        let error = refused.as_ref().unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("maxmemory"), "{error}");
    }
    for claim in &next[2..] {
        assert!(driver.inspect(&claim.key).await.unwrap().is_free());
    }
}

#[tokio::test]
async fn a_thousand_free_names_of_a_multi_lock_travel_in_flights() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = RedisDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let flights = 1_000_u64.div_ceil(driver.capabilities().flights.steps as u64);
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
    // Beside them may stand a script that the server has to be told, and a renewal.
    assert!((flights..=flights + 8).contains(&locked), "{locked} requests for {flights} flights");
    assert!((flights..=flights + 8).contains(&released), "{released} requests");
}

#[tokio::test]
async fn a_flight_whose_answer_was_lost_is_sent_again_and_each_step_says_so() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let driver = connect(&server.url_at(proxy.addr())).await;
    let held = claims(8);
    let take: Vec<_> = held.iter().map(waits).collect();
    driver.carry(&take).await.unwrap();
    driver.carry(&[release(&held[0])]).await.unwrap(); // the script is known
    driver.carry(&take).await.unwrap();
    is_quiet(&proxy).await;
    let mut strike = proxy.fault(Fault::Cut, When::Answer(1));
    let steps: Vec<_> = held.iter().map(release).collect();
    let replies = driver.carry(&steps).await.unwrap();
    strike.struck().await;
    for reply in replies {
        assert_eq!(reply.unwrap(), Attempted::after(1, Reply::Released(Released::NoSuchLock)));
    }
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again_with_a_whole_flight() {
    let (server, driver) = start().await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let next = claims(8);
        let steps: Vec<_> = held.iter().map(release).chain(next.iter().map(waits)).collect();
        let mut replies = driver.carry(&steps).await.unwrap();
        tokens(&replies.split_off(held.len()));
        assert!(replies.iter().all(is_released), "{replies:?}");
        held = next;
        ask(&server, &["SCRIPT", "FLUSH"]).await;
    }
}

/// A master that became a replica refuses what it is to write; somebody else is the master by now.
#[tokio::test]
async fn a_flight_that_meets_a_replica_fails_as_a_whole_and_may_be_repeated() {
    let (server, driver) = start().await;
    let (held, waiting) = (claims(4), claims(4));
    let steps: Vec<_> = held.iter().chain(&waiting).map(waits).collect();
    driver.carry(&steps).await.unwrap();
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    for steps in [
        held.iter().map(release).collect::<Vec<_>>(),
        waiting.iter().map(waits).collect(),
        held.iter().map(release).chain(claims(4).iter().map(waits)).collect(),
    ] {
        match driver.carry(&steps).await {
            Ok(replies) => {
                assert_eq!(replies.len(), 8);
                assert!(replies.iter().all(|it| it.as_ref().is_err_and(Error::is_retryable)));
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    let opened = |stats: resp::Reply| -> u64 {
        let text = stats.text().to_owned();
        let (_, rest) = text.split_once("total_connections_received:").unwrap();
        rest.lines().next().unwrap().trim().parse().unwrap()
    };
    let before = opened(ask(&server, &["INFO", "stats"]).await);
    driver.carry(&waiting.iter().map(release).collect::<Vec<_>>()).await.unwrap_err();
    let after = opened(ask(&server, &["INFO", "stats"]).await);
    assert!(after > before + 1, "the connection is built anew, perhaps to another server");
}

#[tokio::test]
async fn in_a_cluster_the_steps_of_a_flight_go_to_their_nodes() {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let driver = connect(&group.url()).await;
    let mut held = Vec::new();
    for round in 0..3 {
        let next: Vec<_> = claims(40)
            .iter()
            .map(|it| claim(&format!("{round}/{}", it.key.name.as_str()), it.mode))
            .collect();
        let steps: Vec<_> = held.iter().map(release).chain(next.iter().map(waits)).collect();
        let mut replies = driver.carry(&steps).await.unwrap();
        tokens(&replies.split_off(held.len()));
        assert!(replies.iter().all(is_released), "{replies:?}");
        held = next;
    }
}
