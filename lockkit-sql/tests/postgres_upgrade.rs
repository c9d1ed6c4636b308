//! PostgreSQL with tables that an earlier version of lockkit made: who held a lock goes on holding it,
//! and clients of both versions keep out of each other's way.

use std::time::Duration;

use lockkit_core::LockManager;
use lockkit_lab::{Kind, Server};
use lockkit_sql::{PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection};
use sqlx::{Executor, PgConnection, Row};

const VERSION_1: &str = include_str!("postgres_versions/1.sql");
const VERSION_2: &str = include_str!("postgres_versions/2_store.sql");

/// What a client of version 1 asks for; the claim's id is 16 times `id`.
async fn acquire(old: &mut PgConnection, name: &str, id: u8, patience: &str) -> (i64, Option<i64>) {
    let row = old
        .fetch_one(sqlx::raw_sql(AssertSqlSafe(format!(
            "SELECT * FROM version_1.lockkit_acquire('', 0, '{name}', '{}'::bytea, 2147483647, 2147483647, \
             3600000000, 3600000000, 'old', '{{}}', NULL, {patience})",
            bytes(id)
        ))))
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

async fn release(old: &mut PgConnection, name: &str, id: u8) -> i64 {
    let text = format!(
        "SELECT outcome FROM version_1.lockkit_release('', 0, '{name}', '{}'::bytea)",
        bytes(id)
    );
    old.fetch_one(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap().get(0)
}

fn bytes(id: u8) -> String {
    format!("\\x{}", format!("{id:02x}").repeat(16))
}

struct Scene {
    _server: Server,
    old: PgConnection,
    new: LockManager,
}

/// Tables of version 1, in which `held` is held; then a client of this version connects.
async fn upgraded(held: &str) -> (Scene, i64) {
    let server = Server::start(Kind::Postgres).await.unwrap();
    let mut old = PgConnection::connect(&server.url()).await.unwrap();
    old.execute(sqlx::raw_sql(VERSION_1)).await.unwrap();
    let (outcome, token) = acquire(&mut old, held, 1, "0").await;
    assert_eq!(outcome, 1);
    let options = ServerOptions::default().tables("version_1").timeout(Duration::from_secs(60));
    let new = LockManager::new(PostgresDriver::connect_with(&server.url(), options).await.unwrap());
    (Scene { _server: server, old, new }, token.unwrap())
}

#[tokio::test]
async fn a_lock_that_is_held_during_the_upgrade_stays_held_and_later_tokens_are_greater() {
    let (mut scene, token) = upgraded("a").await;
    assert!(scene.new.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(release(&mut scene.old, "a", 1).await, 1);
    for _ in 0..3 {
        let guard = scene.new.mutex("a").try_lock().await.unwrap().expect("it is free");
        assert!(guard.token().unwrap().as_i64() > token);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn clients_of_both_versions_never_hold_the_same_lock() {
    let (mut scene, _) = upgraded("other").await;
    for _ in 0..3 {
        let guard = scene.new.mutex("a").lock().await.unwrap();
        let token = guard.token().unwrap().as_i64();
        assert_eq!(acquire(&mut scene.old, "a", 2, "1").await, (0, None));
        assert_eq!(acquire(&mut scene.old, "a", 3, "0").await.0, 2, "it waits");
        guard.release().await.unwrap();
        // It holds now; asking again says so.
        let (outcome, later) = acquire(&mut scene.old, "a", 3, "0").await;
        assert_eq!(outcome, 1);
        assert!(later.unwrap() > token);
        assert!(scene.new.mutex("a").try_lock().await.unwrap().is_none());
        assert_eq!(release(&mut scene.old, "a", 3).await, 1);
    }
}

/// A function that was running while the tables were upgraded goes on with its old text.
#[tokio::test]
async fn a_function_of_version_1_that_outlasts_the_upgrade_is_asked_again() {
    let (mut scene, _) = upgraded("a").await;
    let old_text = "INSERT INTO version_1.lockkit_claims (id, list, place, token, weight, \
        capacity, hold_ttl, wait_ttl, queued, expires, held, client, identity) \
        VALUES ('x', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 'old', '{}')";
    let refused = scene.old.execute(old_text).await.unwrap_err();
    let code = refused.as_database_error().unwrap().code().unwrap().into_owned();
    assert_eq!(code, "40001", "a serialisation failure, which every client repeats");
}

/// What a client of version 1 asks for: permits of the semaphore `pool`, which leave at once.
async fn try_permits(old: &mut PgConnection, id: u8, limit: u32) -> (i64, Option<i64>) {
    let text = format!(
        "SELECT * FROM version_1.lockkit_acquire('', 1, 'pool', '{}'::bytea, 1, {limit}, \
         3600000000, 3600000000, 'old', '{{}}', NULL, 1)",
        bytes(id)
    );
    let row = old.fetch_one(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_client_of_version_1_is_bound_to_a_limit_that_a_later_one_gave() {
    let (mut scene, _) = upgraded("a").await;
    let pool = scene.new.semaphore("pool", 3).resizable();
    pool.resize(2).await.unwrap();
    assert_eq!(try_permits(&mut scene.old, 2, 3).await, (3, Some(2)), "another limit");
    let one = pool.try_acquire().await.unwrap().expect("two are free");
    assert_eq!(try_permits(&mut scene.old, 2, 2).await.0, 1, "one is free");
    assert_eq!(try_permits(&mut scene.old, 3, 2).await.0, 0, "none is free");
    assert!(pool.try_acquire().await.unwrap().is_none(), "none is free");
    pool.resize(1).await.unwrap();
    one.release().await.unwrap();
    assert_eq!(try_permits(&mut scene.old, 3, 1).await.0, 0, "the other one is out");
}

/// A client of version 2 that was connected before goes on writing registers, by the function that it
/// knows.
#[tokio::test]
async fn a_client_of_version_2_goes_on_writing_registers_after_the_upgrade() {
    let server = Server::start(Kind::Postgres).await.unwrap();
    let options = ServerOptions::default().tables("version_2");
    let url = server.url();
    let connect = || PostgresDriver::connect_with(&url, options.clone());
    drop(connect().await.unwrap());
    let mut old = PgConnection::connect(&server.url()).await.unwrap();
    let drop_write = "DROP FUNCTION version_2.lockkit_write";
    for back in [drop_write, VERSION_2, "UPDATE version_2.lockkit_meta SET version = 2"] {
        old.execute(sqlx::raw_sql(back)).await.unwrap();
    }
    assert_eq!(store(&mut old, 1, 1).await, 1, "it was absent");
    let new = LockManager::new(connect().await.unwrap()).register("r");
    let first = new.load().await.unwrap().unwrap();
    assert_eq!(first.value, [1]);
    assert_eq!(store(&mut old, 1, 1).await, 1, "the same write, asked for again");
    assert_eq!(store(&mut old, 2, 1).await, 0, "it is not absent");
    assert_eq!(store(&mut old, 3, 0).await, 1);
    let second = new.load().await.unwrap().unwrap();
    assert!(second.value == [3] && second.version > first.version);
    assert!(new.compare_and_store(first.version, b"late").await.is_err());
    new.compare_and_store(second.version, b"mine").await.unwrap();
}

/// The outcome of a write of a client of version 2.
async fn store(old: &mut PgConnection, write: u8, expect: u8) -> i64 {
    let id = bytes(write);
    let text = format!(
        "SELECT outcome FROM version_2.lockkit_store('', 'r', '\\x{write:02x}', {expect}, 0, 0, \
         '{id}'::bytea, 0)"
    );
    old.fetch_one(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap().get(0)
}

/// A client of version 3 that was connected before goes on with its functions, beside flights.
#[tokio::test]
async fn a_client_of_version_3_and_flights_keep_out_of_each_others_way() {
    let server = Server::start(Kind::Postgres).await.unwrap();
    let options = ServerOptions::default().tables("version_3");
    let url = server.url();
    let connect = || PostgresDriver::connect_with(&url, options.clone());
    drop(connect().await.unwrap());
    let mut old = PgConnection::connect(&server.url()).await.unwrap();
    let drop_carry = "DO $$ BEGIN EXECUTE (SELECT 'DROP FUNCTION ' || oid::regprocedure \
                      FROM pg_proc WHERE proname = 'lockkit_carry'); END $$";
    for back in [drop_carry, "UPDATE version_3.lockkit_meta SET version = 3"] {
        old.execute(sqlx::raw_sql(back)).await.unwrap();
    }
    // Every second is theirs: the first time in a row that is new, then in one that is there.
    let new = LockManager::new(connect().await.unwrap());
    let names: Vec<_> = (0..20).map(|i| format!("{i}")).collect();
    for round in 0..2 {
        for (id, name) in names.iter().enumerate().filter(|(id, _)| id % 2 == 0) {
            let row = theirs(&mut old, "take", id, name).await;
            assert_eq!(row[..8], 1_i64.to_be_bytes(), "round {round}: {name} is theirs");
        }
        let mutexes: Vec<_> = names.iter().map(|name| new.mutex(name)).collect();
        let tries = mutexes.iter().map(|mutex| mutex.try_lock());
        let held = futures_util::future::try_join_all(tries).await.unwrap();
        for (id, (name, held)) in names.iter().zip(&held).enumerate() {
            assert_eq!(held.is_some(), id % 2 == 1, "round {round}: {name}");
            let outcome = theirs(&mut old, "leave", id, name).await;
            let expected = if id % 2 == 0 { 1_i64 } else { 2 };
            assert_eq!(outcome[..8], expected.to_be_bytes(), "round {round}: {name}");
        }
        let releases = held.into_iter().flatten().map(|guard| guard.release());
        futures_util::future::try_join_all(releases).await.unwrap();
    }
}

/// What a client of version 3 asks for a mutex.
async fn theirs(old: &mut PgConnection, function: &str, id: usize, name: &str) -> Vec<u8> {
    let id = bytes(u8::try_from(id).unwrap());
    let rest = match function {
        "take" => ", 2147483647, 2147483647, 3600000000, 3600000000, 'old', '{}', NULL, 1",
        _ => "",
    };
    let text = format!("SELECT version_3.lockkit_{function}('', 0, '{name}', '{id}'::bytea{rest})");
    old.fetch_one(sqlx::raw_sql(AssertSqlSafe(text))).await.unwrap().get(0)
}
