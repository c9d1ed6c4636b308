//! Servers that are killed, frozen and cut off: what a client sees, and that no promise breaks.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::{Error, Guard, LockManager, LossReason, Settings, Space};
use lockkit_http::HttpDriver;
use lockkit_lab::Proxy;
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::service::ServiceProcess;
use lockkit_server::{Listen, Service};
use lockkit_sql::SqliteDriver;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

/// Two servers over one file.
struct Pair {
    _folder: tempfile::TempDir,
    backend: String,
    servers: [ServiceProcess; 2],
}

impl Pair {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backend = format!("sqlite:{}", folder.path().join("locks.db").display());
        let program = lockkit_lab::worker::example("http_worker");
        let servers = [(); 2].map(|()| ServiceProcess::start(&program, &backend).unwrap());
        Self { _folder: folder, backend, servers }
    }

    /// A client that asks the first server first.
    async fn client(&self) -> LockManager {
        let [first, second] = self.servers.each_ref().map(ServiceProcess::address);
        manager(&format!("http://{first},{second}?timeout=500ms")).await
    }

    /// A client of the second server alone.
    async fn other(&self) -> LockManager {
        manager(&format!("http://{}", self.servers[1].address())).await
    }

    /// Who looks past the servers.
    async fn onlooker(&self) -> LockManager {
        LockManager::new(SqliteDriver::connect(&self.backend).await.unwrap())
    }
}

async fn manager(url: &str) -> LockManager {
    let driver = Arc::new(HttpDriver::connect(url).await.unwrap());
    LockManager::with(driver, Settings::default().ttl(TTL)).unwrap()
}

async fn is_free(locks: &LockManager, name: &str) -> bool {
    locks.inspect(Space::Lock, name).await.unwrap().is_free()
}

async fn until_free(locks: &LockManager, name: &str) {
    let look = async {
        while !is_free(locks, name).await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, look).await.expect("it is free by and by");
}

