//! Locks that their owner can enter again. All of it happens in this process; the backend sees one
//! claim.

use std::sync::{Arc, Weak};

use tokio::sync::Mutex as AsyncMutex;

use super::{Mutex, RwLock};
use crate::acquire::{Request, Wait, acquire};
use crate::guard::{Guard, Holding};
use crate::manager::Core;
use crate::{Error, Key, Mode};

/// Locks for one owner, who does not wait for itself.
///
/// An owner is whatever the program calls one: a job, a request, a user. The same id, used with
/// the same manager (or a clone of it), enters again what it holds, without any round trip; the
/// lock is released when the last of its guards is gone. Everybody else stays out, other managers
/// with the same id included. (Threads and tasks mean nothing here.)
///
/// An owner that holds a lock for reading and asks to write is refused
/// ([`Error::WouldDeadlock`]). One that writes may read.
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
    owner: Arc<str>,
}

impl Reentrant {
    pub(crate) fn new(core: &Arc<Core>, owner: String) -> Self {
        Self { core: core.clone(), owner: owner.into() }
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

/// An owner at a lock.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Entrance {
    owner: Arc<str>,
    key: Key,
}

/// What the owner holds there, if anything. Locked while it is being acquired, so that two tasks
/// of one owner do not wait for each other at the backend.
pub(crate) type Slot = AsyncMutex<Weak<Holding>>;

/// Enters again, or acquires.
pub(crate) async fn enter(
    core: &Arc<Core>,
    owner: &Arc<str>,
    request: &Request,
    wait: Wait,
) -> Result<Option<Guard>, Error> {
    if let Wait::For(limit) = wait
        && !limit.is_zero()
    {
        let entering = Box::pin(enter(core, owner, request, Wait::Forever));
        return tokio::time::timeout(limit, entering).await.unwrap_or(Ok(None));
    }
    core.check_open()?;
    let entrance = Entrance { owner: owner.clone(), key: request.key.clone() };
    let slot = core.entrance(&entrance);
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
        guard.holding().set_entrance(entrance);
        *held = Arc::downgrade(guard.holding());
    }
    Ok(guard)
}
