//! What stays of a semaphore's limit in the tables of a database server, and what does not: a name that
//! nobody uses for a day is removed, unless it was given a limit.

use lockkit_core::LockManager;
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, Row};

/// Resizes `pool` to 4, and uses it and `plain`; nobody is in them afterwards. Says the last token.
async fn use_both(locks: &LockManager) -> i64 {
    locks.admin().resize("pool", 4).await.unwrap();
    let permits = locks.semaphore("pool", 1).resizable().acquire_many(4).await.unwrap();
    let token = permits.token().unwrap().as_i64();
    permits.release().await.unwrap();
    locks.semaphore("plain", 2).acquire().await.unwrap().release().await.unwrap();
    token
}

/// The limit is there, and tokens went on.
async fn finds_the_limit(locks: &LockManager, token: i64) {
    assert_eq!(locks.semaphore("pool", 1).resizable().limit().await.unwrap(), 4);
    let four = locks.semaphore("pool", 4).try_acquire_many(4).await.unwrap().expect("it is free");
    assert!(four.token().unwrap().as_i64() > token);
    assert!(
        locks.semaphore("pool", 1).resizable().try_acquire().await.unwrap().is_none(),
        "four are out"
    );
    four.release().await.unwrap();
}

#[tokio::test]
async fn a_sweep_of_postgres_leaves_a_name_that_has_a_limit() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let locks = LockManager::new(PostgresDriver::connect(&server.url()).await.unwrap());
    let token = use_both(&locks).await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("UPDATE lockkit.lockkit_names SET used = 1").await.unwrap();
    admin.execute("SELECT lockkit.lockkit_sweep('', -1, '', 1000)").await.unwrap();
    let names = "SELECT convert_from(name, 'UTF8') FROM lockkit.lockkit_names ORDER BY name";
    let names = admin.fetch_all(names).await.unwrap();
    let names: Vec<String> = names.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["pool"]);
    finds_the_limit(&locks, token).await;
}

#[tokio::test]
async fn a_sweep_of_mariadb_leaves_a_name_that_has_a_limit() {
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let locks = LockManager::new(MySqlDriver::connect(&server.url()).await.unwrap());
    let token = use_both(&locks).await;
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    admin.execute("UPDATE lockkit_names SET since = 1").await.unwrap();
    let sweep = "CALL lockkit_sweep('', -1, '', 1000, 86400000000)";
    admin.execute(sqlx::raw_sql(AssertSqlSafe(sweep.to_owned()))).await.unwrap();
    let names = "SELECT CAST(name AS CHAR) FROM lockkit_names ORDER BY name";
    let names = admin.fetch_all(names).await.unwrap();
    let names: Vec<String> = names.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["pool"]);
    finds_the_limit(&locks, token).await;
}

/// Who waits for a higher limit hears of it, and does not ask all the time.
#[tokio::test]
async fn on_postgres_one_that_waits_for_a_higher_limit_is_told() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let locks = LockManager::new(PostgresDriver::connect(&server.url()).await.unwrap());
    let pool = locks.semaphore("pool", 1).resizable();
    locks.admin().resize("pool", 0).await.unwrap();
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.acquire().await }
    });
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    let look = "SELECT s.ahead, s.next_poll, c.wait_ttl FROM lockkit.lockkit_claims AS c \
        CROSS JOIN LATERAL lockkit.lockkit_claim_state(c.id, lockkit.lockkit_clock()) AS s";
    let row = loop {
        match admin.fetch_optional(look).await.unwrap() {
            Some(row) => break row,
            None => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    let columns: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(columns[..2], [0, columns[2]], "nobody is ahead, and it looks when its lease ends");
    locks.admin().resize("pool", 1).await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
