//! A driver that is wrong on purpose, around one that is right: after the answer to a release was lost it
//! forgets the waiters that it had then. No message wakes them, and renewals say that they wait. They stay
//! in the queue, so that the server lets one after the other of them hold.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lockkit_core::capabilities::Capabilities;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Acquisition, Batch, BatchError, BatchOutcome, BreakMode, ClaimId, Grant, LockDriver, Renewal,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, Namespace, Token};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Forgetful {
    inner: Arc<dyn LockDriver>,
    /// The claims in their queues.
    waiting: Mutex<HashMap<ClaimId, Key>>,
    forgotten: watch::Sender<HashSet<ClaimId>>,
}

impl Forgetful {
    pub(crate) fn new(inner: Arc<dyn LockDriver>) -> Self {
        Self { inner, waiting: Mutex::default(), forgotten: watch::Sender::default() }
    }

    fn forget_waiters(&self, batch: Batch<'_>) {
        let waiting = self.waiting.lock().unwrap();
        let is_of = |key: &Key| batch.releases.iter().any(|released| released.key == *key);
        let waiters = waiting.iter().filter(|(_, key)| is_of(key)).map(|(id, _)| *id);
        self.forgotten.send_modify(|forgotten| forgotten.extend(waiters));
    }

    fn has_forgotten(&self, claim: &Claim) -> bool {
        self.forgotten.borrow().contains(&claim.id)
    }
}

/// Whether a request of this batch got no answer.
fn is_ambiguous(outcome: &Result<BatchOutcome, BatchError>) -> bool {
    let released = match outcome {
        Ok(outcome) => &outcome.released,
        Err(error) => return error.ambiguous > 0,
    };
    released.iter().any(|released| match released {
        Ok(released) => released.ambiguous > 0,
        Err(error) => error.ambiguous > 0,
    })
}

#[async_trait]
impl LockDriver for Forgetful {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let outcome = self.inner.submit(batch).await;
        if is_ambiguous(&outcome) {
            self.forget_waiters(batch);
        }
        let mut waiting = self.waiting.lock().unwrap();
        batch.releases.iter().for_each(|claim| drop(waiting.remove(&claim.id)));
        if let Ok(outcome) = &outcome {
            for (acquire, acquired) in batch.acquires.iter().zip(&outcome.acquired) {
                if acquired.as_ref().is_ok_and(|it| matches!(it.result, Acquisition::Queued { .. }))
                {
                    waiting.insert(acquire.claim.id, acquire.claim.key.clone());
                }
            }
        }
        outcome
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let mut forgotten = self.forgotten.subscribe();
        tokio::select! {
            biased;
            _ = forgotten.wait_for(|forgotten| forgotten.contains(&claim.id)) => {}
            granted = self.inner.granted(claim) => return granted,
        }
        std::future::pending().await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let answers = self.inner.renew(claims).await?;
        let said = |(claim, answer): (&Arc<Claim>, Result<Renewal, Error>)| match answer {
            Ok(Renewal::Holds(_)) if self.has_forgotten(claim) => Ok(Renewal::Waits { ahead: 1 }),
            answer => answer,
        };
        Ok(claims.iter().zip(answers).map(said).collect())
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.inner.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.inner.break_claim(key, token, mode, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.inner.list(request).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.inner.namespace_counter(namespace).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
