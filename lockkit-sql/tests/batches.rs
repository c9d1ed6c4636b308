//! Flights of the SQLite driver: answered as their steps would be one by one, whoever else writes.
#![allow(missing_docs)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, Reply, Step};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{Claim, Error, Lifetime, Mode, Token};
use lockkit_sql::SqliteDriver;
use lockkit_sql::sqlx::sqlite::SqliteConnectOptions;
use lockkit_sql::sqlx::{ConnectOptions, Executor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What can be compared between backends: all but the tokens.
fn kind(reply: &Reply) -> String {
    match reply {
        Reply::Acquired(Acquisition::Granted(grant)) => format!("granted for {:?}", grant.ttl),
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

/// At most one step of a claim, releases first.
fn random_batch(rng: &mut StdRng, known: &mut Vec<Arc<Claim>>) -> Vec<Step> {
    let (mut releases, mut acquires) = (Vec::new(), Vec::new());
    for _ in 0..rng.random_range(1..=64) {
        if known.len() > 8 && rng.random_bool(0.5) {
            let claim = known.swap_remove(rng.random_range(0..known.len()));
            releases.push(Step::Release { claim });
        } else {
            let claim = random_claim(rng);
            let patience = if rng.random_bool(0.5) { Patience::Try } else { Patience::Wait };
            acquires.push(Step::Acquire { claim, patience });
        }
    }
    known.extend(acquires.iter().map(|step| step.claim().clone()));
    releases.append(&mut acquires);
    releases
}

async fn lines(driver: &dyn LockDriver) -> Vec<Vec<(Mode, bool)>> {
    let mut lines = Vec::new();
    for name in NAMES {
        for mode in [Mode::Shared, Mode::Permits { permits: 1, limit: 3 }] {
            let state = driver.inspect(&key(mode.space(), name)).await.unwrap();
            lines.push(state.line.iter().map(|s| (s.mode, s.holds())).collect());
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
        let flight = random_batch(&mut rng, &mut known);
        // Now the one, now the other, several times on end.
        let driver = &drivers[rng.random_range(0..2_usize)];
        let answers = driver.carry(&flight).await.unwrap();
        let expected = model.carry(&flight).await.unwrap();
        for ((step, answer), expected) in flight.iter().zip(answers).zip(expected) {
            let (answer, expected) = (answer.unwrap().result, expected.unwrap().result);
            assert_eq!(kind(&answer), kind(&expected), "round {round}: {step:?}");
            if let Reply::Acquired(Acquisition::Granted(grant)) = answer {
                let before = last.insert(step.claim().key.clone(), grant.token);
                assert!(before.is_none_or(|before| before < grant.token), "round {round}");
            }
        }
        assert_eq!(lines(&drivers[0]).await, lines(&model).await, "round {round}");
    }
}

async fn alone(driver: &SqliteDriver, step: Step) -> Reply {
    driver.carry(&[step]).await.unwrap().remove(0).unwrap().result
}

fn acquire(claim: &Arc<Claim>) -> Step {
    Step::Acquire { claim: claim.clone(), patience: Patience::Try }
}

/// A driver knows lists from one transaction to the next; whoever writes beside it ends that.
#[tokio::test]
async fn what_others_wrote_is_seen_by_the_next_batch() {
    let folder = folder();
    let driver = open(&folder).await;
    let path = folder.path().join("locks.db");
    let mut other = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    let (first, second) = (exclusive("a"), exclusive("a"));
    let Reply::Acquired(Acquisition::Granted(before)) = alone(&driver, acquire(&first)).await
    else {
        panic!("the lock is free");
    };
    assert_eq!(alone(&driver, acquire(&second)).await, Reply::Acquired(Acquisition::Busy));
    other.execute("DELETE FROM lockkit_claims").await.unwrap();
    other.execute("UPDATE lockkit_meta SET token = token + 1000").await.unwrap();
    let gone = alone(&driver, Step::Release { claim: first.clone() }).await;
    assert_eq!(gone, Reply::Released(Released::NoSuchLock));
    let Reply::Acquired(Acquisition::Granted(after)) = alone(&driver, acquire(&second)).await
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
    let flight: Vec<_> = claims.iter().map(acquire).collect();
    let answers = driver.carry(&flight).await.unwrap();
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
        holders.push(Step::Release { claim: holder });
        let driver = driver.clone();
        waiting.spawn(async move { driver.granted(&waiter).await.unwrap().token });
    }
    tokio::task::yield_now().await;
    let answers = driver.carry(&holders).await.unwrap();
    for answer in answers {
        assert_eq!(answer.unwrap().result, Reply::Released(Released::Removed));
    }
    assert_eq!(waiting.join_all().await.len(), 40);
}
