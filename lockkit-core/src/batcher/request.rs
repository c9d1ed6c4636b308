//! A request to the driver: operations on their way, until their tasks have the results.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::task::yield_now;

use super::queue::PendingOperation;
use super::{Batcher, BatcherState, Collecting, NotSubmitted, Operation, Submitted};
use crate::clock::Moment;
use crate::driver::{Acquisition, Attempted, Batch, BatchError, BatchOutcome, Released};
use crate::{Claim, Error, Key};

/// A batch that was answered waits at most so many yields of the scheduler for the tasks that come back. With
/// 64 tasks on Redis and several threads that is 3 to 4 % of the rate, and 6 to 7 % of this process's CPU time.
const POLLS: usize = 8;

/// The operations of a request.
#[derive(Default)]
pub(crate) struct Operations {
    pub(super) releases: Vec<PendingOperation<Released>>,
    pub(super) acquires: Vec<PendingOperation<Acquisition>>,
}

/// Operations that are submitted together.
pub(super) struct Request {
    batcher: Batcher,
    /// Operations that were asked for before it was made have smaller numbers.
    pub(super) number: u64,
    operations: Operations,
    /// Its only operation.
    pub(super) only: Option<u64>,
    /// The key of its only operation, where that may wait at the backend.
    separate: Option<Key>,
    is_sent: bool,
    is_over: bool,
}

impl Request {
    pub(super) fn new(batcher: &Batcher, state: &mut BatcherState, operations: Operations) -> Self {
        let only = match (&operations.releases[..], &operations.acquires[..]) {
            ([one], []) => Some((one.number, &one.claim.key)),
            ([], [one]) => Some((one.number, &one.claim.key)),
            _ => None,
        };
        let separate = only.filter(|_| batcher.0.limits.waits).map(|(_, key)| key.clone());
        let only = only.map(|(number, _)| number);
        if let Some(key) = &separate {
            state.separate.entry(key.clone()).or_default().requests += 1;
        }
        Self {
            batcher: batcher.clone(),
            number: state.next(),
            operations,
            only,
            separate,
            is_sent: false,
            is_over: false,
        }
    }

    /// Sends it, then what is pending, as long as there is anything: in a task of its own.
    pub(super) async fn run(mut self) {
        let batcher = self.batcher.clone();
        loop {
            let requests = match self.send(true).await {
                Some(mut collecting) => {
                    batcher.come_back().await;
                    collecting.end()
                }
                None => self.end(),
            };
            let mut requests = requests.into_iter();
            let Some(next) = requests.next() else { return };
            self = next;
            drop(batcher.spawn(requests.collect()));
        }
    }

    /// Sends it in the future of a caller; without a runtime, also what is pending then.
    pub(super) async fn run_here(self) {
        let batcher = self.batcher.clone();
        let mut requests = vec![self];
        while let Some(mut request) = requests.pop() {
            request.send(false).await;
            requests.extend(batcher.spawn(request.end()));
        }
    }

    /// Sends it, and gives the tasks their results. With `collects`, the tasks have a yield to come back
    /// with their next operations.
    async fn send(&mut self, collects: bool) -> Option<Collecting> {
        let batcher = self.batcher.clone();
        self.is_sent = true;
        let mut parts = vec![std::mem::take(&mut self.operations)];
        let mut collecting = None;
        while let Some(mut part) = parts.pop() {
            let sent = batcher.0.clock.now();
            part.refuse_late(sent);
            if part.len() == 0 {
                continue;
            }
            let releases: Vec<_> = part.releases.iter().map(|it| it.claim.clone()).collect();
            let acquires: Vec<_> = part.acquires.iter().map(PendingOperation::acquire).collect();
            let batch = Batch { releases: &releases, acquires: &acquires };
            let outcome = match batcher.call_driver(batch).await {
                Ok(outcome) => outcome,
                // One of them may be what the backend does not take: let it fail by itself.
                Err(error) if !error.error.is_retryable() && part.len() > 1 => {
                    parts.extend(part.split(error.ambiguous));
                    continue;
                }
                Err(error) => batch.all_failed(&error),
            };
            let behind = self.take_behind(&outcome);
            if collects && parts.is_empty() {
                if !batcher.state().collecting.is_empty() {
                    yield_now().await;
                }
                let mut state = batcher.state();
                self.finish(&mut state);
                collecting = Some(state.collect(&batcher));
            }
            batcher.tell(part, outcome, sent);
            if let Some((behind, error)) = behind {
                let outcome = behind.all_failed(&error);
                batcher.tell(behind, outcome, sent);
            }
        }
        collecting
    }

