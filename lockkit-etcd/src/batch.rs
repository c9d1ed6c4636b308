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
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{Attempted, Batch, BatchError, BatchOutcome, Flights};
use tokio::sync::oneshot;

use crate::acquire::PendingAcquire;
use crate::client::{ATTEMPT, BACKEND, EtcdError, EtcdResult, Response, revision};
use crate::leases::Lease;
use crate::locks::EtcdLocks;
use crate::release::PendingRelease;
use crate::requests::{NextStep, TxnOutcome, delete, unexpected_response};

/// etcd takes 128 operations in a transaction unless it is told otherwise, those within others
/// counted along by their depth, of which an operation of a batch has up to 11; and 1.5 MiB, of
/// which the longest names take 26 times their weight.
pub(crate) const LIMITS: Flights = {
    let mut limits = Flights::of(64, 4);
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

    fn abandon(&self) {
        self.acquires.iter().for_each(|(_, one)| one.abandon());
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
        let changing = Error::retryable(BACKEND, "others keep changing this queue");
        let mut outcome = batch.all_failed(&BatchError::unknown(changing));
        let mut releases: Vec<_> = (0..batch.releases.len()).collect();
        let mut acquires: Vec<_> = (0..batch.acquires.len()).map(|at| (at, None)).collect();
        let mut ambiguous = 0;
        for round in 0..ROUNDS {
            let release = |at: usize| (at, self.pending_release(&batch.releases[at]));
            let releasing = releases.drain(..).map(release).collect();
            let mut request = Request { releases: releasing, acquires: Vec::new() };
            let pending = acquires.drain(..).map(|(at, pending)| async move {
                match pending {
                    Some(pending) => (at, Ok(pending)),
                    None => (at, self.pending_acquire(&batch.acquires[at]).await),
                }
            });
            for (at, pending) in join_all(pending).await {
                match pending {
                    Ok(pending) => request.acquires.push((at, pending)),
                    // Nothing was sent for it, or what was sent has done nothing.
                    Err(error) => {
                        outcome.acquired[at] =
                            Err(BatchError::refused(error.into()).after(ambiguous));
                    }
                }
            }
            if request.len() == 0 || caller.is_closed() {
                request.abandon();
                break;
            }
            let sent = SteadyClock.now();
            let reply = match self.send(&request).await {
                Ok(reply) => reply,
                Err(EtcdError::LeaseGone) => {
                    request.abandon();
                    releases = request.releases.iter().map(|(at, _)| *at).collect();
                    acquires = request.acquires.iter().map(|(at, _)| (*at, None)).collect();
                    continue;
                }
                Err(error) => {
                    let error = BatchError::from(error).after(ambiguous);
                    if round == 0 {
                        return Err(error);
                    }
                    for (at, _) in &request.releases {
                        outcome.released[*at] = Err(error.clone());
                    }
                    for (at, _) in &request.acquires {
                        outcome.acquired[*at] = Err(error.clone());
                    }
                    break;
                }
            };
            ambiguous += reply.ambiguous;
            let (certain, revision) = (ambiguous == 0, revision(&reply.answer));
            let decoded = |txn| TxnOutcome { txn, revision, sent, certain };
            let failed = |error: Error| after_response(error).after(ambiguous);
            let (left, came) = request.split(reply.answer).map_err(|error| failed(error.into()))?;
            let left = request.releases.into_iter().zip(left).map(|((at, one), txn)| async move {
                (at, self.released(one, decoded(txn)).await)
            });
            let came = request.acquires.into_iter().zip(came).map(|((at, one), txn)| async move {
                (at, self.decode_acquire(one, decoded(txn), caller).await)
            });
            let (left, came) = join(join_all(left), join_all(came)).await;
            for (at, released) in left {
                let released = released.map(|released| Attempted::after(ambiguous, released));
                outcome.released[at] = released.map_err(|error| failed(error.into()));
            }
            for (at, next) in came {
                match next {
                    Ok(NextStep::Done(acquisition)) => {
                        outcome.acquired[at] = Ok(Attempted::after(ambiguous, acquisition));
                    }
                    Ok(NextStep::Send(pending)) => acquires.push((at, Some(pending))),
                    Err(EtcdError::LeaseGone) => acquires.push((at, None)),
                    Err(error) => outcome.acquired[at] = Err(failed(error.into())),
                }
            }
        }
        Ok(outcome)
    }

    /// Sends one request. Where it may be carried out later, the leases are
    /// retired that it names: see [`Leases`](crate::leases::Leases).
    async fn send(&self, request: &Request) -> EtcdResult<Response<TxnResponse>> {
        let leases = request.acquires.iter().flat_map(|(_, acquire)| acquire.leases());
        let named = leases.map(|lease| (lease.id, lease.clone())).collect();
        let mut unanswered = Unanswered { locks: self, named };
        let fresh = join_all(unanswered.named.values().map(|lease| self.leases.freshen(lease)));
        let (reply, _) = join(self.client.txn_within(ATTEMPT, || request.txn()), fresh).await;
        match &reply {
            Ok(Response { ambiguous: 0, .. }) | Err(EtcdError::Failed { ambiguous: 0, .. }) => {
                unanswered.named.clear();
            }
            // Refused as a whole. One of them has ended, which etcd does not tell.
            Err(EtcdError::LeaseGone) => {
                let named = std::mem::take(&mut unanswered.named);
                join_all(named.values().map(|lease| self.leases.keep(lease))).await;
            }
            _ => {}
        }
        reply
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

/// An operation whose transaction was answered, and what had to follow it failed: the claim may be
/// in its queue, unless the error says that it is not.
fn after_response(error: Error) -> BatchError {
    match error {
        Error::Backend { .. } => BatchError::unknown(error),
        _ => BatchError::refused(error),
    }
}

/// A request that may put in claims. Dropped unanswered, it retires the leases that it names.
struct Unanswered<'a> {
    locks: &'a EtcdLocks,
    named: HashMap<i64, Arc<Lease>>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for lease in self.named.values() {
            self.locks.leases.retire(lease);
        }
    }
}
