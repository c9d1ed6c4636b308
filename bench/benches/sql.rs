//! lockkit on PostgreSQL and MariaDB: a lock and its release beside two bare statements of one row
//! each through a pool of the same client crate, beside advisory locks, and beside the crate
//! `distributed-lock`; how fast a lock is handed over behind latency; what many cycles leave in the
//! tables.
//!
//! Servers of the lab. An argument picks the measurements whose names it is part of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use distributed_lock_postgres::PostgresLockProvider;
use lockkit::LockManager;
use lockkit_bench::{Way, median, race_at, start_durable};
use lockkit_lab::proxy::Protocol;
use lockkit_lab::{Proxy, Server, ServerKind};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::task::JoinSet;

/// As many as lockkit opens.
const CONNECTIONS: u32 = 8;
const LATENCY: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w));
    if is_wanted("postgres") {
        let server = start_durable(ServerKind::Postgres).await.unwrap();
        postgres_rates(&server).await;
    }
    if is_wanted("at_once") {
        at_once().await;
    }
    if is_wanted("mariadb") {
        let server = start_durable(ServerKind::MariaDb).await.unwrap();
        mariadb_rates(&server).await;
    }
    if is_wanted("hand_over") {
        hand_over().await;
    }
    if is_wanted("sizes") {
        sizes().await;
    }
}

/// What every way does, one of the tasks with a name of its own.
fn lockkit(locks: &LockManager, tasks: usize) -> Way {
    let mutexes: Arc<[_]> = (0..tasks).map(|n| locks.mutex(format!("invoice/{n}"))).collect();
    Way::new("lockkit", tasks, move |task| {
        let mutexes = mutexes.clone();
        async move { mutexes[task].lock().await.unwrap().release().await.unwrap() }
    })
}

/// Every commit waits for the disk, as it does unless somebody sets it otherwise.
async fn postgres_rates(server: &Server) {
    let url = &server.url();
    let locks = lockkit::connect(url).await.unwrap();
    let pool_of =
        |connections| PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    let pool = pool_of(CONNECTIONS).connect(url).await.unwrap();
    let connection = pool_of(1).connect(url).await.unwrap();
    let table = "CREATE TABLE bare (name bytea PRIMARY KEY, owner bytea, token bigint NOT NULL, \
                 expires timestamptz) WITH (fillfactor = 60)";
    sqlx::query(table).execute(&pool).await.unwrap();
    for (tasks, times) in [(1, 300), (64, 1_280)] {
        let ways = [
            lockkit(&locks, tasks),
            bare_on_postgres("two statements", &pool, tasks),
            bare_on_postgres("on 1 connection", &connection, tasks),
            advisory(&pool, tasks),
            distributed_lock(url, tasks).await,
        ];
        for way in &ways {
            way.round(times).await; // connections, statements, caches
        }
        let what = format!("postgres, {tasks} at a time");
        race_at(&what, times, &ways, &server.processes()).await;
    }
}

fn bare_on_postgres(name: &'static str, pool: &PgPool, tasks: usize) -> Way {
    let pool = pool.clone();
    Way::new(name, tasks, move |task| {
        let (pool, name) = (pool.clone(), format!("invoice/{task}").into_bytes());
        async move {
            let _: i64 = sqlx::query_scalar(
                "INSERT INTO bare AS b VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') \
                 ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = b.token + 1, \
                 expires = excluded.expires RETURNING token",
            )
            .bind(&name)
            .bind(&[7_u8; 16][..])
            .fetch_one(&pool)
            .await
            .unwrap();
            sqlx::query("UPDATE bare SET owner = NULL WHERE name = $1 AND owner = $2")
                .bind(&name)
                .bind(&[7_u8; 16][..])
                .execute(&pool)
                .await
                .unwrap();
        }
    })
}

/// Belongs to a connection, which is kept from the one statement to the other.
fn advisory(pool: &PgPool, tasks: usize) -> Way {
    let pool = pool.clone();
    Way::new("advisory", tasks, move |task| {
        let pool = pool.clone();
        async move {
            let mut connection = pool.acquire().await.unwrap();
            for statement in ["SELECT pg_try_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"] {
                let query = sqlx::query_scalar(statement).bind(task as i64);
                let done: bool = query.fetch_one(&mut *connection).await.unwrap();
                assert!(done);
            }
        }
    })
}

