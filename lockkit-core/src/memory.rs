//! The memory driver: locks within one process, and the reference for all other drivers. It keeps
//! every promise of the trait, does no I/O, and needs a runtime only to wait.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::capabilities::{Capabilities, Fault, Guarantee, LeaseClock, WakeUp};
use crate::claim_list::ListOperation;
use crate::clock::{Clock, Moment, TokioClock, sleep_until};
use crate::driver::{
    Acquire, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver, RegisterKey, Registers,
    Renewal, SetLimit,
};
use crate::state::{Finding, Health, ListPage, ListRequest, LockState, Page, Severity};
use crate::waiting::watchers::Watchers;
use crate::{BreakRecord, Claim, Error, Key, Namespace, Token};

mod register_store;
#[cfg(feature = "testing")]
pub(crate) mod script;
mod store;
mod waiting_tasks;

use register_store::RegisterStore;
#[cfg(feature = "testing")]
use script::Script;
use store::{QueueStore, WaitState};
use waiting_tasks::StoreOperation;

const BACKEND: &str = "memory";
/// A long batch of renewals lets others in between after this many.
const RENEWED_AT_ONCE: usize = 128;

/// Locks within one process: no server, no file, no set-up.
///
/// Clones share one store, so managers built from clones of one driver meet, as if each came from
/// a process of its own. What is in the store lives as long as the last clone; detached claims and
/// registers too.
///
/// Waiters are woken at once and one by one. No verb takes longer because many wait: all are
/// logarithmic in the number of claims (but [`raise`](LockDriver::raise) on a list in which
/// a claim waits, and what lists whole queues).
///
/// ```
/// use lockkit_core::memory::MemoryDriver;
///
/// let here = MemoryDriver::new();
/// let meets_it = here.clone();
/// let does_not = MemoryDriver::new();
/// ```
#[derive(Clone)]
pub struct MemoryDriver {
    pub(crate) shared: Arc<MemoryInner>,
    #[cfg(feature = "testing")]
    pub(crate) script: Option<Arc<Script>>,
}

pub(crate) struct MemoryInner {
    queues: Store<QueueStore, Key>,
    registers: Store<RegisterStore, RegisterKey>,
}

/// What is kept, under a lock, and who watches parts of it.
struct Store<S, K> {
    clock: Arc<dyn Clock>,
    state: Mutex<S>,
    watchers: Arc<Watchers<K>>,
}

const CAPABILITIES: Capabilities = {
    let mut capabilities = Capabilities::of(BACKEND);
    capabilities.min_ttl = Duration::from_millis(10);
    // Tokio's timers count whole milliseconds; the rest is for a busy machine.
    capabilities.expiry_slack = Duration::from_millis(50);
    capabilities.wake_up = WakeUp::Push;
    capabilities.resize = true;
    capabilities.shorten = true;
    capabilities.raise = true;
    capabilities.detached = true;
    capabilities.shared_between_processes = false;
    capabilities.registers = true;
    capabilities.namespaces = true;
    capabilities.lease_clock = LeaseClock::Machine;
    capabilities.round_trips = None;
    // Server and clients are one process with one clock: they stand still, and end, together.
    capabilities.faults = &[
        (Fault::ConnectionCut, Guarantee::Impossible),
        (Fault::Partition, Guarantee::Impossible),
        (Fault::ServerPaused, Guarantee::Impossible),
        (Fault::ServerRestarts, Guarantee::Impossible),
        (Fault::WritesLost, Guarantee::Impossible),
        (Fault::DataLost, Guarantee::Impossible),
        (Fault::OlderDataRestored, Guarantee::Impossible),
        (Fault::RightsWithdrawn, Guarantee::Impossible),
        (Fault::Failover, Guarantee::Impossible),
        (Fault::SplitBrain, Guarantee::Impossible),
        (Fault::OtherClockTakesOver, Guarantee::Impossible),
        (Fault::LeaderLost, Guarantee::Impossible),
        (Fault::BrokenByForce, Guarantee::Tokens),
    ];
    capabilities
};

impl MemoryDriver {
    /// A store of its own, on tokio's clock, so that tests which pause it need not wait.
    pub fn new() -> Self {
        Self::with_clock(TokioClock::shared())
    }

    /// A store of its own, on another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let queues = Store::new(&clock, QueueStore::new);
        let registers = Store::new(&clock, RegisterStore::new);
        Self {
            shared: Arc::new(MemoryInner { queues, registers }),
            #[cfg(feature = "testing")]
            script: None,
        }
    }

    fn amend(&self, claim: &Claim, step: &ListOperation<'_, Arc<Claim>>) -> Result<Renewal, Error> {
        let queues = &self.shared.queues;
        queues.apply(|queues, operation| queues.amend(claim, step, operation))?
    }
}

/// Without the faults of [`testing`](crate::testing).
#[cfg(not(feature = "testing"))]
impl MemoryDriver {
    fn refusal(&self, _: &Claim) -> Option<Error> {
        None
    }

    fn silence(&self, _: &Claim, _: Moment) -> Option<Error> {
        None
    }
}

impl Default for MemoryDriver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDriver").finish_non_exhaustive()
    }
}

impl<S, K> Store<S, K> {
    fn new(clock: &Arc<dyn Clock>, state: impl FnOnce(&Arc<Watchers<K>>) -> S) -> Self {
        let watchers = Arc::default();
        Self { clock: clock.clone(), state: Mutex::new(state(&watchers)), watchers }
    }

