//! Batches: acquires and releases in one statement of the database.
//!
//! A batch never waits for another client's transaction, since it would do so with other queues locked.
//! An operation whose queue is locked is left out of it, and core submits it again by itself. A single
//! operation may wait for its row, for a second at a time and on half of the connections at most: rows
//! that another client has locked cost the other operations nothing. A busy server may need longer than that
//! for the transactions of a contended name, so only a try fails then.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{
    Acquisition, Attempted, Batch, BatchError, BatchOutcome, ClaimEnd, Patience, Released, Renewal,
    backoff, locked,
};
use lockkit_core::{Claim, Error, LossReason, Result};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::SqlServerInner;
use super::dialect::{Arguments, Dialect, Operation, OperationKind, Row, StatementId, Value};
use super::driver::{count, grant, unexpected};
use super::request::StatementResult;
use crate::rows::{columns, from_micros};

/// For so long after a batch would have waited as a whole, single operations are not sent as batches.
const BLOCKED_PAUSE: Duration = Duration::from_secs(1);
/// The outcome of an operation that was left out.
pub(crate) const LEFT_OUT: i64 = 9;

/// The row of an operation. Its outcome may be [`LEFT_OUT`].
#[derive(Clone)]
struct AnsweredOperation {
    row: Row,
    /// How many attempts before this one got no answer.
    ambiguous: u32,
    /// When the attempt was sent that was answered.
    sent: Moment,
}

type OperationAnswer = Result<AnsweredOperation, BatchError>;

impl<D: Dialect> SqlServerInner<D> {
    pub(super) async fn submit(
        self: &Arc<Self>,
        batch: Batch<'_>,
    ) -> Result<BatchOutcome, BatchError> {
        let _known = self.waiters.claims.submitting(batch);
        let releases = batch.releases.iter().map(|c| Operation::new(c, OperationKind::Release));
        let acquires = batch.acquires.iter().map(|acquire| {
            let kind = match acquire.patience {
                Patience::Wait => OperationKind::Acquire,
                Patience::Try => OperationKind::Try,
            };
            Operation::new(&acquire.claim, kind)
        });
        let operations: Vec<_> = releases.chain(acquires).collect();
        let answers = match &*operations {
            [one] => vec![self.single(one).await],
            several => match self.together(several).await {
                Err(error) if error.error.is_read_only() => {
                    join_all(several.iter().map(|one| self.submit_single(one))).await
                }
                answers => answers?,
            },
        };
        self.sweep_in_passing(operations.len() as u64);
        let mut answers = answers.into_iter();
        let releases = answers.by_ref().take(batch.releases.len());
        let released = releases.map(|answer| self.outcome(batch, answer, released::<D>)).collect();
        let mut acquired = Vec::with_capacity(batch.acquires.len());
        for (acquire, answer) in batch.acquires.iter().zip(answers) {
            acquired.push(self.acquired(batch, &acquire.claim, answer).await);
        }
        Ok(BatchOutcome { released, acquired })
    }

