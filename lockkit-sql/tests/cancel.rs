//! Futures of the SQLite driver dropped at every await point, one after the other.
#![allow(missing_docs)]

mod support;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lockkit_core::driver::{LockDriver, Patience, Registers, Write, WriteId};
use lockkit_sql::SqliteDriver;
use support::*;

/// Polls `future` until it returned `Pending` so many times, and drops it there; says whether it
/// was ready before.
async fn drop_after(pendings: usize, future: impl Future) -> bool {
    let mut future = pin!(future);
    let mut seen = 0;
    let polled = std::future::poll_fn(|cx: &mut Context<'_>| match future.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending if seen == pendings => Poll::Ready(false),
        Poll::Pending => {
            seen += 1;
            Poll::Pending
        }
    });
    // A future that waits for something that never comes is not polled again.
    let patience = Duration::from_millis(300);
    tokio::time::timeout(patience, polled).await.unwrap_or(false)
}

/// The file is not kept locked by anybody: a stranger writes to it at once.
async fn writable(other: &SqliteDriver) {
    let claim = exclusive("probe");
    take(other, &claim).await;
    other.release(&claim).await.unwrap();
}

#[tokio::test]
async fn an_acquire_dropped_anywhere_leaves_nothing_after_its_release() {
    let folder = folder();
    let other = open(&folder).await;
    for pendings in 0.. {
        // A new driver each time, so that connecting and setting up are dropped as well.
        let driver = open(&folder).await;
        let claim = exclusive("a");
        let done = drop_after(pendings, driver.acquire(&claim, Patience::Wait)).await;
        writable(&other).await;
        driver.release(&claim).await.unwrap();
        let next = exclusive("a");
        take(&other, &next).await;
        other.release(&next).await.unwrap();
        if done {
            assert!(pendings > 0, "nothing was dropped");
            break;
        }
    }
}

#[tokio::test]
async fn a_queued_claim_whose_futures_are_dropped_is_taken_out_by_its_release() {
    let folder = folder();
    let (driver, other) = (open(&folder).await, open(&folder).await);
    for pendings in 0..12 {
        let (holder, claim, next) = (exclusive("a"), exclusive("a"), exclusive("a"));
        take(&other, &holder).await;
        drop_after(pendings, driver.acquire(&claim, Patience::Wait)).await;
        drop_after(pendings, driver.granted(&claim)).await;
        drop_after(pendings, driver.renew(std::slice::from_ref(&claim))).await;
        drop_after(pendings, driver.release(&claim)).await;
        driver.release(&claim).await.unwrap();
        writable(&other).await;
        other.release(&holder).await.unwrap();
        take(&other, &next).await;
        other.release(&next).await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_dropped_while_it_is_granted_can_ask_again() {
    let folder = folder();
    let (driver, other) = (open(&folder).await, open(&folder).await);
    for pendings in 0..8 {
        let (holder, claim) = (exclusive("a"), exclusive("a"));
        take(&other, &holder).await;
        queue(&driver, &claim).await;
        let (_, released) =
            tokio::join!(drop_after(pendings, driver.granted(&claim)), other.release(&holder));
        released.unwrap();
        let again = tokio::time::timeout(Duration::from_secs(10), driver.granted(&claim));
        again.await.expect("the wake-up was lost").unwrap();
        driver.release(&claim).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_dropped_anywhere_was_made_or_not_and_can_be_repeated() {
    let folder = folder();
    let at = register("a");
    for pendings in 0..12 {
        let driver = open(&folder).await;
        let store = Write {
            value: Some(vec![pendings as u8]),
            expect: lockkit_core::driver::Precondition::Anything,
            token: None,
            write_id: WriteId::random(),
            ttl: None,
            repeated: false,
        };
        drop_after(pendings, driver.write(&at, &store)).await;
        let repeated = driver.write(&at, &store).await.unwrap().result;
        assert!(matches!(repeated, lockkit_core::driver::WriteResult::Stored(_)));
        let loaded = driver.load(&at).await.unwrap().unwrap();
        assert_eq!(Some(loaded.value), store.value);
    }
}

#[tokio::test]
async fn opening_dropped_anywhere_leaves_a_whole_file_or_none() {
    for pendings in 0.. {
        let folder = folder();
        let path = folder.path().join("locks.db");
        let opening = SqliteDriver::open(&path, lockkit_sql::SqliteOptions::default());
        let done = drop_after(pendings, opening).await;
        let driver = open(&folder).await;
        take(&driver, &exclusive("a")).await;
        if done {
            break;
        }
    }
}
