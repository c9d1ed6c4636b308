//! Acquires and releases of many claims in one request. A driver that submits one operation at a time
//! shows the same.

use std::sync::Arc;

use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, Grant, LockDriver, Patience,
    Released,
};
use lockkit_core::{Claim, Error};

use crate::context::{CaseContext, MustSucceed};

pub async fn batch_01_every_operation_has_its_own_outcome(context: CaseContext) {
    let driver = context.driver().await;
    let [a, b, c, d, reader] = ["a", "b", "c", "d", "e"].map(|name| match name {
        "e" => context.shared(name),
        name => context.exclusive(name),
    });
    for held in [&a, &b, &c, &reader] {
        driver.grant(held).await;
    }
    let (refused, queued, unknown) =
        (context.exclusive("c"), context.exclusive("e"), context.exclusive("never acquired"));
    let releases = [a.clone(), unknown, b.clone()];
    let acquires = [
        acquire(&refused, Patience::Try),
        acquire(&d, Patience::Try),
        acquire(&queued, Patience::Wait),
    ];
    let outcome = submitted(&driver, Batch { releases: &releases, acquires: &acquires }).await;
    let released: Vec<_> = outcome.released.iter().map(result).collect();
    assert_eq!(released, [Released::Removed, Released::NoSuchLock, Released::Removed]);
    assert_eq!(result(&outcome.acquired[0]), Acquisition::Busy);
    let token = grant(&outcome.acquired[1]).token;
    assert!(matches!(result(&outcome.acquired[2]), Acquisition::Queued { .. }));
    assert_eq!(driver.holds(&d).await.token, token, "the token is that of its own claim");
    driver.holds(&c).await;
    driver.let_go(&reader).await;
    driver.turn(&queued).await;
    for name in ["a", "b", "never acquired"] {
        assert!(context.queue(&driver, &context.key(name)).await.is_empty(), "{name} is free");
    }
}

pub async fn batch_02_an_operation_that_fails_affects_no_other(context: CaseContext) {
    let driver = context.driver().await;
    driver.grant(&context.permits("s", 1, 3)).await;
    let [a, b] = ["a", "b"].map(|name| context.exclusive(name));
    let (other, fits) = (context.permits("s", 1, 4), context.permits("t", 2, 3));
    let tries = [&a, &other, &fits, &b].map(|claim| acquire(claim, Patience::Try));
    let acquired = acquired(&driver, &tries).await;
    for at in [0, 2, 3] {
        grant(&acquired[at]);
    }
    let failed = acquired[1].as_ref().expect_err("the semaphore has another limit");
    let is_mismatch = matches!(failed.error, Error::LimitMismatch { in_use: 3, asked: 4, .. });
    assert!(is_mismatch, "{failed}");
    for held in [&a, &fits, &b] {
        driver.holds(held).await;
    }
}

pub async fn batch_03_a_batch_that_is_repeated_changes_nothing(context: CaseContext) {
    let driver = context.driver().await;
    let claims = ["a", "b", "c"].map(|name| context.exclusive(name));
    let waiters = ["a", "b", "c"].map(|name| context.exclusive(name));
    let tries = claims.each_ref().map(|claim| acquire(claim, Patience::Try));
    let waits = waiters.each_ref().map(|claim| acquire(claim, Patience::Wait));
    let first: Vec<_> = acquired(&driver, &tries).await.iter().map(|r| grant(r).token).collect();
    let again: Vec<_> = acquired(&driver, &tries).await.iter().map(|r| grant(r).token).collect();
    assert_eq!(first, again);
    for _ in 0..2 {
        for acquired in acquired(&driver, &waits).await {
            let acquired = result(&acquired);
            let Acquisition::Queued { ahead } = acquired else {
                panic!("it should have been queued, not {acquired:?}");
            };
            assert!(ahead == 1 || !context.has_line(), "{ahead} claims ahead");
        }
    }
    for released in released(&driver, &claims).await {
        assert_eq!(released, Released::Removed);
    }
    for released in released(&driver, &claims).await {
        let expected = match context.has_line() {
            true => released == Released::NotFound,
            false => released != Released::Removed,
        };
        assert!(expected, "it was released already: {released:?}");
    }
    for waiter in &waiters {
        driver.turn(waiter).await;
    }
}

pub async fn batch_04_releases_of_one_batch_wake_every_next(context: CaseContext) {
    let driver = context.driver().await;
    let names: Vec<_> = (0..8).map(|i| format!("a{i}")).collect();
    let holders: Vec<_> = names.iter().map(|name| context.exclusive(name)).collect();
    let waiters: Vec<_> = names.iter().map(|name| context.exclusive(name)).collect();
    for (holder, waiter) in holders.iter().zip(&waiters) {
        driver.grant(holder).await;
        driver.queue(waiter).await;
    }
    let turns: Vec<_> = waiters
        .iter()
        .map(|waiter| {
            let (driver, waiter) = (driver.clone(), waiter.clone());
            tokio::spawn(async move { driver.turn(&waiter).await })
        })
        .collect();
    for released in released(&driver, &holders).await {
        assert_eq!(released, Released::Removed);
    }
    for turn in turns {
        context.soon("the next holds", turn).await.expect("it does");
    }
}

