//! A driver whose errors say which of several backends failed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Batch, BatchError, BatchOutcome, BreakMode, Gate, Grant, LockDriver, Renewal,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Namespace, Token};

/// What an error says, without the kind of backend, which the name has.
pub(crate) fn why(error: &Error) -> String {
    match error {
        Error::Backend { cause, .. } => cause.to_string(),
        other => other.to_string(),
    }
}

/// A driver, and what its backend is called in errors. Only what a mirror asks of it: the rest is the
/// trait's default.
#[derive(Debug)]
pub(crate) struct Named {
    driver: Arc<dyn LockDriver>,
    name: String,
}

impl Named {
    pub(crate) fn new(driver: Arc<dyn LockDriver>, name: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { driver, name: name.into() })
    }

    fn of<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        answer.map_err(|error| error.at(&self.name))
    }

    fn each<T>(&self, answers: Vec<Result<T, Error>>) -> Vec<Result<T, Error>> {
        answers.into_iter().map(|answer| self.of(answer)).collect()
    }
}

#[async_trait]
impl LockDriver for Named {
    fn capabilities(&self) -> &Capabilities {
        self.driver.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.driver.clock()
    }

    fn gate(&self) -> Option<&dyn Gate> {
        self.driver.gate()
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let named = |mut failed: BatchError| {
            failed.error = failed.error.at(&self.name);
            failed
        };
        let BatchOutcome { released, acquired } = self.driver.submit(batch).await.map_err(named)?;
        Ok(BatchOutcome {
            released: released.into_iter().map(|it| it.map_err(named)).collect(),
            acquired: acquired.into_iter().map(|it| it.map_err(named)).collect(),
        })
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.of(self.driver.granted(claim).await)
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        self.of(self.driver.renew(claims).await).map(|answers| self.each(answers))
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.of(self.driver.shorten(claim, ttl).await)
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.of(self.driver.downgrade(claim).await)
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.of(self.driver.break_claim(key, token, mode, record).await)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.of(self.driver.inspect(key).await)
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.of(self.driver.list(request).await)
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        self.of(self.driver.namespaces(after, limit).await)
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.of(self.driver.namespace_counter(namespace).await)
    }

    async fn promises(&self) -> Result<Promises, Error> {
        self.of(self.driver.promises().await)
    }

    async fn health(&self) -> Result<Health, Error> {
        self.of(self.driver.health().await)
    }

    async fn close(&self) {
        self.driver.close().await;
    }
}
