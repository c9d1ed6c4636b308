//! The semaphore whose limit can be changed while permits are out. The limit is the backend's; here
//! is what a handle remembers of it, and what it does when that is old.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::handle::{Handle, options, run};
use crate::acquire::Wait;
use crate::deadline::backoff;
use crate::driver::SetLimit;
use crate::manager::Core;
use crate::renewer::no_answer;
use crate::{Error, Guard, Key, Lease, Mode, Space};

/// A semaphore whose limit is raised, lowered or drained while permits are out.
///
/// - **The limit lives in the backend**, under the semaphore's name, for good, as durable as a
///   register. The first use gives it the `initial` one (or the one that it is in use with), and
///   from there on only [`resize`](Self::resize) changes it, for all handles everywhere.
/// - **Raised**, it lets in at once whom it has room for, in the order of the line.
/// - **Lowered**, it evicts nobody: who holds goes on, and nobody comes in until there is room.
/// - **Drained**, at 0, nobody comes in. Who waits keeps its place in line for when it is raised.
/// - **One value wins** where several resize at once, and all count with it.
/// - A request for more permits than the limit is no error here: it waits until the limit is
///   raised, and those behind it wait with it.
/// - It is fair, and its permits are leases whose tokens do not fence, as those of a
///   [`Semaphore`](super::Semaphore). A plain semaphore of the same name must name the limit that
///   is in force, and gets [`Error::LimitMismatch`] otherwise.
/// - A handle, and its clones, remember the limit: one round trip for a permit that is free; the
///   first use takes one more, and so does the first one after somebody else resized.
/// - Not on every backend: see [`Capabilities::resize`](crate::Capabilities::resize).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let pool = locks.resizable("pool", 2);
/// let both = pool.acquire_many(2).await?;
///
/// // Drained: what is out stays out, and nobody comes in.
/// pool.resize(0).await?;
/// assert!(both.is_valid());
/// both.release().await?;
/// assert!(pool.try_acquire().await?.is_none());
///
/// // Another process raises it.
/// locks.resizable("pool", 2).resize(8).await?;
/// let many = pool.acquire_many(8).await?;
/// # many.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Resizable {
    handle: Handle,
    initial: u32,
    /// What was last heard of the limit; [`UNKNOWN`] before that.
    heard: Arc<AtomicU64>,
}

const UNKNOWN: u64 = u64::MAX;

/// How long a resize is repeated while the backend does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// How often in a row a limit may turn out to be old before that is taken for a fault.
const CHANGES: u32 = 100;

impl Resizable {
    pub(crate) fn new(core: &Arc<Core>, name: &str, initial: u32) -> Self {
        let mut handle = Handle::new(core, name, None);
        handle.resizable = true;
        Self { handle, initial, heard: Arc::new(AtomicU64::new(UNKNOWN)) }
    }

    options!();

    /// Changes the limit, for everybody and for good; 0 drains. Returns once it is in force: no
    /// request for permits that begins after that comes in above it. One round trip.
    ///
    /// A lost answer is asked for again, for half a minute at most. Where somebody else resized
    /// meanwhile, this may be applied again after theirs.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the limit was changed.
    pub async fn resize(&self, limit: u32) -> Result<(), Error> {
        self.ask(SetLimit::To(limit), PATIENCE).await.map(drop)
    }

    /// The limit that is in force. One round trip. (It gives the semaphore its initial limit, if it
    /// has none.)
    ///
    /// # Cancel safety
    /// Dropping it does no harm.
    pub async fn limit(&self) -> Result<u32, Error> {
        self.ask(SetLimit::IfUnset(self.initial), PATIENCE).await
    }

    /// Waits for one permit.
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
    pub async fn try_acquire_for(&self, time: Duration) -> Result<Option<Guard>, Error> {
        self.try_acquire_many_for(1, time).await
    }

    /// Waits for this many permits at once: all or none.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        match self.take(permits, Wait::Forever).await? {
            Some(guard) => Ok(guard),
            // A driver answered "busy" to a claim that would have waited.
            None => Err(self.handle.core.driver().unsupported("waiting in line")),
        }
    }

    /// Takes this many permits if there are so many and nobody waits; otherwise `None`.
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
        time: Duration,
    ) -> Result<Option<Guard>, Error> {
        self.take(permits, Wait::For(time)).await
    }

    /// How many permits are not out: none while more are out than the limit. Those who wait may
    /// want more than that. Two round trips.
    ///
    /// # Cancel safety
    /// Dropping it does no harm.
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let limit = self.limit().await?;
        let state = self.handle.core.driver().inspect(&self.key()?).await?;
        let out: u64 = state.holders().map(|s| u64::from(s.mode.weight())).sum();
        let limit = state.limit().unwrap_or(limit);
        Ok(limit.saturating_sub(u32::try_from(out).unwrap_or(u32::MAX)))
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

    /// Takes permits under the limit that was heard of; again under another one when that is old.
    async fn take(&self, permits: u32, wait: Wait) -> Result<Option<Guard>, Error> {
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
            let limit = match u32::try_from(self.heard.load(Ordering::Relaxed)) {
                Ok(heard) => heard,
                Err(_) => match self.ask(SetLimit::IfUnset(self.initial), patience).await {
                    // The time is over, as it would be in line.
                    Err(error) if until.is_some() && error.is_retryable() => return Ok(None),
                    answer => answer?,
                },
            };
            let mode = Mode::Permits { permits, limit };
            match self.handle.acquire(mode, "semaphore", left).await {
                Err(Error::LimitMismatch { in_use, .. }) => self.hear(in_use),
                answer => return answer,
            }
        }
        let backend = self.handle.core.driver().capabilities().backend;
        Err(Error::retryable(backend, "the limit changed each time that it was asked for"))
    }

    /// Asks the backend for the limit, until there is an answer or no patience left.
    async fn ask(&self, to: SetLimit, patience: Duration) -> Result<u32, Error> {
        self.check()?;
        let key = self.key()?;
        let core = &self.handle.core;
        let backend = core.driver().capabilities().backend;
        let until = Instant::now() + patience;
        let mut failures = 0;
        loop {
            core.check_open()?;
            let left = until.saturating_duration_since(Instant::now());
            // Without patience there is one attempt.
            let time = if patience.is_zero() { ATTEMPT } else { left.min(ATTEMPT) };
            let answer = tokio::time::timeout(time, core.driver().resize(&key, to)).await;
            let error = match answer.unwrap_or_else(|_| Err(no_answer(backend))) {
                Ok(limit) => {
                    self.hear(limit);
                    return Ok(limit);
                }
                Err(error) => error,
            };
            failures += 1;
            let pause = backoff(failures);
            if !error.is_retryable() || Instant::now() + pause >= until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn hear(&self, limit: u32) {
        self.heard.store(limit.into(), Ordering::Relaxed);
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

    fn key(&self) -> Result<Key, Error> {
        self.handle.core.key(Space::Semaphore, self.handle.name()?.as_str())
    }
}

impl fmt::Debug for Resizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heard = u32::try_from(self.heard.load(Ordering::Relaxed)).ok();
        f.debug_struct("Resizable")
            .field("name", &self.handle.given_name())
            .field("heard", &heard)
            .finish_non_exhaustive()
    }
}
