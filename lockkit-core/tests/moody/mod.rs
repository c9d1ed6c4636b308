//! A driver in front of the memory driver that counts calls and, when told to, fails before it
//! acts, after it acted, or not at all but late.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Capabilities;
use lockkit_core::clock::Clock;
use lockkit_core::driver::*;
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, MemoryDriver, Token};

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    /// It fails, and nothing was done.
    FailBefore,
    /// It is done, and the answer gets lost.
    FailAfter,
    /// It is done so much later; the caller is told at once that there was no answer.
    StuckFor(Duration),
    /// Never answers, never acts.
    Silent,
}

#[derive(Debug, Clone)]
pub(crate) struct Moody {
    inner: MemoryDriver,
    moods: Arc<Mutex<VecDeque<(&'static str, Mood)>>>,
    calls: Arc<Mutex<Vec<(&'static str, usize)>>>,
}

impl Moody {
    pub(crate) fn new(inner: MemoryDriver) -> Self {
        Self { inner, moods: Arc::default(), calls: Arc::default() }
    }

    /// The next call of this verb meets this mood; moods of one verb queue up.
    pub(crate) fn next(&self, verb: &'static str, mood: Mood) {
        self.moods.lock().unwrap().push_back((verb, mood));
    }

    /// How many claims each call of this verb was about.
    pub(crate) fn calls(&self, verb: &str) -> Vec<usize> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(v, _)| *v == verb).map(|(_, n)| *n).collect()
    }

    async fn call<T, F>(&self, verb: &'static str, claims: usize, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.calls.lock().unwrap().push((verb, claims));
        let mood = {
            let mut moods = self.moods.lock().unwrap();
            let at = moods.iter().position(|(v, _)| *v == verb);
            at.and_then(|at| moods.remove(at)).map(|(_, mood)| mood)
        };
        match mood {
            None => act.await,
            Some(Mood::FailBefore) => Err(lost_answer()),
            Some(Mood::FailAfter) => {
                act.await?;
                Err(lost_answer())
            }
            Some(Mood::StuckFor(d)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(d).await;
                    let _ = act.await;
                });
                Err(lost_answer())
            }
            Some(Mood::Silent) => std::future::pending().await,
        }
    }
}

fn lost_answer() -> Error {
    Error::retryable("moody", "the connection was cut")
}

#[async_trait]
impl LockDriver for Moody {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    async fn acquire(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Answered<Acquisition>, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("acquire", 1, async move { inner.acquire(&claim, patience).await }).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("granted", 1, async move { inner.granted(&claim).await }).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let (inner, claims) = (self.inner.clone(), claims.to_vec());
        self.call("renew", claims.len(), async move { inner.renew(&claims).await }).await
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("release", 1, async move { inner.release(&claim).await }).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("downgrade", 1, async move { inner.downgrade(&claim).await }).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.inner.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.inner.list(request).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }
}
