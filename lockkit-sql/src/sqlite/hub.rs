//! Where the waiters of one process sit, whichever driver they came through: a release here wakes
//! them at once. One hub a file, known by device and inode; no I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use lockkit_core::driver::ClaimId;
use tokio::sync::Notify;

/// The waiters of one file in this process.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    seats: Mutex<HashMap<ClaimId, Arc<Notify>>>,
    /// Rung when this process wrote to a register.
    pub(crate) registers: Notify,
}

impl Hub {
    /// The hub of a file, shared by all drivers on it.
    pub(crate) fn of(file: (u64, u64)) -> Arc<Self> {
        type Hubs = Mutex<HashMap<(u64, u64), Weak<Hub>>>;
        static HUBS: OnceLock<Hubs> = OnceLock::new();
        let mut hubs = lock(HUBS.get_or_init(Hubs::default));
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&file).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Arc::new(Self::default());
        hubs.insert(file, Arc::downgrade(&hub));
        hub
    }

    /// Sits down; rising again is dropping the seat.
    pub(crate) fn sit(self: &Arc<Self>, id: ClaimId) -> Seat {
        let bell = lock(&self.seats).entry(id).or_default().clone();
        Seat { hub: self.clone(), id, bell }
    }

    /// Wakes these, as far as they sit here.
    pub(crate) fn wake(&self, ids: impl IntoIterator<Item = ClaimId>) {
        let seats = lock(&self.seats);
        for id in ids {
            if let Some(bell) = seats.get(&id) {
                // A permit stays with the bell if its owner is just about to listen.
                bell.notify_one();
            }
        }
    }
}

/// A waiter's place in the hub.
#[derive(Debug)]
pub(crate) struct Seat {
    hub: Arc<Hub>,
    id: ClaimId,
    bell: Arc<Notify>,
}

impl Seat {
    /// Returns once woken, also if that was before this was called.
    pub(crate) async fn woken(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = lock(&self.hub.seats);
        // The map and this seat: nobody else sits on it.
        if Arc::strong_count(&self.bell) <= 2 {
            seats.remove(&self.id);
        }
    }
}

/// Nothing panics while it holds one of these locks, so what is poisoned is sound.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
