//! The semaphore: so many permits, each of which comes back by itself when its holder dies.

use std::sync::Arc;
use std::time::Duration;

use super::handle::{Handle, options, run};
use crate::acquire::Wait;
use crate::manager::Core;
use crate::{Error, Guard, Lease, Mode, Space};

/// At most `limit` permits out at a time, across all processes.
///
/// - **Fair**: a large request at the front of the line is not overtaken by small ones behind it.
/// - **The limit belongs to the semaphore** while anyone holds or waits: another limit is
///   [`Error::LimitMismatch`].
/// - Permits are leases: those of a process that died come back by themselves.
/// - The tokens of permits tell holders apart and grow, but **do not fence**: an older holder is
///   as legitimate as a newer one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let api = locks.semaphore("partner-api", 5);
/// let two = api.acquire_many(2).await?;
/// assert_eq!(api.available_permits().await?, 3);
/// two.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle,
    limit: u32,
}

impl Semaphore {
    pub(crate) fn new(core: &Arc<Core>, name: &str, limit: u32) -> Self {
        Self { handle: Handle::new(core, name, None), limit }
    }

    options!();

    /// Waits for one permit.
    ///
    /// One round trip when there is one and nobody waits.
    ///
    /// # Cancel safety
    /// Dropping it takes the claim out of the line in the background. The place in line is lost.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_many(1).await
    }

    /// Takes one permit if there is one and nobody waits; otherwise `None`.
    ///
    /// # Cancel safety
    /// Dropping it releases what it may have taken, in the background.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.try_acquire_many(1).await
    }

    /// Waits for one permit, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        self.try_acquire_many_for(1, limit).await
    }

    /// Waits for this many permits at once: all or none.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        self.handle.wait(self.mode(permits), "semaphore").await
    }

    /// Takes this many permits if there are so many and nobody waits; otherwise `None`.
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.handle.acquire(self.mode(permits), "semaphore", Wait::No).await
    }

    /// Waits for this many permits, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<Guard>, Error> {
        self.handle.acquire(self.mode(permits), "semaphore", Wait::For(limit)).await
    }

    /// How many permits are not out. Those who wait may want more than that.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let core = &self.handle.core;
        core.check_open()?;
        let key = core.key(Space::Semaphore, self.handle.name()?.as_str())?;
        let state = core.driver().inspect(&key).await?;
        let out: u32 = state.holders().map(|s| s.mode.weight()).sum();
        Ok(state.limit().unwrap_or(self.limit).saturating_sub(out))
    }

    /// Runs work with one permit, as [`Mutex::run`](super::Mutex::run) does.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the permit in the background.
    pub async fn run<T, E, F, Fut>(&self, work: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        run(self.acquire().await?, work).await
    }

    fn mode(&self, permits: u32) -> Mode {
        Mode::Permits { permits, limit: self.limit }
    }
}
