//! The semaphore: a number of permits, each of which is released by itself when its holder dies. Its limit is
//! fixed (every client names the same one) or resizable (stored in the backend, and remembered by a handle).

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use tokio::time::Instant;

use super::handle::{Handle, options};
use crate::acquire::WaitBudget;
use crate::concurrency::locked;
use crate::driver::SetLimit;
use crate::shared::Core;
use crate::{Error, FromLock, Guard, HeldLock, Mode, Space};

/// At most `limit` permits out at a time, across all processes.
///
/// - **Fair**: a large request at the front of the queue is not overtaken by small ones after it.
/// - **The limit belongs to the semaphore** while anyone holds or waits: another limit is
///   [`Error::LimitMismatch`].
/// - Permits are leases: those of a process that died come back by themselves.
/// - The tokens of permits tell holders apart and grow, but **do not fence**: an older holder is
///   as legitimate as a newer one.
/// - The limit can be [changed](crate::LockAdmin::resize) while permits are out:
///   [`resizable`](Self::resizable).
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
#[derive(Clone, Debug)]
pub struct Semaphore {
    handle: Handle,
    limit: u32,
    /// `Some` on a [`resizable`](Self::resizable) handle.
    remembered: Option<RememberedLimit>,
}

impl Semaphore {
    pub(crate) fn new(core: &Arc<Core>, name: &str, limit: u32) -> Self {
        Self { handle: Handle::new(core, name, None), limit, remembered: None }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    options!();

    /// The same semaphore with a limit that lives in the backend, under the semaphore's name, for
    /// good, as durable as a register. No I/O.
    ///
    /// - The first use stores the limit of this handle, or the one under which it has claims already. From
    ///   there on only [`resize`](crate::LockAdmin::resize) changes it, for all handles everywhere.
    /// - A request for more permits than the limit is no error: it waits until the limit is raised,
    ///   and those behind it wait with it.
    /// - A handle, and its clones, remember the limit: one round trip for a permit that is free; the
    ///   first use takes one more, and so does the first one after a change.
    /// - A handle that is not resizable must name the limit that is in force, and gets
    ///   [`Error::LimitMismatch`] otherwise.
    /// - Not on every backend: see [`Capabilities::resize`](crate::Capabilities::resize).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
    /// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
    /// let pool = locks.semaphore("pool", 2).resizable();
    /// let both = pool.acquire_many(2).await?;
    ///
    /// // Drained: what is out stays out, and nothing is granted.
    /// locks.admin().resize("pool", 0).await?;
    /// assert!(both.is_valid());
    /// both.release().await?;
    /// assert!(pool.try_acquire().await?.is_none());
    ///
    /// // Another process raises it.
    /// locks.admin().resize("pool", 8).await?;
    /// let many = pool.acquire_many(8).await?;
    /// # many.release().await
    /// # }
    /// ```
    pub fn resizable(mut self) -> Self {
        self.handle.options.resizable = true;
        self.remembered.get_or_insert_default();
        self
    }

    /// The limit. On a [`resizable`](Self::resizable) handle the one that is in force: one round
    /// trip, which gives the semaphore the handle's limit if it has none. Otherwise the one that the
    /// handle was made with, without I/O.
    ///
    /// # Cancel safety
    /// Dropping it does no harm.
    pub async fn limit(&self) -> Result<u32, Error> {
        match &self.remembered {
            Some(_) => self.read_limit(PATIENCE).await,
            None => Ok(self.limit),
        }
    }

    /// Waits for one permit.
    ///
    /// One round trip when there is one and no claim waits.
    ///
    /// # Cancel safety
    /// Dropping it removes the claim from the queue in the background. Its position is lost.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_many(1).await
    }

    /// Takes one permit if there is one and no claim waits; otherwise `None`.
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
    pub async fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Guard>, Error> {
        self.try_acquire_many_for(1, timeout).await
    }