    /// One verb. The clock is read inside, so that time never goes back from one verb to the next;
    /// notifications are sent outside.
    fn apply<R>(&self, verb: impl FnOnce(&mut S, &mut StoreOperation) -> R) -> Result<R, Error> {
        let (result, wake_ups) = {
            let mut state = whole(&self.state)?;
            let mut operation = StoreOperation { now: self.clock.now(), wake_ups: Vec::new() };
            (verb(&mut state, &mut operation), operation.wake_ups)
        };
        wake_ups.iter().for_each(|task| task.notify_one());
        Ok(result)
    }

    /// Returns when the task rings, and at `end` if there is one.
    async fn wait(&self, task: &Notify, end: Option<Moment>) {
        let Some(end) = end else {
            return task.notified().await;
        };
        tokio::select! {
            biased;
            () = task.notified() => (),
            () = sleep_until(&*self.clock, end) => (),
        }
    }
}

/// A store in which a verb stopped half way may have two holders of one lock: it is closed.
fn whole<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Error> {
    let stopped = |_| Error::permanent(BACKEND, "a panic left the store in an unknown state");
    mutex.lock().map_err(stopped)
}

fn used_up() -> Error {
    Error::permanent(BACKEND, "all tokens up to 2^63 - 1 were given or skipped")
}

#[async_trait]
impl LockDriver for MemoryDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.queues.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let submit = |queues: &mut QueueStore, operation: &mut StoreOperation| {
            let mut released = Vec::with_capacity(batch.releases.len());
            for claim in batch.releases {
                let release = queues.release(claim, operation);
                released.push(release.map(Into::into).map_err(BatchError::refused));
            }
            let mut acquired = Vec::with_capacity(batch.acquires.len());
            for Acquire { claim, patience } in batch.acquires {
                let acquire = match self.refusal(claim) {
                    Some(error) => Err(error),
                    None => queues.acquire(claim, *patience, operation),
                };
                acquired.push(acquire.map(Into::into).map_err(BatchError::refused));
            }
            BatchOutcome { released, acquired }
        };
        self.shared.queues.apply(submit).map_err(BatchError::refused)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let waiting = Waiting { shared: &self.shared, claim, task: Arc::new(Notify::new()) };
        loop {
            let turn = self
                .shared
                .queues
                .apply(|queues, operation| queues.turn(claim, &waiting.task, operation))??;
            match turn {
                WaitState::Holds(grant) => return Ok(grant),
                WaitState::Waits(end) => self.shared.queues.wait(&waiting.task, end).await,
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let mut renewals = Vec::with_capacity(claims.len());
        for some in claims.chunks(RENEWED_AT_ONCE) {
            self.shared.queues.apply(|queues, operation| {
                let renew = |claim: &Arc<Claim>| match self.silence(claim, operation.now) {
                    Some(error) => Err(error),
                    None => queues.amend(claim, &ListOperation::Renew(claim), operation),
                };
                renewals.extend(some.iter().map(renew));
            })?;
        }
        Ok(renewals)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.amend(claim, &ListOperation::Shorten(claim, ttl))
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.amend(claim, &ListOperation::Downgrade(claim))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.shared
            .queues
            .apply(|queues, operation| queues.break_claim(key, token, force, record, operation))?
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.shared.queues.apply(|queues, operation| queues.view(key, operation.now).0)
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.shared.queues.apply(|queues, operation| queues.list(request, operation.now))?
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        let mut all = self.shared.registers.apply(|registers, it| registers.namespaces(it.now))?;
        self.shared.queues.apply(|queues, it| all.extend(queues.namespaces(it.now)))?;
        let behind = all.into_iter().filter(|namespace| after.is_none_or(|a| namespace > a));
        Ok(ListPage::first(limit, behind))
    }

    async fn changed(&self, key: &Key, before: &LockState) -> Result<LockState, Error> {
        let queues = &self.shared.queues;
        let watching = queues.watchers.watch(key.clone());
        loop {
            let (state, next_end) =
                queues.apply(|queues, operation| queues.view(key, operation.now))?;
            if !state.same_queue(before) {
                return Ok(state);
            }
            queues.wait(&watching.wake, next_end).await;
        }
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        self.amend(claim, &ListOperation::Raise(claim, token))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let queues = &self.shared.queues;
        queues.apply(|queues, operation| queues.resize(key, limit, operation))?
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.shared.queues.apply(|queues, _| queues.base(namespace))
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        self.shared.queues.apply(|queues, _| queues.raise_counter(namespace, base))
    }

    async fn health(&self) -> Result<Health, Error> {
        drop(whole(&self.shared.queues.state)?);
        Ok(Health::well("memory of this process").with(Finding::new(
            Severity::Note,
            "These locks keep out nobody but other tasks of this process.",
            "Use sqlite: for the processes of one host, a server for more.",
        )))
    }
}

/// A task waits for a claim. When that ends, by a grant or by being dropped, the next waiting task of
/// the queue keeps the time.
struct Waiting<'a> {
    shared: &'a MemoryInner,
    claim: &'a Claim,
    task: Arc<Notify>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // An error means that the store is out of use: nothing to leave then.
        let queues = &self.shared.queues;
        let _ = queues.apply(|queues, operation| {
            queues.stop_waiting(self.claim, &self.task, operation);
        });
    }
}

#[cfg(test)]
mod tests;
