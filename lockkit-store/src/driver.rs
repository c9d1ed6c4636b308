//! The driver: every operation of [`LockDriver`], as requests to the tasks of shards and sessions.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::claim_list::OperationResult;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Attempted, Batch, BatchError, BatchOutcome, BreakMode, ClaimEnd, Grant, KnownBases, LeaseStart,
    LockDriver, Registers, Released, Renewal, SetLimit, locked,
};
use lockkit_core::state::{Finding, Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::waiting::RegisterWatchers;
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, LossReason, Namespace, Result, Space, Token,
};
use tokio::sync::{mpsc, oneshot};

use crate::background::BackgroundTasks;
use crate::claims::{OwnClaim, OwnClaims};
use crate::context::StoreContext;
use crate::document::shard_of;
use crate::queues::{Operation, ShardAnswer};
use crate::session::{BeatError, Session};
use crate::shard::{PendingOperation, ShardReply, ShardRequest, ShardWorker};
use crate::waiters::{Waiters, Waiting, lease_start};

/// Locks and registers in a [`Store`](crate::Store). Cheap to clone; clones share their sessions.
#[derive(Clone)]
pub struct StoreDriver {
    pub(crate) inner: Arc<DriverInner>,
}

impl fmt::Debug for StoreDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = &self.inner.context.store;
        f.debug_struct("StoreDriver").field("store", store).finish_non_exhaustive()
    }
}

/// What clones of a driver and its tasks share.
pub(crate) struct DriverInner {
    pub(crate) context: Arc<StoreContext>,
    pub(crate) own: Arc<OwnClaims>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) workers: Mutex<HashMap<u32, mpsc::UnboundedSender<ShardRequest>>>,
    pub(crate) offsets: KnownBases,
    pub(crate) register_watchers: RegisterWatchers,
    pub(crate) capabilities: Capabilities,
    pub(crate) findings: Vec<Finding>,
    /// What runs in the background; nothing once the driver is closed.
    pub(crate) tasks: Mutex<Option<BackgroundTasks>>,
}

