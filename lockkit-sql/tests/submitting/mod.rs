//! Batches as lists of operations, for tests that make them up.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::sync::Arc;

use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, LockDriver, Patience, Released,
};
use lockkit_core::{Claim, Error};

#[derive(Clone, Debug)]
pub enum Operation {
    Release(Arc<Claim>),
    Acquire(Acquire),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Released(Released),
    Acquired(Acquisition),
}

pub type Outcomes = Vec<Result<Attempted<Outcome>, Error>>;

pub const REMOVED: Outcome = Outcome::Released(Released::Removed);

pub fn try_it(claim: &Arc<Claim>) -> Operation {
    Operation::Acquire(Acquire { claim: claim.clone(), patience: Patience::Try })
}

pub fn wait(claim: &Arc<Claim>) -> Operation {
    Operation::Acquire(Acquire { claim: claim.clone(), patience: Patience::Wait })
}

pub fn release(claim: &Arc<Claim>) -> Operation {
    Operation::Release(claim.clone())
}

impl Operation {
    pub fn claim(&self) -> &Arc<Claim> {
        match self {
            Self::Release(claim) | Self::Acquire(Acquire { claim, .. }) => claim,
        }
    }
}

/// Submits operations, releases before acquires, in one batch.
pub async fn submit(driver: &dyn LockDriver, operations: &[Operation]) -> Result<Outcomes, Error> {
    let outcomes = submit_raw(driver, operations).await.map_err(|failed| failed.error)?;
    Ok(outcomes.into_iter().map(|outcome| outcome.map_err(|failed| failed.error)).collect())
}

/// Submits a batch, and then by itself each operation that would have blocked, as core does.
pub async fn submit_all(driver: &dyn LockDriver, operations: &[Operation]) -> Outcomes {
    let mut outcomes = submit_raw(driver, operations).await.unwrap();
    for (operation, outcome) in operations.iter().zip(&mut outcomes) {
        if outcome.as_ref().is_err_and(|error| error.would_block) {
            *outcome = submit_raw(driver, std::slice::from_ref(operation)).await.unwrap().remove(0);
        }
    }
    outcomes.into_iter().map(|outcome| outcome.map_err(|failed| failed.error)).collect()
}

async fn submit_raw(
    driver: &dyn LockDriver,
    operations: &[Operation],
) -> Result<Vec<Result<Attempted<Outcome>, BatchError>>, BatchError> {
    let (mut releases, mut acquires) = (Vec::new(), Vec::new());
    for operation in operations {
        match operation {
            Operation::Release(claim) if acquires.is_empty() => releases.push(claim.clone()),
            Operation::Release(_) => panic!("releases come first"),
            Operation::Acquire(acquire) => acquires.push(acquire.clone()),
        }
    }
    let outcome = driver.submit(Batch { releases: &releases, acquires: &acquires }).await?;
    assert_eq!((outcome.released.len(), outcome.acquired.len()), (releases.len(), acquires.len()));
    let released = outcome.released.into_iter().map(|it| Ok(it?.map(Outcome::Released)));
    let acquired = outcome.acquired.into_iter().map(|it| Ok(it?.map(Outcome::Acquired)));
    Ok(released.chain(acquired).collect())
}
