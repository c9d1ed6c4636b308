//! Steps that travel together: what core asks of a backend in one request, and what comes back.
//!
//! # Flights
//! Tasks of one process that acquire and release at the same time share requests. A step that finds
//! no flight under way departs after one yield of the scheduler; what comes meanwhile departs with
//! it, or with the next flight. No timer is involved, and a step that is alone waits for nobody.
//! Flights that are answered together depart again one after the other: the backend works on one while
//! the next is prepared. Before one departs again it yields as long as steps come, eight times at most: on
//! several threads those who were answered come back a few at a time.
//!
//! Renewals never wait behind other steps: all claims of a process that are due leave in one call of
//! [`LockDriver::renew`](crate::driver::LockDriver::renew), beside whatever is under way.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::answers::{Acquisition, Attempted, Patience, Released};
use crate::batch::{Acquire, Batch, BatchError, BatchOutcome};
use crate::driver::LockDriver;
use crate::{Claim, Error};

/// One step of a flight: a claim, and what is to become of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::driver::{Acquisition, LockDriver, Patience, Reply, Step};
///
/// let driver = MemoryDriver::new();
/// let acquire = |claim| Step::Acquire { claim, patience: Patience::Try };
/// let flight = [
///     acquire(claim("invoice/42", Mode::Exclusive)?),
///     acquire(claim("invoice/43", Mode::Exclusive)?),
/// ];
/// for reply in driver.carry(&flight).await? {
///     assert!(matches!(reply?.result, Reply::Acquired(Acquisition::Granted(_))));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub enum Step {
    /// Puts a claim at the end of its list; answered by [`Reply::Acquired`].
    Acquire {
        /// The claim.
        claim: Arc<Claim>,
        /// What it does when it cannot hold at once.
        patience: Patience,
    },
    /// Takes a claim out of its list; answered by [`Reply::Released`].
    Release {
        /// The claim.
        claim: Arc<Claim>,
    },
}

impl Step {
    /// The claim that the step is about.
    pub fn claim(&self) -> &Arc<Claim> {
        match self {
            Self::Acquire { claim, .. } | Self::Release { claim } => claim,
        }
    }
}

/// The answer to a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// To [`Step::Acquire`].
    Acquired(Acquisition),
    /// To [`Step::Release`].
    Released(Released),
    /// To a step of a flight of several, which would have had to wait at the backend for what another
    /// client has locked: nothing was done, and the step is to be sent again in a request of its own.
    /// Core does so outside the limit of flights under way, one step of a key at a time, and holds back
    /// the later steps of that key until then. Never the answer to a flight of one step.
    SendAlone,
}

/// The answers to the steps of a flight, in their order: each with an error of its own, and with the
/// number of attempts before it that got no answer.
pub type Replies = Vec<Result<Attempted<Reply>, Error>>;

/// Carries every step by itself, all at once: for a driver whose backend takes one at a time. It says
/// how a claim is put in line, and how it is taken out.
pub async fn one_by_one<A, R>(
    steps: &[Step],
    acquire: impl Fn(Arc<Claim>, Patience) -> A,
    release: impl Fn(Arc<Claim>) -> R,
) -> Replies
where
    A: Future<Output = Result<Attempted<Acquisition>, Error>>,
    R: Future<Output = Result<Attempted<Released>, Error>>,
{
    let carry = async |step: &Step| match step {
        Step::Acquire { claim, patience } => {
            Ok(acquire(claim.clone(), *patience).await?.map(Reply::Acquired))
        }
        Step::Release { claim } => Ok(release(claim.clone()).await?.map(Reply::Released)),
    };
    match steps {
        [step] => vec![carry(step).await],
        steps => join_all(steps.iter().map(carry)).await,
    }
}

/// To be removed.
pub(crate) async fn by_carrying<D: LockDriver + ?Sized>(
    driver: &D,
    batch: Batch<'_>,
) -> Result<BatchOutcome, BatchError> {
    let releases = batch.releases.iter().map(|claim| Step::Release { claim: claim.clone() });
    let acquires = batch
        .acquires
        .iter()
        .map(|one| Step::Acquire { claim: one.claim.clone(), patience: one.patience });
    let steps: Vec<_> = releases.chain(acquires).collect();
    let failed = |error: Error| match &error {
        Error::Backend { .. } => BatchError::unknown(error).after(1),
        _ => BatchError::refused(error),
    };
    let mut replies = driver.carry(&steps).await.map_err(failed)?.into_iter();
    let mut next = || replies.next().unwrap_or_else(|| Err(driver.no_reply()));
    let blocks =
        |ambiguous| BatchError::would_block(driver.capabilities().backend).after(ambiguous);
    let released = batch.releases.iter().map(|_| match next().map_err(failed)? {
        Attempted { result: Reply::Released(result), ambiguous } => {
            Ok(Attempted { result, ambiguous })
        }
        Attempted { result: Reply::SendAlone, ambiguous } => Err(blocks(ambiguous)),
        _ => Err(failed(driver.no_reply())),
    });
    let released = released.collect();
    let acquired = batch.acquires.iter().map(|_| match next().map_err(failed)? {
        Attempted { result: Reply::Acquired(result), ambiguous } => {
            Ok(Attempted { result, ambiguous })
        }
        Attempted { result: Reply::SendAlone, ambiguous } => Err(blocks(ambiguous)),
        _ => Err(failed(driver.no_reply())),
    });
    Ok(BatchOutcome { released, acquired: acquired.collect() })
}

/// To be removed.
pub(crate) async fn by_submitting<D: LockDriver + ?Sized>(
    driver: &D,
    steps: &[Step],
) -> Result<Replies, Error> {
    let (mut releases, mut acquires) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Acquire { claim, patience } => {
                acquires.push(Acquire { claim: claim.clone(), patience: *patience });
            }
            Step::Release { claim } => releases.push(claim.clone()),
        }
    }
    let batch = Batch { releases: &releases, acquires: &acquires };
    let outcome = driver.submit(batch).await?;
    let (mut released, mut acquired) = (outcome.released.into_iter(), outcome.acquired.into_iter());
    let blocked = |error: BatchError| match error.would_block {
        true => Ok(Attempted::after(error.ambiguous, Reply::SendAlone)),
        false => Err(error.error),
    };
    let reply = |step: &Step| match step {
        Step::Acquire { .. } => match acquired.next() {
            Some(Ok(it)) => Ok(it.map(Reply::Acquired)),
            Some(Err(error)) => blocked(error),
            None => Err(driver.no_reply()),
        },
        Step::Release { .. } => match released.next() {
            Some(Ok(it)) => Ok(it.map(Reply::Released)),
            Some(Err(error)) => blocked(error),
            None => Err(driver.no_reply()),
        },
    };
    Ok(steps.iter().map(reply).collect())
}
