//! Servers that take over from others, with what they have got: what is left of the promises.
#![allow(missing_docs)]

mod galera;
mod replicas;
mod unsynced;

use std::time::Duration;

use lockkit::{Guard, LockManager, Settings};
use tokio::time::timeout;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// A lease that does not end while a server takes over; it is renewed after a third of it.
const LEASE: Duration = Duration::from_secs(60);

async fn connect(url: &str, lease: Duration) -> LockManager {
    let settings = Settings::default().ttl(lease).wait_ttl(lease);
    let connected = async {
        loop {
            match lockkit::connect_with(url, settings.clone()).await {
                Ok(locks) => return locks,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, connected).await.expect("a machine that stalls is slow to answer")
}

/// Waits until it gets it; a server that has just taken over may refuse at first.
async fn lock(locks: &LockManager, name: &str) -> Guard {
    let locked = async {
        loop {
            match locks.mutex(name).lock().await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, locked).await.expect("it is free")
}

/// Whether another client has it, as soon as that is answered.
async fn is_busy(locks: &LockManager, name: &str) -> bool {
    let tried = async {
        loop {
            match locks.mutex(name).try_lock().await {
                Ok(guard) => return guard.is_none(),
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, tried).await.expect("it is answered")
}

/// Whether the server confirms it, as soon as that is answered.
async fn is_confirmed(guard: &Guard) -> bool {
    let asked = async {
        loop {
            match guard.verify().await {
                Ok(_) => return true,
                Err(error) if !guard.is_valid() => {
                    println!("{error}");
                    return false;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    timeout(LONG, asked).await.expect("it is answered")
}
