//! The limits that semaphores are given: files that were made before there were any, programs that do
//! not look at them, and what stays of a limit in the file.
#![allow(missing_docs)]

mod support;

use lockkit_core::Space;
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, SetLimit};
use lockkit_sql::SqliteDriver;
use lockkit_sql::sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use lockkit_sql::sqlx::{ConnectOptions, Executor};
use support::*;
use tempfile::TempDir;

const FIRST_TABLES: &str = include_str!("sqlite_versions/1.sql");
const OLD_ID: &str = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";

/// What a program writes that knows nothing of limits: a permit of `capacity` that is held.
async fn old_permit(
    file: &mut SqliteConnection,
    place: i64,
    capacity: u32,
) -> Result<(), lockkit_sql::sqlx::Error> {
    let text = "INSERT INTO lockkit_claims (namespace, space, name, place, token, id, weight, \
        capacity, hold_ttl, wait_ttl, queued, asked, expires, held, identity) \
        SELECT ?1, 1, 'pool', ?2, ?2, unhex(?3), 1, ?4, 1, 1, 1, 1, 9223372036854775807, 1, ?5";
    lockkit_sql::sqlx::query(text)
        .bind(key(Space::Semaphore, "pool").namespace.as_str().to_owned())
        .bind(place)
        .bind(OLD_ID)
        .bind(i64::from(capacity))
        .bind(r#"{"host":"old","pid":1,"program":"old"}"#)
        .execute(file)
        .await
        .map(drop)
}

/// A file as the first lockkits made it; a permit of 2 is held in it.
async fn first_file(folder: &TempDir) -> SqliteConnection {
    let path = folder.path().join("locks.db");
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut file = options.connect().await.unwrap();
    file.execute(FIRST_TABLES).await.unwrap();
    // The boot id is whoever's: the first to open the file gives every claim a full ttl.
    file.execute(
        "INSERT INTO lockkit_meta (one, version, boot, epoch, token, ceiling) \
         VALUES (1, 1, 'old', 1, 1000, 1000); \
         PRAGMA application_id = 1818978676; PRAGMA user_version = 1; PRAGMA journal_mode = WAL",
    )
    .await
    .unwrap();
    old_permit(&mut file, 1000, 2).await.unwrap();
    file.execute("UPDATE lockkit_claims SET hold_ttl = 3600000000000").await.unwrap();
    file
}

async fn resize(driver: &SqliteDriver, limit: SetLimit) -> u32 {
    driver.resize(&key(Space::Semaphore, "pool"), limit).await.unwrap()
}

#[tokio::test]
async fn a_file_of_the_first_lockkits_gets_limits_and_keeps_its_claims() {
    let folder = folder();
    let old = first_file(&folder).await;
    let (a, b) = tokio::join!(open(&folder), open(&folder));
    // The limit that it is in use with.
    assert_eq!(resize(&a, SetLimit::IfUnset(7)).await, 2);
    let token = take(&b, &permits("pool", 1, 2)).await.token;
    assert!(token.as_i64() > 1000, "{token}");
    let busy = b.acquire(&permits("pool", 1, 2), Patience::Try).await.unwrap().result;
    assert_eq!(busy, Acquisition::Busy, "the old permit is still out");
    assert_eq!(resize(&b, SetLimit::To(3)).await, 3);
    take(&a, &permits("pool", 1, 3)).await;
    drop(old);
}

#[tokio::test]
async fn a_program_that_does_not_look_at_limits_is_refused_under_another_one() {
    let folder = folder();
    // It has the file open since before there were limits.
    let mut old = first_file(&folder).await;
    old.execute("DELETE FROM lockkit_claims").await.unwrap();
    let driver = open(&folder).await;
    old_permit(&mut old, 2000, 2).await.unwrap();
    old.execute("DELETE FROM lockkit_claims").await.unwrap();
    assert_eq!(resize(&driver, SetLimit::To(1)).await, 1);
    let refused = old_permit(&mut old, 3000, 2).await.unwrap_err().to_string();
    assert!(refused.contains("lockkit: this semaphore was given another limit"), "{refused}");
    // Under this one it comes in; and locks have no limits.
    old_permit(&mut old, 3000, 1).await.unwrap();
    let busy = driver.acquire(&permits("pool", 1, 1), Patience::Try).await.unwrap().result;
    assert_eq!(busy, Acquisition::Busy);
    take(&driver, &exclusive("pool")).await;
}

#[tokio::test]
async fn a_limit_outlives_all_who_use_the_file() {
    let folder = folder();
    let driver = open(&folder).await;
    assert_eq!(resize(&driver, SetLimit::To(4)).await, 4);
    driver.close().await;
    drop(driver);
    let driver = open(&folder).await;
    assert_eq!(resize(&driver, SetLimit::IfUnset(9)).await, 4);
    take(&driver, &permits("pool", 4, 4)).await;
}

/// The last claim of a list leaves a row that remembers the token.
#[tokio::test]
async fn tokens_grow_across_a_try_of_more_permits_than_the_limit() {
    let folder = folder();
    let driver = open(&folder).await;
    assert_eq!(resize(&driver, SetLimit::To(2)).await, 2);
    let mut last = None;
    for _ in 0..3 {
        let permit = permits("pool", 1, 2);
        let token = take(&driver, &permit).await.token;
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        assert_eq!(driver.release(&permit).await.unwrap(), Released::Removed);
        let busy = driver.acquire(&permits("pool", 3, 2), Patience::Try).await.unwrap().result;
        assert_eq!(busy, Acquisition::Busy, "three do not fit into two");
    }
}

#[tokio::test]
async fn a_lock_has_no_limit() {
    let folder = folder();
    let driver = open(&folder).await;
    driver.resize(&key(Space::Lock, "a"), SetLimit::To(2)).await.unwrap_err();
}
