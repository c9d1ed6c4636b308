//! Whom to wake: the claims that wait through the drivers of this process, and what messages call them.
//! No I/O.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use lockkit_core::driver::ClaimId;
use lockkit_core::waiting::{RegisterBells, Waiters};

/// What stands for a claim in messages.
pub(crate) type Tag = [u8; 8];

/// Who waits through one driver.
#[derive(Debug)]
pub(crate) struct Wakes {
    pub(crate) claims: Waiters<Tag>,
    /// Whether what happens in this process comes as a message too.
    messages: bool,
    pub(crate) registers: RegisterBells,
}

/// All drivers of this process: a release through one rings at the others.
fn drivers() -> MutexGuard<'static, Vec<Weak<Wakes>>> {
    static DRIVERS: OnceLock<Mutex<Vec<Weak<Wakes>>>> = OnceLock::new();
    // Nothing panics while it holds this lock, so what is poisoned is sound.
    DRIVERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wakes {
    pub(crate) fn new(tag: fn(&ClaimId) -> Tag, messages: bool) -> Arc<Self> {
        let wakes = Arc::new(Self {
            claims: Waiters::new(tag),
            messages,
            registers: RegisterBells::default(),
        });
        let mut drivers = drivers();
        drivers.retain(|driver| driver.strong_count() > 0);
        drivers.push(Arc::downgrade(&wakes));
        wakes
    }

    /// A verb of this process made these hold: who waits here, through whichever driver, is asked about
    /// at once.
    pub(crate) fn ring(woken: &[Tag]) {
        if woken.is_empty() {
            return;
        }
        let all: Vec<_> = drivers().iter().filter_map(Weak::upgrade).collect();
        for wakes in all.iter().filter(|wakes| !(wakes.messages && wakes.claims.is_told())) {
            woken.iter().for_each(|tag| wakes.claims.ring(tag));
        }
    }

    /// A register was written by this process.
    pub(crate) fn ring_registers() {
        let all: Vec<_> = drivers().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|wakes| wakes.registers.ring(None));
    }
}