#[async_trait]
impl LockDriver for StoreDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.context.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        self.inner.keep_running();
        let released = batch.releases.iter().map(|claim| self.inner.release(claim));
        let acquired = self.inner.acquire_all(batch.acquires);
        let (released, acquired) = tokio::join!(join_all(released), acquired);
        Ok(BatchOutcome { released, acquired })
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant> {
        let inner = &self.inner;
        let mut outcome = inner.waiters.add(claim);
        let _waiting = Waiting { waiters: &inner.waiters, claim };
        inner.poll(shard_of(&claim.key, inner.context.shards));
        let outcome = outcome.wait_for(Option::is_some).await;
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or(Err(Error::lost(LossReason::Expired)))
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal>>> {
        self.inner.keep_running();
        Ok(self.inner.renew(claims, Operation::Renew).await)
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal> {
        self.inner.renew_one(claim, Operation::Downgrade).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal> {
        self.inner.renew_one(claim, |claim| Operation::Raise(claim, token)).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        self.inner.break_claim(key, token, mode, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page> {
        self.inner.list(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        self.inner.namespaces(after, limit).await
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState> {
        loop {
            let now = self.inspect(key).await?;
            if !now.same_queue(seen) {
                return Ok(now);
            }
            tokio::time::sleep(self.inner.context.facts.pace).await;
        }
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32> {
        if key.space != Space::Semaphore {
            return Err(self.unsupported("resizing a semaphore"));
        }
        let (answer, _) = self.inner.apply(Operation::Resize { key: key.clone(), limit }).await?;
        match answer.answer {
            OperationResult::Limit(limit) => Ok(limit),
            other => Err(self.inner.unexpected(&other)),
        }
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64> {
        let offset = self.inner.offset(namespace).await?;
        self.inner.offsets.saw(self.inner.context.backend(), namespace, offset)
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<()> {
        self.inner.raise_offset(namespace, base).await
    }

    async fn health(&self) -> Result<Health> {
        self.inner.health().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        crate::probe(self.inner.context.store.clone()).await?;
        Ok(self.inner.context.leftovers().await?.into_iter().collect())
    }

    async fn close(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.inner.close()).await;
    }
}

impl DriverInner {
    /// Sends an operation to its shard's task; the answer comes where the receiver waits.
    pub(crate) fn send(&self, operation: Operation) -> oneshot::Receiver<ShardReply> {
        let shard = shard_of(operation.key(), self.context.shards);
        let (reply, answer) = oneshot::channel();
        let request =
            ShardRequest::Apply(PendingOperation { operation, begun: self.context.now(), reply });
        let _ = self.worker(shard).send(request);
        answer
    }

    /// Has the waiters of a shard looked after now.
    pub(crate) fn poll(&self, shard: u32) {
        let _ = self.worker(shard).send(ShardRequest::Poll);
    }

    /// The same, to be called later; keeps nothing alive.
    pub(crate) fn polls(&self, shard: u32) -> impl Fn() + Clone + Send + Sync + use<> {
        let worker = self.worker(shard).downgrade();
        move || {
            if let Some(worker) = worker.upgrade() {
                let _ = worker.send(ShardRequest::Poll);
            }
        }
    }

    pub(crate) fn worker(&self, shard: u32) -> mpsc::UnboundedSender<ShardRequest> {
        let mut workers = locked(&self.workers);
        let running = workers.get(&shard).filter(|worker| !worker.is_closed());
        let running = running
            .cloned()
            .unwrap_or_else(|| ShardWorker::start(&self.context, &self.waiters, shard));
        workers.insert(shard, running.clone());
        running
    }

    /// Waits for an answer. The shard's task ends with its runtime, after which nothing is known.
    pub(crate) async fn answer(&self, answer: oneshot::Receiver<ShardReply>) -> ShardReply {
        let ended = |_| Err(BatchError::unknown(self.context.unavailable("the runtime has ended")));
        answer.await.unwrap_or_else(ended)
    }

    pub(crate) async fn apply(
        &self,
        operation: Operation,
    ) -> Result<(ShardAnswer, u32), BatchError> {
        let answer = self.send(operation);
        self.answer(answer).await
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Attempted<Released>, BatchError> {
        self.waiters.remove(claim);
        let (answer, ambiguous) = self.apply(Operation::Release(claim.clone())).await?;
        match answer.answer {
            OperationResult::Released(released) => {
                self.own.forget(&claim.id);
                Ok(Attempted::after(ambiguous, released))
            }
            other => Err(BatchError::refused(self.unexpected(&other))),
        }
    }

    /// Why a claim that is in its queue is not to be renewed.
    pub(crate) fn why_ended(
        &self,
        claim: &Claim,
        session: &Session,
        answer: &ShardAnswer,
    ) -> Option<ClaimEnd> {
        let is_there =
            matches!(answer.answer, OperationResult::Holds(_) | OperationResult::Waits(_));
        if !is_there {
            return None;
        }
        if let Some(record) = session.mark(&claim.id) {
            return Some(ClaimEnd::Broken(record));
        }
        let is_of_session = answer.session.as_ref().is_none_or(|it| *it == session.id);
        (session.is_lost() || !is_of_session).then_some(ClaimEnd::SessionEnded)
    }

    /// A grant whose lease counts from the beat that was found.
    pub(crate) fn counted(&self, grant: Grant, claim: &Claim, session: &Session) -> Grant {
        let start = LeaseStart::Sent(lease_start(&self.context, session.beat_sent()));
        Grant { start, ttl: claim.hold_ttl.min(session.ttl), ..grant }
    }

    async fn renew_one(
        &self,
        claim: &Arc<Claim>,
        operation: impl Fn(Arc<Claim>) -> Operation,
    ) -> Result<Renewal> {
        let renewed = self.renew(std::slice::from_ref(claim), operation).await;
        renewed.into_iter().next().unwrap_or(Ok(Renewal::Ended(ClaimEnd::NotFound)))
    }

    /// One beat for each session, and one read of each shard that has one of these claims.
    async fn renew(
        &self,
        claims: &[Arc<Claim>],
        operation: impl Fn(Arc<Claim>) -> Operation,
    ) -> Vec<Result<Renewal>> {
        let now = self.context.now();
        let own: Vec<_> = claims.iter().map(|claim| self.own.get(&claim.id)).collect();
        let mut sessions: BTreeMap<&str, (&Session, bool)> = BTreeMap::new();
        for own in own.iter().flatten().filter(|own| !own.is_over) {
            if own.session.mark(&own.claim.id).is_none() {
                self.own.is_asked_for(&own.claim.id, now);
            }
            let entry = sessions.entry(&own.session.id).or_insert((&own.session, false));
            entry.1 |= own.holds;
        }
        let beats = sessions.into_iter().map(async |(id, (session, holds))| {
            // Claims that only wait are kept alive by a beat of the last third of the TTL.
            let since = if holds { now } else { now.before(session.ttl / 3) };
            (id, session.fresh(since).await)
        });
        let beats: BTreeMap<_, _> = join_all(beats).await.into_iter().collect();
        let renewals = claims.iter().zip(&own).map(|(claim, own)| {
            let own = own.as_ref().filter(|own| !own.is_over);
            let beat = own.and_then(|own| beats.get(own.session.id.as_str()));
            self.renew_with(claim, own, beat, operation(claim.clone()))
        });
        join_all(renewals).await
    }

    async fn renew_with(
        &self,
        claim: &Arc<Claim>,
        own: Option<&OwnClaim>,
        beat: Option<&Result<lockkit_core::clock::Moment, BeatError>>,
        operation: Operation,
    ) -> Result<Renewal> {
        let (Some(own), Some(beat)) = (own, beat) else {
            let broken = self.break_of(claim).await?;
            return Ok(Renewal::Ended(broken.map_or(ClaimEnd::NotFound, ClaimEnd::Broken)));
        };
        match beat {
            Ok(_) => {}
            Err(BeatError::Store(error)) => return Err(error.clone()),
            Err(BeatError::Lost) => {
                self.own.forget(&claim.id);
                return Ok(Renewal::Ended(ClaimEnd::SessionEnded));
            }
        }
        let (answer, _) = self.apply(operation).await?;
        if let Some(ended) = self.why_ended(claim, &own.session, &answer) {
            return Ok(Renewal::Ended(ended));
        }
        let now = self.context.now();
        let is_broken = answer.answer == OperationResult::Broken;
        let broken = answer.broken.clone();
        match answer.answer.renewal::<Error>(answer.ahead, || Ok(broken))? {
            Renewal::Holds(grant) => {
                let grant = self.counted(grant, claim, &own.session);
                if self.own.extend(&claim.id, true, grant.ttl, now) {
                    return Ok(Renewal::Holds(grant));
                }
            }
            waits @ Renewal::Waits { .. } => {
                if self.own.extend(&claim.id, false, claim.wait_ttl, now) {
                    return Ok(waits);
                }
            }
            ended => {
                if !is_broken {
                    self.own.forget(&claim.id);
                }
                return Ok(ended);
            }
        }
        // It was given up meanwhile.
        Ok(Renewal::Ended(ClaimEnd::NotFound))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        if mode == BreakMode::Graceful {
            // The session first: from the moment that a queue shows the mark, its owner knows or will be
            // told before it counts on another beat.
            for (session, claim) in self.claims_of(key, token).await? {
                self.mark(&session, &claim, record).await?;
            }
        }
        let (key, record) = (key.clone(), record.clone());
        let (answer, _) = self.apply(Operation::Break { key, token, mode, record }).await?;
        match answer.answer {
            OperationResult::BrokenClaims(broke) => Ok(!broke.is_empty()),
            other => Err(self.unexpected(&other)),
        }
    }

    pub(crate) fn unexpected(&self, answer: &OperationResult) -> Error {
        let message = format!("{answer:?} is no answer to this operation");
        Error::permanent(self.context.backend(), message)
    }
}
