//! The read-write lock: many readers or one writer, first come, first served.

use std::sync::Arc;
use std::time::Duration;

use super::handle::{Handle, options};
use crate::acquire::WaitBudget;
use crate::shared::Core;
use crate::sync::owner::Owner;
use crate::{Error, FromLock, Guard, HeldLock, Mode, WriteGuard};

/// Many readers at a time, or one writer.
///
/// - **Fair to both**: a reader that comes after a waiting writer waits for it, so neither starves.
/// - A writer and a [`Mutex`](super::Mutex) of the same name exclude each other.
/// - A writer can go on as a reader ([`WriteGuard::downgrade`]). There is **no upgrade**: two
///   readers that both upgrade wait for each other for ever.
/// - Like every lock here it is a lease, and can be lost; see [`Mutex`](super::Mutex).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let config = locks.rwlock("config");
/// let writer = config.write().await?;
/// assert!(config.try_read().await?.is_none());
/// let reader = writer.downgrade().await?;
/// assert!(config.try_read().await?.is_some());
/// reader.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    handle: Handle,
}

impl RwLock {
    pub(crate) fn new(core: &Arc<Core>, name: &str, owner: Option<Owner>) -> Self {
        Self { handle: Handle::new(core, name, owner) }
    }

    options!();

    /// Waits until the lock is held for reading.
    ///
    /// One round trip when no writer holds it or waits for it.
    ///
    /// # Cancel safety
    /// Dropping it removes the claim from the queue in the background. Its position is lost.
    pub async fn read(&self) -> Result<Guard, Error> {
        self.handle.wait(Mode::Shared, "read").await
    }

    /// Takes the lock for reading if no writer holds it or waits for it; otherwise `None`.
    ///
    /// # Cancel safety
    /// Dropping it releases what it may have taken, in the background.
    pub async fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.handle.acquire(Mode::Shared, "read", WaitBudget::No).await
    }

    /// Waits for the lock, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    pub async fn try_read_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        self.handle.acquire(Mode::Shared, "read", WaitBudget::For(limit)).await
    }

    /// Waits until the lock is held for writing.
    ///
    /// One round trip when it is free.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        Ok(WriteGuard::new(self.handle.wait(Mode::Exclusive, "write").await?))
    }

    /// Takes the lock for writing if it is free and no claim waits for it; otherwise `None`.
    ///
    /// # Cancel safety
    /// As [`try_read`](Self::try_read).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        let guard = self.handle.acquire(Mode::Exclusive, "write", WaitBudget::No).await?;
        Ok(guard.map(WriteGuard::new))
    }

    /// Waits for the lock, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`read`](Self::read).
    pub async fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard>, Error> {
        let guard = self.handle.acquire(Mode::Exclusive, "write", WaitBudget::For(limit)).await?;
        Ok(guard.map(WriteGuard::new))
    }

    /// Runs work as a reader, as [`Mutex::run`](super::Mutex::run) does. With a bound on the wait:
    /// [`try_read_for`](Self::try_read_for), then [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lock in the background.
    pub fn run_read<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.read().await?.run(work).await }
    }

    /// Runs work as the writer, as [`Mutex::run`](super::Mutex::run) does. With a bound on the wait:
    /// [`try_write_for`](Self::try_write_for), then [`WriteGuard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lock in the background.
    pub fn run_write<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.write().await?.run(work).await }
    }
}