    /// The answers to several operations, in their order. Waits for no row.
    async fn together(
        &self,
        operations: &[Operation<'_>],
    ) -> Result<Vec<OperationAnswer>, BatchError> {
        // In the order of their keys, those of one key as they came.
        let mut order: Vec<usize> = (0..operations.len()).collect();
        order.sort_by_key(|at| columns(&operations[*at].claim.key));
        let sorted: Vec<_> = order.iter().map(|at| operations[*at].clone()).collect();
        let batch = Arguments::Batch(&sorted, &self.client);
        // It may wait for the row of its queue, which other processes change as well.
        let may_wait =
            Operation::hands_over(&sorted).then(|| self.may_wait.try_acquire().ok()).flatten();
        let id = if may_wait.is_some() { StatementId::Pass } else { StatementId::Submit };
        let StatementResult { rows, ambiguous, sent } = match self.request(id, batch).await {
            // More than rows is locked, as by a transaction that reads a range to change it: each
            // operation finds out by itself whether it is concerned.
            Err(error) if error.would_block => {
                *locked(&self.blocked_at) = Some(Instant::now());
                let row = Row(vec![Value::Int(LEFT_OUT)]);
                let sent = SteadyClock.now();
                let left_out =
                    || Ok(AnsweredOperation { row: row.clone(), ambiguous: error.ambiguous, sent });
                return Ok(operations.iter().map(|_| left_out()).collect());
            }
            answer => answer?,
        };
        let wrong = || BatchError::unknown(unexpected::<D>()).after(ambiguous);
        let mut answers = vec![None; operations.len()];
        for Row(mut values) in rows {
            let at = match values.first() {
                Some(Value::Int(n)) => usize::try_from(*n).ok().and_then(|n| order.get(n)),
                _ => None,
            };
            let at = at.ok_or_else(wrong)?;
            values.remove(0);
            answers[*at] = Some(Ok(AnsweredOperation { row: Row(values), ambiguous, sent }));
        }
        answers.into_iter().map(|answer| answer.ok_or_else(wrong)).collect()
    }

    /// One operation, which may wait for its row: until the driver's time limit is over; a try for as long as
    /// the server lets a statement wait. It is sent for no longer than that at a time; in between others have
    /// the connection. An acquire is not sent any more once its waiting lease would be over: for that long
    /// core goes on releasing a claim whose caller gave up.
    async fn single(&self, operation: &Operation<'_>) -> OperationAnswer {
        let until = Instant::now() + self.timeout;
        let repeated_until = match operation.kind {
            OperationKind::Release => until,
            OperationKind::Acquire => until.min(Instant::now() + operation.claim.wait_ttl),
            OperationKind::Try => Instant::now(),
        };
        let (mut failures, mut ambiguous) = (0, 0);
        loop {
            let permit = match self.may_wait.try_acquire() {
                Ok(permit) => permit,
                Err(_) => match self.without_waiting(operation).await {
                    Some(answer) => return after(answer, ambiguous),
                    None => {
                        let permit = self.permit_to_wait(until).await;
                        permit.map_err(|error| BatchError::refused(error).after(ambiguous))?
                    }
                },
            };
            let answer = self.submit_single(operation).await;
            drop(permit);
            failures += 1;
            // A pool of the user's may refuse at once.
            let pause = backoff(failures);
            match answer {
                // Its caller waits anyway.
                Err(error) if error.would_block && Instant::now() + pause < repeated_until => {
                    ambiguous += error.ambiguous;
                }
                answer => return after(answer, ambiguous),
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One of the connections on which operations may wait for rows.
    pub(super) async fn permit_to_wait(&self, until: Instant) -> Result<SemaphorePermit<'_>> {
        match timeout_at(until, self.may_wait.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::retryable(D::BACKEND, "other transactions have locked many queues")),
        }
    }

    /// One operation, where others wait for rows on all connections that may be used so. `None` where it
    /// would have to wait, too.
    async fn without_waiting(&self, operation: &Operation<'_>) -> Option<OperationAnswer> {
        // Where more than rows is locked, a batch waits as well.
        if locked(&self.blocked_at).is_some_and(|at| at.elapsed() < BLOCKED_PAUSE) {
            return None;
        }
        match self.together(std::slice::from_ref(operation)).await {
            Ok(mut answers) => answers.pop().filter(|answer| !is_left_out(answer)),
            Err(error) if error.error.is_read_only() => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// A statement for this one, which waits for the client that has locked its queue.
    async fn submit_single(&self, operation: &Operation<'_>) -> OperationAnswer {
        let is_release = operation.kind == OperationKind::Release;
        let id = if is_release { StatementId::Release } else { StatementId::Acquire };
        let one = Arguments::Batch(std::slice::from_ref(operation), &self.client);
        match self.request(id, one).await {
            Err(error) if is_release && error.error.is_read_only() => {
                self.absent(operation.claim, error).await
            }
            answer => {
                let answer = answer?;
                let row = answer.row::<D>();
                let wrong = |error| BatchError::unknown(error).after(answer.ambiguous);
                let row = row.map_err(wrong)?.clone();
                Ok(AnsweredOperation { row, ambiguous: answer.ambiguous, sent: answer.sent })
            }
        }
    }

    /// A server that takes no writes cannot take a claim out, but says whether there is one.
    async fn absent(&self, claim: &Arc<Claim>, refusal: BatchError) -> OperationAnswer {
        let polled = self.states(std::slice::from_ref(claim)).await;
        match polled.map_err(|error| refusal_or(&refusal, error))?.first() {
            Some((Renewal::Ended(ClaimEnd::NotFound | ClaimEnd::Broken(_)), _)) => {
                let row = Row(vec![Value::Int(2), Value::Null]);
                Ok(AnsweredOperation { row, ambiguous: refusal.ambiguous, sent: SteadyClock.now() })
            }
            _ => Err(refusal),
        }
    }

    async fn acquired(
        &self,
        batch: Batch<'_>,
        claim: &Arc<Claim>,
        answer: OperationAnswer,
    ) -> Result<Attempted<Acquisition>, BatchError> {
        let lease = answer.as_ref().ok().and_then(|it| it.row.int(4)).map(from_micros);
        let mut outcome = self.outcome(batch, answer, |row| acquisition::<D>(claim, row));
        if let Err(refusal) = &mut outcome
            && refusal.error.loss().is_some()
        {
            refusal.error = self.loss_of(claim).await;
        }
        let result = outcome.as_ref().map(|done| &done.result).map_err(|error| &error.error);
        let ambiguous = outcome.as_ref().map_or(0, |done| done.ambiguous);
        self.waiters.claims.acquired(&claim.id, result, ambiguous, lease);
        outcome
    }

    /// Who broke a claim that was acquired again is asked for: the answer has no column for what is so rare.
    async fn loss_of(&self, claim: &Arc<Claim>) -> Error {
        match self.states(std::slice::from_ref(claim)).await.as_deref() {
            Ok([(Renewal::Ended(ended), _)]) => Error::lost(ended.clone().into()),
            Ok(_) => Error::lost(LossReason::Expired),
            Err(error) => error.clone(),
        }
    }

    /// Reads the row of one operation, and reports the claims that it made holders.
    fn outcome<T>(
        &self,
        batch: Batch<'_>,
        answer: OperationAnswer,
        read: impl FnOnce(&Row) -> Result<T, BatchError>,
    ) -> Result<Attempted<T>, BatchError> {
        let AnsweredOperation { row, ambiguous, sent } = answer?;
        let woken = row.0.len().saturating_sub(1);
        self.report_holders(row.bytes(woken).unwrap_or_default(), sent, batch.releases);
        if row.int(0) == Some(LEFT_OUT) {
            return Err(BatchError::would_block(D::BACKEND).after(ambiguous));
        }
        let result = read(&row).map_err(|error| error.after(ambiguous))?;
        Ok(Attempted::after(ambiguous, result))
    }
}

/// The error of a poll that followed a refusal, with the attempts that were made before.
fn refusal_or(refusal: &BatchError, error: Error) -> BatchError {
    BatchError::refused(error).after(refusal.ambiguous)
}

/// An answer after more attempts that got none. A single operation that would have had to wait at the
/// server has failed.
fn after(answer: OperationAnswer, attempts: u32) -> OperationAnswer {
    match answer {
        Ok(it) => Ok(AnsweredOperation { ambiguous: it.ambiguous + attempts, ..it }),
        Err(mut error) => {
            error.would_block = false;
            Err(error.after(attempts))
        }
    }
}

fn is_left_out(answer: &OperationAnswer) -> bool {
    matches!(answer, Ok(it) if it.row.int(0) == Some(LEFT_OUT))
}

fn released<D: Dialect>(row: &Row) -> Result<Released, BatchError> {
    match row.int(0) {
        Some(1) => Ok(Released::Removed),
        Some(2) => Ok(Released::NotFound),
        Some(3) => Ok(Released::NoSuchLock),
        _ => Err(BatchError::unknown(unexpected::<D>())),
    }
}

fn acquisition<D: Dialect>(claim: &Claim, row: &Row) -> Result<Acquisition, BatchError> {
    match row.int(0) {
        Some(0) => Ok(Acquisition::Busy),
        Some(1) => grant::<D>(row, 1).map(Acquisition::Granted).map_err(BatchError::unknown),
        Some(2) => Ok(Acquisition::Queued { ahead: count(row.int(3)) }),
        Some(3) => Err(BatchError::refused(claim.other_limit(count(row.int(1))))),
        Some(4) => Err(BatchError::refused(Error::lost(LossReason::Expired))),
        _ => Err(BatchError::unknown(unexpected::<D>())),
    }
}
