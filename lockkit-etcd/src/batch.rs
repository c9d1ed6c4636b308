//! Submitting a batch: many releases and acquires in one transaction, each as a transaction within it.
//!
//! etcd judges the conditions of all of them by the state before the whole, and then carries them
//! out one after the other. So two acquires of one empty queue must not be in one batch (both would
//! hold, at one position). An acquire after a release of its queue finds the queue as it was
//! and takes its position at the end; the queue that it is shown is the one of that moment.
//!
//! All keys that a batch creates have its revision as their position and token. No two of them are
//! in one queue.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::future::{join, join_all};
use lockkit_core::Error;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{Attempted, Batch, BatchError, BatchLimits, BatchOutcome};
use tokio::sync::oneshot;

use crate::acquire::PendingAcquire;
use crate::client::{ATTEMPT, BACKEND, EtcdError, EtcdResult, Response, revision};
use crate::heir::Heir;
use crate::leases::EtcdLease;
use crate::locks::EtcdLocks;
use crate::release::PendingRelease;
use crate::requests::{NextStep, TxnOutcome, delete, unexpected_response};

/// etcd takes 128 operations in a transaction unless it is configured otherwise, those within others
/// counted along by their depth, of which an operation of a batch has up to 11; and 1.5 MiB, of
/// which the longest names take 26 times their weight.
pub(crate) const LIMITS: BatchLimits = {
    let mut limits = BatchLimits::of(64, 4);
    limits.bytes = 48 << 10;
    limits
};
/// How often an operation is sent again because its lease had ended, or others changed its queue.
const ROUNDS: usize = 32;

/// The task that waits for the outcome.
type Caller = oneshot::Sender<Result<BatchOutcome, BatchError>>;

/// The operations of one request, each with its index in the batch.
struct Request {
    releases: Vec<(usize, PendingRelease)>,
    acquires: Vec<(usize, PendingAcquire)>,
}

impl Request {
    /// The transaction of each operation and the key that it may write.
    fn parts(&self) -> Vec<(Txn, &[u8])> {
        let releases = self.releases.iter().map(|(_, one)| (one.txn(), &*one.key));
        releases.chain(self.acquires.iter().map(|(_, one)| (one.txn(), &*one.key))).collect()
    }

    fn txn(&self) -> Txn {
        let mut parts = self.parts();
        if parts.len() == 1
            && let Some((txn, _)) = parts.pop()
        {
            return txn;
        }
        // Always so. An etcd that checks no client's rights inside a nested transaction (before
        // 3.6.9, GHSA-rfx7-8w68-q57q) checks those to read what is compared outside of it,
        // and those to write what would be deleted otherwise.
        let there =
            parts.iter().map(|(_, key)| Compare::create_revision(*key, CompareOp::Greater, -1));
        let (there, never): (Vec<_>, Vec<_>) =
            (there.collect(), parts.iter().map(|(_, key)| delete(key)).collect());
        let nested: Vec<_> = parts.into_iter().map(|(txn, _)| TxnOp::txn(txn)).collect();
        Txn::new().when(there).and_then(nested).or_else(never)
    }

    fn len(&self) -> usize {
        self.releases.len() + self.acquires.len()
    }

    /// The responses to its releases and to its acquires.
    fn split(&self, response: TxnResponse) -> EtcdResult<(Vec<TxnResponse>, Vec<TxnResponse>)> {
        let part = |op| match op {
            TxnOpResponse::Txn(part) => Some(part),
            _ => None,
        };
        let mut parts: Vec<_> = match self.len() {
            1 => vec![response],
            _ => response.op_responses().into_iter().filter_map(part).collect(),
        };
        if parts.len() != self.len() {
            return Err(unexpected_response());
        }
        let acquires = parts.split_off(self.releases.len());
        Ok((parts, acquires))
    }

    fn heirs(&self) -> impl Iterator<Item = &Heir> {
        self.releases.iter().filter_map(|(_, release)| release.heir.as_ref())
    }

    fn abandon(&self) {
        self.acquires.iter().for_each(|(_, one)| one.abandon());
    }
}

/// What has become of a batch so far, and what is to be sent.
struct Progress {
    outcome: BatchOutcome,
    releases: Vec<usize>,
    /// With what an earlier response led to.
    acquires: Vec<(usize, Option<PendingAcquire>)>,
    /// How many requests got no answer.
    ambiguous: u32,
    /// Whether a request was answered.
    answered: bool,
}

