//! Older data that are put back under clients that stay connected: tokens and versions never repeat.
#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod postgres;
mod sqlite;

use std::time::Duration;

use futures_util::StreamExt;
use lockkit_core::driver::Version;
use lockkit_core::{LockManager, Token};
use tokio::time::timeout;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// Clients that were connected before the older state was put back.
struct Clients {
    holds: LockManager,
    waits: LockManager,
    watches: LockManager,
    idle: LockManager,
}

impl Clients {
    fn each(&self) -> [&LockManager; 4] {
        [&self.holds, &self.waits, &self.watches, &self.idle]
    }
}

/// What the last one was given, or wrote.
#[derive(Clone, Copy, Debug)]
struct Last {
    token: Token,
    version: Version,
}

impl Last {
    /// Locks and writes once more: both numbers are greater.
    async fn next(self, locks: &LockManager, name: &str) -> Self {
        let guard = timeout(LONG, locks.mutex(name).lock()).await.unwrap().unwrap();
        let token = guard.token().unwrap();
        guard.release().await.unwrap();
        let version = timeout(LONG, locks.register("r").store(name)).await.unwrap().unwrap();
        assert!(token > self.token, "{name}: {token} after {self:?}");
        assert!(version > self.version, "{name}: {version:?} after {self:?}");
        Self { token, version }
    }

    async fn first(locks: &LockManager) -> Self {
        let none = Self { token: Token::new(1).unwrap(), version: Version(0) };
        none.next(locks, "a").await
    }
}

/// The state that `keep` keeps comes back under clients that hold, wait, watch and do nothing. Those who
/// hold and wait by then are not in it.
async fn put_back_under<K>(
    clients: &Clients,
    keep: impl AsyncFnOnce() -> K,
    put_back: impl AsyncFnOnce(K),
    later: impl AsyncFnOnce() -> LockManager,
) {
    let mut last = Last::first(&clients.idle).await;
    let kept = keep().await;
    for locks in clients.each() {
        last = last.next(locks, "a").await;
    }
    let guard = clients.holds.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    assert!(token > last.token);
    last.token = token;
    let waiting = tokio::spawn({
        let lock = clients.waits.mutex("a");
        async move { lock.lock().await }
    });
    let mut changes = Box::pin(clients.watches.register("r").watch());
    let shown = timeout(LONG, changes.next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(shown.version, last.version);
    let in_line = || async { clients.idle.inspect(lockkit_core::Space::Lock, "a").await };
    while in_line().await.unwrap().queue.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    put_back(kept).await;
    timeout(LONG, guard.lost()).await.expect("the holder finds out at its next renewal");
    assert!(guard.token().is_err());
    let next = timeout(LONG, waiting).await.expect("it asks anew").unwrap().unwrap();
    assert!(next.token().unwrap() > last.token, "{:?} after {last:?}", next.token());
    last.token = next.token().unwrap();
    next.release().await.unwrap();
    // Who connected later, and so knows nothing; then all others.
    last = last.next(&later().await, "a").await;
    for locks in clients.each() {
        last = last.next(locks, "a").await;
    }
    let seen = async {
        while let Some(change) = changes.next().await {
            if change.is_ok_and(|entry| entry.is_some_and(|entry| entry.version == last.version)) {
                return;
            }
        }
        panic!("the watch has ended");
    };
    timeout(LONG, seen).await.expect("what is written later is seen");
}
