//! For tests of programs that use locks: a store in memory, and a control that makes happen on purpose
//! what production has rarely. `docs/testing.md` has the patterns.
//!
//! A lock over a network can be lost while its holder works, and what a program does then is worth a
//! test. [`locks`] makes a manager for the program under test, and the [`TestControl`] that loses its locks.
//!
//! Under tokio's paused clock (`#[tokio::test(start_paused = true)]`, which needs tokio's feature
//! `test-util`) leases and timeouts pass at once, and always the same way: nothing here reads another
//! clock.
//!
//! ```
//! use lockkit_core::{Error, LossReason, testing};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let (locks, control) = testing::locks();
//! let invoice = locks.mutex("invoice/42");
//! let work = invoice.run(async |_lock| {
//!     control.lose("invoice/42", LossReason::Expired).await;
//!     std::future::pending::<Result<(), Error>>().await // it would work on for ever
//! });
//! assert!(matches!(work.await, Err(Error::Lost { reason: LossReason::Expired, .. })));
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::driver::{BreakMode, LockDriver};
use crate::memory::script::Script;
use crate::shared::Core;
use crate::{BreakRecord, Error, Guard, LockManager, LossReason, MemoryDriver, Space, observe};

/// A manager on a store of its own, and the control that moves what happens to its locks.
pub fn locks() -> (LockManager, TestControl) {
    let (store, script) = (MemoryDriver::new(), Arc::new(Script::default()));
    let locks = LockManager::new(MemoryDriver { script: Some(script.clone()), ..store.clone() });
    let (core, others) = (locks.core().clone(), LockManager::new(store.clone()));
    (locks, TestControl { core, store, script, others })
}

/// Makes happen to the locks of one manager what production has rarely. See [`locks`].
///
/// Names mean locks and semaphores alike, unless a method says otherwise. What it does to one name concerns no other.
///
/// ```
/// use lockkit_core::{LossReason, testing};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let (locks, control) = testing::locks();
/// let guard = locks.mutex("invoice/42").lock().await?;
/// assert!(control.lose("invoice/42", LossReason::Vanished).await);
/// assert!(guard.token().is_err());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TestControl {
    core: Arc<Core>,
    store: MemoryDriver,
    script: Arc<Script>,
    others: LockManager,
}

impl TestControl {
    /// Returns once the program holds the lock of this name: for tests of what happens then.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn held(&self, name: &str) {
        while !self.core.registry.held().iter().any(|held| held.as_str() == name) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Loses the lock of this name that the program holds, now and for this reason: its guards are
    /// invalid, `lost()` returns, `run` drops its work, and the next waiter holds it. Says whether the
    /// program held it.
    ///
    /// As in production, the guard is invalid before anybody else holds the lock.
    ///
    /// # Cancel safety
    /// Not cancel safe: the lock may be lost, and still taken in the store.
    pub async fn lose(&self, name: &str, reason: LossReason) -> bool {
        let registry = &self.core.registry;
        let mut held = false;
        for record in registry.all() {
            let claim = record.claim();
            if claim.key.name.as_str() != name || !record.is_holding() {
                continue;
            }
            if record.lose(reason.clone()) {
                held = true;
                registry.remove(claim.id, &record);
                observe::lost(record.labels, &claim, &reason);
                let released = self.store.release(&claim).await;
                released.expect("the store is in memory");
            }
        }
        held
    }

    /// Another client holds the mutex or read-write lock of this name from now on, and **the program has not noticed**: its
    /// guard is valid until its next renewal. So it is for a process that stood still beyond its
    /// lease. For tests of what protects then: the token, where the write lands.
    ///
    /// The guard of the other holder is returned; its token is greater. Claims that wait already come
    /// first, and this waits for its turn.
    ///
    /// # Cancel safety
    /// Dropping it leaves the lock taken away, or not.
    pub async fn overtake(&self, name: &str) -> Result<Guard, Error> {
        let key = self.core.key(Space::Lock, name)?;
        let store = &self.store;
        let by = (*self.core.identity).clone();
        let record = BreakRecord::new(by, BreakMode::Forced, None);
        for holder in store.inspect(&key).await?.holders() {
            store.break_claim(&key, holder.token, BreakMode::Forced, &record).await?;
        }
        self.others.mutex(name).lock().await
    }

    /// The program's next request for the lock of this name fails with this error. Several for one
    /// name are used up one after the other.
    ///
    /// `lock()` repeats what failed with a [retryable](Error::is_retryable) error, the `try_` forms do
    /// not.
    pub fn refuse_next(&self, name: &str, error: Error) {
        self.script.refuse(name, error);
    }

    /// From now on and for this long, the program's renewals of the lock of this name get no answer.
    /// When that is longer than what is left of the lease, the lock is lost
    /// ([`LossReason::Unreachable`]); otherwise it is renewed afterwards.
    pub fn hold_up_renewals(&self, name: &str, time: Duration) {
        let until = self.core.clock().now().after(time);
        self.script.silence_until(name, until);
    }

    /// From now on the program's manager, its clones and guards find themselves in a fork of the process
    /// that made them: the guards are lost ([`LossReason::Forked`]), acquires are
    /// [`Error::Forked`], and what is dropped sends nothing. Not to be undone.
    pub fn fork(&self) {
        self.core.registry.fork();
    }

    /// A manager of another process, as it were, on the same store: to be in the program's way, and to
    /// see what it left behind. The control does nothing to its locks.
    pub fn others(&self) -> &LockManager {
        &self.others
    }

    /// The store, for managers with settings of their own.
    pub fn store(&self) -> &MemoryDriver {
        &self.store
    }
}
