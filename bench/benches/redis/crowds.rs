//! Many who wait for one lock, and many locks that are held.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lockkit::{Guard, LockManager, Space};
use lockkit_lab::Server;
use lockkit_lab::proxy::{Counts, Protocol, Proxy};

use crate::{ask, field, info};

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
    while clients[0].inspect(Space::Lock, "queue").await.unwrap().line.len() <= WAITERS {
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
    while locks.list("").boxed().next().await.is_some() {
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

/// Seconds of CPU that the server has spent.
async fn cpu(addr: SocketAddr) -> f64 {
    let info = info(addr, "cpu").await;
    let part = |name| field(&info, name).parse::<f64>().unwrap();
    part("used_cpu_user") + part("used_cpu_sys")
}

/// Bytes that the server uses for its data.
async fn memory(addr: SocketAddr) -> f64 {
    field(&info(addr, "memory").await, "used_memory_dataset").parse().unwrap()
}
