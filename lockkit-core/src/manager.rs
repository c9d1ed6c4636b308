//! The manager: it makes locks of names, and shuts down.

use std::fmt;
use std::sync::Arc;

use crate::admin::LockAdmin;
use crate::capabilities::Capabilities;
use crate::driver::LockDriver;
use crate::gate::NeighbourWait;
use crate::observe;
use crate::registry::Registry;
use crate::renewer;
use crate::settings::Settings;
use crate::shared::Core;
use crate::sync::{
    Barrier, Election, Latch, MultiLock, Mutex, Once, Owner, Reentrant, ReentryTable, Register,
    RwLock, Semaphore, Slots,
};
use crate::{Error, LossReason, Namespace};

/// Locks of one backend in one namespace.
///
/// Cheap to clone; clones share connections and the one background task that renews. It has to be
/// used inside a Tokio runtime, and may be in several: when the one ends, or is blocked, in which that
/// task runs, it goes on in another. A lock is renewed only while the runtime that asked for it is
/// polled. When the last clone, guard and lock made from it are gone, what
/// was dropped is still released; [`shutdown`](Self::shutdown) waits for that.
///
/// **Call [`shutdown`](Self::shutdown) before `main` returns**: the runtime ends with it, and a lock that
/// is not released by then stays taken for its ttl. A `tracing` warning says when that happens, and when
/// the last clone goes while guards live.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let job = locks.mutex("nightly").lock().await?;
/// assert!(locks.mutex("nightly").try_lock().await?.is_none());
/// job.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockManager {
    core: Arc<Core>,
    reentry: Arc<ReentryTable>,
    /// Shared by its clones, and by nothing else.
    _presence: Arc<Presence>,
}

/// Goes with the last clone of a manager: from there on its locks cannot be shut down.
struct Presence(Arc<Registry>);

impl Drop for Presence {
    fn drop(&mut self) {
        if self.0.is_forked() {
            return;
        }
        let held = self.0.held();
        if !held.is_empty() {
            observe::manager_gone(self.0.backend(), &held);
        }
    }
}

impl LockManager {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// A manager with default settings. No I/O. Its [`shutdown`](Self::shutdown) does not close the
    /// driver, which other managers may use.
    pub fn new(driver: impl LockDriver) -> Self {
        Self::made(Arc::new(driver), Settings::default(), Namespace::default(), false)
    }

    /// A manager with these settings, which are checked against what the backend can do. No I/O. Its
    /// [`shutdown`](Self::shutdown) does not close the driver.
    pub fn with(driver: Arc<dyn LockDriver>, settings: Settings) -> Result<Self, Error> {
        let namespace = settings.check(driver.capabilities())?;
        Ok(Self::made(driver, settings, namespace, false))
    }

    /// As [`with`](Self::with), and its [`shutdown`](Self::shutdown) closes the driver: for a driver that
    /// was made for this manager.
    pub fn owning(driver: Arc<dyn LockDriver>, settings: Settings) -> Result<Self, Error> {
        let namespace = settings.check(driver.capabilities())?;
        Ok(Self::made(driver, settings, namespace, true))
    }

    fn made(
        driver: Arc<dyn LockDriver>,
        settings: Settings,
        namespace: Namespace,
        owns_driver: bool,
    ) -> Self {
        let core = Arc::new(Core::new(driver, settings, namespace, owns_driver));
        let presence = Arc::new(Presence(core.registry.clone()));
        Self { core, reentry: Arc::default(), _presence: presence }
    }

    /// The driver underneath.
    pub fn driver(&self) -> &Arc<dyn LockDriver> {
        self.core.driver()
    }

    /// What the backend does and does not do.
    pub fn capabilities(&self) -> &Capabilities {
        self.core.driver().capabilities()
    }

    /// Whether a lock of this name was granted to this manager, and is tried for since a neighbour has it;
    /// `None` otherwise, and on backends without a [gate](crate::driver::Gate). Others see such a lock as held
    /// by this process. No I/O.
    pub fn neighbour_wait(&self, name: impl AsRef<str>) -> Option<NeighbourWait> {
        self.core.registry.neighbour_wait(name.as_ref())
    }

