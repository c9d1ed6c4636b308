//! The limits that semaphores are given, and what stays of a limit in the file.
#![allow(missing_docs)]

mod support;

use lockkit_core::Space;
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, SetLimit};
use lockkit_sql::SqliteDriver;
use support::*;

async fn resize(driver: &SqliteDriver, limit: SetLimit) -> u32 {
    driver.resize(&key(Space::Semaphore, "pool"), limit).await.unwrap()
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
