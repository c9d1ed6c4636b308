//! The mutex: one holder at a time, first come, first served.

use std::sync::Arc;
use std::time::Duration;

use super::handle::{Handle, options};
use crate::acquire::WaitBudget;
use crate::shared::Core;
use crate::sync::owner::Owner;
use crate::{Error, FromLock, Guard, HeldLock, Mode};

/// Only one at a time, across all processes that use the same backend and name.
///
/// - **Fair**: those who wait get it in the order in which they came (where the backend's
///   [`fifo`](crate::Capabilities::fifo) says so).
/// - **Not reentrant**: a second `lock()` waits for the first, also in the same task. For an owner that
///   re-enters see [`Reentrant`](crate::sync::Reentrant).
/// - **May be lost**: a lock over a network is a lease. It is renewed in the background, and ends
///   when that fails; the [`Guard`] knows before anybody else can hold it. What it protects should
///   check the [token](HeldLock::token).
/// - **Blocking work** on a current-thread runtime stops the renewal with everything else, and the lease
///   ends after its ttl: use `spawn_blocking`, or `lockkit::blocking`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// locks.mutex("invoice/42").run(async |lock| {
///     let token = lock.token()?; // goes along with every write
///     Ok::<_, lockkit_core::Error>(())
/// }).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    handle: Handle,
}

impl Mutex {
    pub(crate) fn new(core: &Arc<Core>, name: &str, owner: Option<Owner>) -> Self {
        Self { handle: Handle::new(core, name, owner) }
    }

    /// The lock of a primitive that is made of one.
    pub(crate) fn of(handle: Handle) -> Self {
        Self { handle }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    options!();

    /// Waits until the lock is held.
    ///
    /// One round trip when it is free. While the backend is out of reach, this goes on trying.
    ///
    /// # Cancel safety
    /// Dropping it removes the claim from the queue in the background. Its position is lost.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.handle.wait(Mode::Exclusive, "mutex").await
    }

    /// Takes the lock if it is free and no claim waits for it; otherwise `None`, at once.
    ///
    /// One round trip. A backend that does not answer is an error that is
    /// [retryable](Error::is_retryable).
    ///
    /// # Cancel safety
    /// Dropping it releases what it may have taken, in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.handle.acquire(Mode::Exclusive, "mutex", WaitBudget::No).await
    }

    /// Waits for the lock, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        self.handle.acquire(Mode::Exclusive, "mutex", WaitBudget::For(limit)).await
    }

    /// Waits for the lock, runs the work under it, and releases it: the form to use where it fits.
    /// [`try_run_for`](Self::try_run_for) bounds the wait.
    ///
    /// The work is dropped at its next await point when the lock is lost, and the result is then
    /// [`Error::Lost`]; so it is when the loss shows only at the release. Otherwise the result is
    /// that of the work. [`FromLock`] says which error types the work may have.
    ///
    /// Work that blocks its thread is not dropped meanwhile; on a current-thread runtime it also stops
    /// the renewal.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lock in the background.
    pub fn run<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.lock().await?.run(work).await }
    }

    /// As [`run`](Self::run) if the lock is free and no claim waits for it; otherwise `None`, at once,
    /// and the work is not begun.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub fn try_run<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<Option<T>, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.try_run_for(Duration::ZERO, work).await }
    }

    /// As [`run`](Self::run), but waits for the lock no longer than this; then `None`, and the work is
    /// not begun. The work itself takes as long as it takes.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
    /// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
    /// # use std::time::Duration;
    /// let invoice = locks.mutex("invoice/42");
    /// match invoice.try_run_for(Duration::from_secs(3), async |lock| lock.token()).await? {
    ///     Some(token) => println!("done, with token {token}"),
    ///     None => println!("busy: come back later"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_run_for<T, E, F, Fut>(
        &self,
        limit: Duration,
        work: F,
    ) -> impl Future<Output = Result<Option<T>, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move {
            match this.try_lock_for(limit).await? {
                Some(guard) => guard.run(work).await.map(Some),
                None => Ok(None),
            }
        }
    }
}
