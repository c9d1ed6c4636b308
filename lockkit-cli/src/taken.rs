//! What was taken: a lock, or a slot. Both are renewed, lost and released, so `run` treats them alike.

use std::time::Duration;

use lockkit::sync::{SlotGuard, SlotLease};
use lockkit::{Error, Guard, HeldLock, LossReason, Token};

/// A lock or a slot that is held. Dropped, it is released in the background.
pub(crate) enum Taken {
    Lock(Guard),
    Slot(SlotGuard),
}

/// The same for tasks that work under it; keeps nothing alive.
#[derive(Clone)]
pub(crate) enum TakenLease {
    Lock(HeldLock),
    Slot(SlotLease),
}

impl Taken {
    pub(crate) fn lease(&self) -> TakenLease {
        match self {
            Self::Lock(guard) => TakenLease::Lock(guard.lease()),
            Self::Slot(guard) => TakenLease::Slot(guard.lease()),
        }
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Slot(guard) => guard.release().await,
        }
    }

    /// The guard of a lock; `None` of a slot, which cannot be detached.
    pub(crate) fn into_lock(self) -> Option<Guard> {
        match self {
            Self::Lock(guard) => Some(guard),
            Self::Slot(_) => None,
        }
    }
}

impl TakenLease {
    /// The lock whose token fences: of a slot, that of its number.
    pub(crate) fn lock(&self) -> &HeldLock {
        match self {
            Self::Lock(lease) => lease,
            Self::Slot(slot) => slot.lock(),
        }
    }

    /// The slot, if it is one.
    pub(crate) fn slot(&self) -> Option<&SlotLease> {
        match self {
            Self::Lock(_) => None,
            Self::Slot(slot) => Some(slot),
        }
    }

    pub(crate) fn token(&self) -> Result<Token, Error> {
        match self {
            Self::Lock(lease) => lease.token(),
            Self::Slot(slot) => slot.token(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Lock(lease) => lease.remaining(),
            Self::Slot(slot) => slot.remaining(),
        }
    }

    /// For how long it stays held at least.
    pub(crate) fn least_remaining(&self) -> Duration {
        self.lock().least_remaining()
    }

    pub(crate) fn granted_ttl(&self) -> Duration {
        match self {
            Self::Lock(lease) => lease.granted_ttl(),
            Self::Slot(slot) => slot.granted_ttl(),
        }
    }

    pub(crate) async fn renew(&self) -> Result<(), Error> {
        match self {
            Self::Lock(lease) => lease.renew().await,
            Self::Slot(slot) => slot.renew().await,
        }
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self {
            Self::Lock(lease) => lease.loss(),
            Self::Slot(slot) => slot.loss(),
        }
    }

    pub(crate) async fn lost(&self) -> LossReason {
        match self {
            Self::Lock(lease) => lease.lost().await,
            Self::Slot(slot) => slot.lost().await,
        }
    }
}
