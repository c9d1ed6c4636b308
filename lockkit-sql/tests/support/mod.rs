//! What the tests of the SQLite driver share: a file of their own, claims, a clock to move.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment};
use lockkit_core::driver::{Acquisition, Grant, LockDriver, Patience, RegisterKey};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_sql::{SqliteDriver, SqliteOptions};
use tempfile::TempDir;

pub const TTL: Duration = Duration::from_secs(30);
pub const WAIT: Duration = Duration::from_secs(10);

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub async fn open(folder: &TempDir) -> SqliteDriver {
    SqliteDriver::open(folder.path().join("locks.db"), SqliteOptions::default()).await.unwrap()
}

pub fn key(space: Space, name: &str) -> Key {
    Key::new(Namespace::default(), space, Name::new(name).unwrap())
}

pub fn register(name: &str) -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new(name).unwrap() }
}

pub fn claim_for(name: &str, mode: Mode, hold: Duration, wait: Duration) -> Arc<Claim> {
    let who = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key(mode.space(), name), mode, hold, wait, who))
}

pub fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    claim_for(name, mode, TTL, WAIT)
}

pub fn exclusive(name: &str) -> Arc<Claim> {
    claim(name, Mode::Exclusive)
}

pub fn permits(name: &str, permits: u32, limit: u32) -> Arc<Claim> {
    claim(name, Mode::Permits { permits, limit })
}

pub async fn take(driver: &SqliteDriver, claim: &Arc<Claim>) -> Grant {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub async fn queue(driver: &SqliteDriver, claim: &Arc<Claim>) -> u32 {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Queued { ahead } => ahead,
        other => panic!("not queued: {other:?}"),
    }
}

/// A clock that stands until it is moved.
#[derive(Debug)]
pub struct Hand(AtomicU64);

impl Hand {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_000_000_000_000)))
    }

    pub fn forward(&self, d: Duration) {
        self.0.fetch_add(d.as_nanos() as u64, Ordering::SeqCst);
    }

    pub fn back(&self, d: Duration) {
        self.0.fetch_sub(d.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

pub async fn open_at(folder: &TempDir, clock: &Arc<Hand>, boot: &str) -> SqliteDriver {
    let options = SqliteOptions::default().clock_of_boot(clock.clone(), boot);
    SqliteDriver::open(folder.path().join("locks.db"), options).await.unwrap()
}
