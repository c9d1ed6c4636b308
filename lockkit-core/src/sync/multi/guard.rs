//! The guard of several locks, and its lease: as good as the worst of them.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use crate::{Error, FromLock, Guard, HeldLock, LossReason, Name, Token};

/// Several locks that are held. It derefs to its [`MultiLease`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let both = locks.multi(["account/7", "account/3"]).lock().await?;
/// assert_eq!(both.tokens()?.len(), 2);
/// assert!(locks.mutex("account/3").try_lock().await?.is_none());
/// both.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    lease: MultiLease,
}

/// What several locks give to the work that they protect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let both = locks.multi(["account/7", "account/3"]).lock().await?;
/// let lease = both.lease(); // for a task that works under both
/// assert!(lease.is_valid());
/// assert_eq!(lease.tokens()?.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLease {
    /// As the caller named them.
    leases: Vec<HeldLock>,
}

impl MultiGuard {
    /// Of guards in the order in which they were taken, for a caller who named them in this one.
    pub(super) fn new(guards: Vec<Guard>, places: &[usize]) -> Self {
        let leases = places.iter().map(|place| guards[*place].lease()).collect();
        Self { guards, lease: MultiLease { leases } }
    }

    /// The lease, for tasks that work under these locks.
    pub fn lease(&self) -> MultiLease {
        self.lease.clone()
    }

    /// Gives all back, and returns once the backends know.
    ///
    /// [`Error::Lost`] when one of them was not held until now. After any other error, what was not
    /// released is released in the background.
    ///
    /// # Cancel safety
    /// Dropping it leaves the releases to the background.
    pub async fn release(self) -> Result<(), Error> {
        release_all(self.guards).await
    }

    /// Runs work under these locks and releases them, as [`Guard::run`] does: for locks that were had
    /// with [`try_lock_for`](super::MultiLock::try_lock_for).
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the locks in the background.
    pub async fn run<T, E, F>(self, work: F) -> Result<T, E>
    where
        E: FromLock,
        F: AsyncFnOnce(MultiLease) -> Result<T, E>,
    {
        let result = tokio::select! {
            biased;
            (_, reason) = self.lease.lost() => Err(Error::Lost { reason }.into()),
            result = work(self.lease()) => result,
        };
        match self.release().await {
            Err(error @ Error::Lost { .. }) if result.is_ok() => Err(error.into()),
            _ => result,
        }
    }
}

impl Deref for MultiGuard {
    type Target = MultiLease;

    fn deref(&self) -> &MultiLease {
        &self.lease
    }
}

impl MultiLease {
    /// The fencing tokens, one for each lock, in the order in which the caller named them.
    ///
    /// [`Error::Lost`] as soon as one of the locks can no longer be trusted. No I/O.
    pub fn tokens(&self) -> Result<Vec<Token>, Error> {
        self.leases.iter().map(HeldLock::token).collect()
    }

    /// The leases of the locks, in the order in which the caller named them: for fences.
    pub fn leases(&self) -> &[HeldLock] {
        &self.leases
    }

    /// Whether all are held as far as this process can know. No I/O.
    pub fn is_valid(&self) -> bool {
        self.leases.iter().all(HeldLock::is_valid)
    }

    /// How long until one of them must not be trusted any more, unless renewed before.
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(HeldLock::remaining).min().unwrap_or_default()
    }

    /// Returns when one was lost, with its name and the reason; at once when that has happened
    /// before. Never returns after an orderly release.
    ///
    /// # Cancel safety
    /// Dropping it does nothing; a later call tells the same.
    pub async fn lost(&self) -> (Name, LossReason) {
        any_lost(self.leases.iter()).await
    }
}

/// Returns when one of these was lost; never when there are none.
pub(super) async fn any_lost(leases: impl Iterator<Item = &HeldLock>) -> (Name, LossReason) {
    let losses = leases.map(|lease| {
        Box::pin(async move {
            let reason = lease.lost().await;
            (lease.name().clone(), reason)
        })
    });
    let losses: Vec<_> = losses.collect();
    match losses.is_empty() {
        true => std::future::pending().await,
        false => select_all(losses).await.0,
    }
}

/// Releases all at once. A loss is told before any other error.
pub(super) async fn release_all(guards: Vec<Guard>) -> Result<(), Error> {
    let mut result = Ok(());
    guards.iter().for_each(Guard::expect_several);
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        match (&result, &released) {
            (Ok(()), Err(_)) | (Err(Error::Backend { .. }), Err(Error::Lost { .. })) => {
                result = released;
            }
            _ => {}
        }
    }
    result
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiGuard").field(&self.lease.leases).finish()
    }
}

impl fmt::Debug for MultiLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiLease").field(&self.leases).finish()
    }
}
