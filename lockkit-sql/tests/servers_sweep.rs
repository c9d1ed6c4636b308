//! What the sweep of a database server reads and removes: some names at a time, from where the last one ended.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{BreakMode, LockDriver, RegisterKey, Write};
use lockkit_core::{LockManager, Name, Namespace, Settings, Space, Token};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, Row};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

async fn postgres() -> (Server, PgConnection) {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    PostgresDriver::connect(&server.url()).await.unwrap().close().await;
    let admin = PgConnection::connect(&server.url()).await.unwrap();
    (server, admin)
}

/// Makes so many names that were used at this time.
async fn make(admin: &mut PgConnection, from: u32, to: u32, used: &str) {
    let names = format!(
        "INSERT INTO lockkit.lockkit_names (namespace, space, name, last, used, has_claim_rows)
         SELECT '', 0, convert_to(to_char(n, 'FM000000'), 'UTF8'), 1, {used}, false
         FROM generate_series({from}, {to}) AS n"
    );
    admin.execute(AssertSqlSafe(names)).await.unwrap();
}

#[tokio::test]
async fn a_sweep_of_postgres_reads_a_bite_however_many_names_there_are() {
    let (_server, mut admin) = postgres().await;
    make(&mut admin, 1, 20_000, "lockkit.lockkit_clock()").await;
    admin.execute("ANALYZE lockkit.lockkit_names").await.unwrap();
    let reads = "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables
        WHERE schemaname = 'lockkit'";
    for after in ["", "010000", "019990"] {
        admin.execute("BEGIN").await.unwrap();
        let sweep = format!("SELECT lockkit.lockkit_sweep('', 0, '{after}', 100)");
        admin.execute(AssertSqlSafe(sweep)).await.unwrap();
        let reads: i64 = admin.fetch_one(reads).await.unwrap().get(0);
        assert!(reads < 1_000, "behind {after:?}: {reads} rows were read");
        admin.execute("COMMIT").await.unwrap();
    }
}

#[tokio::test]
async fn bites_of_postgres_reach_every_name_and_remove_those_that_are_not_used() {
    let (_server, mut admin) = postgres().await;
    make(&mut admin, 1, 1_000, "lockkit.lockkit_clock()").await;
    make(&mut admin, 1_001, 1_200, "1").await;
    let mut end = Some((Vec::new(), -1, Vec::new()));
    let mut bites = 0;
    while let Some((namespace, space, name)) = end
        && bites < 20
    {
        let sweep = "SELECT * FROM lockkit.lockkit_sweep($1, $2, $3, 100)";
        let sweep = sqlx::query_as(sweep).bind(namespace).bind(space).bind(name);
        let ended: (Option<Vec<u8>>, Option<i64>, Option<Vec<u8>>) =
            sweep.fetch_one(&mut admin).await.unwrap();
        end = ended
            .0
            .zip(ended.1)
            .zip(ended.2)
            .map(|((namespace, space), name)| (namespace, space, name));
        bites += 1;
    }
    assert_eq!(bites, 13, "the last one finds no more names");
    let left: Vec<Vec<u8>> = sqlx::query_scalar("SELECT name FROM lockkit.lockkit_names")
        .fetch_all(&mut admin)
        .await
        .unwrap();
    assert_eq!(left.len(), 1_000);
    assert!(left.iter().all(|name| name.as_slice() <= &b"001000"[..]));
}

#[tokio::test]
async fn a_client_connects_to_postgres_although_its_sweep_waits() {
    let (server, mut admin) = postgres().await;
    admin.execute("BEGIN").await.unwrap();
    admin.execute("LOCK TABLE lockkit.lockkit_registers IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let options = ServerOptions::default().timeout(LONG * 2);
    let url = server.url();
    let connecting = PostgresDriver::connect_with(&url, options);
    timeout(LONG / 3, connecting).await.expect("it does not wait for its sweep").unwrap();
}

/// The value of a register ends with its TTL, also where its token stays.
#[tokio::test]
async fn a_sweep_removes_the_value_of_a_fenced_register_that_has_ended_and_keeps_its_token() {
    let (server, mut admin) = postgres().await;
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    for (name, token) in [("fenced", Token::new(7)), ("plain", None)] {
        let at = RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() };
        let ttl = Some(Duration::from_secs(1));
        let value = Some(b"value".to_vec());
        let write = Write { value, token, ttl, ..Write::of(None) };
        driver.registers().unwrap().write(&at, &write).await.unwrap();
    }
    // An hour passes.
    let hour = "UPDATE lockkit.lockkit_registers SET expires = expires - 3600000000,
        purge_at = purge_at - 3600000000, set_at = set_at - 3600000000";
    admin.execute(hour).await.unwrap();
    admin.execute("SELECT lockkit.lockkit_sweep('', -1, '', 100)").await.unwrap();
    let left = "SELECT convert_from(name, 'UTF8'), value IS NULL, highest
        FROM lockkit.lockkit_registers";
    let left: Vec<(String, bool, Option<i64>)> =
        sqlx::query_as(left).fetch_all(&mut admin).await.unwrap();
    assert_eq!(left, [("fenced".to_owned(), true, Some(7))]);
}

