//! Whom to wake: the claims that wait through the drivers of this process, and what messages call them.
//! No I/O.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{ClaimId, Grant, Renewal, locked};
use lockkit_core::waiting::{PolledDriver, RegisterWatchers, Waiters};
use lockkit_core::{Claim, Result};

/// What stands for a claim in messages.
pub(crate) type ClaimTag = [u8; 8];

/// What became of a claim; of one that waits also when the lease ends on which its turn depends.
pub(crate) type PolledState = (Renewal, Option<Duration>);

/// The answer to a request that core did not send: what it grants counts from when it was sent.
pub(crate) fn since(sent: Moment, (renewal, lease): PolledState) -> PolledState {
    (renewal.counted_from(sent), lease)
}

/// The waiting claims of one driver.
#[derive(Debug)]
pub(crate) struct WaiterRegistry {
    pub(crate) claims: Waiters<ClaimTag>,
    /// Whether what happens in this process comes as a message too.
    messages: bool,
    pub(crate) registers: RegisterWatchers,
}

/// All drivers of this process: a release through one rings at the others.
fn drivers() -> MutexGuard<'static, Vec<Weak<WaiterRegistry>>> {
    static DRIVERS: OnceLock<Mutex<Vec<Weak<WaiterRegistry>>>> = OnceLock::new();
    locked(DRIVERS.get_or_init(Mutex::default))
}

fn all_drivers() -> Vec<Arc<WaiterRegistry>> {
    drivers().iter().filter_map(Weak::upgrade).collect()
}

impl WaiterRegistry {
    pub(crate) fn new(tag: fn(&ClaimId) -> ClaimTag, messages: bool) -> Arc<Self> {
        let waiters = Arc::new(Self {
            claims: Waiters::new(tag),
            messages,
            registers: RegisterWatchers::default(),
        });
        let mut drivers = drivers();
        drivers.retain(|driver| driver.strong_count() > 0);
        drivers.push(Arc::downgrade(&waiters));
        waiters
    }

    /// An operation of this process made these hold: who waits here, through whichever driver but the one
    /// that `knows` it, is asked about at once.
    pub(crate) fn wake(woken: &[ClaimTag], knows: Option<&Self>) {
        if woken.is_empty() {
            return;
        }
        for waiters in all_drivers() {
            let is_told = waiters.messages && waiters.claims.gets_notifications();
            if !is_told && knows.is_none_or(|one| !std::ptr::eq(one, &*waiters)) {
                woken.iter().for_each(|tag| waiters.claims.ask_now(tag));
            }
        }
    }

    /// Waits until the claim holds.
    pub(crate) async fn granted<D: PolledDriver<Name = ClaimTag>>(
        &self,
        driver: &Arc<D>,
        claim: &Arc<Claim>,
    ) -> Result<Grant> {
        self.claims.start_polling(driver);
        let outcome = self.claims.outcome(claim).await;
        self.claims.remove(&claim.id);
        outcome
    }

    /// The answers to a renewal of these claims, of which those that wait are polled for later.
    pub(crate) fn renewed(
        &self,
        claims: &[Arc<Claim>],
        states: impl IntoIterator<Item = Result<PolledState>>,
    ) -> Vec<Result<Renewal>> {
        let each = claims.iter().zip(states).map(|(claim, state)| {
            let (renewal, lease) = state?;
            self.claims.renewed(&claim.id, &renewal, lease);
            Ok(renewal)
        });
        each.collect()
    }

    /// A register was written by this process.
    pub(crate) fn wake_registers() {
        all_drivers().iter().for_each(|waiters| waiters.registers.notify(None));
    }
}
