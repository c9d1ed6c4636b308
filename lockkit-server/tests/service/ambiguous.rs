//! The number of ambiguous attempts of an error, from the driver of a service to its client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Acquire, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver, Patience, Renewal,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, ClientIdentity, Error, Key, MemoryDriver, Mode, Name,
    Namespace, Token,
};
use lockkit_http::HttpDriver;
use lockkit_server::{Service, ServiceSettings};
use serde_json::json;

use crate::served::Served;

/// A driver whose batches fail.
#[derive(Debug)]
struct Fails(MemoryDriver, BatchError);

#[async_trait]
impl LockDriver for Fails {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    async fn submit(&self, _: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        Err(self.1.clone())
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.0.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        self.0.renew(claims).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.0.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.0.break_claim(key, token, mode, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.0.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.0.list(request).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.0.health().await
    }
}

#[tokio::test]
async fn an_error_says_how_many_attempts_may_have_been_carried_out() {
    for ambiguous in [0, 1, 3] {
        let error = BatchError::refused(Error::retryable("memory", "away")).after(ambiguous);
        let driver = Arc::new(Fails(MemoryDriver::new(), error));
        let served = Served::of(Service::with(driver, ServiceSettings::new()).unwrap(), None).await;

        let claim = json!({"id": "3f2a9c0de1b44c5f8a7d6e5f4c3b2a19", "name": "a"});
        for path in ["/v1/acquire", "/v1/release"] {
            let answer = served.ask(None, path, json!({"claim": claim})).await;
            let found = answer.json()["ambiguous"].as_u64().unwrap_or(0);
            assert_eq!((answer.status, found), (503, ambiguous.into()), "{path}: {answer:?}");
        }

        let client = HttpDriver::connect(&format!("http://{}", served.address)).await.unwrap();
        let key = Key::new(Namespace::default(), Mode::Exclusive.space(), Name::new("a").unwrap());
        let (ttl, identity) = (Duration::from_secs(30), ClientIdentity::of_this_process());
        let claim = Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, Arc::new(identity)));
        let acquires = [Acquire { claim: claim.clone(), patience: Patience::Try }];
        let outcome = client.submit(Batch { releases: &[], acquires: &acquires }).await.unwrap();
        assert_eq!(outcome.acquired[0].as_ref().unwrap_err().ambiguous, ambiguous);
        let outcome = client.submit(Batch { releases: &[claim], acquires: &[] }).await.unwrap();
        assert_eq!(outcome.released[0].as_ref().unwrap_err().ambiguous, ambiguous);
    }
}