#[tokio::test]
async fn of_a_queue_that_always_has_claims_records_of_breaks_do_not_pile_up() {
    let (server, mut admin) = postgres().await;
    let locks = LockManager::new(PostgresDriver::connect(&server.url()).await.unwrap());
    let _reader = locks.rwlock("busy").read().await.unwrap();
    for _ in 0..3 {
        let broken = locks.rwlock("busy").read().await.unwrap();
        let token = broken.token().unwrap();
        let breaker = locks.admin();
        let done = breaker.break_lock(Space::Lock, "busy", token, BreakMode::Forced, None).await;
        assert!(done.unwrap());
        let hour = "UPDATE lockkit.lockkit_breaks SET expires = expires - 3600000000";
        admin.execute(hour).await.unwrap();
    }
    let records = "SELECT count(*) FROM lockkit.lockkit_breaks";
    let records: i64 = admin.fetch_one(records).await.unwrap().get(0);
    assert_eq!(records, 1, "the last one shows for as long as the queue is in use");
}

/// Uses locks until the name `z` is gone, which is behind a bite of names that are in use.
async fn sweeps(driver: Arc<dyn LockDriver>, is_gone: impl AsyncFn() -> bool) {
    let locks = LockManager::with(driver, Settings::default()).unwrap();
    let swept = async {
        while !is_gone().await {
            for _ in 0..64 {
                locks.mutex("a").lock().await.unwrap().release().await.unwrap();
            }
        }
    };
    timeout(LONG, swept).await.expect("a later sweep goes on behind the names of the first");
    locks.shutdown().await;
}

#[tokio::test]
async fn a_driver_of_postgres_sweeps_on_where_its_last_sweep_ended() {
    let (server, mut admin) = postgres().await;
    make(&mut admin, 1, 1_000, "lockkit.lockkit_clock()").await;
    admin
        .execute(
            "INSERT INTO lockkit.lockkit_names (namespace, space, name, last, used, has_claim_rows)
             VALUES ('', 0, 'z', 1, 1, false)",
        )
        .await
        .unwrap();
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    let is_gone = async || {
        let z = "SELECT count(*) FROM lockkit.lockkit_names WHERE name = 'z'";
        let mut admin = PgConnection::connect(&server.url()).await.unwrap();
        sqlx::query_scalar::<_, i64>(z).fetch_one(&mut admin).await.unwrap() == 0
    };
    sweeps(Arc::new(driver), is_gone).await;
}

#[tokio::test]
async fn a_driver_of_mariadb_sweeps_on_where_its_last_sweep_ended() {
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    MySqlDriver::connect(&server.url()).await.unwrap().close().await;
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    for sql in [
        "INSERT INTO lockkit_names (namespace, space, name, last, since)
         SELECT '', 0, LPAD(seq, 6, '0'), 1,
                TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM seq_1_to_1000",
        "INSERT INTO lockkit_names (namespace, space, name, last, since) VALUES ('', 0, 'z', 1, 1)",
    ] {
        admin.execute(sqlx::raw_sql(sql)).await.unwrap();
    }
    let driver = MySqlDriver::connect(&server.url()).await.unwrap();
    let is_gone = async || {
        let z = "SELECT COUNT(*) FROM lockkit_names WHERE name = 'z'";
        let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
        sqlx::query_scalar::<_, i64>(z).fetch_one(&mut admin).await.unwrap() == 0
    };
    sweeps(Arc::new(driver), is_gone).await;
}
