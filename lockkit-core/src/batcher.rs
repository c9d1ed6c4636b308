//! Submits the acquires and releases of a process's tasks together. Renewals do not come here: they have
//! requests of their own.
//!
//! # Rules
//! - An operation that finds a free request leaves after one yield of the scheduler, with what was asked
//!   for meanwhile. No timer is involved. After [`UNCONTENDED`] operations in a row that met no other, the
//!   next leaves without a yield.
//! - What comes while no request is free leaves together when one is answered: after some yields, so that
//!   the tasks that were answered come along with their next operations.
//! - A key has one request in flight. What is asked of it meanwhile leaves together after the answer, in the
//!   order in which it was asked for: so the release of a claim that the answer granted travels with the next
//!   acquire of the task whose release it was, and one request is a hand-over. Other keys are not held up.
//!   Where a batch takes one acquire of a key, that is the rule for exclusive claims only: shared ones have
//!   nothing to hand over, and would go one after the other.
//! - At most [`BatchLimits::at_once`] requests are in flight. One without an answer for [`SLOW`] counts no longer:
//!   what is stuck at one node, or behind one row, must not hold up the rest. Drivers end their
//!   attempts after some seconds, so a few times that many are in flight at most.
//! - Of requests that are answered together, one is submitted again before the tasks of the next are woken,
//!   and leaves less than half a batch to that one: the backend works on one batch while the next is prepared.
//!
//! # Where a request runs
//! A batch of one operation runs in the future that asked for it, all others in tasks of their own, so that
//! no operation depends on a future that is no longer polled. What is left, also by a runtime that ended, is
//! found by the tasks that wait: each of them tries again after [`PATIENCE`], and submits what may leave by
//! then.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::capabilities::BatchLimits;
use crate::clock::{Clock, Moment};
use crate::concurrency::locked;
use crate::deadline::Jitter;
use crate::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, LockDriver, Patience,
    Released,
};
use crate::{Claim, Error, Key, Mode};

mod queue;
mod request;
mod submission;

use queue::{BatchCapacity, PendingOperation, Queue};
use request::{Operations, Request};
use submission::Queued;
pub(crate) use submission::Submission;

/// A request without an answer for this long no longer counts as in flight.
const SLOW: Duration = Duration::from_secs(1);
/// The same for a request of one operation, which may wait at the backend, or run in a future that is no
/// longer polled. And after so long a task that waits looks for the first time whether something may leave.
const PATIENCE: Duration = Duration::from_millis(20);
/// A yield costs a look at the sockets of the runtime. With one task, two for each pair of lock and release
/// took 7 of 40 µs of CPU time on Redis (one thread), 37 of 102 µs on PostgreSQL (two threads).
const UNCONTENDED: u32 = 4;
/// Operations of one kind in flight at once, for a backend that takes one operation in a request. On a
/// connection with a millisecond of latency this is a quarter of a million requests a second, more than any
/// backend answers; and a server that works 40 µs on each has answered the last of them after 10 ms.
const SINGLES: usize = 256;

/// Submits the operations of many callers in batches, as a manager does with those of its tasks: for a
/// program that carries out the operations of others, as a server between many clients and one backend
/// does. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::clock::Clock;
/// use lockkit_core::driver::{Acquire, Batch, Batcher, LockDriver, Patience};
/// use lockkit_core::MemoryDriver;
///
/// // A server keeps one for all its clients.
/// let driver = Arc::new(MemoryDriver::new());
/// let batcher = Batcher::new(driver.clone());
/// let acquire = Acquire { claim: claim("nightly", Mode::Exclusive)?, patience: Patience::Try };
/// let latest = driver.clock().now().after(Duration::from_secs(1));
/// let outcome = batcher.submit(Batch { releases: &[], acquires: &[acquire] }, latest).await;
/// assert!(outcome.acquired[0].is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Batcher(Arc<Inner>);

struct Inner {
    driver: Arc<dyn LockDriver>,
    clock: Arc<dyn Clock>,
    limits: BatchLimits,
    /// Of the pauses before operations are repeated: what failed together is repeated together.
    jitter: Jitter,
    state: Mutex<BatcherState>,
    /// Acquires and releases where the backend takes one operation in a request: these are all that is
    /// needed.
    singles: [Semaphore; 2],
}

#[derive(Default)]
pub(crate) struct BatcherState {
    /// Releases are submitted first.
    releases: Queue<Released>,
    acquires: Queue<Acquisition>,
    /// The next number: of an operation, a request, or a yield before a submission.
    next: u64,
    in_flight: Vec<InFlight>,
    /// The keys of those requests, which have one each.
    busy: HashSet<Key>,
    /// The yields after which something will be submitted: until then nothing else is.
    collecting: Vec<u64>,
    /// How many operations in a row met no other.
    uncontended: u32,
    /// Keys with a request of one operation that may wait at the backend.
    separate: HashMap<Key, SeparateRequests>,
    closed: bool,
}