/// Advisory locks too, by a pool of its own.
async fn distributed_lock(url: &str, tasks: usize) -> Way {
    use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
    let provider = PostgresLockProvider::new(url).await.unwrap();
    let locks: Arc<[_]> =
        (0..tasks).map(|n| provider.create_lock(&format!("invoice/{n}"))).collect();
    Way::new("distributed-lock", tasks, move |task| {
        let locks = locks.clone();
        async move {
            let held = locks[task].acquire(None).await.unwrap();
            held.release().await.unwrap();
        }
    })
}

/// Every commit waits for the disk, as it does unless somebody sets it otherwise.
async fn mariadb_rates(server: &Server) {
    let url = &server.url();
    let locks = lockkit::connect(url).await.unwrap();
    let pool_of = |connections| {
        MySqlPoolOptions::new().max_connections(connections).test_before_acquire(false)
    };
    let pool = pool_of(CONNECTIONS).connect(url).await.unwrap();
    let connection = pool_of(1).connect(url).await.unwrap();
    sqlx::query("SET GLOBAL innodb_flush_log_at_trx_commit = 1").execute(&pool).await.unwrap();
    let table = "CREATE TABLE bare (name VARBINARY(512) PRIMARY KEY, owner VARBINARY(16), \
                 token BIGINT NOT NULL, expires DATETIME(6)) ENGINE=InnoDB";
    sqlx::query(table).execute(&pool).await.unwrap();
    for (tasks, times) in [(1, 300), (64, 1_280)] {
        let ways = [
            lockkit(&locks, tasks),
            bare_on_mariadb("two statements", &pool, tasks),
            bare_on_mariadb("on 1 connection", &connection, tasks),
        ];
        for way in &ways {
            way.round(times).await;
        }
        let what = format!("mariadb, {tasks} at a time");
        race_at(&what, times, &ways, &server.processes()).await;
    }
}

fn bare_on_mariadb(name: &'static str, pool: &MySqlPool, tasks: usize) -> Way {
    let pool = pool.clone();
    Way::new(name, tasks, move |task| {
        let (pool, name) = (pool.clone(), format!("invoice/{task}").into_bytes());
        async move {
            sqlx::query(
                "INSERT INTO bare VALUES (?, ?, LAST_INSERT_ID(1), \
                 TIMESTAMPADD(SECOND, 30, UTC_TIMESTAMP(6))) \
                 ON DUPLICATE KEY UPDATE owner = VALUES(owner), token = LAST_INSERT_ID(token + 1), \
                 expires = VALUES(expires)",
            )
            .bind(&name)
            .bind(&[7_u8; 16][..])
            .execute(&pool)
            .await
            .unwrap();
            sqlx::query("UPDATE bare SET owner = NULL WHERE name = ? AND owner = ?")
                .bind(&name)
                .bind(&[7_u8; 16][..])
                .execute(&pool)
                .await
                .unwrap();
        }
    })
}

/// How long it takes until 10,000 tasks have as many locks as they asked for at once, while another lock
/// with a lease of five seconds is held; and back. The first time the names are new.
async fn at_once() {
    const TASKS: usize = 10_000;
    let server = start_durable(ServerKind::Postgres).await.unwrap();
    let locks = lockkit::connect(&server.url()).await.unwrap();
    let held = locks.mutex("held").ttl(Duration::from_secs(5)).lock().await.unwrap();
    for _ in 0..3 {
        let begun = Instant::now();
        let mut asking = JoinSet::new();
        for n in 0..TASKS {
            let mutex = locks.mutex(format!("crowd/{n}"));
            asking.spawn(async move { mutex.lock().await.unwrap() });
        }
        let guards = asking.join_all().await;
        let took = begun.elapsed();
        let begun = Instant::now();
        let mut releasing = JoinSet::new();
        for guard in guards {
            releasing.spawn(async move { guard.release().await.unwrap() });
        }
        releasing.join_all().await;
        let lost = if held.is_valid() { "valid" } else { "LOST" };
        println!(
            "postgres, {TASKS} locks asked for at once: {took:.1?}, and given back in {:.1?}; the lock \
             held meanwhile is {lost}; {} MB at most in this process so far",
            begun.elapsed(),
            most_memory() / 1_024,
        );
    }
    held.release().await.unwrap();
}

