//! PostgreSQL before there are tables, and where the user of locks may not make any.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::driver::LockDriver;
use lockkit_core::{LockManager, Settings, Space};
use lockkit_lab::{Data, Server, ServerKind, SharedServer};
use lockkit_sql::{PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);

async fn url() -> String {
    SharedServer::server(ServerKind::Postgres).await.unwrap().url().to_owned()
}

fn with(url: &str, option: &str) -> String {
    match url.contains('?') {
        true => format!("{url}&{option}"),
        false => format!("{url}?{option}"),
    }
}

/// Each with connections of its own, so that the server cannot tell them from 20 processes.
#[tokio::test]
async fn twenty_that_start_at_once_on_an_empty_database_all_find_its_tables() {
    let url = url().await;
    for round in 0..3 {
        let url = with(&url, &format!("tables=first_start_{round}&connections=2"));
        let mut starting = JoinSet::new();
        for _ in 0..20 {
            let url = url.clone();
            starting.spawn(async move {
                let options = ServerOptions::default().timeout(LONG);
                let driver = PostgresDriver::connect_with(&url, options).await.unwrap();
                let locks = LockManager::new(driver);
                let guard = locks.mutex("first").lock().await.unwrap();
                let token = guard.token().unwrap();
                guard.release().await.unwrap();
                token
            });
        }
        let mut tokens = timeout(LONG, starting.join_all()).await.unwrap();
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 20, "each had its turn");
    }
}