impl Progress {
    fn of(batch: Batch<'_>) -> Self {
        let changing = Error::retryable(BACKEND, "others keep changing this queue");
        Self {
            outcome: batch.all_failed(&BatchError::unknown(changing)),
            releases: (0..batch.releases.len()).collect(),
            acquires: (0..batch.acquires.len()).map(|at| (at, None)).collect(),
            ambiguous: 0,
            answered: false,
        }
    }

    /// The error of an operation, which is certain only if nothing was carried out: once a request
    /// was answered, the claim may be in its queue although what had to follow failed.
    fn failed(&self, error: Error) -> BatchError {
        let may_be_done = self.answered && matches!(error, Error::Backend { .. });
        BatchError::refused(error).after(self.ambiguous.max(u32::from(may_be_done)))
    }

    /// Nothing of this request was done: all of it is to be sent again.
    fn send_again(&mut self, request: &Request) {
        request.abandon();
        self.releases = request.releases.iter().map(|(at, _)| *at).collect();
        self.acquires = request.acquires.iter().map(|(at, _)| (*at, None)).collect();
    }

    fn fail(&mut self, request: &Request, error: &BatchError) {
        for (at, _) in &request.releases {
            self.outcome.released[*at] = Err(error.clone());
        }
        for (at, _) in &request.acquires {
            self.outcome.acquired[*at] = Err(error.clone());
        }
    }
}

