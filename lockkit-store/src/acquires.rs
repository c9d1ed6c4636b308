//! Acquires of a batch: a session with a fresh beat, an operation of a shard, and what its answer means.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{Acquire, Acquisition, Attempted, BatchError};
use lockkit_core::{Error, Lifetime, LossReason, Result};
use tokio::sync::oneshot;

use crate::document::{SessionId, shard_of};
use crate::driver::DriverInner;
use crate::queues::Operation;
use crate::session::Session;
use crate::shard::ShardReply;

impl DriverInner {
    /// Acquires in their order; those of one TTL are sent together, once their session has a fresh beat.
    pub(crate) async fn acquire_all(
        &self,
        acquires: &[Acquire],
    ) -> Vec<Result<Attempted<Acquisition>, BatchError>> {
        let mut by_ttl: BTreeMap<Duration, Vec<usize>> = BTreeMap::new();
        for (at, acquire) in acquires.iter().enumerate() {
            by_ttl.entry(acquire.claim.hold_ttl).or_default().push(at);
        }
        let groups = by_ttl.into_values().map(|group| self.acquire_group(acquires, group));
        let mut results: Vec<_> = join_all(groups).await.into_iter().flatten().collect();
        results.sort_by_key(|(at, _)| *at);
        results.into_iter().map(|(_, result)| result).collect()
    }

    async fn acquire_group(
        &self,
        acquires: &[Acquire],
        group: Vec<usize>,
    ) -> Vec<(usize, Result<Attempted<Acquisition>, BatchError>)> {
        let mut results = Vec::with_capacity(group.len());
        for at in group {
            let sent = self.send_acquire(&acquires[at]).await;
            results.push(async move { (at, self.acquired_in_the_end(&acquires[at], sent).await) });
        }
        join_all(results).await
    }

    /// The answer to an acquire; where it is refused and what is in its way has ended, to another one.
    async fn acquired_in_the_end(
        &self,
        acquire: &Acquire,
        sent: Result<SentAcquire>,
    ) -> Result<Attempted<Acquisition>, BatchError> {
        let (first, in_the_way) = self.acquired(acquire, sent).await?;
        if in_the_way.is_empty() || !self.have_ended(acquire, in_the_way).await {
            return Ok(first);
        }
        let sent = self.send_acquire(acquire).await;
        let again = self.acquired(acquire, sent).await;
        let (again, _) = again.map_err(|error| error.after(first.ambiguous))?;
        Ok(Attempted::after(first.ambiguous + again.ambiguous, again.result))
    }

    /// Looks at the sessions in the way of a claim that was refused; says whether one has ended.
    async fn have_ended(&self, acquire: &Acquire, sessions: Vec<SessionId>) -> bool {
        let others = sessions.into_iter().filter(|it| !self.waiters.is_own_session(it));
        let on_end = self.polls(shard_of(&acquire.claim.key, self.context.shards));
        self.context.observe_urgent(others, on_end).await
    }

    async fn send_acquire(&self, acquire: &Acquire) -> Result<SentAcquire> {
        let Acquire { claim, patience } = acquire;
        if claim.lifetime == Lifetime::Detached {
            let backend = self.context.backend();
            return Err(Error::unsupported("claims that outlive their process", backend));
        }
        let session = self.own.session_for(&self.context, claim).await?;
        self.waiters.add_own_session(&session);
        let is_new = self.own.enter(claim, &session, self.context.now());
        let operation = Operation::Acquire {
            claim: claim.clone(),
            patience: *patience,
            session: session.id.clone(),
        };
        Ok(SentAcquire { is_new, session, answer: self.send(operation) })
    }

    /// The answer to an acquire; of one that was refused, with the sessions in its way.
    async fn acquired(
        &self,
        Acquire { claim, .. }: &Acquire,
        sent: Result<SentAcquire>,
    ) -> Result<(Attempted<Acquisition>, Vec<SessionId>), BatchError> {
        let SentAcquire { is_new, session, answer } = sent.map_err(BatchError::refused)?;
        let (answer, ambiguous) = match self.answer(answer).await {
            Ok(answered) => answered,
            Err(error) => {
                // An acquire that may be carried out later is kept until it is released or over.
                if error.ambiguous == 0 && is_new {
                    self.own.forget(&claim.id);
                }
                return Err(error);
            }
        };
        let in_the_way = answer.in_the_way.clone();
        let result = match self.why_ended(claim, &session, &answer) {
            Some(ended) => Err(Error::lost(LossReason::from(ended))),
            None => {
                let broken = answer.broken.clone();
                answer.answer.acquisition(claim, answer.ahead, || Ok(broken))
            }
        };
        let now = self.context.now();
        let acquired = match result {
            Ok(Acquisition::Granted(grant)) => {
                let grant = self.counted(grant, claim, &session);
                let lives = self.own.extend(&claim.id, true, grant.ttl, now);
                lives.then_some(Acquisition::Granted(grant)).ok_or_else(given_up)
            }
            Ok(queued @ Acquisition::Queued { .. }) => {
                let lives = self.own.extend(&claim.id, false, claim.wait_ttl, now);
                lives.then_some(queued).ok_or_else(given_up)
            }
            Ok(Acquisition::Busy) => {
                self.own.forget(&claim.id);
                Ok(Acquisition::Busy)
            }
            Err(error) => {
                if ambiguous == 0 && is_new {
                    self.own.forget(&claim.id);
                }
                Err(error)
            }
        };
        match acquired {
            Ok(acquisition) => Ok((Attempted::after(ambiguous, acquisition), in_the_way)),
            Err(error) => Err(BatchError::refused(error).after(ambiguous)),
        }
    }
}

/// The error for a claim that this driver gave up before the answer came.
fn given_up() -> Error {
    Error::lost(LossReason::Expired)
}

/// An acquire that was handed to its shard's task.
struct SentAcquire {
    is_new: bool,
    session: Arc<Session>,
    answer: oneshot::Receiver<ShardReply>,
}