#[tokio::test]
async fn with_tables_made_by_somebody_else_rights_to_use_them_are_enough() {
    let url = url().await;
    let place = "made_by_hand";
    let options = ServerOptions::default().tables(place);
    let mut admin = PgConnection::connect(&url).await.unwrap();
    admin.execute("DROP ROLE IF EXISTS locker").await.unwrap();
    admin.execute("CREATE ROLE locker LOGIN").await.unwrap();
    let login = url.replacen("postgres@", "locker@", 1);
    assert_ne!(login, url, "the lab's URL names a user");
    let refused = PostgresDriver::connect_with(&login, options.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("lockkit schema"), "{refused}");
    assert!(!refused.is_retryable());

    let statements = PostgresDriver::schema(&login, options.clone()).unwrap();
    admin.execute(sqlx::raw_sql(AssertSqlSafe(statements.clone()))).await.unwrap();
    // Where functions are nobody's unless they are given to somebody.
    let strict = format!("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {place} FROM PUBLIC");
    admin.execute(sqlx::raw_sql(AssertSqlSafe(strict))).await.unwrap();
    let refused = PostgresDriver::connect_with(&login, options.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied for schema"), "{refused}");
    assert!(refused.to_string().contains("`lockkit schema` prints the GRANTs"), "{refused}");
    assert!(!refused.is_retryable());

    let grants = statements.lines().filter_map(|line| line.strip_prefix("-- GRANT "));
    let grants: Vec<_> = grants.map(|grant| grant.replace("TO app;", "TO locker")).collect();
    assert!(!grants.is_empty(), "{statements}");
    for grant in grants {
        admin.execute(sqlx::raw_sql(AssertSqlSafe(format!("GRANT {grant}")))).await.unwrap();
    }
    let driver = PostgresDriver::connect_with(&login, options).await.unwrap();
    let locks = LockManager::new(driver);
    let guard = locks.rwlock("a").write().await.unwrap();
    assert!(locks.rwlock("a").try_read().await.unwrap().is_none());
    guard.downgrade().await.unwrap().release().await.unwrap();
    let permits = locks.semaphore("s", 3).acquire().await.unwrap();
    permits.release().await.unwrap();
    assert!(locks.health().await.unwrap().findings.iter().all(|f| !f.what.contains("version")));
    admin.close().await.unwrap();
}

#[tokio::test]
async fn a_place_for_tables_that_is_no_plain_word_is_refused_before_anything_is_sent() {
    let url = with("postgres://nobody@127.0.0.1:1/x", "tables=a\"b");
    let refused = PostgresDriver::connect(&url).await.unwrap_err();
    assert!(matches!(refused, lockkit_core::Error::Config(_)), "{refused}");
}

#[tokio::test]
async fn tables_of_another_version_are_refused_and_left_alone() {
    let url = with(&url().await, "tables=from_tomorrow");
    PostgresDriver::connect(&url).await.unwrap().close().await;
    let mut admin = PgConnection::connect(&self::url().await).await.unwrap();
    let schema = PostgresDriver::schema(&url, ServerOptions::default()).unwrap();
    for version in [6, 999] {
        let other = format!(
            "UPDATE from_tomorrow.lockkit_meta SET version = {version};
             DROP FUNCTION IF EXISTS from_tomorrow.lockkit_submit"
        );
        admin.execute(sqlx::raw_sql(AssertSqlSafe(other))).await.unwrap();
        let told = format!("have version {version}, and this lockkit needs version 11");
        let refused = PostgresDriver::connect(&url).await.unwrap_err();
        assert!(refused.to_string().contains(&told) && !refused.is_retryable(), "{refused}");
        // Nor do the statements for people change them.
        let script = sqlx::raw_sql(AssertSqlSafe(schema.clone()));
        let refused = admin.execute(script).await.unwrap_err();
        assert!(refused.to_string().contains(&told), "{refused}");
        admin.execute("ROLLBACK").await.unwrap();
        let carry = "SELECT count(*) FROM pg_proc
            WHERE proname = 'lockkit_submit' AND pronamespace = 'from_tomorrow'::regnamespace";
        let there: i64 = sqlx::query_scalar(carry).fetch_one(&mut admin).await.unwrap();
        assert_eq!(there, 0, "nothing was made");
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_clear_error_that_does_not_show_it() {
    // A server of its own: who may log in is changed here.
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'right-word'").await.unwrap();
    let rules: String = sqlx::query_scalar("SHOW hba_file").fetch_one(&mut admin).await.unwrap();
    let old = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("host all guarded all scram-sha-256\n{old}")).unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    let login = |word: &str| server.url().replacen("postgres@", &format!("guarded:{word}@"), 1);
    // The rules are read a moment after they were changed.
    let refused = timeout(LONG, async {
        loop {
            match PostgresDriver::connect(&login("wrong-word")).await {
                Err(error) if error.to_string().contains("password") => return error,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let refused = refused.await.expect("the rules are read");
    assert!(!refused.is_retryable(), "{refused}");
    assert!(!format!("{refused} {refused:?}").contains("wrong-word"), "{refused:?}");
    admin.execute("GRANT CREATE ON DATABASE postgres TO guarded").await.unwrap();
    PostgresDriver::connect(&login("right-word")).await.unwrap();
}

#[tokio::test]
async fn the_users_own_pool_serves_and_survives() {
    let pool = PgPool::connect(&url().await).await.unwrap();
    let driver = PostgresDriver::with_pool(pool.clone(), ServerOptions::default()).await.unwrap();
    let driver: Arc<dyn LockDriver> = Arc::new(driver);
    let locks = LockManager::with(driver, Settings::default()).unwrap();
    let guard = locks.mutex("pooled").lock().await.unwrap();
    assert!(locks.mutex("pooled").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    locks.shutdown().await;
    let one: i32 = sqlx::query_scalar("SELECT 1").fetch_one(&pool).await.unwrap();
    assert_eq!(one, 1, "the pool is the user's, and stays open");
}

/// Connections may be ended at any time, by administrators and by timeouts.
#[tokio::test]
async fn an_idle_connection_that_was_ended_costs_nobody_an_error() {
    // A server of its own: other people's connections are left alone.
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let locks = LockManager::new(PostgresDriver::connect(&server.url()).await.unwrap());
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    for _ in 0..5 {
        let guard = locks.mutex("idle").lock().await.unwrap();
        admin
            .execute(
                "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity \
                 WHERE application_name = 'lockkit' AND state = 'idle'",
            )
            .await
            .unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_goes_on_after_a_restart_of_the_server() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let locks = LockManager::new(PostgresDriver::connect(&server.url()).await.unwrap());
    let (seen, mut states) = mpsc::unbounded_channel();
    tokio::spawn({
        let watch = locks.watch(Space::Lock, "job");
        watch.for_each(move |state| {
            seen.send(state).unwrap();
            std::future::ready(())
        })
    });
    let mut next = async || timeout(LONG, states.recv()).await.unwrap().unwrap();
    assert!(next().await.unwrap().queue.is_empty());
    for _ in 0..3 {
        server.kill().await;
        // It asks every 200 ms, and reaches nobody.
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.restart(Data::Keep).await.unwrap();
        let guard = timeout(LONG, locks.mutex("job").lock()).await.unwrap().unwrap();
        assert_eq!(next().await.unwrap().queue.len(), 1);
        guard.release().await.unwrap();
        assert!(next().await.unwrap().queue.is_empty());
    }
}

/// docs/sql.md says why.
#[tokio::test]
async fn the_tables_leave_room_for_updates_and_are_vacuumed_early() {
    let url = with(&url().await, "tables=with_settings");
    PostgresDriver::connect(&url).await.unwrap().close().await;
    let mut admin = PgConnection::connect(&self::url().await).await.unwrap();
    let settings = "SELECT array_to_string(reloptions, ', ') FROM pg_class
        WHERE relname = $1 AND relnamespace = 'with_settings'::regnamespace";
    for (table, fill) in [("lockkit_names", 60), ("lockkit_claims", 70)] {
        let settings = sqlx::query_scalar(settings).bind(table).fetch_one(&mut admin).await;
        let settings: String = settings.unwrap();
        let expected = format!("fillfactor={fill}, autovacuum_vacuum_scale_factor=0.05");
        assert_eq!(settings, expected, "{table}");
    }
}
