//! Steps that travel together: what core asks of a backend in one request, and what comes back.
//!
//! # Flights
//! Tasks of one process that acquire and release at the same time share requests. A step that finds
//! no flight under way departs after one yield of the scheduler; what comes meanwhile departs with
//! it, or with the next flight. No timer is involved, and a step that is alone waits for nobody.
//!
//! Renewals never wait behind other steps: all claims of a process that are due leave in one call of
//! [`LockDriver::renew`](super::driver::LockDriver::renew), beside whatever is under way.

use std::sync::Arc;

use futures_util::future::join_all;
use serde::Serialize;

use crate::driver::{Acquisition, Answered, Patience, Released};
use crate::{Claim, Error};

/// One step of a flight: a claim, and what is to become of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
}

/// The answers to the steps of a flight, in their order: each with an error of its own, and with the
/// number of attempts before it that got no answer.
pub type Replies = Vec<Result<Answered<Reply>, Error>>;

/// How much one request of a backend carries, and how many requests it is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Flights {
    /// Steps in one flight at most. With 1, each step travels by itself.
    pub steps: usize,
    /// The sum of [`Claim::weight`] of the steps in one flight at most; a single step travels
    /// whatever it weighs.
    pub bytes: usize,
    /// Flights under way at once. Renewals come on top.
    pub at_once: usize,
    /// Whether one flight may carry several acquires of one key.
    pub same_key: bool,
}

impl Flights {
    /// Every step by itself, 256 under way at once.
    pub const SINGLE: Self = Self { steps: 1, bytes: usize::MAX, at_once: 256, same_key: true };

    /// Up to `steps` in a flight of at most 1 MiB, `at_once` under way at once, one acquire of a key
    /// in each.
    pub const fn of(steps: usize, at_once: usize) -> Self {
        Self { steps, bytes: 1 << 20, at_once, same_key: false }
    }
}

/// Carries every step by itself, all at once: for a driver whose backend takes one at a time. It says
/// how a claim is put in line, and how it is taken out.
pub async fn one_by_one<A, R>(
    steps: &[Step],
    acquire: impl Fn(Arc<Claim>, Patience) -> A,
    release: impl Fn(Arc<Claim>) -> R,
) -> Replies
where
    A: Future<Output = Result<Answered<Acquisition>, Error>>,
    R: Future<Output = Result<Answered<Released>, Error>>,
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
