//! Mutex, read-write lock and semaphore for threads: the async ones, waited for.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::{Guard, WriteGuard};
use crate::{Error, sync};

/// The options that every lock has; those of the async one.
macro_rules! options {
    () => {
        /// How long the lock stays held when its process dies; the manager's unless set. Renewed at
        /// a third of it.
        pub fn ttl(self, ttl: Duration) -> Self {
            Self { lock: self.lock.ttl(ttl), ..self }
        }

        /// How long this claim, when it waits and its process dies, blocks those behind it.
        pub fn wait_ttl(self, ttl: Duration) -> Self {
            Self { lock: self.lock.wait_ttl(ttl), ..self }
        }

        /// Renews the lock no longer than until it was held for this long, so that a thread that
        /// hangs loses it.
        pub fn max_hold(self, limit: Duration) -> Self {
            Self { lock: self.lock.max_hold(limit), ..self }
        }

        /// Keeps the lock held for so long at least, as [`sync::Mutex::at_least`].
        pub fn at_least(self, hold: Duration) -> Self {
            Self { lock: self.lock.at_least(hold), ..self }
        }

        /// Keeps the lock closed for so long after its guard was lost, as [`sync::Mutex::lock_delay`].
        pub fn lock_delay(self, delay: Duration) -> Self {
            Self { lock: self.lock.lock_delay(delay), ..self }
        }

        /// Says why, to people who look at the lock.
        pub fn note(self, note: impl AsRef<str>) -> Self {
            Self { lock: self.lock.note(note), ..self }
        }

        /// Whether the lock is renewed while it is held. If not, it simply ends after its ttl.
        pub fn auto_renew(self, renew: bool) -> Self {
            Self { lock: self.lock.auto_renew(renew), ..self }
        }

        /// A label for metrics, such as `"invoice"`. Few different ones.
        pub fn class(self, class: &'static str) -> Self {
            Self { lock: self.lock.class(class), ..self }
        }
    };
}

/// Only one at a time, across all processes that use the same backend and name: [`sync::Mutex`] for
/// threads. Not reentrant: a second `lock()` waits for the first, also on the same thread.
///
/// ```
/// # fn main() -> Result<(), lockkit::Error> {
/// # let locks = lockkit::blocking::connect("memory:")?;
/// let guard = locks.mutex("nightly").lock()?;
/// assert!(locks.mutex("nightly").try_lock()?.is_none());
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    engine: Arc<Engine>,
    lock: sync::Mutex,
}

impl Mutex {
    pub(super) fn new(engine: &Arc<Engine>, name: &str) -> Self {
        Self { engine: engine.clone(), lock: engine.locks().mutex(name) }
    }

    options!();

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard::new(&self.engine, guard)
    }

    /// Waits until the lock is held.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn lock(&self) -> Result<Guard, Error> {
        self.engine.wait(self.lock.lock()).map(|guard| self.guard(guard))
    }

    /// Takes the lock if it is free and no claim waits for it; otherwise `None`, at once.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for the lock, but not longer than this; then `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        let taken = self.engine.wait(self.lock.try_lock_for(limit))?;
        Ok(taken.map(|guard| self.guard(guard)))
    }
}

/// Many readers at a time, or one writer: [`sync::RwLock`] for threads.
///
/// ```
/// # fn main() -> Result<(), lockkit::Error> {
/// # let locks = lockkit::blocking::connect("memory:")?;
/// let prices = locks.rwlock("prices");
/// let (one, another) = (prices.read()?, prices.read()?);
/// assert!(prices.try_write()?.is_none());
/// # drop((one, another));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    engine: Arc<Engine>,
    lock: sync::RwLock,
}

impl RwLock {
    pub(super) fn new(engine: &Arc<Engine>, name: &str) -> Self {
        Self { engine: engine.clone(), lock: engine.locks().rwlock(name) }
    }

    options!();

    /// Waits until the lock is held for reading.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn read(&self) -> Result<Guard, Error> {
        self.engine.wait(self.lock.read()).map(|guard| Guard::new(&self.engine, guard))
    }

    /// Takes the lock for reading if no writer holds it or waits for it; otherwise `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.try_read_for(Duration::ZERO)
    }

    /// Waits for the lock, but not longer than this; then `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_read_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        let taken = self.engine.wait(self.lock.try_read_for(limit))?;
        Ok(taken.map(|guard| Guard::new(&self.engine, guard)))
    }

    /// Waits until the lock is held for writing.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn write(&self) -> Result<WriteGuard, Error> {
        self.engine.wait(self.lock.write()).map(|guard| WriteGuard::new(&self.engine, guard))
    }

    /// Takes the lock for writing if it is free and no claim waits for it; otherwise `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        self.try_write_for(Duration::ZERO)
    }

    /// Waits for the lock, but not longer than this; then `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_write_for(&self, limit: Duration) -> Result<Option<WriteGuard>, Error> {
        let taken = self.engine.wait(self.lock.try_write_for(limit))?;
        Ok(taken.map(|guard| WriteGuard::new(&self.engine, guard)))
    }
}

/// At most `limit` permits out at a time, across all processes: [`sync::Semaphore`] for threads.
///
/// ```
/// # fn main() -> Result<(), lockkit::Error> {
/// # let locks = lockkit::blocking::connect("memory:")?;
/// let imports = locks.semaphore("imports", 5);
/// let permit = imports.acquire()?;
/// assert_eq!(imports.available_permits()?, 4);
/// permit.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    engine: Arc<Engine>,
    lock: sync::Semaphore,
}

impl Semaphore {
    pub(super) fn new(engine: &Arc<Engine>, name: &str, limit: u32) -> Self {
        Self { engine: engine.clone(), lock: engine.locks().semaphore(name, limit) }
    }

    options!();

    /// Waits for one permit.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn acquire(&self) -> Result<Guard, Error> {
        self.acquire_many(1)
    }

    /// Waits for this many permits at once: all or none.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        let taken = self.engine.wait(self.lock.acquire_many(permits))?;
        Ok(Guard::new(&self.engine, taken))
    }

    /// Takes one permit if there is one and no claim waits; otherwise `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.try_acquire_for(Duration::ZERO)
    }

    /// Waits for one permit, but not longer than this; then `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>, Error> {
        self.try_acquire_many_for(1, limit)
    }

    /// Waits for this many permits, but not longer than this; then `None`.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn try_acquire_many_for(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<Guard>, Error> {
        let taken = self.engine.wait(self.lock.try_acquire_many_for(permits, limit))?;
        Ok(taken.map(|guard| Guard::new(&self.engine, guard)))
    }

    /// How many permits are not out. One round trip.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn available_permits(&self) -> Result<u32, Error> {
        self.engine.wait(self.lock.available_permits())
    }
}