    /// It was answered: returns what is submitted next.
    fn end(&mut self) -> Vec<Self> {
        let batcher = self.batcher.clone();
        let mut state = batcher.state();
        self.finish(&mut state);
        batcher.ready(&mut state)
    }

    /// Neither counts as in flight any more, nor blocks its key.
    fn finish(&mut self, state: &mut BatcherState) {
        self.is_over = true;
        state.discard(|it| it.request == self.number);
        let Some(key) = self.separate.take() else { return };
        let Some(separate) = state.separate.get_mut(&key) else { return };
        separate.requests -= 1;
        if separate.requests == 0 {
            state.separate.remove(&key);
            state.releases.unblock(&key);
            state.acquires.unblock(&key);
        }
    }

    /// Where its only operation waited at the backend in vain, so did those of its key that were blocked by
    /// it: otherwise each of many would wait as long, one after the other.
    fn take_behind(&self, outcome: &BatchOutcome) -> Option<(Operations, BatchError)> {
        let key = self.separate.as_ref()?;
        let error = match (&outcome.released[..], &outcome.acquired[..]) {
            ([Err(failed)], []) | ([], [Err(failed)]) if failed.error.is_retryable() => {
                &failed.error
            }
            _ => return None,
        };
        let mut state = self.batcher.state();
        if !state.separate.get(key)?.blocks {
            return None;
        }
        let acquires = state.acquires.take_before(key, self.number);
        // A release waits for longer than an acquire.
        let releases = match outcome.released.is_empty() {
            true => Vec::new(),
            false => state.releases.take_before(key, self.number),
        };
        Some((Operations { releases, acquires }, BatchError::refused(error.clone())))
    }
}

impl Drop for Request {
    /// Its future was dropped, or its runtime ended. What was not sent is pending again: a task that waits
    /// submits it.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let batcher = self.batcher.clone();
        let requests = {
            let mut state = batcher.state();
            self.finish(&mut state);
            let Operations { releases, acquires } = std::mem::take(&mut self.operations);
            releases.into_iter().for_each(|it| drop(state.put_back(it)));
            acquires.into_iter().for_each(|it| drop(state.put_back(it)));
            if self.is_sent { batcher.ready(&mut state) } else { Vec::new() }
        };
        drop(batcher.spawn(requests));
    }
}

impl Batcher {
    /// The tasks that were answered come back with their next operations. On several threads they do so
    /// while this one looks: until two looks in a row have seen no new one, more may be about to.
    async fn come_back(&self) {
        let (mut before, mut nothing_new) = (0, 0);
        for _ in 0..POLLS {
            yield_now().await;
            let pending = self.state().pending();
            nothing_new = if pending == before { nothing_new + 1 } else { 0 };
            if pending == 0 || pending >= self.0.limits.operations || nothing_new == 2 {
                return;
            }
            before = pending;
        }
    }

    /// An error of the whole may be one of any operation. A panic is an error of all, and of no other request.
    pub(super) async fn call_driver(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let (released, acquired) = (batch.releases.len(), batch.acquires.len());
        match AssertUnwindSafe(self.0.driver.submit(batch)).catch_unwind().await {
            Ok(Ok(outcome))
                if (outcome.released.len(), outcome.acquired.len()) != (released, acquired) =>
            {
                Ok(batch.all_failed(&self.no_result()))
            }
            Ok(answer) => answer,
            Err(_) => {
                let error = Error::permanent(self.backend(), "the driver panicked");
                Ok(batch.all_failed(&BatchError::unknown(error)))
            }
        }
    }

    pub(super) fn no_result(&self) -> BatchError {
        BatchError::unknown(self.0.driver.no_reply())
    }

    /// Gives each task its result. What the driver left out of a batch of several is submitted again.
    fn tell(&self, operations: Operations, outcome: BatchOutcome, sent: Moment) {
        let is_batch = operations.len() > 1;
        let releases = tell(operations.releases, outcome.released, sent, is_batch);
        let acquires = tell(operations.acquires, outcome.acquired, sent, is_batch);
        let left_out = Operations { releases, acquires };
        if left_out.len() > 0 {
            self.submit_single(left_out);
        }
    }