pub async fn batch_05_a_batch_of_the_declared_size_is_accepted(context: CaseContext) {
    let driver = context.driver().await;
    let size = context.capabilities().batches.operations.clamp(20, 500);
    let names: Vec<_> = (0..size).map(|i| format!("{i:03}{}", "long".repeat(20))).collect();
    let mut before = vec![0; size];
    for _ in 0..2 {
        let claims: Vec<_> = names.iter().map(|name| context.exclusive(name)).collect();
        let tries: Vec<_> = claims.iter().map(|claim| acquire(claim, Patience::Try)).collect();
        for (acquired, before) in acquired(&driver, &tries).await.iter().zip(&mut before) {
            let token = grant(acquired).token.get();
            assert!(token > *before, "{token} comes after {before}");
            *before = token;
        }
        for released in released(&driver, &claims).await {
            assert_eq!(released, Released::Removed);
        }
    }
}

pub async fn batch_06_acquires_of_one_name_keep_their_order(context: CaseContext) {
    let driver = context.driver().await;
    let claims: Vec<_> = (0..5).map(|_| context.exclusive("a")).collect();
    let waits: Vec<_> = claims.iter().map(|claim| acquire(claim, Patience::Wait)).collect();
    // One batch where it may have several acquires of a key, several where it may not.
    match context.capabilities().batches.same_key {
        true => drop(acquired(&driver, &waits).await),
        false => {
            for wait in &waits {
                acquired(&driver, std::slice::from_ref(wait)).await;
            }
        }
    }
    let mut last = 0;
    for claim in &claims {
        let token = driver.turn(claim).await.token.get();
        assert!(token > last, "{token} comes after {last}");
        last = token;
        driver.let_go(claim).await;
    }
}

pub async fn batch_07_a_refused_operation_has_no_ambiguous_attempt(bench: CaseContext) {
    let driver = bench.driver().await;
    driver.grant(&bench.permits("s", 1, 3)).await;
    let [other, fits] = [bench.permits("s", 1, 4), bench.permits("t", 1, 3)];
    let tries = [&other, &fits].map(|claim| acquire(claim, Patience::Try));
    let acquired = acquired(&driver, &tries).await;
    let refused = acquired[0].as_ref().expect_err("the semaphore has another limit");
    assert!(matches!(refused.error, Error::LimitMismatch { .. }), "{refused}");
    assert_eq!(refused.ambiguous, 0, "nothing was done, and the client releases no claim");
    grant(&acquired[1]);
}

type Outcome<T> = Result<Attempted<T>, BatchError>;

fn acquire(claim: &Arc<Claim>, patience: Patience) -> Acquire {
    Acquire { claim: claim.clone(), patience }
}

async fn acquired(driver: &Arc<dyn LockDriver>, acquires: &[Acquire]) -> Vec<Outcome<Acquisition>> {
    submitted(driver, Batch { releases: &[], acquires }).await.acquired
}

async fn released(driver: &Arc<dyn LockDriver>, releases: &[Arc<Claim>]) -> Vec<Released> {
    let outcome = submitted(driver, Batch { releases, acquires: &[] }).await;
    outcome.released.iter().map(result).collect()
}

/// Submits a batch, and each operation that would block in it in a batch of its own.
async fn submitted(driver: &Arc<dyn LockDriver>, batch: Batch<'_>) -> BatchOutcome {
    let mut outcome = submitted_once(driver, batch).await;
    for (claim, released) in batch.releases.iter().zip(&mut outcome.released) {
        if would_block(released, batch) {
            let alone = Batch { releases: std::slice::from_ref(claim), acquires: &[] };
            *released = submitted_once(driver, alone).await.released.remove(0);
        }
    }
    for (acquire, acquired) in batch.acquires.iter().zip(&mut outcome.acquired) {
        if would_block(acquired, batch) {
            let alone = Batch { releases: &[], acquires: std::slice::from_ref(acquire) };
            *acquired = submitted_once(driver, alone).await.acquired.remove(0);
        }
    }
    outcome
}

fn would_block<T>(outcome: &Outcome<T>, batch: Batch<'_>) -> bool {
    let blocked = outcome.as_ref().is_err_and(|failed| failed.would_block);
    assert!(!blocked || batch.len() > 1, "a single operation is carried out");
    blocked
}

async fn submitted_once(driver: &Arc<dyn LockDriver>, batch: Batch<'_>) -> BatchOutcome {
    let outcome = driver.submit(batch).await.unwrap_or_else(|e| panic!("the batch failed: {e}"));
    let found = (outcome.released.len(), outcome.acquired.len());
    let expected = (batch.releases.len(), batch.acquires.len());
    assert_eq!(found, expected, "each operation has an outcome");
    outcome
}

fn result<T: Copy>(outcome: &Outcome<T>) -> T {
    outcome.as_ref().unwrap_or_else(|e| panic!("an operation failed: {e}")).result
}

fn grant(outcome: &Outcome<Acquisition>) -> Grant {
    match result(outcome) {
        Acquisition::Granted(grant) => grant,
        other => panic!("it should have been granted, not {other:?}"),
    }
}
