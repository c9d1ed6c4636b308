//! Batches of the SQLite driver: their outcomes are those of their operations one by one, whatever other
//! clients write.
#![allow(missing_docs)]

mod submitting;
mod support;

use std::collections::HashMap;
use std::sync::Arc;

use lockkit_core::driver::{Acquisition, LockDriver, Released};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Claim, Error, Lifetime, Mode, Token};
use lockkit_sql::SqliteDriver;
use lockkit_sql::sqlx::sqlite::SqliteConnectOptions;
use lockkit_sql::sqlx::{ConnectOptions, Executor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use submitting::*;
use support::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What can be compared between backends: all but the tokens.
fn kind(reply: &Outcome) -> String {
    match reply {
        Outcome::Acquired(Acquisition::Granted(grant)) => format!("granted for {:?}", grant.ttl),
        other => format!("{other:?}"),
    }
}

fn random_claim(rng: &mut StdRng) -> Arc<Claim> {
    let name = NAMES[rng.random_range(0..NAMES.len())];
    match rng.random_range(0..4) {
        0 => exclusive(name),
        1 | 2 => claim(name, Mode::Shared),
        _ => permits(name, rng.random_range(1..=3), 3),
    }
}

/// At most one operation of a claim, releases first.
fn random_batch(rng: &mut StdRng, known: &mut Vec<Arc<Claim>>) -> Vec<Operation> {
    let (mut releases, mut acquires) = (Vec::new(), Vec::new());
    for _ in 0..rng.random_range(1..=64) {
        if known.len() > 8 && rng.random_bool(0.5) {
            let claim = known.swap_remove(rng.random_range(0..known.len()));
            releases.push(release(&claim));
        } else {
            let claim = random_claim(rng);
            acquires.push(if rng.random_bool(0.5) { try_it(&claim) } else { wait(&claim) });
        }
    }
    known.extend(acquires.iter().map(|operation| operation.claim().clone()));
    releases.append(&mut acquires);
    releases
}

async fn lines(driver: &dyn LockDriver) -> Vec<Vec<(Mode, bool)>> {
    let mut lines = Vec::new();
    for name in NAMES {
        for mode in [Mode::Shared, Mode::Permits { permits: 1, limit: 3 }] {
            let state = driver.inspect(&key(mode.space(), name)).await.unwrap();
            lines.push(state.queue.iter().map(|s| (s.mode, s.holds())).collect());
        }
    }
    lines
}

#[tokio::test]
async fn random_batches_through_two_drivers_are_answered_as_in_memory() {
    let folder = folder();
    let drivers = [open(&folder).await, open(&folder).await];
    let model = MemoryDriver::new();
    let mut rng = StdRng::seed_from_u64(12);
    let (mut known, mut last) = (Vec::new(), HashMap::<_, Token>::new());
    for round in 0..200 {
        let batch = random_batch(&mut rng, &mut known);
        // Now the one, now the other, several times on end.
        let driver = &drivers[rng.random_range(0..2_usize)];
        let answers = submit(driver, &batch).await.unwrap();
        let expected = submit(&model, &batch).await.unwrap();
        for ((operation, answer), expected) in batch.iter().zip(answers).zip(expected) {
            let (answer, expected) = (answer.unwrap().result, expected.unwrap().result);
            assert_eq!(kind(&answer), kind(&expected), "round {round}: {operation:?}");
            if let Outcome::Acquired(Acquisition::Granted(grant)) = answer {
                let before = last.insert(operation.claim().key.clone(), grant.token);
                assert!(before.is_none_or(|before| before < grant.token), "round {round}");
            }
        }
        assert_eq!(lines(&drivers[0]).await, lines(&model).await, "round {round}");
    }
}

async fn alone(driver: &SqliteDriver, operation: Operation) -> Outcome {
    submit(driver, &[operation]).await.unwrap().remove(0).unwrap().result
}

/// A driver knows lists from one transaction to the next; whoever writes beside it ends that.
#[tokio::test]
async fn what_others_wrote_is_seen_by_the_next_batch() {
    let folder = folder();
    let driver = open(&folder).await;
    let path = folder.path().join("locks.db");
    let mut other = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    let (first, second) = (exclusive("a"), exclusive("a"));
    let Outcome::Acquired(Acquisition::Granted(before)) = alone(&driver, try_it(&first)).await
    else {
        panic!("the lock is free");
    };
    assert_eq!(alone(&driver, try_it(&second)).await, Outcome::Acquired(Acquisition::Busy));
    other.execute("DELETE FROM lockkit_claims").await.unwrap();
    other.execute("UPDATE lockkit_meta SET token = token + 1000").await.unwrap();
    let gone = alone(&driver, release(&first)).await;
    assert_eq!(gone, Outcome::Released(Released::NoSuchLock));
    let Outcome::Acquired(Acquisition::Granted(after)) = alone(&driver, try_it(&second)).await
    else {
        panic!("the lock is free again");
    };
    assert!(after.token > before.token);
}

#[tokio::test]
async fn what_fails_in_a_batch_fails_alone() {
    let folder = folder();
    let driver = open(&folder).await;
    take(&driver, &permits("s", 1, 3)).await;
    let detached = Arc::new(Claim::clone(&exclusive("b")).with_lifetime(Lifetime::Detached));
    let claims =
        [exclusive("a"), permits("s", 1, 4), permits("t", 5, 4), detached, permits("s", 1, 3)];
    let batch: Vec<_> = claims.iter().map(try_it).collect();
    let answers = submit(&driver, &batch).await.unwrap();
    let granted: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(granted, [true, false, false, true, true], "{answers:?}");
    assert!(matches!(answers[1], Err(Error::LimitMismatch { in_use: 3, asked: 4, .. })));
    assert!(matches!(answers[2], Err(Error::Config(_))));
}

#[tokio::test]
async fn a_hand_over_within_a_batch_wakes_the_next() {
    let folder = folder();
    let driver = open(&folder).await;
    let mut holders = Vec::new();
    let mut waiting = tokio::task::JoinSet::new();
    for i in 0..40 {
        let (holder, waiter) = (exclusive(&i.to_string()), exclusive(&i.to_string()));
        take(&driver, &holder).await;
        queue(&driver, &waiter).await;
        holders.push(release(&holder));
        let driver = driver.clone();
        waiting.spawn(async move { driver.granted(&waiter).await.unwrap().token });
    }
    tokio::task::yield_now().await;
    let answers = submit(&driver, &holders).await.unwrap();
    for answer in answers {
        assert_eq!(answer.unwrap().result, Outcome::Released(Released::Removed));
    }
    assert_eq!(waiting.join_all().await.len(), 40);
}
