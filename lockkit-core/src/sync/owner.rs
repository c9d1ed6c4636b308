//! Reentrant locks: an owner that locks what it holds already gets a further guard of the same claim. All of
//! it happens in this process; the backend has one claim.
//!
//! An owner is a name within one manager: two tasks that use it exclude everyone else, but not each other. What
//! the second request says of TTL and note has no effect. An owner that holds a shared lock cannot lock it
//! exclusively ([`Error::WouldDeadlock`]).

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex as AsyncMutex;

use crate::acquire::{Request, WaitBudget, acquire};
use crate::concurrency::locked;
use crate::guard::{Guard, HeldClaim, Reentry};
use crate::shared::Core;
use crate::{Error, Key, Mode};

/// The owners that hold a lock of this manager, or are acquiring one.
#[derive(Default)]
pub(crate) struct ReentryTable(StdMutex<Owners>);

/// By owner and lock.
type Owners = HashMap<(Arc<str>, Key), Arc<Slot>>;

/// The claim that the owner holds, if any. Locked while it is being acquired, so that two tasks of one
/// owner do not wait for each other at the backend; and while it is being downgraded.
type Slot = AsyncMutex<Weak<HeldClaim>>;

/// The name of an owner, and its manager's table.
#[derive(Clone)]
pub(crate) struct Owner {
    name: Arc<str>,
    table: Arc<ReentryTable>,
}

impl Owner {
    pub(crate) fn new(name: String, table: &Arc<ReentryTable>) -> Self {
        Self { name: name.into(), table: table.clone() }
    }

    /// How many owners are in the table, each once for every lock.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.table.owners().len()
    }
}

/// A reference to the entry of an owner and a lock; the last one that is dropped removes the entry.
#[derive(Clone)]
struct TableEntry {
    table: Arc<ReentryTable>,
    at: (Arc<str>, Key),
    slot: Option<Arc<Slot>>,
}

impl ReentryTable {
    fn owners(&self) -> MutexGuard<'_, Owners> {
        locked(&self.0)
    }
}

impl TableEntry {
    fn new(owner: &Owner, key: &Key) -> (Self, Arc<Slot>) {
        let at = (owner.name.clone(), key.clone());
        let table = owner.table.clone();
        let slot = table.owners().entry(at.clone()).or_default().clone();
        (Self { table, at, slot: Some(slot.clone()) }, slot)
    }
}

impl Reentry for TableEntry {
    fn block(&self) -> BoxFuture<'static, Box<dyn Any + Send>> {
        let entry = self.clone();
        let blocking = async move {
            let entry = entry; // dropped after the slot, which it counts
            let held = match entry.slot.clone() {
                Some(slot) => Some(slot.lock_owned().await),
                None => None,
            };
            Box::new((held, entry)) as Box<dyn Any + Send>
        };
        blocking.boxed()
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        let mut owners = self.table.owners();
        // Then the table's is the only one, unless another reference is in use.
        self.slot = None;
        if owners.get(&self.at).is_some_and(|slot| Arc::strong_count(slot) == 1) {
            owners.remove(&self.at);
        }
    }
}

/// A further guard of what the owner holds, or a new claim.
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
    let (entry, slot) = TableEntry::new(owner, &request.key);
    let mut held = match slot.try_lock() {
        Ok(held) => held,
        Err(_) if waits => slot.lock().await,
        Err(_) => return Ok(None),
    };
    if let Some(holding) = held.upgrade() {
        let lease = holding.lease();
        lease.token()?; // what was lost is not entered again
        if request.mode == Mode::Exclusive && lease.mode() == Mode::Shared {
            return Err(Error::WouldDeadlock { name: request.key.name.to_string() });
        }
        return Ok(Some(Guard::again(holding)));
    }
    let wait = if waits { WaitBudget::Forever } else { WaitBudget::No };
    let guard = acquire(core, request, wait).await?;
    if let Some(guard) = &guard {
        guard.holding().keep(entry);
        *held = Arc::downgrade(guard.holding());
    }
    Ok(guard)
}