struct InFlight {
    request: u64,
    /// From when on it does not count.
    slow: Instant,
    /// What waits for its answer.
    keys: Vec<Key>,
}

#[derive(Default)]
struct SeparateRequests {
    requests: u32,
    /// Whether an operation of the key was left out of a batch: the key is blocked until these requests
    /// have ended, so that its operations keep their order.
    blocks: bool,
}

/// What became of an operation that was submitted.
pub(crate) struct Submitted<T> {
    /// When its request was sent.
    pub(crate) sent: Moment,
    pub(crate) result: Result<Attempted<T>, BatchError>,
}

/// Why an operation never was, and never will be, submitted.
pub(crate) enum NotSubmitted {
    TooLate,
    /// The manager was shut down.
    Closed,
}

type SubmitResult<T> = Result<Submitted<T>, NotSubmitted>;

/// The two kinds of operations, by their results.
pub(crate) trait Operation: Copy + Send + 'static {
    fn queue(state: &mut BatcherState) -> &mut Queue<Self>;
    fn separate(pending: PendingOperation<Self>) -> Operations;
    /// The only result of a batch.
    fn only(outcome: BatchOutcome) -> Option<Result<Attempted<Self>, BatchError>>;
    /// Whether it is submitted in spite of a shutdown.
    const OUTLIVES_SHUTDOWN: bool;
}

impl Batcher {
    /// A batcher for this driver.
    pub fn new(driver: Arc<dyn LockDriver>) -> Self {
        Self(Arc::new(Inner {
            clock: driver.clock(),
            limits: driver.capabilities().batches,
            driver,
            jitter: Jitter::random(),
            state: Mutex::default(),
            singles: [Semaphore::new(SINGLES), Semaphore::new(SINGLES)],
        }))
    }

    /// Submits operations of different claims, together with those of other callers. An operation that was
    /// not submitted at `latest` never is: its result is a retryable error.
    ///
    /// # Cancel safety
    /// What was not submitted never is; the rest may be carried out.
    pub async fn submit(&self, batch: Batch<'_>, latest: Moment) -> BatchOutcome {
        let latest = Some(latest);
        let release = |claim: &Arc<Claim>| self.submission(claim.clone(), Patience::Try, latest);
        let acquire = |it: &Acquire| self.submission(it.claim.clone(), it.patience, latest);
        let mut releases: Vec<Submission<Released>> = batch.releases.iter().map(release).collect();
        let mut acquires: Vec<Submission<Acquisition>> =
            batch.acquires.iter().map(acquire).collect();
        if self.0.limits.operations > 1 {
            let mut state = self.state();
            releases.iter_mut().for_each(|it| it.enqueue(&mut state));
            acquires.iter_mut().for_each(|it| it.enqueue(&mut state));
        }
        let released = join_all(releases.iter_mut().map(Submission::result));
        let acquired = join_all(acquires.iter_mut().map(Submission::result));
        let (released, acquired) = join(released, acquired).await;
        BatchOutcome { released, acquired }
    }

    /// An operation that is about to be submitted, when its outcome is first polled.
    pub(crate) fn submission<T: Operation>(
        &self,
        claim: Arc<Claim>,
        patience: Patience,
        latest: Option<Moment>,
    ) -> Submission<T> {
        Submission {
            batcher: self.clone(),
            claim,
            patience,
            latest,
            queued: None,
            collecting: None,
            is_sent: false,
        }
    }

    /// Removes a claim from its queue.
    pub(crate) async fn release(&self, claim: &Arc<Claim>) -> Result<Attempted<Released>, Error> {
        let mut release = self.submission::<Released>(claim.clone(), Patience::Try, None);
        release.result().await.map_err(|failed| failed.error)
    }

    /// Many operations are about to be asked for: the first waits for the others.
    pub(crate) fn expect_several(&self) {
        self.state().uncontended = 0;
    }

    /// No acquire is submitted from now on.
    pub(crate) fn close(&self) {
        self.0.singles[0].close();
        let pending = {
            let mut state = self.state();
            state.closed = true;
            state.acquires.drain()
        };
        pending.for_each(|pending| pending.refuse(NotSubmitted::Closed));
    }

    /// The pause before operations that failed are submitted again.
    pub(crate) fn backoff(&self, failures: u32) -> Duration {
        self.0.jitter.backoff(failures)
    }

