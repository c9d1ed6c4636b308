//! A database server that takes no writes, as after a switch to another one or by an administrator's
//! word: a new lock is refused at once with an error that stays, and what is held or in line outlasts it.

use std::future::Future;
use std::time::Duration;

use lockkit_core::{Error, Guard, LockManager, Settings, Space};
use lockkit_lab::{Data, Kind, Server};
use lockkit_sql::{MySqlDriver, PostgresDriver};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The time to live of every claim: longer than any of these tests.
const TTL: Duration = Duration::from_secs(600);
/// Far below it, and far above what an answer takes.
const SOON: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings::default().ttl(TTL).wait_ttl(TTL)
}

async fn postgres(server: &Server) -> LockManager {
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    LockManager::with(std::sync::Arc::new(driver), settings()).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("it ends long before a lease does")
}

/// `job` is held, and one waits for it.
async fn held_and_wanted(
    ours: &LockManager,
    theirs: &LockManager,
) -> (Guard, JoinHandle<Result<Guard, Error>>) {
    let guard = ours.mutex("job").lock().await.unwrap();
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.mutex("job").lock().await }
    });
    soon(async {
        while ours.inspect(Space::Lock, "job").await.unwrap().line.len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    (guard, waiting)
}

/// Whatever way a lock is asked for, it is neither taken nor worth waiting for.
async fn refused_at_once(locks: &LockManager) {
    let fresh = locks.mutex("fresh");
    for refused in [
        soon(fresh.try_lock()).await.map(drop),
        soon(fresh.try_lock_for(TTL)).await.map(drop),
        soon(fresh.lock()).await.map(drop),
        soon(locks.register("r").store(b"value")).await.map(drop),
    ] {
        let error = refused.expect_err("nothing can be written there");
        assert!(!error.is_retryable(), "{error}");
        assert!(error.to_string().contains("the server is read-only"), "{error}");
    }
}

/// Afterwards everything goes on where it was.
async fn goes_on(guard: Guard, waiting: JoinHandle<Result<Guard, Error>>) {
    assert!(guard.is_valid() && !waiting.is_finished());
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
}

#[tokio::test]
async fn postgres_that_is_set_to_read_only_refuses_at_once_and_keeps_what_is_held() {
    let server = Server::start(Kind::Postgres).await.unwrap();
    let (ours, theirs) = (postgres(&server).await, postgres(&server).await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    // Connections hear of it one after the other.
    soon(async {
        while ours.mutex("other").try_lock().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let passing = postgres(&server).await;
    refused_at_once(&passing).await;
    // Nothing of it is in line, so there is nothing to wait for.
    soon(passing.shutdown()).await;
    admin.execute("SET default_transaction_read_only = off").await.unwrap();
    admin.execute("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    goes_on(guard, waiting).await;
}

#[tokio::test]
async fn a_standby_refuses_at_once_and_serves_those_in_line_once_it_takes_writes() {
    let server = Server::start(Kind::Postgres).await.unwrap();
    let (ours, theirs) = (postgres(&server).await, postgres(&server).await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    // A standby that waits for a primary.
    server.kill().await;
    std::fs::write(server.folder().join("postgres/data/standby.signal"), "").unwrap();
    server.restart(Data::Keep).await.unwrap();
    let passing = postgres(&server).await;
    refused_at_once(&passing).await;
    let health = passing.health().await.unwrap();
    assert!(
        health.findings.iter().any(|finding| finding.what.contains("in recovery")),
        "{health:?}"
    );
    soon(passing.shutdown()).await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("SELECT pg_promote()").await.unwrap();
    goes_on(guard, waiting).await;
}

#[tokio::test]
async fn mariadb_that_is_set_to_read_only_refuses_at_once_and_keeps_what_is_held() {
    let server = Server::start(Kind::MariaDb).await.unwrap();
    MySqlDriver::connect(&server.url()).await.unwrap();
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    // Administrators may write all the same.
    for statement in [
        "CREATE USER locker@'127.0.0.1'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON lockkit.* TO locker@'127.0.0.1'",
    ] {
        admin.execute(sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))).await.unwrap();
    }
    let login = server.url().replacen("root@", "locker@", 1);
    let locks = || async {
        let driver = MySqlDriver::connect(&login).await.unwrap();
        LockManager::with(std::sync::Arc::new(driver), settings()).unwrap()
    };
    let (ours, theirs) = (locks().await, locks().await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    admin.execute("SET GLOBAL read_only = 1").await.unwrap();
    let passing = locks().await;
    refused_at_once(&passing).await;
    soon(passing.shutdown()).await;
    admin.execute("SET GLOBAL read_only = 0").await.unwrap();
    goes_on(guard, waiting).await;
}

#[tokio::test]
async fn a_new_server_that_is_read_only_says_so_instead_of_asking_for_rights() {
    let server = Server::start(Kind::Postgres).await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("ALTER ROLE postgres SET default_transaction_read_only = on").await.unwrap();
    let refused = PostgresDriver::connect(&server.url()).await.unwrap_err();
    assert!(refused.to_string().contains("the server is read-only"), "{refused}");
    assert!(!refused.is_retryable(), "{refused}");
}
