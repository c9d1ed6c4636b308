//! What the driver does by itself when answers are late or missing, or when its runtime is gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_core::{Claim, Identity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::raw::resp::{self, Reply};
use lockkit_lab::{Group, Kind, Layout, Server};
use lockkit_redis::RedisDriver;

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(30);

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let ttl = Duration::from_secs(300);
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, Identity::of_this_process().into()))
}

async fn info(server: &Server, section: &str, fact: &str) -> u64 {
    let info = resp::ask(server.addr(), &["INFO", section]).await.unwrap().text().to_owned();
    let (_, rest) = info.split_once(fact).unwrap_or_else(|| panic!("{fact} in {info}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Somebody else keeps the server busy, so that ten thousand answers take several times the time limit
/// of one. With a bound on what is under way none of them is late.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_that_lock_at_once_are_asked_for_once_and_over_one_connection() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let driver = RedisDriver::connect(&format!("{}?timeout=1s", server.url())).await.unwrap();
    let driver = Arc::new(driver);
    let before = info(&server, "stats", "total_connections_received:").await;
    let addr = server.addr();
    let busy = tokio::spawn(async move {
        let slow = ["EVAL", "local x = 0; for i = 1, 2000000 do x = x + i end return 1", "0"];
        let mut connection = resp::Connection::open(addr).await.unwrap();
        loop {
            connection.call(&slow).await.unwrap();
        }
    });
    let tasks = (0..10_000).map(|i| {
        let driver = driver.clone();
        tokio::spawn(async move {
            let claim = claim(&i.to_string());
            // As core does it.
            while let Err(error) = driver.acquire(&claim, Patience::Wait).await {
                assert!(error.is_retryable(), "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.unwrap();
    }
    busy.abort();
    let calls = info(&server, "commandstats", "cmdstat_evalsha:calls=").await;
    let opened = info(&server, "stats", "total_connections_received:").await - before;
    // A machine that stands still for so long may have some asked for again, never most of them.
    assert!(calls < 12_000 && opened < 10, "{calls} calls, {opened} connections");
}

#[test]
fn a_driver_that_outlives_its_runtime_hears_of_its_turn_in_the_next_one() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let (server, driver) = first.block_on(async {
        let server = Server::start(Kind::Redis).await.unwrap();
        let url = format!("{}?timeout=30s", server.url());
        let driver = RedisDriver::connect(&url).await.unwrap();
        assert!(matches!(
            driver.acquire(&claim("warm"), Patience::Wait).await.unwrap().answer,
            Acquisition::Granted(_)
        ));
        (server, driver)
    });
    drop(first);
    runtime().block_on(async {
        let url = format!("{}?timeout=30s", server.url());
        let other = RedisDriver::connect(&url).await.unwrap();
        let (holder, waiter) = (claim("a"), claim("a"));
        other.acquire(&holder, Patience::Wait).await.unwrap();
        driver.acquire(&waiter, Patience::Wait).await.unwrap();
        // The leases last for minutes: only a message, or the start of the subscription, tells.
        let wait = async {
            let granted = driver.granted(&waiter);
            let release = other.release(&holder);
            tokio::join!(granted, release).0.unwrap();
        };
        tokio::time::timeout(LONG, wait).await.expect("it was told");
    });
}

/// Where its keys are, by the port of the master.
async fn masters_of(group: &Group, names: &[String]) -> Vec<u16> {
    let Reply::Array(ranges) =
        resp::ask(group.members()[0].addr(), &["CLUSTER", "SLOTS"]).await.unwrap()
    else {
        panic!("a table of slots")
    };
    let mut ports = Vec::new();
    for name in names {
        let driver_key = resp::ask(group.members()[0].addr(), &["CLUSTER", "KEYSLOT", name]).await;
        let Reply::Number(slot) = driver_key.unwrap() else { panic!("a slot") };
        let range = ranges.iter().find_map(|range| match range {
            Reply::Array(parts) => match &parts[..] {
                [Reply::Number(first), Reply::Number(last), Reply::Array(master), ..]
                    if (*first..=*last).contains(&slot) =>
                {
                    match master[1] {
                        Reply::Number(port) => Some(port as u16),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        });
        ports.push(range.expect("somebody has the slot"));
    }
    ports
}

/// The names of locks, and the ports of the masters that have them.
async fn placed(group: &Group) -> Vec<(String, u16)> {
    let mut keys = Vec::new();
    for member in group.members() {
        let Reply::Array(found) =
            resp::ask(member.addr(), &["KEYS", "lockkit:lock:*"]).await.unwrap()
        else {
            panic!("KEYS")
        };
        keys.extend(found.iter().map(|key| key.text().to_owned()));
    }
    let ports = masters_of(group, &keys).await;
    let name = |key: &String| key.rsplit_once(':').unwrap().1.to_owned();
    keys.iter().map(name).zip(ports).collect()
}

async fn one_silent_master_costs_its_own_locks_alone(kill: bool, ttl: Duration) {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let locks = LockManager::new(RedisDriver::connect(&group.url()).await.unwrap());
    let mut guards = Vec::new();
    for i in 0..60 {
        let name = format!("lock-{i}");
        let guard = locks.mutex(&name).ttl(ttl).lock().await.unwrap();
        guards.push((name, guard));
    }
    let placed = placed(&group).await;
    let ports: BTreeSet<_> = placed.iter().map(|(_, port)| *port).collect();
    assert_eq!((placed.len(), ports.len()), (60, 3), "{placed:?}");
    let silent = &group.members()[1];
    if kill {
        silent.kill().await
    } else {
        silent.freeze().await
    }
    let begun = Instant::now();
    while begun.elapsed() < 3 * ttl {
        tokio::time::sleep(ttl / 10).await;
        for (name, guard) in &guards {
            let port = placed.iter().find(|(placed, _)| placed == name).unwrap().1;
            assert!(
                port == silent.addr().port() || guard.is_valid(),
                "{name} is at another master, and lost after {:?}: {:?}",
                begun.elapsed(),
                guard.loss(),
            );
        }
    }
    silent.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_a_cluster_that_stands_still_costs_its_own_locks_alone() {
    one_silent_master_costs_its_own_locks_alone(false, Duration::from_secs(9)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_a_cluster_that_is_dead_costs_its_own_locks_alone() {
    one_silent_master_costs_its_own_locks_alone(true, Duration::from_secs(6)).await;
}
