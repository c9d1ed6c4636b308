//! A driver whose requests are sent by the TypeScript client: in a process of Node or another runtime,
//! asked over its input and output. What the client has no function for is denied.

mod program;

pub(crate) use program::{Program, Runtime};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver,
    Patience, RegisterEntry, RegisterKey, Registers, Released, Renewal, SetLimit, Version, Write,
    WriteResult, submit_each,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::state::{RegisterRequest, RegisterState};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Token};
use lockkit_http::wire;
use program::Client;
use serde_json::json;

/// The TypeScript client, as the suite sees it.
#[derive(Debug)]
pub(crate) struct TypescriptDriver {
    program: Client,
    /// Tells what the backend does, and lists registers: the client does neither.
    rust: Arc<dyn LockDriver>,
    capabilities: Capabilities,
}

impl TypescriptDriver {
    pub(crate) fn new(program: Client, rust: Arc<dyn LockDriver>) -> Self {
        let mut capabilities = *rust.capabilities();
        // The suite makes its short leases of it: each request passes through a second process here.
        capabilities.min_ttl = Duration::from_millis(600);
        capabilities.batches.operations = 1;
        capabilities.batches.same_key = false;
        capabilities.namespaces = false;
        Self { program, rust, capabilities }
    }

    async fn acquired(&self, acquire: Acquire) -> Result<Attempted<Acquisition>, BatchError> {
        let sent = self.clock().now();
        let body = wire::AcquireBody {
            claim: wire::Claim::of(&acquire.claim),
            no_wait: acquire.patience == Patience::Try,
            resizable: acquire.claim.resizable,
            wait_ms: 0,
        };
        let asked = self.program.submit::<wire::ClaimStatus>("/v1/acquire", &body).await;
        let status = asked.map_err(|mut error| {
            if let Error::LimitMismatch { in_use, .. } = error.error {
                error.error = acquire.claim.other_limit(in_use);
            }
            error
        })?;
        status.acquisition(sent).map_err(BatchError::refused)
    }

    async fn released(&self, claim: Arc<Claim>) -> Result<Attempted<Released>, BatchError> {
        let body = wire::ClaimBody { claim: wire::Claim::of(&claim) };
        let released: wire::Released = self.program.submit("/v1/release", &body).await?;
        Ok(released.for_driver())
    }
}

#[async_trait]
impl LockDriver for TypescriptDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let acquire = |acquire| self.acquired(acquire);
        Ok(submit_each(batch, acquire, |claim| self.released(claim)).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let wait_ms = wire::LONGEST_WAIT_MS;
        let body = wire::WaitBody { claim: wire::Claim::of(claim), wait_ms };
        loop {
            let sent = self.clock().now();
            match self.program.ask("/v1/wait", &body).await? {
                wire::ClaimStatus::Held(grant) => return Ok(grant.for_driver(sent)),
                wire::ClaimStatus::Waiting { .. } => {}
                wire::ClaimStatus::Ended(end) => return Err(Error::lost(end.reason())),
                wire::ClaimStatus::Busy { .. } => {
                    return Err(Error::permanent("http", "a waiter is never busy"));
                }
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let sent = self.clock().now();
        let body =
            wire::RenewBody { claims: claims.iter().map(|claim| wire::Claim::of(claim)).collect() };
        let outcome: wire::RenewOutcome = self.program.ask("/v1/renew", &body).await?;
        let renewed = outcome.for_driver(sent).into_iter();
        Ok(renewed.map(|it| it.map(|renewed| renewed.renewal)).collect())
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let sent = self.clock().now();
        let body = wire::ClaimBody { claim: wire::Claim::of(claim) };
        let status: wire::ClaimStatus = self.program.ask("/v1/downgrade", &body).await?;
        Ok(status.renewal(sent))
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let sent = self.clock().now();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let body = wire::ShortenBody { claim: wire::Claim::of(claim), ttl_ms };
        let status: wire::ClaimStatus = self.program.ask("/v1/shorten", &body).await?;
        Ok(status.renewal(sent))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let (limit, if_unset) = match limit {
            SetLimit::IfUnset(limit) => (limit, true),
            SetLimit::To(limit) => (limit, false),
        };
        let body = wire::ResizeBody { key: wire::Key::of(key), limit, if_unset };
        let limit: wire::Limit = self.program.ask("/v1/resize", &body).await?;
        Ok(limit.limit)
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let body = wire::BreakBody {
            key: wire::Key::of(key),
            token,
            force: mode == BreakMode::Forced,
            by: Some(record.by.clone()),
            at_unix_ms: Some(record.at_unix_ms),
            reason: record.reason.clone(),
        };
        let broke: wire::BreakResult = self.program.ask("/v1/break", &body).await?;
        Ok(broke.found)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let lock: wire::Lock = self.program.ask("/v1/inspect", &wire::Key::of(key)).await?;
        lock.for_driver()
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let body = wire::ListBody::of(request);
        let page: wire::Page = self.program.ask("/v1/list", &body).await?;
        page.for_driver()
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        let body = wire::Changed::of(key, seen, wire::LONGEST_WAIT_MS);
        loop {
            let lock: wire::Lock = self.program.ask("/v1/changed", &body).await?;
            let now = lock.for_driver()?;
            if !now.same_queue(seen) {
                return Ok(now);
            }
        }
    }

    async fn promises(&self) -> Result<Promises, Error> {
        self.rust.promises().await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.rust.health().await
    }
}

#[async_trait]
impl Registers for TypescriptDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        let body = wire::Register::of(at);
        let loaded: wire::Loaded = self.program.ask("/v1/registers/load", &body).await?;
        loaded.for_driver()
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        let (path, body) = match wire::Store::of(at, write) {
            Some(store) => ("/v1/registers/store", json!(store)),
            None => ("/v1/registers/delete", json!(wire::Delete::of(at, write))),
        };
        let outcome: wire::Outcome = self.program.ask(path, &body).await?;
        Ok(outcome.for_driver())
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        let body = wire::ChangedRegister {
            register: wire::Register::of(at),
            after: after.map(|version| version.0),
            wait_ms: wire::LONGEST_WAIT_MS,
        };
        loop {
            let loaded: wire::Loaded = self.program.ask("/v1/registers/changed", &body).await?;
            let entry = loaded.for_driver()?;
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
        }
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        match self.rust.registers() {
            Some(registers) => registers.page(request).await,
            None => Err(self.unsupported("registers")),
        }
    }
}
