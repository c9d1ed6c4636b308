//! The driver: the verbs of the driver trait, each a request.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempted, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver, RegisterEntry,
    RegisterKey, Registers, Renewal, Renewed, SetLimit, Version, Write, WriteResult,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{
    Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Namespace, Token};

use crate::access::Secret;
use crate::options::{HttpOptions, Token as Shown};
use crate::transport::Transport;
use crate::{BACKEND, wire};

/// Locks of a lock service, on whatever backend stands behind it.
///
/// Claims are detached ones of that backend: they live until their ttl is over, whichever server of
/// the service is asked, and whether or not any of them lives meanwhile.
///
/// ```no_run
/// use lockkit_core::LockManager;
/// use lockkit_http::HttpDriver;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let driver = HttpDriver::connect("http://127.0.0.1:7411").await?;
/// let locks = LockManager::new(driver);
/// let guard = locks.mutex("invoice/42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct HttpDriver {
    transport: Arc<Transport>,
    capabilities: Capabilities,
}

/// The variable that has the token where the URL names no file. (`LOCKKIT_TOKEN` is the fencing token
/// of the lock that a command runs under.)
const TOKEN: &str = "LOCKKIT_HTTP_TOKEN";

const WAIT: Duration = Duration::from_millis(wire::LONGEST_WAIT_MS);

impl HttpDriver {
    /// Connects to the service that the URL names: `http://HOST:PORT,HOST:PORT`, `https://…` or
    /// `http+unix:/PATH`. One request, for the capabilities of the backend.
    ///
    /// Without `token_file` in the URL, the token is what `LOCKKIT_HTTP_TOKEN` says, if it is set.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let options = HttpOptions::parse(url)?;
        let from_environment = match (&options.token, std::env::var(TOKEN)) {
            (Shown::None, Ok(token)) if !token.trim().is_empty() => Some(Secret::new(token)),
            _ => None,
        };
        Self::connect_with(match from_environment {
            Some(token) => options.token(token)?,
            None => options,
        })
        .await
    }

    /// Connects with these options.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect_with(options: HttpOptions) -> Result<Self, Error> {
        let transport = Transport::new(&options)?;
        let capabilities: wire::Capabilities = transport.get("/v1/capabilities").await?;
        let capabilities = capabilities.for_driver();
        Ok(Self { transport: Arc::new(transport), capabilities })
    }

    /// Whether a URL is one of a lock service. No I/O.
    pub fn check_url(url: &str) -> Result<(), Error> {
        HttpOptions::parse(url).map(drop)
    }

    /// A request about one claim that is answered with its state.
    async fn renewal(&self, path: &str, body: &impl serde::Serialize) -> Result<Renewal, Error> {
        let sent = self.clock().now();
        let state: wire::ClaimStatus = self.transport.post(path, body).await?;
        Ok(state.renewal(sent))
    }

    fn garbled(&self) -> Error {
        Error::permanent(BACKEND, "the service did not answer each of several questions")
    }
}

#[async_trait]
impl LockDriver for HttpDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.capabilities.registers.then_some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let sent = self.clock().now();
        let body = wire::BatchBody::of(&batch);
        let outcome: wire::BatchOutcome = self.transport.submit("/v1/batch", &body).await?;
        outcome.for_driver(&batch, sent).ok_or_else(|| BatchError::unknown(self.garbled()))
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let wait = wire::WaitBody { claim: wire::Claim::of(claim), wait_ms: wire::LONGEST_WAIT_MS };
        loop {
            let sent = self.clock().now();
            match self.transport.poll("/v1/wait", &wait, WAIT).await? {
                wire::ClaimStatus::Held(grant) => return Ok(grant.for_driver(sent)),
                wire::ClaimStatus::Waiting { .. } => {}
                wire::ClaimStatus::Busy { .. } => return Err(self.garbled()),
                wire::ClaimStatus::Ended(end) => return Err(Error::lost(end.reason())),
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        Ok(Renewed::without_evidence(self.renew_with_evidence(claims).await?))
    }

    async fn renew_with_evidence(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewed, Error>>, Error> {
        let sent = self.clock().now();
        let renew = wire::RenewBody { claims: claims.iter().map(|c| wire::Claim::of(c)).collect() };
        let outcome: wire::RenewOutcome = self.transport.post("/v1/renew", &renew).await?;
        let renewed = outcome.for_driver(sent);
        if renewed.len() == claims.len() { Ok(renewed) } else { Err(self.garbled()) }
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let ttl_ms = wire::ms_down(ttl);
        let body = wire::ShortenBody { claim: wire::Claim::of(claim), ttl_ms };
        self.renewal("/v1/shorten", &body).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.renewal("/v1/downgrade", &wire::ClaimBody { claim: wire::Claim::of(claim) }).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let body = wire::BreakBody {
            key: wire::Key::of(key),
            token,
            force: force == BreakMode::Forced,
            by: Some(record.by.clone()),
            at_unix_ms: Some(record.at_unix_ms),
            reason: record.reason.clone(),
        };
        let broke: wire::BreakResult = self.transport.post("/v1/break", &body).await?;
        Ok(broke.found)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let lock: wire::Lock = self.transport.post("/v1/inspect", &wire::Key::of(key)).await?;
        lock.for_driver()
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let page: wire::Page =
            self.transport.post("/v1/list", &wire::ListBody::of(request)).await?;
        page.for_driver()
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        if !self.capabilities.namespaces {
            return Err(self.unsupported("listing namespaces"));
        }
        let body = wire::ListNamespaces::of(after, limit);
        let page: wire::Namespaces = self.transport.post("/v1/namespaces", &body).await?;
        page.for_driver()
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        let body = wire::Changed::of(key, seen, wire::LONGEST_WAIT_MS);
        loop {
            let lock: wire::Lock = self.transport.poll("/v1/changed", &body, WAIT).await?;
            let now = lock.for_driver()?;
            if !now.same_queue(seen) {
                return Ok(now);
            }
        }
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let (limit, if_unset) = match limit {
            SetLimit::IfUnset(limit) => (limit, true),
            SetLimit::To(limit) => (limit, false),
        };
        let body = wire::ResizeBody { key: wire::Key::of(key), limit, if_unset };
        let limit: wire::Limit = self.transport.post("/v1/resize", &body).await?;
        Ok(limit.limit)
    }

    async fn promises(&self) -> Result<Promises, Error> {
        let answer: wire::Promises = self.transport.get("/v1/promises").await?;
        Ok(answer.promises)
    }

    async fn health(&self) -> Result<Health, Error> {
        let health: wire::Health = self.transport.get("/v1/health").await?;
        Ok(health.for_driver())
    }
}

#[async_trait]
impl Registers for HttpDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        let register = wire::Register::of(at);
        let loaded: wire::Loaded = self.transport.post("/v1/registers/load", &register).await?;
        loaded.for_driver()
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        let outcome: wire::Outcome = match wire::Store::of(at, write) {
            Some(store) => self.transport.post("/v1/registers/store", &store).await?,
            None => {
                let delete = wire::Delete::of(at, write);
                self.transport.post("/v1/registers/delete", &delete).await?
            }
        };
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
            let path = "/v1/registers/changed";
            let loaded: wire::Loaded = self.transport.poll(path, &body, WAIT).await?;
            let entry = loaded.for_driver()?;
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
        }
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        let body = wire::ListRegisters::of(request);
        let page: wire::RegisterPage = self.transport.post("/v1/registers/list", &body).await?;
        page.for_driver()
    }
}