    /// Submits the first of the operations of each key by itself, outside the limit of requests in flight;
    /// or waits for such a request that is in flight. What else is asked of the key waits until then.
    fn submit_single(&self, left_out: Operations) {
        let mut requests = Vec::new();
        {
            let mut state = self.state();
            let releases = left_out.releases.into_iter().filter_map(|it| state.put_back(it));
            let mut keys: Vec<_> = releases.collect();
            keys.extend(left_out.acquires.into_iter().filter_map(|it| state.put_back(it)));
            for key in keys {
                let separate = state.separate.entry(key.clone()).or_default();
                separate.blocks = true;
                if separate.requests == 0
                    && let Some(first) = state.take_first(&key)
                {
                    requests.push(Request::new(self, &mut state, first));
                }
            }
        }
        drop(self.spawn(requests));
    }
}

impl BatcherState {
    /// Makes an operation pending again, among those of its key where it was; returns the key. Not where
    /// it is of no use any more.
    fn put_back<T: Operation>(&mut self, pending: PendingOperation<T>) -> Option<Key> {
        if self.closed && !T::OUTLIVES_SHUTDOWN {
            pending.refuse(NotSubmitted::Closed);
            return None;
        }
        let key = (!pending.outcome.is_closed()).then(|| pending.claim.key.clone())?;
        T::queue(self).insert(pending);
        Some(key)
    }

    /// The operation of this key that was asked for first.
    fn take_first(&mut self, key: &Key) -> Option<Operations> {
        match (self.releases.first_of(key), self.acquires.first_of(key)) {
            (Some(release), acquire) if acquire.is_none_or(|acquire| release < acquire) => {
                self.releases.remove(key, release).map(Operation::separate)
            }
            (_, acquire) => self.acquires.remove(key, acquire?).map(Operation::separate),
        }
    }
}

/// Returns what was left out of a batch.
fn tell<T>(
    operations: Vec<PendingOperation<T>>,
    results: Vec<Result<Attempted<T>, BatchError>>,
    sent: Moment,
    is_batch: bool,
) -> Vec<PendingOperation<T>> {
    let mut left_out = Vec::new();
    for (mut pending, result) in operations.into_iter().zip(results) {
        let before = pending.ambiguous;
        let result = match result {
            Err(error) if error.would_block && is_batch => {
                pending.ambiguous += error.ambiguous;
                left_out.push(pending);
                continue;
            }
            Err(error) => Err(error.after(before)),
            Ok(Attempted { result, ambiguous }) => Ok(Attempted::after(ambiguous + before, result)),
        };
        let _ = pending.outcome.send(Ok(Submitted { sent, result }));
    }
    left_out
}

impl Operations {
    pub(super) fn len(&self) -> usize {
        self.releases.len() + self.acquires.len()
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &Arc<Claim>> {
        let releases = self.releases.iter().map(|it| &it.claim);
        releases.chain(self.acquires.iter().map(|it| &it.claim))
    }

    fn all_failed(&self, error: &BatchError) -> BatchOutcome {
        BatchOutcome::all_failed(self.releases.len(), self.acquires.len(), error)
    }

    /// Refuses what is not to be sent any more.
    fn refuse_late(&mut self, now: Moment) {
        fn refuse_late<T>(pending: &mut Vec<PendingOperation<T>>, now: Moment) {
            let is_late =
                |it: &mut PendingOperation<T>| it.latest.is_some_and(|latest| latest <= now);
            let late = pending.extract_if(.., is_late);
            late.for_each(|late| late.refuse(NotSubmitted::TooLate));
        }
        refuse_late(&mut self.releases, now);
        refuse_late(&mut self.acquires, now);
    }

    /// Two halves, of which the last one is to be sent first, after so many requests without an answer.
    fn split(mut self, ambiguous: u32) -> [Self; 2] {
        self.releases.iter_mut().for_each(|it| it.ambiguous += ambiguous);
        self.acquires.iter_mut().for_each(|it| it.ambiguous += ambiguous);
        let half = self.len() / 2;
        let releases = self.releases.split_off(half.min(self.releases.len()));
        let acquires = self.acquires.split_off(half.saturating_sub(self.releases.len()));
        [Self { releases, acquires }, self]
    }
}