impl EtcdLocks {
    /// Dropping this does not end what was sent: that goes on until it is answered, so that it
    /// is known what became of it. Nothing else is sent then.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        batch: Batch<'_>,
    ) -> Result<BatchOutcome, BatchError> {
        let (caller, outcome) = oneshot::channel();
        let locks = self.clone();
        let (releases, acquires) = (batch.releases.to_vec(), batch.acquires.to_vec());
        self.client.background.spawn(async move {
            let batch = Batch { releases: &releases, acquires: &acquires };
            let outcome = locks.submit_rounds(batch, &caller).await;
            let _ = caller.send(outcome);
        });
        let ended = Error::retryable(BACKEND, "the runtime of a batch has ended");
        outcome.await.unwrap_or_else(|_| Err(BatchError::unknown(ended)))
    }

    async fn submit_rounds(
        self: &Arc<Self>,
        batch: Batch<'_>,
        caller: &Caller,
    ) -> Result<BatchOutcome, BatchError> {
        let mut progress = Progress::of(batch);
        for _ in 0..ROUNDS {
            let request = self.prepare(batch, &mut progress).await;
            if request.len() == 0 || caller.is_closed() {
                request.abandon();
                break;
            }
            let sent = SteadyClock.now();
            match self.send(&request).await {
                Ok(response) => self.decode(request, response, sent, caller, &mut progress).await?,
                Err(EtcdError::LeaseGone) => progress.send_again(&request),
                Err(EtcdError::Failed { error, ambiguous }) => {
                    progress.ambiguous += ambiguous;
                    self.look_after(&request);
                    let error = progress.failed(error);
                    if !progress.answered {
                        return Err(error);
                    }
                    progress.fail(&request, &error);
                    break;
                }
            }
        }
        Ok(progress.outcome)
    }

    /// The next request, of all operations that are to be sent.
    async fn prepare(&self, batch: Batch<'_>, progress: &mut Progress) -> Request {
        let release = |at: usize| (at, self.pending_release(&batch.releases[at]));
        let mut releases: Vec<_> = progress.releases.drain(..).map(release).collect();
        for (_, release) in &mut releases {
            if let Some(holder) = release.sole_holder() {
                release.heir = self.heir_of(&holder, batch).await;
            }
        }
        let pending = progress.acquires.drain(..).map(|(at, pending)| async move {
            match pending {
                Some(pending) => (at, Ok(pending)),
                None => (at, self.pending_acquire(&batch.acquires[at]).await),
            }
        });
        let mut acquires = Vec::with_capacity(batch.acquires.len());
        for (at, pending) in join_all(pending).await {
            match pending {
                Ok(pending) => acquires.push((at, pending)),
                Err(error) => progress.outcome.acquired[at] = Err(progress.failed(error.into())),
            }
        }
        Request { releases, acquires }
    }

    /// Notes what the response to a request says of its operations.
    async fn decode(
        self: &Arc<Self>,
        request: Request,
        response: Response<TxnResponse>,
        sent: Moment,
        caller: &Caller,
        progress: &mut Progress,
    ) -> Result<(), BatchError> {
        progress.answered = true;
        progress.ambiguous += response.ambiguous;
        let (certain, revision) = (progress.ambiguous == 0, revision(&response.answer));
        let part = |txn| TxnOutcome { txn, revision, sent, certain };
        let parts = request.split(response.answer);
        let (left, came) = parts.map_err(|error| progress.failed(error.into()))?;
        let left = request
            .releases
            .into_iter()
            .zip(left)
            .map(|((at, one), txn)| async move { (at, self.released(one, part(txn)).await) });
        let came = request.acquires.into_iter().zip(came).map(|((at, one), txn)| async move {
            (at, self.decode_acquire(one, part(txn), caller).await)
        });
        let (left, came) = join(join_all(left), join_all(came)).await;
        for (at, released) in left {
            progress.outcome.released[at] = match released {
                Ok(released) => Ok(Attempted::after(progress.ambiguous, released)),
                Err(error) => Err(progress.failed(error.into())),
            };
        }
        for (at, next) in came {
            progress.outcome.acquired[at] = match next {
                Ok(NextStep::Done(acquisition)) => {
                    Ok(Attempted::after(progress.ambiguous, acquisition))
                }
                Ok(NextStep::Send(pending)) => {
                    progress.acquires.push((at, Some(pending)));
                    continue;
                }
                Err(EtcdError::LeaseGone) => {
                    progress.acquires.push((at, None));
                    continue;
                }
                Err(error) => Err(progress.failed(error.into())),
            };
        }
        Ok(())
    }

    /// Sends one request. Where it may be carried out later, the leases are
    /// retired that it names: see [`Leases`](crate::leases::Leases).
    async fn send(&self, request: &Request) -> EtcdResult<Response<TxnResponse>> {
        let leases = request.acquires.iter().flat_map(|(_, acquire)| acquire.leases());
        let named: HashMap<_, _> = leases.map(|lease| (lease.id, lease.clone())).collect();
        let targets = request.heirs().map(|heir| (heir.target.id, heir.target.clone()));
        let all: HashMap<_, _> = named.clone().into_iter().chain(targets).collect();
        request.heirs().for_each(|heir| self.note_heir(heir));
        let mut unanswered = Unanswered { locks: self, named };
        let fresh = join_all(all.values().map(|lease| self.leases.freshen(lease)));
        let (reply, _) = join(self.client.txn_within(ATTEMPT, || request.txn()), fresh).await;
        match &reply {
            Ok(Response { ambiguous: 0, .. }) | Err(EtcdError::Failed { ambiguous: 0, .. }) => {
                unanswered.named.clear();
            }
            // Refused as a whole. One of them has ended, which etcd does not tell.
            Err(EtcdError::LeaseGone) => {
                unanswered.named.clear();
                join_all(all.values().map(|lease| self.leases.keep(lease))).await;
                let sent = SteadyClock.now();
                request.heirs().for_each(|heir| self.note_succession(heir, None, sent));
            }
            _ => {}
        }
        reply
    }

    /// No answer has come: each claim of the request may be out of its queue, and the one after it may hold.
    /// Their waiters read their queues.
    fn look_after(&self, request: &Request) {
        let positions = request.releases.iter().filter_map(|(_, release)| release.position());
        positions.for_each(|position| self.successors.wake(&position));
    }

    async fn decode_acquire(
        self: &Arc<Self>,
        pending: PendingAcquire,
        outcome: TxnOutcome,
        caller: &Caller,
    ) -> EtcdResult<NextStep<PendingAcquire>> {
        if caller.is_closed() {
            self.note_abandoned(&pending, &outcome);
            return Err(EtcdError::LeaseGone); // there is no caller to hear of it
        }
        self.acquired(pending, outcome).await
    }
}

/// A request that may put in claims. Dropped unanswered, it retires the leases that it names.
struct Unanswered<'a> {
    locks: &'a EtcdLocks,
    named: HashMap<i64, Arc<EtcdLease>>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for lease in self.named.values() {
            self.locks.leases.retire(lease);
        }
    }
}
