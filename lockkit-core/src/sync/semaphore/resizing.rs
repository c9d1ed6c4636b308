//! The limit that lives in the backend: what a handle remembers of it, and what it does when that is
//! old.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Semaphore;
use crate::acquire::Wait;
use crate::driver::SetLimit;
use crate::{Error, Guard, Mode, Space};

/// How long a resize is repeated while the backend does not answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How often in a row a limit may turn out to be old before that is taken for a fault.
const CHANGES: u32 = 100;

/// What was last heard of a limit, for a handle and its clones.
#[derive(Clone)]
pub(super) struct Heard(Arc<AtomicU64>);

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
    pub(super) async fn take(&self, permits: u32, wait: Wait) -> Result<Option<Guard>, Error> {
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
    pub(super) async fn ask(&self, to: SetLimit, patience: Duration) -> Result<u32, Error> {
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
