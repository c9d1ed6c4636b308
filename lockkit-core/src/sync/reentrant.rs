//! Locks that their owner can enter again.

use std::sync::Arc;

use super::{Mutex, RwLock};
use crate::shared::Core;
use crate::sync::owner::Owner;

/// Locks for one owner, who does not wait for itself.
///
/// An owner is whatever the program calls one: a job, a request, a user. The same id, used with
/// the same manager (or a clone of it), enters again what it holds, without any round trip; the
/// lock is released when the last of its guards is gone. Everybody else stays out, other managers
/// with the same id included. (Threads and tasks mean nothing here.)
///
/// An owner that holds a lock for reading and asks to write is refused
/// ([`Error::WouldDeadlock`](crate::Error::WouldDeadlock)). One that writes may read.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let job = locks.reentrant("job-42");
/// let outer = job.mutex("a").lock().await?;
/// let inner = job.mutex("a").lock().await?;
/// assert_eq!(outer.token()?, inner.token()?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Reentrant {
    core: Arc<Core>,
    owner: Owner,
}

impl Reentrant {
    pub(crate) fn new(core: &Arc<Core>, owner: Owner) -> Self {
        Self { core: core.clone(), owner }
    }

    /// The mutex of this name, for this owner.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.core, name.as_ref(), Some(self.owner.clone()))
    }

    /// The read-write lock of this name, for this owner.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.core, name.as_ref(), Some(self.owner.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{LockManager, MemoryDriver};

    #[tokio::test(start_paused = true)]
    async fn nobody_stays_in_the_table_who_holds_nothing_and_asks_for_nothing() {
        let locks = LockManager::new(MemoryDriver::new());
        let known = |job: &super::Reentrant| job.owner.known();
        let holder = locks.reentrant("holder");
        let guard = holder.mutex("a").lock().await.unwrap();
        let again = holder.mutex("a").lock().await.unwrap();
        let second = Duration::from_secs(1);
        for i in 0..100 {
            let other = locks.reentrant(format!("other {i}"));
            assert!(other.mutex("a").try_lock().await.unwrap().is_none());
            assert!(other.mutex("a").try_lock_for(second).await.unwrap().is_none());
            let dropped = tokio::time::timeout(second, other.mutex("a").lock()).await;
            assert!(dropped.is_err());
            assert!(other.mutex("").lock().await.is_err());
        }
        assert_eq!(known(&holder), 1, "the holder alone");
        again.release().await.unwrap();
        assert_eq!(known(&holder), 1);
        assert!(holder.mutex("a").try_lock().await.unwrap().is_some(), "it is known by the table");
        guard.release().await.unwrap();
        assert_eq!(known(&holder), 0);
        drop(holder.mutex("a").lock().await.unwrap());
        assert_eq!(known(&holder), 0);
        let reader = holder.rwlock("a").write().await.unwrap().downgrade().await.unwrap();
        assert_eq!(known(&holder), 1);
        reader.release().await.unwrap();
        assert_eq!(known(&holder), 0);
    }
}
