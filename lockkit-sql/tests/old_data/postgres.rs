//! PostgreSQL: rows, as of a dump, while the server goes on; and a copy of its whole folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Guard, LockManager, LossReason, Namespace, Settings};
use lockkit_lab::{Data, Server, ServerKind};
use lockkit_sql::PostgresDriver;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::{Clients, Last, put_back_under};

/// Renewed every second.
const LEASE: Duration = Duration::from_secs(3);
const TABLES: [&str; 6] = ["meta", "names", "claims", "breaks", "registers", "counters"];
/// What is added to tokens here.
const BASE: u64 = 1_000_000;

async fn connect(server: &Server) -> LockManager {
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    let settings = Settings::default().ttl(LEASE).wait_ttl(LEASE);
    LockManager::with(Arc::new(driver), settings).unwrap()
}

async fn clients(server: &Server) -> Clients {
    Clients {
        holds: connect(server).await,
        waits: connect(server).await,
        watches: connect(server).await,
        idle: connect(server).await,
    }
}

async fn execute(server: &Server, text: String) {
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap();
}

fn copy_folder(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Returns when an answer moved the deadline.
async fn renewed(guard: &Guard) {
    let mut left = guard.remaining();
    while guard.remaining() <= left {
        left = guard.remaining();
        assert!(guard.is_valid(), "{guard:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Keeps the rows of all tables beside them.
async fn keep_rows(server: &Server) {
    let keep =
        |table: &str| format!("CREATE TABLE older_{table} AS TABLE lockkit.lockkit_{table};");
    execute(server, TABLES.into_iter().map(keep).collect()).await;
}

async fn put_rows_back(server: &Server) {
    let put_back = |table: &str| {
        format!(
            "DELETE FROM lockkit.lockkit_{table};
             INSERT INTO lockkit.lockkit_{table} OVERRIDING SYSTEM VALUE TABLE older_{table};"
        )
    };
    let text: String = TABLES.into_iter().map(put_back).collect();
    execute(server, format!("BEGIN; {text} COMMIT")).await;
}

#[tokio::test]
async fn clients_go_on_when_the_rows_of_a_dump_are_put_back() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let clients = clients(&server).await;
    put_back_under(
        &clients,
        async || keep_rows(&server).await,
        async |()| put_rows_back(&server).await,
        async || connect(&server).await,
    )
    .await;
}

/// The server is restarted with an older copy of its folder, while its clients stay.
#[tokio::test]
async fn clients_go_on_when_a_copy_of_the_servers_folder_is_put_back() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let clients = clients(&server).await;
    let older = tempfile::tempdir().unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    let data: String =
        sqlx::query_scalar("SHOW data_directory").fetch_one(&mut admin).await.unwrap();
    drop(admin);
    let (data, copy) = (PathBuf::from(data), older.path().join("data"));
    let keep = async || {
        server.kill().await;
        copy_folder(&data, &copy);
        server.restart(Data::Keep).await.unwrap();
    };
    let put_back = async |()| {
        server.kill().await;
        std::fs::remove_dir_all(&data).unwrap();
        copy_folder(&copy, &data);
        server.restart(Data::Keep).await.unwrap();
    };
    put_back_under(&clients, keep, put_back, async || connect(&server).await).await;
}

/// The number that is added to the tokens of a namespace is put back as well: who has read it keeps it.
#[tokio::test]
async fn a_client_keeps_the_token_base_that_it_knows() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    keep_rows(&server).await;
    driver.raise_namespace_counter(&Namespace::default(), BASE).await.unwrap();
    assert_eq!(driver.namespace_counter(&Namespace::default()).await.unwrap(), BASE);
    let locks = connect(&server).await;
    let last = Last::first(&locks).await;
    put_rows_back(&server).await;
    let fell = driver.namespace_counter(&Namespace::default()).await.unwrap_err();
    assert!(fell.to_string().contains("went back from 1000000 to 0"), "{fell}");
    let next = last.next(&locks, "a").await;
    let token = Last::first(&connect(&server).await).await.token;
    assert!(token.get() + BASE > next.token.get(), "only the base is missing");
}

/// A guard that was renewed learns from the next answer that the server's data are older than that.
#[tokio::test]
async fn a_lock_that_is_not_in_a_copy_that_was_put_back_is_lost_to_another_server() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    // Long enough for all that happens to the server between two renewals.
    let settings = Settings::default().ttl(5 * LEASE);
    let locks = LockManager::with(Arc::new(driver), settings).unwrap();
    let _ = Last::first(&locks).await;
    let older = tempfile::tempdir().unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    let data: String =
        sqlx::query_scalar("SHOW data_directory").fetch_one(&mut admin).await.unwrap();
    drop(admin);
    let (data, copy) = (PathBuf::from(data), older.path().join("data"));
    server.kill().await;
    copy_folder(&data, &copy);
    server.restart(Data::Keep).await.unwrap();
    let guard = locks.mutex("b").lock().await.unwrap();
    // What is put back is then behind, however much it writes as it starts.
    execute(&server, "SELECT pg_switch_wal()".to_owned()).await;
    renewed(&guard).await;
    server.kill().await;
    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&copy, &data);
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(guard.lost().await, LossReason::ServerChanged);
}