/// Why and when a guard ends.
fn loss(guard: &Guard) -> JoinHandle<(LossReason, Moment)> {
    let lease = guard.lease();
    tokio::spawn(async move { (lease.lost().await, SteadyClock.now()) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_goes_on_at_the_other_server_with_the_same_token() {
    let pair = Pair::start();
    let (client, other) = (pair.client().await, pair.other().await);
    let guard = client.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    pair.servers[0].kill();
    sleep(TTL + TTL / 2).await; // renewed elsewhere, or it would be over
    assert_eq!(guard.token().unwrap(), token);
    guard.verify().await.unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let next = other.mutex("a").try_lock().await.unwrap().expect("it was released");
    assert!(next.token().unwrap() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_costs_a_client_of_two_nothing() {
    let pair = Pair::start();
    let client = pair.client().await;
    let guard = client.mutex("a").lock().await.unwrap();
    pair.servers[0].freeze();
    sleep(TTL + TTL / 2).await;
    assert!(guard.is_valid());
    let second = timeout(LONG, client.mutex("b").lock()).await.unwrap().unwrap();
    second.release().await.unwrap();
    pair.servers[0].thaw();
    guard.release().await.unwrap();
    until_free(&pair.onlooker().await, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_only_server_stands_still_knows_in_time() {
    let pair = Pair::start();
    let alone = manager(&format!("http://{}?timeout=500ms", pair.servers[0].address())).await;
    let other = pair.other().await;
    let guard = alone.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let lost = loss(&guard);
    pair.servers[0].freeze();
    let next = timeout(LONG, other.mutex("a").lock()).await.unwrap().unwrap();
    let granted = SteadyClock.now();
    assert!(!guard.is_valid());
    let (why, at) = lost.await.unwrap();
    assert!(matches!(why, LossReason::Unreachable(_)), "{why:?}");
    assert!(at < granted, "it knew before anybody else held the lock");
    assert!(next.token().unwrap() > token);
    pair.servers[0].thaw();
    next.release().await.unwrap();
}

/// What the client sends meanwhile arrives late, when another holds the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_from_its_server_knows_in_time_and_disturbs_nobody_later() {
    let pair = Pair::start();
    let proxy = Proxy::start(pair.servers[0].address(), Protocol::Unknown).await.unwrap();
    let alone = manager(&format!("http://{}?timeout=500ms", proxy.addr())).await;
    let other = pair.other().await;
    let guard = alone.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let lost = loss(&guard);
    proxy.fault(ProxyFault::BlackHole, When::Now);
    let next = timeout(LONG, other.mutex("a").lock()).await.unwrap().unwrap();
    let granted = SteadyClock.now();
    let (why, at) = lost.await.unwrap();
    assert!(matches!(why, LossReason::Unreachable(_)), "{why:?}");
    assert!(at < granted, "it knew before anybody else held the lock");
    assert!(next.token().unwrap() > token);
    drop(guard); // its release is sent again and again
    let late = tokio::spawn(async move { alone.mutex("a").lock().await });
    proxy.heal().await.unwrap();
    let waits = async {
        while other.inspect(Space::Lock, "a").await.unwrap().waiters().count() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, waits).await.expect("the one that was cut off is in line");
    let token = next.verify().await.expect("nothing that came late has touched it");
    next.release().await.unwrap();
    let late = timeout(LONG, late).await.unwrap().unwrap().unwrap();
    assert!(late.token().unwrap() > token);
    late.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_from_one_of_two_servers_keeps_its_lock() {
    let pair = Pair::start();
    let proxy = Proxy::start(pair.servers[0].address(), Protocol::Unknown).await.unwrap();
    let second = pair.servers[1].address();
    let client = manager(&format!("http://{},{second}?timeout=500ms", proxy.addr())).await;
    let guard = client.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    proxy.fault(ProxyFault::BlackHole, When::Now);
    sleep(TTL + TTL / 2).await; // renewed elsewhere, or it would be over
    assert_eq!(guard.token().unwrap(), token);
    let other = pair.other().await;
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    proxy.heal().await.unwrap();
    guard.release().await.unwrap();
    until_free(&other, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_goes_on_waiting_in_its_place_at_the_other_server() {
    let pair = Pair::start();
    let (client, other) = (pair.client().await, pair.other().await);
    let guard = other.mutex("a").lock().await.unwrap();
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.mutex("a").lock().await }
    });
    let waiting = |n| {
        let other = other.clone();
        async move {
            while other.inspect(Space::Lock, "a").await.unwrap().waiters().count() < n {
                sleep(Duration::from_millis(10)).await;
            }
        }
    };
    timeout(LONG, waiting(1)).await.unwrap();
    let second = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("a").lock().await }
    });
    timeout(LONG, waiting(2)).await.unwrap();
    pair.servers[0].kill();
    sleep(Duration::from_secs(1)).await;
    guard.release().await.unwrap();
    let first = timeout(LONG, first).await.unwrap().unwrap().unwrap();
    assert!(!second.is_finished(), "the one behind it waits on");
    first.release().await.unwrap();
    timeout(LONG, second).await.unwrap().unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_client_costs_its_ttl_and_a_killed_server_no_time() {
    let pair = Pair::start();
    let (client, other) = (pair.client().await, pair.other().await);
    let guard = client.mutex("a").auto_renew(false).lock().await.unwrap();
    std::mem::forget(guard); // it is never released
    pair.servers[0].kill();
    assert!(other.mutex("a").try_lock().await.unwrap().is_none(), "nobody released it");
    let next = timeout(LONG, other.mutex("a").lock()).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// An acquire that is still on its way when its client gives up, and comes after the release.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_arrives_after_its_release_leaves_nothing_for_long() {
    let pair = Pair::start();
    let proxy = Proxy::start(pair.servers[0].address(), Protocol::Unknown).await.unwrap();
    let client = manager(&format!("http://{}?timeout=300ms", proxy.addr())).await;
    client.mutex("b").lock().await.unwrap().release().await.unwrap();
    proxy.latencies(Duration::from_secs(1), Duration::ZERO);
    let refused = client.mutex("a").ttl(10 * LONG).try_lock().await;
    assert!(matches!(refused, Err(Error::Backend { .. })), "{refused:?}");
    proxy.latencies(Duration::ZERO, Duration::ZERO);
    let onlooker = pair.onlooker().await;
    sleep(Duration::from_secs(2)).await; // by now it has come
    until_free(&onlooker, "a").await;
    let next = timeout(LONG, client.mutex("a").lock()).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// Lost answers at every message: the claim is one claim.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_make_no_second_holder_and_no_ghost() {
    let pair = Pair::start();
    let proxy = Proxy::start(pair.servers[0].address(), Protocol::Unknown).await.unwrap();
    let client = manager(&format!("http://{}?timeout=300ms", proxy.addr())).await;
    let onlooker = pair.onlooker().await;
    for at in 1..=4 {
        proxy.fault(ProxyFault::Cut, When::Answer(at));
        let guard = timeout(LONG, client.mutex("a").lock()).await.unwrap().unwrap();
        assert_eq!(onlooker.inspect(Space::Lock, "a").await.unwrap().queue.len(), 1);
        guard.verify().await.ok();
        let _ = guard.release().await;
        proxy.heal().await.unwrap();
        until_free(&onlooker, "a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answers_who_waits_and_releases_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let backend = format!("sqlite:{}", folder.path().join("locks.db").display());
    let driver = SqliteDriver::connect(&backend).await.unwrap();
    let service = Service::new(Arc::new(driver)).unwrap();
    let listener = "127.0.0.1:0".parse::<Listen>().unwrap().open().await.unwrap();
    let url = listener.address().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let server = tokio::spawn(lockkit_server::serve(listener, service, stopped));

    let locks = manager(&url).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").lock().await }
    });
    let onlooker = LockManager::new(SqliteDriver::connect(&backend).await.unwrap());
    let look = async {
        while onlooker.inspect(Space::Lock, "a").await.unwrap().waiters().count() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, look).await.unwrap();
    drop(stop);
    timeout(LONG, server).await.expect("no request holds it up").unwrap().unwrap();
    let line = onlooker.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!((line.holders().count(), line.waiters().count()), (1, 1));
    waiting.abort();
    drop(guard);
}