    /// Waits for this many permits at once: all or none.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        self.handle.core.waited(self.take(permits, WaitBudget::Forever).await?)
    }

    /// Takes this many permits if there are so many and no claim waits; otherwise `None`.
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.take(permits, WaitBudget::No).await
    }

    /// Waits for this many permits, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_many_for(
        &self,
        permits: u32,
        timeout: Duration,
    ) -> Result<Option<Guard>, Error> {
        self.take(permits, WaitBudget::For(timeout)).await
    }

    /// How many permits are not held: 0 while more are held than the limit. A waiter may be at the front of
    /// the queue all the same, for more permits than these. One round trip; two on a [`resizable`](Self::resizable) handle.
    ///
    /// # Cancel safety
    /// Dropping it does no harm.
    pub async fn available_permits(&self) -> Result<u32, Error> {
        self.handle.core.check_open()?;
        let key = self.handle.key(Space::Semaphore)?;
        let limit = self.limit().await?;
        let state = self.handle.core.driver().inspect(&key).await?;
        let out: u64 = state.holders().map(|s| u64::from(s.mode.weight())).sum();
        let limit = state.limit().unwrap_or(limit);
        Ok(limit.saturating_sub(u32::try_from(out).unwrap_or(u32::MAX)))
    }

    /// Runs work with one permit, as [`Mutex::run`](super::Mutex::run) does.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the permit in the background.
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
        async move { this.acquire().await?.run(work).await }
    }

    /// Runs work with one permit if there is one and no claim waits; otherwise `None`, at once, and the
    /// work is not begun.
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

    /// Runs work with one permit, but waits for that no longer than this; then `None`, and the work is
    /// not begun.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub fn try_run_for<T, E, F, Fut>(
        &self,
        timeout: Duration,
        work: F,
    ) -> impl Future<Output = Result<Option<T>, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move {
            match this.try_acquire_for(timeout).await? {
                Some(guard) => guard.run(work).await.map(Some),
                None => Ok(None),
            }
        }
    }
}

/// For how long [`Semaphore::limit`] reads the limit while the backend does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many times in a row a remembered limit may be stale before that is an error.
const MAX_STALE_LIMITS: u32 = 100;

/// The limit as it was read last, for a handle and its clones; `None` until it was read.
type RememberedLimit = Arc<StdMutex<Option<u32>>>;

impl Semaphore {
    /// Takes permits under the remembered limit; again under the present one when that is stale.
    async fn take(&self, permits: u32, wait: WaitBudget) -> Result<Option<Guard>, Error> {
        let Some(remembered) = &self.remembered else {
            let mode = Mode::Permits { permits, limit: self.limit };
            return self.handle.acquire(mode, "semaphore", wait).await;
        };
        self.handle.core.check_resize()?;
        let until = match wait {
            WaitBudget::For(time) => Instant::now().checked_add(time),
            WaitBudget::No | WaitBudget::Forever => None,
        };
        let mut stale = 0;
        while stale < MAX_STALE_LIMITS {
            let (wait, patience) = match (wait, until) {
                (WaitBudget::No | WaitBudget::For(Duration::ZERO), _) => {
                    (WaitBudget::No, Duration::ZERO)
                }
                (WaitBudget::For(_), Some(until)) => {
                    let remaining = until.saturating_duration_since(Instant::now());
                    (WaitBudget::For(remaining), remaining.min(PATIENCE))
                }
                _ => (wait, PATIENCE),
            };
            let known = *locked(remembered);
            let limit = match known {
                Some(limit) => limit,
                None => match self.read_limit(patience).await {
                    Ok(limit) => limit,
                    Err(error) if matches!(wait, WaitBudget::No) || !error.is_retryable() => {
                        return Err(error);
                    }
                    // It waits through an outage, as a claim does that is to enter a queue.
                    Err(_) if patience == PATIENCE => continue,
                    Err(_) => return Ok(None),
                },
            };
            let mode = Mode::Permits { permits, limit };
            match self.handle.acquire(mode, "semaphore", wait).await {
                Err(Error::LimitMismatch { in_use, .. }) => *locked(remembered) = Some(in_use),
                answer => return answer,
            }
            stale += 1;
        }
        let backend = self.handle.core.backend();
        Err(Error::retryable(backend, "the limit was another one each time that it was used"))
    }

    /// Reads the limit from the backend, which takes that of this handle where it has none.
    async fn read_limit(&self, patience: Duration) -> Result<u32, Error> {
        let key = self.handle.key(Space::Semaphore)?;
        let limit = SetLimit::IfUnset(self.limit);
        let limit = self.handle.core.set_limit(&key, limit, patience).await?;
        if let Some(remembered) = &self.remembered {
            *locked(remembered) = Some(limit);
        }
        Ok(limit)
    }
}
