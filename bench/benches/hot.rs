//! One contended lock: pairs of acquire and release a second of one task with a lock of its own, of 64 tasks
//! with a lock each, and of 64 tasks with one lock, with nothing to do while they hold it. In turns, on one
//! thread, through the public API, on servers that wait for the disk; and how many requests a hand-over is, counted between client and server.
//!
//! Arguments pick the rows whose names they are part of, as in `cargo bench --bench hot -- redis memory`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use lockkit::{LockManager, MemoryDriver};
use lockkit_bench::{Way, is_brief, median, start_durable};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::ServerKind;
use lockkit_lab::proxy::{Protocol, Proxy};
use lockkit_lab::raw::resp;

const TASKS: usize = 64;

/// A backend, and how it is set up.
struct Row {
    name: &'static str,
    kind: ServerKind,
    protocol: Protocol,
    /// Whether Redis writes its log to the disk at each command.
    always: bool,
}

const fn row(name: &'static str, kind: ServerKind, protocol: Protocol, always: bool) -> Row {
    Row { name, kind, protocol, always }
}

const SERVERS: [Row; 6] = [
    row("redis", ServerKind::Redis, Protocol::Resp, false),
    row("redis-always", ServerKind::Redis, Protocol::Resp, true),
    row("postgres", ServerKind::Postgres, Protocol::Postgres, false),
    row("mariadb", ServerKind::MariaDb, Protocol::MySql, false),
    row("zookeeper", ServerKind::ZooKeeper, Protocol::ZooKeeper, false),
    row("etcd", ServerKind::Etcd, Protocol::Grpc, false),
];

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(&**word));
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!(
        "                 1 task   64, own locks   64, one lock   ratio   requests a hand-over"
    );
    if is_wanted("memory") {
        rt.block_on(measure("memory", &LockManager::new(MemoryDriver::new()), 20_000, None));
    }
    if is_wanted("sqlite") {
        rt.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", folder.path().join("locks.db").display());
            let locks = lockkit::connect(&url).await.unwrap();
            measure("sqlite", &locks, 1_000, None).await;
            locks.shutdown().await;
        });
    }
    for row in SERVERS.iter().filter(|row| is_wanted(row.name)) {
        rt.block_on(measure_server(row));
    }
}

async fn measure_server(row: &Row) {
    let server = match start_durable(row.kind).await {
        Ok(server) => server,
        Err(why) => return println!("{:<13} skipped: {why}", row.name),
    };
    if row.kind == ServerKind::Redis {
        let (append, sync) = if row.always { ("yes", "always") } else { ("no", "no") };
        set(server.addr(), "appendonly", append).await;
        set(server.addr(), "appendfsync", sync).await;
    }
    let proxy = Proxy::start(server.addr(), row.protocol).await.unwrap();
    let counted = connect(row.kind, &server.url_at(proxy.addr())).await;
    let requests = requests(&counted, &proxy).await;
    counted.shutdown().await;
    let locks = connect(row.kind, &server.url()).await;
    measure(row.name, &locks, 512, Some(requests)).await;
    locks.shutdown().await;
}

async fn connect(kind: ServerKind, url: &str) -> LockManager {
    match kind {
        ServerKind::Etcd => LockManager::new(EtcdDriver::connect(url).await.unwrap()),
        _ => lockkit::connect(url).await.unwrap(),
    }
}

async fn set(addr: SocketAddr, option: &str, value: &str) {
    resp::ask(addr, &["CONFIG", "SET", option, value]).await.unwrap();
}

/// How many requests a hand-over is, among all that pass meanwhile.
async fn requests(locks: &LockManager, proxy: &Proxy) -> f64 {
    let hot = contended(locks, "counted");
    hot.round(TASKS).await; // connections, scripts, caches
    proxy.reset();
    let times = if is_brief() { 256 } else { 4_096 };
    hot.round(times).await;
    proxy.counts().requests as f64 / times as f64
}

/// Tasks that all take one lock.
fn contended(locks: &LockManager, name: &str) -> Way {
    let mutex = Arc::new(locks.mutex(name));
    Way::new("64, one lock", TASKS, move |_| {
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap().release().await.unwrap() }
    })
}

/// Tasks with a lock each.
fn own(locks: &LockManager, name: &'static str, tasks: usize) -> Way {
    let mutexes: Arc<[_]> = (0..tasks).map(|n| locks.mutex(format!("own/{tasks}/{n}"))).collect();
    Way::new(name, tasks, move |task| {
        let mutexes = mutexes.clone();
        async move { mutexes[task].lock().await.unwrap().release().await.unwrap() }
    })
}

/// Measures the three ways in turns, `times` pairs in a round of each.
async fn measure(backend: &str, locks: &LockManager, times: usize, requests: Option<f64>) {
    let ways =
        [own(locks, "1 task", 1), own(locks, "64, own locks", TASKS), contended(locks, "hot")];
    let (rounds, times) = if is_brief() { (1, TASKS) } else { (15, times) };
    let mut rates = [const { Vec::new() }; 3];
    for way in &ways {
        way.round(TASKS).await;
    }
    for _ in 0..rounds {
        for (way, rates) in ways.iter().zip(&mut rates) {
            let begun = Instant::now();
            way.round(times).await;
            rates.push(times as f64 / begun.elapsed().as_secs_f64());
        }
    }
    let [one, each, hot] = rates.map(median);
    let requests = requests.map_or_else(|| "–".to_owned(), |requests| format!("{requests:.2}"));
    println!(
        "{backend:<13} {one:>8.0}/s {each:>12.0}/s {hot:>12.0}/s {:>8.2}   {requests}",
        hot / one
    );
}
