//! lockkit on etcd: its rate beside bare transactions of equal effect and beside etcd's own Lock
//! service, through the same client library; what it takes behind a latency; what many who wait and
//! many who hold cost: `cargo bench --bench etcd`.
//!
//! One server of the lab. An argument picks the measurements whose names it is part of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit::{Guard, LockManager, Settings, Space};
use lockkit_bench::{Way, median, race_at};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, LockOptions, PutOptions, Txn, TxnOp,
};
use lockkit_lab::proxy::{Counts, Protocol, Proxy};
use lockkit_lab::raw::etcd::metrics;
use lockkit_lab::{Server, ServerKind};
use tokio::runtime::Builder;

const WAITERS: usize = 1_000;
const HELD: usize = 10_000;
const LATENCY: Duration = Duration::from_millis(10);
const ROUNDS: usize = 40;
/// Keys that others once had in a list.
const OLD_KEYS: usize = 1_000;

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w));
    let rt = Builder::new_multi_thread().enable_all().build().unwrap();
    let server = rt.block_on(Server::start(ServerKind::Etcd)).unwrap();
    if is_wanted("rates") {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(rates(&server));
    }
    if is_wanted("latency") {
        rt.block_on(behind_latency(&server));
    }
    if is_wanted("waiters") {
        rt.block_on(waiters(&server, "exclusive"));
        rt.block_on(waiters(&server, "permits"));
    }
    if is_wanted("holders") {
        rt.block_on(holders(&server));
    }
}

async fn connect(url: &str, ttl: u64) -> LockManager {
    let driver = Arc::new(EtcdDriver::connect(url).await.unwrap());
    let ttl = Duration::from_secs(ttl);
    LockManager::with(driver, Settings::default().ttl(ttl).wait_ttl(ttl)).unwrap()
}

/// A lock and its release, uncontended, with one task and with 64 that have a lock each.
async fn rates(server: &Server) {
    for (tasks, times) in [(1, 400), (64, 3_200)] {
        let ways = [
            ours(server, tasks, "lockkit", "invoice").await,
            ours(server, tasks, "lockkit, old keys", "old").await,
            bare(server, tasks).await,
            rpc(server, tasks).await,
        ];
        leave_keys(server, tasks).await;
        for way in &ways {
            way.round(times).await; // connections and leases
        }
        race_at(&format!("lock+release, {tasks} at a time"), times, &ways, &server.processes())
            .await;
    }
}

/// Past keys in each list of the second way: what processes leave behind that are gone, until etcd
/// compacts its history.
async fn leave_keys(server: &Server, tasks: usize) {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    for list in 0..tasks {
        let prefix = format!("lockkit/lock//old%2F{list}/");
        for some in 0..OLD_KEYS.div_ceil(100) {
            let key = |n| format!("{prefix}{:032x}", some * 100 + n);
            let puts: Vec<_> = (0..100).map(|n| TxnOp::put(key(n), "", None)).collect();
            client.txn(Txn::new().and_then(puts)).await.unwrap();
        }
        let all = DeleteOptions::new().with_prefix();
        client.delete(prefix, Some(all)).await.unwrap();
    }
}

async fn ours(server: &Server, tasks: usize, name: &'static str, lock: &str) -> Way {
    let locks = connect(&server.url(), 30).await;
    let mutexes: Arc<[_]> = (0..tasks).map(|n| locks.mutex(format!("{lock}/{n}"))).collect();
    Way::new(name, tasks, move |task| {
        let mutexes = mutexes.clone();
        async move { mutexes[task].lock().await.unwrap().release().await.unwrap() }
    })
}

/// A key on a shared lease if there is none under the prefix, and its deletion.
async fn bare(server: &Server, tasks: usize) -> Way {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let lease = client.lease_grant(3_600, None).await.unwrap().id();
    Way::new("bare transactions", tasks, move |task| {
        let mut client = client.kv_client();
        async move {
            let (list, end) = (format!("bare/{task}/"), format!("bare/{task}0"));
            let key = format!("{list}0123456789abcdef0123456789abcdef");
            let free = Compare::create_revision(list.clone(), CompareOp::Equal, 0).with_range(end);
            let put = TxnOp::put(&*key, vec![7; 150], Some(PutOptions::new().with_lease(lease)));
            let show = TxnOp::get(list, Some(GetOptions::new().with_prefix().with_limit(2)));
            let txn = Txn::new().when([free]).and_then([put]).or_else([show]);
            let answer = client.txn(txn).await.unwrap();
            assert!(answer.succeeded());
            let created = answer.header().unwrap().revision();
            let mine = Compare::create_revision(&*key, CompareOp::Equal, created);
            let txn = Txn::new().when([mine]).and_then([TxnOp::delete(&*key, None)]);
            assert!(client.txn(txn).await.unwrap().succeeded());
        }
    })
}