    /// The settings that it was made with.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// The mutex of this name. No I/O; a bad name is an error when it is locked.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.core, name.as_ref(), None)
    }

    /// The read-write lock of this name. No I/O. Its writers and a mutex of the same name exclude
    /// each other.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.core, name.as_ref(), None)
    }

    /// The semaphore of this name, with this many permits. No I/O. It has nothing to do with a
    /// lock of the same name. The limit must be the same wherever the semaphore is in use, unless it is
    /// [resizable](Semaphore::resizable).
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore {
        Semaphore::new(&self.core, name.as_ref(), limit)
    }

    /// Locks for this owner, who can enter again what it holds. See [`Reentrant`].
    pub fn reentrant(&self, owner: impl Into<String>) -> Reentrant {
        Reentrant::new(&self.core, Owner::new(owner.into(), &self.reentry))
    }

    /// So many numbered slots under this name, each held by one client at a time. No I/O. The number of
    /// slots must be the same wherever the name is in use. See [`Slots`].
    pub fn slots(&self, name: impl AsRef<str>, slots: u32) -> Slots {
        Slots::new(&self.core, name.as_ref(), slots)
    }

    /// The register of this name: a value that a stale holder cannot overwrite. No I/O.
    pub fn register(&self, name: impl AsRef<str>) -> Register {
        Register::new(&self.core, name.as_ref())
    }

    /// The count-down latch of this name, which opens when so many have counted. No I/O. The count
    /// must be the same wherever it is used.
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> Latch {
        Latch::new(&self.core, name.as_ref(), count)
    }

    /// The job of this key, which one among many does, once. No I/O.
    pub fn once(&self, key: impl AsRef<str>) -> Once {
        Once::new(&self.core, key.as_ref())
    }

    /// The election of this name. No I/O.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(&self.core, name.as_ref())
    }

    /// The mutexes of these names, held together: all or none, in an order in which those who name
    /// the same locks never wait for each other in a circle. No I/O. [`MultiLock::new`] takes those
    /// of several managers.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::of_names(&self.core, names)
    }

    /// The barrier of this name, which so many leave together. No I/O. The count must be the same
    /// wherever it is used.
    pub fn barrier(&self, name: impl AsRef<str>, count: u32) -> Barrier {
        Barrier::new(&self.core, name.as_ref(), count)
    }

    /// What operators do to locks that others hold: break, list, resize, raise the tokens. No I/O.
    pub fn admin(&self) -> LockAdmin {
        LockAdmin::new(&self.core)
    }

    /// Releases everything that was locked through this manager and its clones, waits until the
    /// backend knows, and closes the connections, unless the driver was given to it. Guards that still live are lost
    /// ([`LossReason::ShutDown`]); every later call is [`Error::Closed`].
    ///
    /// Requests under way are waited for, and released too. Where the backend does not answer, or
    /// the future that asked is not polled, this returns when the leases are over. It waits for a
    /// [least hold](Mutex::at_least) where the backend cannot be left with it, and for the
    /// [lock delay](Mutex::lock_delay) of a lock that was lost; a program that ends before leaves both to
    /// the backend.
    ///
    /// In a fork of the process that made the manager it does nothing: all of it is the parent's.
    ///
    /// # Cancel safety
    /// Dropping it leaves the releases to the background; the manager stays shut.
    pub async fn shutdown(&self) {
        let registry = &self.core.registry;
        if registry.is_forked() {
            return;
        }
        let mut records = registry.close();
        // First what waits: it must not be granted what is released here.
        records.sort_by_key(|record| !record.is_waiting());
        for record in records {
            if record.has_lock_delay() && record.loss().is_some() {
                registry.release_after_loss(&record, &record.give_back());
            } else if record.lose(LossReason::ShutDown) {
                registry.release_of(&record);
            }
        }
        renewer::ensure(registry);
        registry.all_released().await;
        if self.core.owns_driver {
            self.core.driver().close().await;
        }
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("backend", &self.capabilities().backend)
            .field("namespace", &self.core.namespace)
            .finish_non_exhaustive()
    }
}
