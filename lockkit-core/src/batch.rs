//! What core asks of a backend in one request, and what comes back: data of
//! [`LockDriver::submit`](crate::driver::LockDriver::submit).

use std::sync::Arc;

use futures_util::future::{join, join_all};

use crate::answers::{Acquisition, Attempted, Patience, Released};
use crate::{Claim, Error};

/// One acquire of a [`Batch`].
#[derive(Clone, Debug)]
pub struct Acquire {
    /// The claim to put at the end of its lock's queue.
    pub claim: Arc<Claim>,
    /// What it does when it cannot hold at once.
    pub patience: Patience,
}

/// Releases and acquires of different claims, for one request where the backend can.
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
/// use lockkit_core::driver::{Acquire, Acquisition, Batch, LockDriver, Patience};
///
/// let driver = MemoryDriver::new();
/// let acquires = [
///     Acquire { claim: claim("invoice/42", Mode::Exclusive)?, patience: Patience::Try },
///     Acquire { claim: claim("invoice/43", Mode::Exclusive)?, patience: Patience::Try },
/// ];
/// let batch = Batch { releases: &[], acquires: &acquires };
/// let outcome = driver.submit(batch).await.map_err(|failed| failed.error)?;
/// for acquired in outcome.acquired {
///     assert!(matches!(acquired.map(|it| it.result), Ok(Acquisition::Granted(_))));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// The claims to take out of their queues. They come before all acquires.
    pub releases: &'a [Arc<Claim>],
    /// The claims to put in.
    pub acquires: &'a [Acquire],
}

impl Batch<'_> {
    /// How many operations it has.
    pub fn len(&self) -> usize {
        self.releases.len() + self.acquires.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The claims of all operations, releases first.
    pub fn claims(&self) -> impl Iterator<Item = &Arc<Claim>> {
        self.releases.iter().chain(self.acquires.iter().map(|acquire| &acquire.claim))
    }

    /// The same result for every operation.
    pub fn all_failed(&self, error: &BatchError) -> BatchOutcome {
        BatchOutcome::all_failed(self.releases.len(), self.acquires.len(), error)
    }
}

/// What became of each operation of a [`Batch`], in the batch's order. An error concerns its own
/// operation only.
#[derive(Clone, Debug, Default)]
pub struct BatchOutcome {
    /// One for each of [`Batch::releases`].
    pub released: Vec<Result<Attempted<Released>, BatchError>>,
    /// One for each of [`Batch::acquires`].
    pub acquired: Vec<Result<Attempted<Acquisition>, BatchError>>,
}

impl BatchOutcome {
    /// The same result for so many operations.
    pub(crate) fn all_failed(releases: usize, acquires: usize, error: &BatchError) -> Self {
        Self {
            released: vec![Err(error.clone()); releases],
            acquired: vec![Err(error.clone()); acquires],
        }
    }
}

/// Why an operation, or a whole batch, has no result; and how many of its requests may have been
/// carried out nevertheless.
///
/// There is no conversion from [`Error`]: a driver says for each failure whether a request was left
/// without an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct BatchError {
    /// What failed.
    #[source]
    pub error: Error,
    /// How many requests got no answer, and may have been carried out or still be on their way. 0:
    /// certainly nothing was done. A request that never left this process does not count.
    pub ambiguous: u32,
    /// Nothing was done because the operation would have to wait at the backend, for what another
    /// client has locked. See [`would_block`](Self::would_block).
    pub would_block: bool,
}

impl BatchError {
    /// The backend refused, or nothing was sent: certainly nothing was done.
    pub fn refused(error: Error) -> Self {
        Self { error, ambiguous: 0, would_block: false }
    }

    /// One request was left without an answer: it may have been carried out.
    pub fn unknown(error: Error) -> Self {
        Self { error, ambiguous: 1, would_block: false }
    }

    /// An operation of a batch of several would have to wait at the backend, and was left out: it
    /// may wait in a batch of its own. Core submits it again so, one operation of a key at a time, and
    /// holds back the later operations of that key until then. Never for a batch of one operation.
    pub fn would_block(backend: &'static str) -> Self {
        let error = Error::retryable(backend, "the operation would wait for another client's lock");
        Self { error, ambiguous: 0, would_block: true }
    }

    /// The same error after this many more attempts that got no answer.
    #[must_use]
    pub fn after(mut self, ambiguous: u32) -> Self {
        self.ambiguous = self.ambiguous.saturating_add(ambiguous);
        self
    }
}

/// Where it does not matter whether anything was done.
impl From<BatchError> for Error {
    fn from(failed: BatchError) -> Self {
        failed.error
    }
}

/// Submits every operation by itself, all at once: for a driver whose backend takes one at a time.
/// It says how a claim is put into its queue, and how it is taken out.
pub async fn submit_each<A, R>(
    batch: Batch<'_>,
    acquire: impl Fn(Acquire) -> A,
    release: impl Fn(Arc<Claim>) -> R,
) -> BatchOutcome
where
    A: Future<Output = Result<Attempted<Acquisition>, BatchError>>,
    R: Future<Output = Result<Attempted<Released>, BatchError>>,
{
    let released = join_all(batch.releases.iter().cloned().map(release));
    let acquired = join_all(batch.acquires.iter().cloned().map(acquire));
    let (released, acquired) = join(released, acquired).await;
    BatchOutcome { released, acquired }
}
