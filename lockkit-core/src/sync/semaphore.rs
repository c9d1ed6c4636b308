//! The semaphore: so many permits, each of which comes back by itself when its holder dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::handle::{Handle, options};
use crate::acquire::Wait;
use crate::driver::SetLimit;
use crate::shared::Core;
use crate::{Error, FromLock, Guard, HeldLock, Mode, Space};

/// At most `limit` permits out at a time, across all processes.
///
/// - **Fair**: a large request at the front of the line is not overtaken by small ones behind it.
/// - **The limit belongs to the semaphore** while anyone holds or waits: another limit is
///   [`Error::LimitMismatch`].
/// - Permits are leases: those of a process that died come back by themselves.
/// - The tokens of permits tell holders apart and grow, but **do not fence**: an older holder is
///   as legitimate as a newer one.
/// - The limit can be [changed](Self::resize) while permits are out: [`resizable`](Self::resizable).
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
    /// What was last heard of the limit, where that is the backend's.
    heard: Option<Heard>,
}

impl Semaphore {
    pub(crate) fn new(core: &Arc<Core>, name: &str, limit: u32) -> Self {
        Self { handle: Handle::new(core, name, None), limit, heard: None }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    options!();

    /// The same semaphore with a limit that lives in the backend, under the semaphore's name, for
    /// good, as durable as a register. No I/O.
    ///
    /// - The first use gives it the limit of this handle, or the one that it is in use with. From
    ///   there on only [`resize`](Self::resize) changes it, for all handles everywhere.
    /// - A request for more permits than the limit is no error: it waits until the limit is raised,
    ///   and those behind it wait with it.
    /// - A handle, and its clones, remember the limit: one round trip for a permit that is free; the
    ///   first use takes one more, and so does the first one after another handle resized.
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
    /// pool.resize(0).await?;
    /// assert!(both.is_valid());
    /// both.release().await?;
    /// assert!(pool.try_acquire().await?.is_none());
    ///
    /// // Another process raises it.
    /// locks.semaphore("pool", 2).resize(8).await?;
    /// let many = pool.acquire_many(8).await?;
    /// # many.release().await
    /// # }
    /// ```
    pub fn resizable(mut self) -> Self {
        self.handle.options.resizable = true;
        self.heard.get_or_insert_default();
        self
    }

    /// Changes the limit, for everybody and for good; 0 drains. Returns once it is in force: no
    /// request for permits that begins after that comes in above it. One round trip.
    ///
    /// - **Raised**, it lets in at once whom it has room for, in the order of the line.
    /// - **Lowered**, it evicts no claim: holders go on, and none is granted until there is room.
    /// - **Drained**, at 0, nothing is granted. A waiter keeps its position for when it is raised.
    /// - **One value wins** where several resize at once, and all count with it.
    ///
    /// A lost answer is asked for again, for half a minute at most. Where another handle resized
    /// meanwhile, this may be applied again after theirs. A handle that is not
    /// [`resizable`](Self::resizable) does not follow: it still asks for the limit that it was made
    /// with.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the limit was changed.
    pub async fn resize(&self, limit: u32) -> Result<(), Error> {
        self.ask(SetLimit::To(limit), PATIENCE).await.map(drop)
    }

    /// The limit. On a [`resizable`](Self::resizable) handle the one that is in force: one round
    /// trip, which gives the semaphore the handle's limit if it has none. Otherwise the one that the
    /// handle was made with, without I/O.
    ///
    /// # Cancel safety
    /// Dropping it does no harm.
    pub async fn limit(&self) -> Result<u32, Error> {
        match &self.heard {
            Some(_) => self.ask(SetLimit::IfUnset(self.limit), PATIENCE).await,
            None => Ok(self.limit),
        }
    }

    /// Waits for one permit.
    ///
    /// One round trip when there is one and no claim waits.
    ///
    /// # Cancel safety
    /// Dropping it takes the claim out of the line in the background. The place in line is lost.
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
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        self.try_acquire_many_for(1, limit).await
    }

    /// Waits for this many permits at once: all or none.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        self.handle.core.waited(self.take(permits, Wait::Forever).await?)
    }

    /// Takes this many permits if there are so many and no claim waits; otherwise `None`.
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.take(permits, Wait::No).await
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
        self.take(permits, Wait::For(limit)).await
    }

    /// How many permits are not out: none while more are out than the limit. Those who wait may
    /// want more than that. One round trip; two on a [`resizable`](Self::resizable) handle.
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
            match this.try_acquire_for(limit).await? {
                Some(guard) => guard.run(work).await.map(Some),
                None => Ok(None),
            }
        }
    }
}

/// How long a resize is repeated while the backend does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often in a row a limit may turn out to be old before that is taken for a fault.
const CHANGES: u32 = 100;

/// What was last heard of a limit, for a handle and its clones.
#[derive(Clone, Debug)]
struct Heard(Arc<AtomicU64>);

impl Heard {
    const NOTHING: u64 = u64::MAX;

    fn get(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok()
    }

    fn set(&self, limit: u32) {
        self.0.store(limit.into(), Ordering::Relaxed);
    }
}

impl Default for Heard {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(Self::NOTHING)))
    }
}

impl Semaphore {
    /// Takes permits under the limit that was heard of; again under another one when that is old.
    async fn take(&self, permits: u32, wait: Wait) -> Result<Option<Guard>, Error> {
        let Some(heard) = &self.heard else {
            let mode = Mode::Permits { permits, limit: self.limit };
            return self.handle.acquire(mode, "semaphore", wait).await;
        };
        self.check()?;
        let until = match wait {
            Wait::For(time) => Instant::now().checked_add(time),
            Wait::No | Wait::Forever => None,
        };
        for _ in 0..CHANGES {
            let (left, patience) = match (wait, until) {
                (Wait::For(_), Some(until)) => {
                    let left = until.saturating_duration_since(Instant::now());
                    (Wait::For(left), left.min(PATIENCE))
                }
                (Wait::No, _) => (wait, Duration::ZERO),
                _ => (wait, PATIENCE),
            };
            let limit = match heard.get() {
                Some(limit) => limit,
                None => match self.ask(SetLimit::IfUnset(self.limit), patience).await {
                    // The time is over, as it would be in line.
                    Err(error) if until.is_some() && error.is_retryable() => return Ok(None),
                    answer => answer?,
                },
            };
            let mode = Mode::Permits { permits, limit };
            match self.handle.acquire(mode, "semaphore", left).await {
                Err(Error::LimitMismatch { in_use, .. }) => heard.set(in_use),
                answer => return answer,
            }
        }
        let backend = self.handle.core.backend();
        Err(Error::retryable(backend, "the limit changed each time that it was asked for"))
    }

    /// Asks the backend for the limit, until there is an answer or no patience left.
    async fn ask(&self, to: SetLimit, patience: Duration) -> Result<u32, Error> {
        self.check()?;
        let key = self.handle.key(Space::Semaphore)?;
        let core = &self.handle.core;
        let limit =
            core.repeat_within("resize", patience, || core.driver().resize(&key, to)).await?;
        if let Some(heard) = &self.heard {
            heard.set(limit);
        }
        Ok(limit)
    }

    /// Refuses what cannot work, before any I/O.
    fn check(&self) -> Result<(), Error> {
        let core = &self.handle.core;
        core.check_open()?;
        match core.driver().capabilities().resize {
            true => Ok(()),
            false => Err(core.driver().unsupported("resizing a semaphore")),
        }
    }
}
