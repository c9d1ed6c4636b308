//! A lock and its release in a SQLite file, beside two bare write transactions of one row each on
//! the same file through the same client crate.

use std::cell::RefCell;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lockkit::LockManager;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Executor};

/// The bare way: a connection set up as the driver sets up its own, and one table beside its.
async fn bare(path: &std::path::Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let mut connection = options.connect().await.unwrap();
    let table = "CREATE TABLE bare (name TEXT PRIMARY KEY, owner BLOB, expires INTEGER)";
    connection.execute(table).await.unwrap();
    connection
}

async fn bare_pair(connection: &mut SqliteConnection) {
    let insert = sqlx::query("INSERT INTO bare VALUES (?1, ?2, ?3)");
    insert
        .bind("invoice/42")
        .bind(&[7u8; 16][..])
        .bind(1i64)
        .execute(&mut *connection)
        .await
        .unwrap();
    let delete = sqlx::query("DELETE FROM bare WHERE name = ?1 AND owner = ?2");
    delete.bind("invoice/42").bind(&[7u8; 16][..]).execute(&mut *connection).await.unwrap();
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
        b.to_async(&rt).iter(async || bare_pair(&mut connection.borrow_mut()).await);
    });
    group.finish();

    rt.block_on(lockkit_bench::ratio(
        "sqlite lock+release",
        300,
        async || mutex.lock().await.unwrap().release().await.unwrap(),
        async || bare_pair(&mut connection.borrow_mut()).await,
    ));
    rt.block_on(locks.shutdown());
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30);
    targets = cycles
}
criterion_main!(benches);
