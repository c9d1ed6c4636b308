//! MariaDB before there are tables, and where the user of locks may not make any.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{LockDriver, SetLimit};
use lockkit_core::{Key, LockManager, Name, Namespace, Settings, Space};
use lockkit_lab::{Server, ServerKind, SharedServer};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, MySqlPool};
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);

async fn url() -> String {
    SharedServer::server(ServerKind::MariaDb).await.unwrap().url().to_owned()
}

async fn run(connection: &mut MySqlConnection, statement: String) {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
}

/// Each with connections of its own, so that the server cannot tell them from 20 processes.
#[tokio::test]
async fn twenty_that_start_at_once_on_an_empty_database_all_find_its_tables() {
    let url = url().await;
    for round in 0..3 {
        let mut starting = JoinSet::new();
        for _ in 0..20 {
            let url = url.clone();
            starting.spawn(async move {
                let options = ServerOptions::default().timeout(LONG).connections(2);
                let options = options.tables(format!("first_start_{round}_"));
                let driver = MySqlDriver::connect_with(&url, options).await.unwrap();
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
    // A server of its own: rights are those of a whole server.
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let options = ServerOptions::default().tables("by_hand_");
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    run(&mut admin, "CREATE USER locker@'127.0.0.1'".to_owned()).await;
    let login = server.url().replacen("root@", "locker@", 1);
    assert_ne!(login, server.url(), "the lab's URL names a user");
    let refused = MySqlDriver::connect_with(&login, options.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("`lockkit schema` prints the GRANTs"), "{refused}");
    assert!(!refused.is_retryable());

    // What the command-line client makes of it: statements between delimiters.
    let statements = MySqlDriver::schema(&login, options.clone()).unwrap();
    let body = statements.strip_prefix("DELIMITER --;\n").expect("it sets the delimiter");
    let (body, rights) = body.split_once("DELIMITER ;\n").expect("and sets it back");
    let grant = rights.lines().find_map(|line| line.strip_prefix("-- GRANT "));
    let grant = grant.expect("it says which rights a program needs");
    let grant = grant.replace("`database`", "lockkit").replace("app;", "locker@'127.0.0.1'");
    run(&mut admin, format!("GRANT {grant}")).await;
    let refused = MySqlDriver::connect_with(&login, options.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("this user may not make them"), "{refused}");
    assert!(!refused.is_retryable());
    for statement in body.split("--;").map(str::trim).filter(|one| !one.is_empty()) {
        run(&mut admin, statement.to_owned()).await;
    }
    let driver = MySqlDriver::connect_with(&login, options).await.unwrap();
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
async fn what_cannot_be_a_place_for_tables_is_refused_before_anything_is_sent() {
    for url in ["mysql://nobody@127.0.0.1:1/x?tables=a`b", "mysql://nobody@127.0.0.1:1"] {
        let refused = MySqlDriver::connect(url).await.unwrap_err();
        assert!(matches!(refused, lockkit_core::Error::Config(_)), "{refused}");
    }
}

#[tokio::test]
async fn tables_of_another_version_are_refused_and_left_alone() {
    let url = url().await;
    let options = ServerOptions::default().tables("tomorrow_");
    MySqlDriver::connect_with(&url, options.clone()).await.unwrap().close().await;
    let mut admin = MySqlConnection::connect(&url).await.unwrap();
    let running = MySqlDriver::connect_with(&url, options.clone()).await.unwrap();
    for version in [6, 999] {
        run(&mut admin, format!("UPDATE tomorrow_meta SET version = {version}")).await;
        let told = format!("have version {version}, and this lockkit needs version 11");
        let refused = MySqlDriver::connect_with(&url, options.clone()).await.unwrap_err();
        assert!(refused.to_string().contains(&told) && !refused.is_retryable(), "{refused}");
        // A driver that finds a procedure missing makes none either.
        run(&mut admin, "DROP PROCEDURE IF EXISTS tomorrow_resize".to_owned()).await;
        let key = Key::new(Namespace::default(), Space::Semaphore, Name::new("s").unwrap());
        let refused = running.resize(&key, SetLimit::To(2)).await.unwrap_err();
        assert!(refused.to_string().contains(&told) && !refused.is_retryable(), "{refused}");
        // Nor do the statements for people.
        let refused = run_schema(&mut admin, options.clone()).await.unwrap_err();
        assert!(refused.to_string().contains(&told), "{refused}");
        run(&mut admin, "DO RELEASE_ALL_LOCKS()".to_owned()).await;
        let made = "SELECT COUNT(*) FROM information_schema.routines \
            WHERE routine_schema = DATABASE() AND routine_name = 'tomorrow_resize'";
        let made: i64 = sqlx::query_scalar(made).fetch_one(&mut admin).await.unwrap();
        assert_eq!(made, 0, "nothing was made");
    }
}

/// The statements that `lockkit schema` prints, as the command-line client sends them: it stops at an error.
async fn run_schema(
    connection: &mut MySqlConnection,
    options: ServerOptions,
) -> Result<(), sqlx::Error> {
    let text = MySqlDriver::schema(&url().await, options).unwrap();
    let (body, _) = text.split_once("DELIMITER ;\n").unwrap();
    let body = body.strip_prefix("DELIMITER --;\n").unwrap();
    for statement in body.split("--;").map(str::trim).filter(|one| !one.is_empty()) {
        connection.execute(sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))).await?;
    }
    Ok(())
}

#[tokio::test]
async fn procedures_that_outlived_their_tables_are_replaced() {
    let url = url().await;
    let options = ServerOptions::default().tables("dropped_");
    let mut admin = MySqlConnection::connect(&url).await.unwrap();
    for by_hand in [false, true] {
        MySqlDriver::connect_with(&url, options.clone()).await.unwrap().close().await;
        // As an older version may have had it.
        run(&mut admin, "DROP PROCEDURE dropped_counter".to_owned()).await;
        let old = "CREATE PROCEDURE dropped_counter(IN a VARBINARY(128), IN b VARBINARY(512)) \
                   SELECT 417 AS counter, NULL AS neighbours";
        run(&mut admin, old.to_owned()).await;
        let tables = "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables \
            WHERE table_schema = DATABASE() AND table_name LIKE 'dropped\\_%' \
            AND table_type = 'BASE TABLE'";
        let tables: String = sqlx::query_scalar(tables).fetch_one(&mut admin).await.unwrap();
        run(&mut admin, format!("DROP TABLE {tables}")).await;
        if by_hand {
            run_schema(&mut admin, options.clone()).await.unwrap();
        }
        let driver = MySqlDriver::connect_with(&url, options.clone()).await.unwrap();
        let counter = driver.namespace_counter(&Namespace::default()).await.unwrap();
        assert_eq!(counter, 0, "by hand: {by_hand}");
        driver.close().await;
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_clear_error_that_does_not_show_it() {
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    let user = "guarded@'127.0.0.1'";
    run(&mut admin, format!("CREATE USER {user} IDENTIFIED BY 'right-word'")).await;
    run(&mut admin, format!("GRANT ALL ON lockkit.* TO {user}")).await;
    let login = |word: &str| server.url().replacen("root@", &format!("guarded:{word}@"), 1);
    let refused = MySqlDriver::connect(&login("wrong-word")).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
    assert!(!format!("{refused} {refused:?}").contains("wrong-word"), "{refused:?}");
    MySqlDriver::connect(&login("right-word")).await.unwrap();
    // The other name of the same protocol.
    let other = login("right-word").replacen("mysql:", "mariadb:", 1);
    MySqlDriver::connect(&other).await.unwrap();
}

#[tokio::test]
async fn the_users_own_pool_serves_and_survives() {
    let pool = MySqlPool::connect(&url().await).await.unwrap();
    let driver = MySqlDriver::with_pool(pool.clone(), ServerOptions::default()).await.unwrap();
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
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let locks = LockManager::new(MySqlDriver::connect(&server.url()).await.unwrap());
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    for _ in 0..5 {
        let guard = locks.mutex("idle").lock().await.unwrap();
        let others = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                      WHERE id <> CONNECTION_ID() AND command <> 'Daemon'";
        let ids: Vec<i64> = sqlx::query_scalar(others).fetch_all(&mut admin).await.unwrap();
        for id in ids {
            // It may have ended by itself.
            let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}")));
            let _ = admin.execute(kill).await;
        }
        guard.release().await.unwrap();
    }
}