/// Kilobytes.
fn most_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// From the call of `release` to the moment when the next one has the lock.
async fn hand_over() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Postgres).await.unwrap();
    let url = server.url_at(proxy.addr());
    let (giver, taker) =
        (lockkit::connect(&url).await.unwrap(), lockkit::connect(&url).await.unwrap());
    proxy.latency(LATENCY);
    let mut took = Vec::new();
    for _ in 0..21 {
        let guard = giver.mutex("a").lock().await.unwrap();
        let taker = taker.clone();
        let next = tokio::spawn(async move {
            let guard = taker.mutex("a").lock().await.unwrap();
            let now = Instant::now();
            guard.release().await.unwrap();
            now
        });
        // Until it is in line, and listens.
        while giver.inspect(lockkit::Space::Lock, "a").await.unwrap().queue.len() < 2 {
            tokio::time::sleep(LATENCY).await;
        }
        tokio::time::sleep(LATENCY * 10).await;
        let begun = Instant::now();
        let released = tokio::spawn(guard.release());
        took.push((next.await.unwrap() - begun).as_secs_f64() * 1e3);
        released.await.unwrap().unwrap();
    }
    let (took, least) = (median(took), 2.0 * LATENCY.as_secs_f64() * 1e3);
    println!(
        "postgres behind 10 ms each way: handed over in {took:.1} ms, {:.2} × one way in and \
              one way out",
        took / least
    );
}

/// What a number of cycles over 1,000 names leaves; a million unless `CYCLES` says otherwise.
async fn sizes() {
    let cycles: usize =
        std::env::var("CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    for kind in [ServerKind::Postgres, ServerKind::MariaDb] {
        let server = Server::start(kind).await.unwrap();
        let locks = lockkit::connect(&server.url()).await.unwrap();
        cycle(&locks, 1_000).await;
        report(kind, &server.url(), 1_000).await;
        cycle(&locks, cycles).await;
        report(kind, &server.url(), cycles).await;
    }
}

async fn cycle(locks: &LockManager, cycles: usize) {
    let mut running = JoinSet::new();
    for task in 0..50 {
        let locks = locks.clone();
        running.spawn(async move {
            for i in 0..cycles / 50 {
                let name = format!("invoice/{}", task * 20 + i % 20);
                locks.mutex(name).lock().await.unwrap().release().await.unwrap();
            }
        });
    }
    running.join_all().await;
}

async fn report(kind: ServerKind, url: &str, cycles: usize) {
    let told: Vec<(String, i64, i64)> = match kind {
        ServerKind::Postgres => {
            let pool = PgPool::connect(url).await.unwrap();
            let sizes = "SELECT relname::text, pg_total_relation_size(relid), n_live_tup + n_dead_tup \
                         FROM pg_stat_user_tables WHERE schemaname = 'lockkit' ORDER BY 1";
            sqlx::query_as(sizes).fetch_all(&pool).await.unwrap()
        }
        _ => {
            let pool = MySqlPool::connect(url).await.unwrap();
            sqlx::query("ANALYZE TABLE lockkit_names, lockkit_claims")
                .fetch_all(&pool)
                .await
                .unwrap();
            let sizes = "SELECT CONVERT(table_name USING utf8mb4), \
                         CAST(data_length + index_length AS SIGNED), CAST(table_rows AS SIGNED) \
                         FROM information_schema.tables \
                         WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' ORDER BY 1";
            sqlx::query_as(sizes).fetch_all(&pool).await.unwrap()
        }
    };
    for (table, bytes, rows) in told.iter().filter(|(_, bytes, _)| *bytes > 0) {
        println!("{kind:?} after {cycles} cycles: {table} {} kB, {rows} rows", bytes / 1024);
    }
}
