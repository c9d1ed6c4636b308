//! Many who wait for one lock, and many locks that are held.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit::{Guard, LockManager, Space};
use lockkit_lab::Server;
use lockkit_lab::proxy::{Counts, Protocol, Proxy};

use crate::{ask, cpu, field, info};

const WAITERS: usize = 1_000;
const CLIENTS: usize = 10;
const HELD: usize = 10_000;

/// Messages and the server's time for each release, while 1,000 wait in 10 clients.
pub(crate) async fn waiters(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let url = server.url_at(proxy.addr());
    let clients = (0..CLIENTS).map(|_| async { lockkit::connect(&url).await });
    let clients: Vec<LockManager> = try_join_all(clients).await.unwrap();
    let held = clients[0].mutex("queue").lock().await.unwrap();
    let (turns, mut taken) = tokio::sync::mpsc::channel::<Guard>(1);
    for n in 0..WAITERS {
        let (next, turns) = (clients[n % CLIENTS].mutex("queue"), turns.clone());
        tokio::spawn(async move { turns.send(next.lock().await.unwrap()).await });
    }
    while clients[0].inspect(Space::Lock, "queue").await.unwrap().queue.len() <= WAITERS {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let idle = cpu(server.addr()).await;
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let idle = (cpu(server.addr()).await - idle) / begun.elapsed().as_secs_f64();
    println!("{WAITERS} waiters at rest: {:.2} % of one core of the server", idle * 100.0);

    proxy.reset();
    let spent = cpu(server.addr()).await;
    let begun = Instant::now();
    held.release().await.unwrap();
    for _ in 0..WAITERS {
        taken.recv().await.unwrap().release().await.unwrap();
    }
    let took = begun.elapsed().as_secs_f64();
    let spent = cpu(server.addr()).await - spent;
    let Counts { requests, pushes, bytes_to_server, bytes_to_client, .. } = proxy.counts();
    let each = |n: f64| n / (WAITERS + 1) as f64;
    println!(
        "{WAITERS} waiters, a release: {:.2} requests, {:.2} pushed messages, {:.0} bytes; \
         {:.0} µs of the server's CPU; {:.0} µs in all",
        each(requests as f64),
        each(pushes as f64),
        each((bytes_to_server + bytes_to_client) as f64),
        each(spent * 1e6),
        each(took * 1e6),
    );
}

/// Commands and bytes for each renewal of 10,000 locks, and what Redis keeps for a lock.
pub(crate) async fn holders(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let url = format!("{}?ttl=15s", server.url_at(proxy.addr()));
    let locks = lockkit::connect(&url).await.unwrap();
    // All counters of tokens, connections and scripts are there before memory is measured.
    drop(hold(&locks, "before").await);
    released(&locks).await;
    let empty = memory(server.addr()).await;
    let held = hold(&locks, "account").await;
    let full = memory(server.addr()).await;
    println!("{HELD} held: {:.0} bytes of Redis' memory each", (full - empty) / HELD as f64);

    let (mut ticks, mut cpus) = (Vec::new(), Vec::new());
    next_tick(&proxy).await;
    for _ in 0..3 {
        let before = cpu(server.addr()).await;
        ticks.push(next_tick(&proxy).await);
        cpus.push(cpu(server.addr()).await - before);
    }
    for (Counts { requests, round_trips, bytes_to_server, bytes_to_client, .. }, cpu) in
        ticks.iter().zip(cpus)
    {
        println!(
            "{HELD} held, a renewal: {requests} commands in {round_trips} flights, {:.1} bytes in \
             and {:.1} out for each lock, {:.1} ms of the server's CPU",
            *bytes_to_server as f64 / HELD as f64,
            *bytes_to_client as f64 / HELD as f64,
            cpu * 1e3,
        );
    }
    drop(held);
    released(&locks).await;
    let after = memory(server.addr()).await;
    let keys = ask(server.addr(), &["DBSIZE"]).await;
    println!("{HELD} idle: {:.1} bytes each, keys in all: {keys:?}", (after - empty) / HELD as f64);
}

/// How long it takes until as many tasks have as many locks as they asked for at once, while another
/// lock with a lease of five seconds is held; and back.
pub(crate) async fn at_once(server: &Server) {
    let locks = lockkit::connect(&server.url()).await.unwrap();
    let held = locks.mutex("held").ttl(Duration::from_secs(5)).lock().await.unwrap();
    for _ in 0..3 {
        let (begun, calls) = (Instant::now(), calls(server.addr()).await);
        let tasks: Vec<_> = (0..HELD)
            .map(|n| {
                let mutex = locks.mutex(format!("crowd/{n}"));
                tokio::spawn(async move { mutex.lock().await.unwrap() })
            })
            .collect();
        let guards = try_join_all(tasks).await.unwrap();
        let took = begun.elapsed();
        let begun = Instant::now();
        let releases: Vec<_> =
            guards.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
        for released in try_join_all(releases).await.unwrap() {
            released.unwrap();
        }
        let (back, calls) = (begun.elapsed(), self::calls(server.addr()).await - calls);
        println!(
            "{HELD} locks asked for at once: {took:.1?}, and given back in {back:.1?}, by {calls} \
             calls; the lock held meanwhile is {}",
            if held.is_valid() { "valid" } else { "LOST" },
        );
    }
    held.release().await.unwrap();
}

async fn calls(addr: SocketAddr) -> u64 {
    let stats = info(addr, "commandstats").await;
    let calls = field(&stats, "cmdstat_evalsha").split(',').find_map(|f| f.strip_prefix("calls="));
    calls.unwrap().parse().unwrap()
}

async fn hold(locks: &LockManager, what: &str) -> Vec<Guard> {
    let mut held = Vec::with_capacity(HELD);
    for some in (0..HELD).collect::<Vec<_>>().chunks(500) {
        let some = some.iter().map(|n| {
            let mutex = locks.mutex(format!("{what}/{n}"));
            async move { mutex.lock().await }
        });
        held.extend(try_join_all(some).await.unwrap());
    }
    held
}

/// Returns once all that was dropped is gone from the server.
async fn released(locks: &LockManager) {
    use futures_util::StreamExt;
    while locks.admin().list("").boxed().next().await.is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What passes in the next renewal of all: a call of the script renews a hundred.
async fn next_tick(proxy: &Proxy) -> Counts {
    proxy.reset();
    let mut last = proxy.counts();
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = proxy.counts();
        if now.requests >= HELD as u64 / 200 && now == last {
            return now;
        }
        last = now;
    }
}

/// Bytes that the server uses for its data.
async fn memory(addr: SocketAddr) -> f64 {
    field(&info(addr, "memory").await, "used_memory_dataset").parse().unwrap()
}
