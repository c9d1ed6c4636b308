//! Transactions that a lock stands behind: a commit never comes from a client that lost the lock. One
//! set of cases, and a scene for each database.

#[macro_use]
mod cases;
mod mysql;
mod postgres;
mod sqlite;

use std::time::Duration;

use lockkit::{Guard, LockManager};

/// Long enough for whatever has to happen.
const LONG: Duration = Duration::from_secs(60);

/// Two managers, for two clients that want the same lock.
async fn two_managers(url: &str) -> (LockManager, LockManager) {
    (lockkit::connect(url).await.unwrap(), lockkit::connect(url).await.unwrap())
}

/// The lock, for so short a time that it ends under its holder.
async fn short(locks: &LockManager, name: &str) -> Guard {
    let mutex = locks.mutex(name).auto_renew(false).ttl(Duration::from_secs(2));
    mutex.lock().await.unwrap()
}

/// A try that is answered although the name is fenced, and refused.
async fn is_busy(locks: &LockManager, name: &str) -> bool {
    let tried = tokio::time::timeout(LONG, locks.mutex(name).try_lock()).await;
    tried.expect("a try does not wait for a fence").unwrap().is_none()
}
