//! A lock that is held by a thread.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::{Error, HeldLock, LossReason, Mode, Name, Token};

/// A lock that is held: exclusively, shared, or as permits of a semaphore.
///
/// Renewed by the manager's thread. Dropping it releases the lock and waits for the answer, for at
/// most 5 s.
///
/// ```
/// # fn main() -> Result<(), lockkit::Error> {
/// # let locks = lockkit::blocking::connect("memory:")?;
/// let guard = locks.mutex("invoice/42").lock()?;
/// for _page in 0..3 {
///     let token = guard.token()?; // ends the work when the lock is lost
///     // … a write that takes the token along …
/// }
/// guard.release()?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    engine: Arc<Engine>,
    lease: HeldLock,
    /// Until it is given back.
    held: Option<Held>,
}

enum Held {
    Plain(crate::Guard),
    Writing(crate::WriteGuard),
}

impl Held {
    async fn release(self) -> Result<(), Error> {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Writing(guard) => guard.release().await,
        }
    }
}

impl Guard {
    pub(super) fn new(engine: &Arc<Engine>, guard: crate::Guard) -> Self {
        let lease = guard.lease();
        Self { engine: engine.clone(), lease, held: Some(Held::Plain(guard)) }
    }

    /// The fencing token, to be given along with every write to what the lock protects.
    ///
    /// [`Error::Lost`] as soon as the lock can no longer be trusted, whether anybody has noticed
    /// before or not. No I/O.
    pub fn token(&self) -> Result<Token, Error> {
        self.lease.token()
    }

    /// Whether the lock is held as far as this process can know. No I/O. See
    /// [`HeldLock::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Why it was lost, if it was. No I/O.
    pub fn loss(&self) -> Option<LossReason> {
        self.lease.loss()
    }

    /// Waits for the loss of the lock, for so long; `None` when it was not lost. For a thread that
    /// watches over others.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn lost_within(&self, limit: Duration) -> Option<LossReason> {
        let lease = &self.lease;
        self.engine.wait(async { tokio::time::timeout(limit, lease.lost()).await.ok() })
    }

    /// How long until it must not be trusted any more, unless it is renewed before.
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.lease.name()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.lease.mode()
    }

    /// Asks the backend whether the lock is still held, and returns the token if it is. One round
    /// trip.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn verify(&self) -> Result<Token, Error> {
        self.engine.wait(self.lease.verify())
    }

    /// Renews the lease now, by hand: only needed with `auto_renew(false)`. One round trip.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn renew(&self) -> Result<(), Error> {
        self.engine.wait(self.lease.renew())
    }

    /// The lease, for code that has a use for the async API, such as a fence.
    pub fn lease(&self) -> HeldLock {
        self.lease.clone()
    }

    /// Gives the lock back, and returns once the backend knows; as [`crate::Guard::release`].
    ///
    /// # Panics
    /// Inside an async context; the lock is then released in the background.
    pub fn release(mut self) -> Result<(), Error> {
        let released = self.held.take().map(Held::release);
        self.engine.wait(async {
            match released {
                Some(released) => released.await,
                None => Ok(()),
            }
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.engine.finish(held.release());
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Guard").field(&self.lease).finish()
    }
}

/// A read-write lock held for writing. It derefs to its [`Guard`].
///
/// ```
/// # fn main() -> Result<(), lockkit::Error> {
/// # let locks = lockkit::blocking::connect("memory:")?;
/// let writing = locks.rwlock("prices").write()?;
/// let reading = writing.downgrade()?; // others read from now on, none writes
/// assert!(locks.rwlock("prices").try_read()?.is_some());
/// # drop(reading); Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard {
    guard: Guard,
}

impl WriteGuard {
    pub(super) fn new(engine: &Arc<Engine>, guard: crate::WriteGuard) -> Self {
        let lease = HeldLock::clone(&guard);
        let held = Some(Held::Writing(guard));
        Self { guard: Guard { engine: engine.clone(), lease, held } }
    }

    /// Gives the lock back, as [`Guard::release`] does.
    ///
    /// # Panics
    /// Inside an async context; the lock is then released in the background.
    pub fn release(self) -> Result<(), Error> {
        self.guard.release()
    }

    /// Goes on as a reader, in the same place, as [`crate::WriteGuard::downgrade`].
    ///
    /// # Panics
    /// Inside an async context; the lock is then released in the background.
    pub fn downgrade(mut self) -> Result<Guard, Error> {
        match self.guard.held.take() {
            Some(Held::Writing(guard)) => {
                let engine = self.guard.engine.clone();
                Ok(Guard::new(&engine, engine.wait(guard.downgrade())?))
            }
            _ => Err(Error::Released),
        }
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