    fn backend(&self) -> &'static str {
        self.0.driver.capabilities().backend
    }

    fn state(&self) -> MutexGuard<'_, BatcherState> {
        locked(&self.0.state)
    }

    /// What may leave now.
    fn ready(&self, state: &mut BatcherState) -> Vec<Request> {
        let limits = self.0.limits;
        let mut requests = Vec::new();
        while state.in_flight.len() < limits.at_once {
            let BatcherState { releases, acquires, separate, busy, .. } = &mut *state;
            let is_blocked = |key: &Key| {
                busy.contains(key) || separate.get(key).is_some_and(|separate| separate.blocks)
            };
            let mut capacity = BatchCapacity::new(limits);
            let releases = releases.fill(&mut capacity, false, is_blocked);
            let acquires = acquires.fill(&mut capacity, !limits.same_key, is_blocked);
            let operations = Operations { releases, acquires };
            let patience = match operations.len() {
                0 => break,
                1 => PATIENCE,
                _ => SLOW,
            };
            let keys = operations.claims().filter(|claim| has_key_to_itself(limits, claim.mode));
            let keys: Vec<_> = keys.map(|claim| claim.key.clone()).collect();
            state.busy.extend(keys.iter().cloned());
            let request = Request::new(self, state, operations);
            let slow = Instant::now() + patience;
            state.in_flight.push(InFlight { request: request.number, slow, keys });
            requests.push(request);
        }
        requests
    }

    /// Runs requests in tasks of their own; returns them where there is no runtime.
    fn spawn(&self, requests: Vec<Request>) -> Vec<Request> {
        match Handle::try_current() {
            _ if requests.is_empty() => requests,
            Ok(runtime) => {
                requests.into_iter().for_each(|it| drop(runtime.spawn(it.run())));
                Vec::new()
            }
            Err(_) => requests,
        }
    }

    /// Submits what may leave after this operation has waited for long: nothing is waited for any more.
    /// `None` when the operation has left.
    fn take_over<T: Operation>(&self, queued: &Queued<T>, key: &Key) -> Option<Vec<Request>> {
        let mut state = self.state();
        if !T::queue(&mut state).contains(key, queued.number) {
            return None;
        }
        let now = Instant::now();
        state.discard(|it| it.slow <= now);
        state.collecting.clear();
        Some(self.ready(&mut state))
    }
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("driver", &self.0.driver).finish_non_exhaustive()
    }
}

impl BatcherState {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn pending(&self) -> usize {
        self.releases.len() + self.acquires.len()
    }

    /// These requests do not count as in flight any more, and hold up no key.
    fn discard(&mut self, which: impl Fn(&InFlight) -> bool) {
        for it in self.in_flight.extract_if(.., |it| which(it)) {
            for key in &it.keys {
                self.busy.remove(key);
                self.releases.unblock(key);
                self.acquires.unblock(key);
            }
        }
    }

    /// Something is submitted after the next yield.
    fn collect(&mut self, batcher: &Batcher) -> Collecting {
        let number = self.next();
        self.collecting.push(number);
        Collecting { batcher: batcher.clone(), number: Some(number) }
    }
}

impl Operation for Acquisition {
    const OUTLIVES_SHUTDOWN: bool = false;

    fn queue(state: &mut BatcherState) -> &mut Queue<Self> {
        &mut state.acquires
    }

    fn separate(pending: PendingOperation<Self>) -> Operations {
        Operations { releases: Vec::new(), acquires: vec![pending] }
    }

    fn only(mut outcome: BatchOutcome) -> Option<Result<Attempted<Self>, BatchError>> {
        outcome.acquired.pop()
    }
}

impl Operation for Released {
    const OUTLIVES_SHUTDOWN: bool = true;

    fn queue(state: &mut BatcherState) -> &mut Queue<Self> {
        &mut state.releases
    }

    fn separate(pending: PendingOperation<Self>) -> Operations {
        Operations { releases: vec![pending], acquires: Vec::new() }
    }

    fn only(mut outcome: BatchOutcome) -> Option<Result<Attempted<Self>, BatchError>> {
        outcome.released.pop()
    }
}

/// Whether a request with a claim of this mode is the only one in flight for its key.
fn has_key_to_itself(limits: BatchLimits, mode: Mode) -> bool {
    limits.same_key || mode == Mode::Exclusive
}

/// A yield of the scheduler, after which the pending operations are submitted: also when this is dropped.
struct Collecting {
    batcher: Batcher,
    /// `None` when it is over.
    number: Option<u64>,
}

impl Collecting {
    /// What is to be submitted now. Less than half a batch is left to another one that collects.
    fn end(&mut self) -> Vec<Request> {
        let Some(number) = self.number.take() else { return Vec::new() };
        let mut state = self.batcher.state();
        state.collecting.retain(|it| *it != number);
        if !state.collecting.is_empty() && state.pending() < self.batcher.0.limits.operations / 2 {
            return Vec::new();
        }
        self.batcher.ready(&mut state)
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        let requests = self.end();
        drop(self.batcher.spawn(requests));
    }
}
