//! Locks for programs without async: the same locks, as calls that block.
//!
//! ```
//! # fn main() -> Result<(), lockkit::Error> {
//! let locks = lockkit::blocking::connect("memory:")?;
//! let guard = locks.mutex("invoice/42").lock()?;
//! let token = guard.token()?; // give it along with every write
//! guard.release()?;
//! # Ok(()) }
//! ```
//!
//! - **Renewal goes on while the caller works.** A manager has a thread of its own, which renews,
//!   releases and talks to the backend. So a lock is kept by a thread that computes, sleeps or reads a
//!   file for longer than the ttl. (Async code on a current-thread runtime that blocks its thread loses
//!   the lock when the lease ends, since nothing renews it meanwhile: there, too, use this module, or
//!   `spawn_blocking`.)
//! - **Nothing stops the work when the lock is lost**, since a thread cannot be stopped. Ask
//!   [`token()`](Guard::token) between the steps, and give the token along with every write.
//! - **Dropping a guard releases the lock** and waits for the answer, for at most 5 s.
//!   [`Guard::release`] does the same and says whether the lock was held until then.
//! - **Inside an async context** every call that waits panics: it would stop the runtime's thread. Use
//!   the async API there, or call this from `spawn_blocking`. A guard that is dropped there releases in
//!   the background.
//! - What is not here (registers, elections, multi-locks, latches) is reached by
//!   [`LockManager::wait`].

mod engine;
mod guard;
mod locks;

use std::fmt;
use std::sync::Arc;

use engine::Engine;
pub use guard::{Guard, WriteGuard};
pub use locks::{Mutex, RwLock, Semaphore};

use crate::{Error, Settings};

/// Connects to the backend that the URL names, as [`lockkit::connect`](crate::connect) does.
///
/// # Panics
/// Inside an async context.
pub fn connect(url: &str) -> Result<LockManager, Error> {
    let url = url.to_owned();
    LockManager::open(async move || crate::connect(&url).await)
}

/// Connects with these settings, as [`lockkit::connect_with`](crate::connect_with) does.
///
/// # Panics
/// Inside an async context.
pub fn connect_with(url: &str, settings: Settings) -> Result<LockManager, Error> {
    let url = url.to_owned();
    LockManager::open(async move || crate::connect_with(&url, settings).await)
}

/// Locks of one backend in one namespace, for threads.
///
/// Cheap to clone; clones share connections and the one thread. The thread ends with the last clone,
/// lock and guard; that waits until everything is released, for at most 5 s.
///
/// ```
/// # fn main() -> Result<(), lockkit::Error> {
/// let locks = lockkit::blocking::connect("memory:")?;
/// let guard = locks.mutex("invoice/42").lock()?;
/// println!("write with {}", guard.token()?);
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    engine: Arc<Engine>,
}

impl LockManager {
    /// A manager that is made on its own thread, for drivers and clients that a URL cannot name:
    /// connections belong to the runtime that they were made in.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkit::Error> {
    /// use lockkit::MemoryDriver;
    ///
    /// let locks = lockkit::blocking::LockManager::open(async || {
    ///     Ok(lockkit::LockManager::new(MemoryDriver::new()))
    /// })?;
    /// # drop(locks.mutex("a").lock()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// Inside an async context.
    pub fn open<F>(make: F) -> Result<Self, Error>
    where
        F: AsyncFnOnce() -> Result<crate::LockManager, Error> + Send + 'static,
    {
        Ok(Self { engine: Engine::start(make)? })
    }

    /// The mutex of this name. No I/O; a bad name is an error when it is locked.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.engine, name.as_ref())
    }

    /// The read-write lock of this name. No I/O. Its writers and a mutex of the same name exclude
    /// each other.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.engine, name.as_ref())
    }

    /// The semaphore of this name, with this many permits, as
    /// [`LockManager::semaphore`](crate::LockManager::semaphore). No I/O.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(&self.engine, name.as_ref(), limit)
    }

    /// Runs something with the async API, in this manager's runtime, and waits for it.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkit::Error> {
    /// let locks = lockkit::blocking::connect("memory:")?;
    /// let cursor = locks.wait(async |locks| locks.register("cursor").load().await)?;
    /// assert!(cursor.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// Inside an async context.
    pub fn wait<T>(&self, work: impl AsyncFnOnce(&crate::LockManager) -> T) -> T {
        self.engine.wait(work(self.engine.locks()))
    }

    /// Releases everything that was locked through this manager and its clones, and closes the
    /// connections, as [`LockManager::shutdown`](crate::LockManager::shutdown) does.
    ///
    /// # Panics
    /// Inside an async context.
    pub fn shutdown(&self) {
        self.engine.wait(self.engine.locks().shutdown());
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::LockManager").field(self.engine.locks()).finish()
    }
}
