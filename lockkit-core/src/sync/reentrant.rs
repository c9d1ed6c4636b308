//! Locks that their owner can enter again. All of it happens in this process; the backend sees one
//! claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, Weak};

use tokio::sync::Mutex as AsyncMutex;

use super::{Mutex, RwLock};
use crate::acquire::{Request, Wait, acquire};
use crate::concurrency::locked;
use crate::guard::{Guard, Holding};
use crate::shared::Core;
use crate::{Error, Key, Mode};

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

/// Where owners stand that hold a lock of this manager, or are about to.
#[derive(Default)]
pub(crate) struct Entrances(StdMutex<Places>);

/// By owner and lock.
type Places = HashMap<(Arc<str>, Key), Arc<Slot>>;

/// What the owner holds there, if anything. Locked while it is being acquired, so that two tasks
/// of one owner do not wait for each other at the backend.
type Slot = AsyncMutex<Weak<Holding>>;

/// An owner, and the table in which its manager finds it.
#[derive(Clone)]
pub(crate) struct Owner {
    name: Arc<str>,
    entrances: Arc<Entrances>,
}

impl Owner {
    pub(crate) fn new(name: String, entrances: &Arc<Entrances>) -> Self {
        Self { name: name.into(), entrances: entrances.clone() }
    }

    /// How many owners are in the table, each once for every lock.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.entrances.places().len()
    }
}

/// An owner at a lock: its place in the table, which is there as long as one of these is.
struct Entrance {
    entrances: Arc<Entrances>,
    at: (Arc<str>, Key),
    slot: Option<Arc<Slot>>,
}

impl Entrances {
    fn places(&self) -> MutexGuard<'_, Places> {
        locked(&self.0)
    }
}

impl Entrance {
    fn new(owner: &Owner, key: &Key) -> (Self, Arc<Slot>) {
        let at = (owner.name.clone(), key.clone());
        let entrances = owner.entrances.clone();
        let slot = entrances.places().entry(at.clone()).or_default().clone();
        (Self { entrances, at, slot: Some(slot.clone()) }, slot)
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        let mut places = self.entrances.places();
        self.slot = None;
        if places.get(&self.at).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            places.remove(&self.at);
        }
    }
}

/// Enters again, or acquires.
pub(crate) async fn enter(
    core: &Arc<Core>,
    owner: &Owner,
    request: &Request<'_>,
    wait: Wait,
) -> Result<Option<Guard>, Error> {
    if let Wait::For(limit) = wait
        && !limit.is_zero()
    {
        let entering = Box::pin(enter(core, owner, request, Wait::Forever));
        return tokio::time::timeout(limit, entering).await.unwrap_or(Ok(None));
    }
    core.check_open()?;
    let (entrance, slot) = Entrance::new(owner, &request.key);
    let mut held = match wait {
        Wait::Forever => slot.lock().await,
        _ => match slot.try_lock() {
            Ok(held) => held,
            Err(_) => return Ok(None),
        },
    };
    if let Some(holding) = held.upgrade() {
        let lease = holding.lease();
        lease.token()?;
        if request.mode == Mode::Exclusive && lease.mode() == Mode::Shared {
            return Err(Error::WouldDeadlock { name: request.key.name.to_string() });
        }
        return Ok(Some(Guard::again(holding)));
    }
    let guard = acquire(core, request, wait).await?;
    if let Some(guard) = &guard {
        guard.holding().keep(entrance);
        *held = Arc::downgrade(guard.holding());
    }
    Ok(guard)
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
    }
}