/// etcd's own Lock service, on a shared lease.
async fn rpc(server: &Server, tasks: usize) -> Way {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let lease = client.lease_grant(3_600, None).await.unwrap().id();
    Way::new("etcd's Lock service", tasks, move |task| {
        let mut client = client.lock_client();
        async move {
            let options = LockOptions::new().with_lease(lease);
            let held = client.lock(format!("rpc/{task}"), Some(options)).await.unwrap();
            client.unlock(held.key()).await.unwrap();
        }
    })
}

/// An acquire, and the time from the sending of a release until the next holder knows, beside a
/// bare put on the same way: one way in, one way out, and what the proxy's timers add to that.
async fn behind_latency(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let url = server.url_at(proxy.addr());
    let (a, b) = (connect(&url, 60).await, connect(&url, 60).await);
    for locks in [&a, &b] {
        locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    }
    let mut client = Client::connect([proxy.addr().to_string()], None).await.unwrap();
    client.put("bare", "", None).await.unwrap();
    proxy.latency(LATENCY);
    let (mut bare, mut acquires, mut turns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        client.put("bare", "", None).await.unwrap();
        bare.push(milliseconds(begun));
        let begun = Instant::now();
        let held = a.mutex("turn").lock().await.unwrap();
        acquires.push(milliseconds(begun));
        let next = b.mutex("turn");
        let waiting = tokio::spawn(async move {
            let guard = next.lock().await.unwrap();
            (Instant::now(), guard)
        });
        while a.inspect(Space::Lock, "turn").await.unwrap().queue.len() < 2 {}
        tokio::time::sleep(LATENCY * 6).await; // its watches are on their way
        let begun = Instant::now();
        let releasing = tokio::spawn(held.release());
        let (at, guard) = waiting.await.unwrap();
        turns.push(at.duration_since(begun).as_secs_f64() * 1e3);
        releasing.await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    let (trip, acquire, turn) = (median(bare), median(acquires), median(turns));
    println!("behind 10 ms each way, a bare put takes {trip:.2} ms");
    println!("acquire: {acquire:.2} ms, {:.2} of these", acquire / trip);
    println!("hand-over: {turn:.2} ms, {:.2} of these", turn / trip);
}

fn milliseconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Watches at the server, and messages for each release, while 1,000 of one process wait.
async fn waiters(server: &Server, mode: &str) {
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let locks = connect(&server.url_at(proxy.addr()), 300).await;
    let lock = || {
        let (mutex, permits) = (locks.mutex("queue"), locks.semaphore("queue", 1));
        let exclusive = mode == "exclusive";
        async move {
            if exclusive { mutex.lock().await.unwrap() } else { permits.acquire().await.unwrap() }
        }
    };
    let space = if mode == "exclusive" { Space::Lock } else { Space::Semaphore };
    let held = lock().await;
    let (turns, mut taken) = tokio::sync::mpsc::channel::<Guard>(1);
    for _ in 0..WAITERS {
        let (next, turns) = (lock(), turns.clone());
        tokio::spawn(async move { drop(turns.send(next.await).await) });
    }
    while locks.inspect(space, "queue").await.unwrap().queue.len() <= WAITERS {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (watches, streams) = watched(server.addr()).await;
    println!("{WAITERS} {mode} waiters: {watches} watches in {streams} streams");
    proxy.reset();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let Counts { requests, pushes, .. } = proxy.counts();
    println!("{WAITERS} {mode} waiters at rest for 5 s: {requests} requests, {pushes} messages");
    proxy.reset();
    held.release().await.unwrap();
    for _ in 0..WAITERS {
        taken.recv().await.unwrap().release().await.unwrap();
    }
    let Counts { requests, pushes, .. } = proxy.counts();
    let each = |n: u64| n as f64 / (WAITERS + 1) as f64;
    println!(
        "{WAITERS} {mode} waiters, a release: {:.2} requests, {:.2} messages",
        each(requests),
        each(pushes)
    );
}

/// How many watches there are, and in how many streams: as etcd says itself.
async fn watched(addr: SocketAddr) -> (String, String) {
    let said = metrics(addr).await.unwrap();
    let value = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or(" not told").trim().to_owned()
    };
    let of = |what: &str| value(&format!("etcd_debugging_mvcc_{what}_total"));
    (of("watcher"), of("watch_stream"))
}

/// Messages for each renewal of 10,000 locks.
async fn holders(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let locks = connect(&server.url_at(proxy.addr()), 15).await;
    let mut held = Vec::with_capacity(HELD);
    for n in (0..HELD).step_by(100) {
        let some = (n..n + 100).map(|n| locks.mutex(format!("account/{n}")));
        held.extend(try_join_all(some.map(|m| async move { m.lock().await })).await.unwrap());
    }
    proxy.reset();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (Counts { requests, bytes_to_client, .. }, took) = (proxy.counts(), begun.elapsed());
    let ticks = took.as_secs_f64() / 5.0;
    println!(
        "{HELD} held, a tick: {:.1} requests, {:.0} bytes to the client for each lock",
        requests as f64 / ticks,
        bytes_to_client as f64 / ticks / HELD as f64
    );
    assert!(held.iter().all(|guard| guard.is_valid()));
}
