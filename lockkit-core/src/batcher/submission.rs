//! An operation from the side of the task that asked for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::queue::PendingOperation;
use super::{
    Batcher, BatcherState, Collecting, NotSubmitted, Operation, PATIENCE, SLOW, SubmitResult,
    Submitted, UNCONTENDED,
};
use crate::clock::Moment;
use crate::driver::{Acquire, Attempted, Batch, BatchError, Patience};
use crate::{Claim, Error};

/// An operation that is on its way. Dropped before it was submitted, it
/// never is.
pub(crate) struct Submission<T: Operation> {
    pub(super) batcher: Batcher,
    pub(super) claim: Arc<Claim>,
    pub(super) patience: Patience,
    pub(super) latest: Option<Moment>,
    /// `None` before it is pending, and after its outcome.
    pub(super) queued: Option<Queued<T>>,
    /// Where it submits what is pending.
    pub(super) collecting: Option<Collecting>,
    /// Whether it was sent by itself.
    pub(super) is_sent: bool,
}

pub(super) struct Queued<T> {
    pub(super) number: u64,
    outcome: oneshot::Receiver<SubmitResult<T>>,
}

impl<T: Operation> Submission<T> {
    /// What became of the operation. To be asked for once.
    ///
    /// # Cancel safety
    /// [`withdraw`](Self::withdraw) says whether it was submitted.
    pub(crate) async fn outcome(&mut self) -> SubmitResult<T> {
        let batcher = self.batcher.clone();
        if batcher.0.limits.operations <= 1 {
            return self.by_itself(&batcher).await;
        }
        if self.queued.is_none() {
            self.enqueue(&mut batcher.state());
        }
        if self.collecting.is_some() && batcher.state().uncontended <= UNCONTENDED {
            yield_now().await;
        }
        if let (Some(mut collecting), Some(queued)) = (self.collecting.take(), &self.queued) {
            let mut requests = collecting.end();
            if !matches!(&requests[..], [request] if request.only == Some(queued.number)) {
                requests = batcher.spawn(requests);
            }
            for request in requests {
                request.run_here().await;
            }
        }
        self.received(&batcher).await
    }

    /// The same, where an operation that was not submitted is an error of its own.
    pub(super) async fn result(&mut self) -> Result<Attempted<T>, BatchError> {
        let refused = |error| Err(BatchError::refused(error));
        match self.outcome().await {
            Ok(submitted) => submitted.result,
            Err(NotSubmitted::Closed) => refused(Error::Closed),
            Err(NotSubmitted::TooLate) => refused(Error::retryable(
                self.batcher.backend(),
                "too many requests are in flight: nothing was sent",
            )),
        }
    }

    /// Waits for the outcome, and submits what may leave where nothing else does.
    async fn received(&mut self, batcher: &Batcher) -> SubmitResult<T> {
        let Some(queued) = &mut self.queued else { return Err(NotSubmitted::Closed) };
        let mut patience = PATIENCE;
        let received = loop {
            tokio::select! {
                biased;
                received = &mut queued.outcome => break received,
                () = pause(patience) => {}
            }
            // Thousands may wait for their turn in good order.
            patience = SLOW.min(patience * 2);
            match batcher.take_over(queued, &self.claim.key) {
                Some(requests) => drop(batcher.spawn(requests)),
                None => break (&mut queued.outcome).await,
            }
        };
        self.queued = None;
        // Without a word when its request was cut short.
        received.unwrap_or_else(|_| {
            let why = "the request was cut short: its runtime ended, say";
            let error = BatchError::unknown(Error::retryable(batcher.backend(), why));
            Ok(Submitted { sent: batcher.0.clock.now(), result: Err(error) })
        })
    }

    /// For a backend that takes one operation in a request: waits for no other.
    async fn by_itself(&mut self, batcher: &Batcher) -> SubmitResult<T> {
        let permits = &batcher.0.singles[usize::from(T::OUTLIVES_SHUTDOWN)];
        let permit = permits.acquire().await.map_err(|_| NotSubmitted::Closed)?;
        let sent = batcher.0.clock.now();
        if self.latest.is_some_and(|latest| latest <= sent) {
            return Err(NotSubmitted::TooLate);
        }
        self.is_sent = true;
        let (claim, patience) = (self.claim.clone(), self.patience);
        let (releases, acquires) = ([claim.clone()], [Acquire { claim, patience }]);
        let batch = match T::OUTLIVES_SHUTDOWN {
            true => Batch { releases: &releases, acquires: &[] },
            false => Batch { releases: &[], acquires: &acquires },
        };
        let mut request = std::pin::pin!(batcher.call_driver(batch));
        let outcome = tokio::select! {
            biased;
            outcome = request.as_mut() => outcome,
            () = pause(SLOW) => {
                drop(permit);
                request.await
            }
        };
        let only = |outcome| T::only(outcome).unwrap_or_else(|| Err(batcher.no_result()));
        Ok(Submitted { sent, result: outcome.and_then(only) })
    }

    /// Adds it to the pending operations; not after a shutdown.
    pub(super) fn enqueue(&mut self, state: &mut BatcherState) {
        if state.closed && !T::OUTLIVES_SHUTDOWN {
            return;
        }
        let meets_others = !state.in_flight.is_empty() || state.pending() > 0;
        state.uncontended = if meets_others { 0 } else { state.uncontended.saturating_add(1) };
        let pending = self.pending(state);
        T::queue(state).insert(pending);
        let is_free = state.in_flight.len() < self.batcher.0.limits.at_once;
        let waits_for_key = state.busy.contains(&self.claim.key);
        if is_free && !waits_for_key && state.collecting.is_empty() {
            self.collecting = Some(state.collect(&self.batcher));
        }
    }

    fn pending(&mut self, state: &mut BatcherState) -> PendingOperation<T> {
        let (sender, outcome) = oneshot::channel();
        let number = state.next();
        self.queued = Some(Queued { number, outcome });
        let (claim, patience, latest) = (self.claim.clone(), self.patience, self.latest);
        PendingOperation { number, claim, patience, latest, ambiguous: 0, outcome: sender }
    }

    /// Takes it back; says whether it never was submitted, and never will be.
    pub(crate) fn withdraw(&mut self) -> bool {
        let Some(queued) = self.queued.take() else { return !self.is_sent };
        let removed = T::queue(&mut self.batcher.state()).remove(&self.claim.key, queued.number);
        // The others leave without it.
        self.collecting = None;
        // What was left out of a batch that was sent twice may have been carried out.
        removed.is_some_and(|pending| pending.ambiguous == 0)
    }
}

impl<T: Operation> Drop for Submission<T> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Without a runtime there are no timers.
async fn pause(patience: Duration) {
    match Handle::try_current() {
        Ok(_) => tokio::time::sleep(patience).await,
        Err(_) => std::future::pending().await,
    }
}
