//! A lock and its release in a SQLite file, beside two bare write transactions of one row each on
//! the same file through the same client crate.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lockkit::driver::{LockDriver, Patience};
use lockkit::sql::SqliteDriver;
use lockkit::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_bench::{Way, is_brief, median};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Executor};

/// As the driver sets up its own connections.
fn options(path: &std::path::Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
}

/// The bare way: a connection, and one table beside the driver's.
async fn bare(path: &std::path::Path) -> SqliteConnection {
    let mut connection = options(path).connect().await.unwrap();
    let table = "CREATE TABLE bare (name TEXT PRIMARY KEY, owner BLOB, expires INTEGER)";
    connection.execute(table).await.unwrap();
    connection
}

async fn bare_pair(connection: &mut SqliteConnection, name: &str) {
    let insert = sqlx::query("INSERT INTO bare VALUES (?1, ?2, ?3)");
    insert.bind(name).bind(&[7u8; 16][..]).bind(1i64).execute(&mut *connection).await.unwrap();
    let delete = sqlx::query("DELETE FROM bare WHERE name = ?1 AND owner = ?2");
    delete.bind(name).bind(&[7u8; 16][..]).execute(&mut *connection).await.unwrap();
}

fn cycles(c: &mut Criterion) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    let locks: LockManager = rt.block_on(lockkit::connect(&url)).unwrap();
    let mutex = locks.mutex("invoice/42");
    rt.block_on(async { mutex.lock().await.unwrap().release().await.unwrap() });
    let connection = RefCell::new(rt.block_on(bare(&path)));

    let mut group = c.benchmark_group("sqlite");
    group.throughput(Throughput::Elements(1));
    group.bench_function("lock+release", |b| {
        b.to_async(&rt).iter(async || mutex.lock().await.unwrap().release().await.unwrap());
    });
    group.bench_function("two bare write transactions", |b| {
        b.to_async(&rt).iter(async || bare_pair(&mut connection.borrow_mut(), "invoice/42").await);
    });
    group.finish();

    rt.block_on(lockkit_bench::ratio(
        "sqlite lock+release",
        300,
        async || mutex.lock().await.unwrap().release().await.unwrap(),
        async || bare_pair(&mut connection.borrow_mut(), "invoice/42").await,
    ));
    rt.block_on(locks.shutdown());
    rt.block_on(many_tasks());
    rt.block_on(beside_waiters());
}

/// 64 tasks on 64 locks, beside 64 tasks that take turns on one bare connection, and on a pool of
/// eight.
async fn many_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let locks = lockkit::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let all = locks.clone();
    let connection = Arc::new(tokio::sync::Mutex::new(bare(&path).await));
    let ours = Way::new("lockkit", 64, move |task| {
        let mutex = all.mutex(format!("invoice/{task}"));
        async move { mutex.lock().await.unwrap().release().await.unwrap() }
    });
    let one = Way::new("bare", 64, move |task| {
        let connection = connection.clone();
        async move { bare_pair(&mut *connection.lock().await, &format!("invoice/{task}")).await }
    });
    let pool = SqlitePoolOptions::new().max_connections(8);
    let pool = pool.connect_with(options(&path)).await.unwrap();
    let eight = Way::new("bare, eight", 64, move |task| {
        let pool = pool.clone();
        async move {
            bare_pair(&mut *pool.acquire().await.unwrap(), &format!("invoice/{task}")).await;
        }
    });
    lockkit_bench::race("sqlite, 64 tasks", 6_400, &[ours, one, eight]).await;
    locks.shutdown().await;
}

/// A release and the next claim's coming, with ten and with a thousand waiting.
async fn beside_waiters() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let driver: Arc<dyn LockDriver> = Arc::new(SqliteDriver::connect(&url).await.unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    let claim = |name: &str| {
        let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
        let ttl = Duration::from_secs(600);
        Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, identity.clone()))
    };
    let mut lines = [10, 1000].map(|waiting| (waiting, VecDeque::new(), Vec::new()));
    for (waiting, line, _) in &mut lines {
        for _ in 0..=*waiting {
            line.push_back(claim(&waiting.to_string()));
            driver.acquire(line.back().unwrap(), Patience::Wait).await.unwrap();
        }
    }
    for _ in 0..if is_brief() { 5 } else { 300 } {
        for (_, line, times) in &mut lines {
            let first: Arc<Claim> = line.pop_front().unwrap();
            let begun = Instant::now();
            driver.release(&first).await.unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            let next = claim(first.key.name.as_str());
            driver.acquire(&next, Patience::Wait).await.unwrap();
            line.push_back(next);
        }
    }
    for (waiting, _, times) in lines {
        println!("sqlite, {waiting} waiting: a release takes {:.0} µs", median(times));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30);
    targets = cycles
}
criterion_main!(benches);
