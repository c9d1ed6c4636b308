//! Owners that can enter again what they hold: how a primitive finds out that it is held by its own
//! owner. All of it happens in this process; the backend sees one claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, Weak};

use tokio::sync::Mutex as AsyncMutex;

use crate::acquire::{Request, WaitBudget, acquire};
use crate::concurrency::locked;
use crate::guard::{Guard, HeldClaim};
use crate::shared::Core;
use crate::{Error, Key, Mode};

/// Where owners stand that hold a lock of this manager, or are about to.
#[derive(Default)]
pub(crate) struct Entrances(StdMutex<Owners>);

/// By owner and lock.
type Owners = HashMap<(Arc<str>, Key), Arc<Slot>>;

/// What the owner holds there, if anything. Locked while it is being acquired, so that two tasks
/// of one owner do not wait for each other at the backend.
type Slot = AsyncMutex<Weak<HeldClaim>>;

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
        self.entrances.owners().len()
    }
}

/// An owner at a lock: its entry in the table, which is there as long as one of these is.
struct Entrance {
    entrances: Arc<Entrances>,
    at: (Arc<str>, Key),
    slot: Option<Arc<Slot>>,
}

impl Entrances {
    fn owners(&self) -> MutexGuard<'_, Owners> {
        locked(&self.0)
    }
}

impl Entrance {
    fn new(owner: &Owner, key: &Key) -> (Self, Arc<Slot>) {
        let at = (owner.name.clone(), key.clone());
        let entrances = owner.entrances.clone();
        let slot = entrances.owners().entry(at.clone()).or_default().clone();
        (Self { entrances, at, slot: Some(slot.clone()) }, slot)
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        let mut owners = self.entrances.owners();
        self.slot = None;
        if owners.get(&self.at).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            owners.remove(&self.at);
        }
    }
}

/// Enters again, or acquires.
pub(crate) async fn enter(
    core: &Arc<Core>,
    owner: &Owner,
    request: &Request<'_>,
    wait: WaitBudget,
) -> Result<Option<Guard>, Error> {
    wait.within(|waits| try_enter(core, owner, request, waits)).await
}

async fn try_enter(
    core: &Arc<Core>,
    owner: &Owner,
    request: &Request<'_>,
    waits: bool,
) -> Result<Option<Guard>, Error> {
    core.check_open()?;
    let (entrance, slot) = Entrance::new(owner, &request.key);
    let mut held = match slot.try_lock() {
        Ok(held) => held,
        Err(_) if waits => slot.lock().await,
        Err(_) => return Ok(None),
    };
    if let Some(holding) = held.upgrade() {
        let lease = holding.lease();
        lease.token()?;
        if request.mode == Mode::Exclusive && lease.mode() == Mode::Shared {
            return Err(Error::WouldDeadlock { name: request.key.name.to_string() });
        }
        return Ok(Some(Guard::again(holding)));
    }
    let wait = if waits { WaitBudget::Forever } else { WaitBudget::No };
    let guard = acquire(core, request, wait).await?;
    if let Some(guard) = &guard {
        guard.holding().keep(entrance);
        *held = Arc::downgrade(guard.holding());
    }
    Ok(guard)
}
