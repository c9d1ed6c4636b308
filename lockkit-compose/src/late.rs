//! A driver whose backend could not be reached when the program began: connected in the background,
//! and until then it says of every request that it may pass. Knows nothing of locks.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use lockkit_core::capabilities::Capabilities;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{Force, Grant, LockDriver, Renewal, Replies, SetLimit, Step, backoff};
use lockkit_core::state::{Health, ListRequest, Listed, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, Namespace, Token};

/// Makes a driver; may be called again and again.
pub(super) type Connect =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn LockDriver>, Error>> + Send + Sync>;

/// How long one attempt to connect may take.
pub(super) const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);

pub(super) struct LateDriver {
    inner: Arc<Inner>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
}

struct Inner {
    connected: OnceLock<Arc<dyn LockDriver>>,
    connect: Connect,
}

impl LateDriver {
    /// Begins to connect. Until that is done it passes for a driver like this one.
    pub(super) fn like(other: &Arc<dyn LockDriver>, connect: Connect) -> Self {
        let inner = Arc::new(Inner { connected: OnceLock::new(), connect });
        tokio::spawn(connect_at_last(Arc::downgrade(&inner)));
        Self { inner, capabilities: *other.capabilities(), clock: other.clock() }
    }

    fn driver(&self) -> Result<&Arc<dyn LockDriver>, Error> {
        let backend = self.capabilities.backend;
        let driver = self.inner.connected.get();
        driver.ok_or_else(|| Error::retryable(backend, "it could not be reached yet"))
    }
}

/// Tries until it is connected, or nobody wants it any more.
async fn connect_at_last(inner: Weak<Inner>) {
    for failures in 1.. {
        tokio::time::sleep(backoff(failures)).await;
        let Some(connecting) = inner.upgrade().map(|inner| (inner.connect)()) else { return };
        let answer = tokio::time::timeout(LONGEST_ATTEMPT, connecting).await;
        let Some(inner) = inner.upgrade() else { return };
        match answer {
            Ok(Ok(driver)) => {
                let _ = inner.connected.set(driver); // nobody else sets it
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, failures, "a member is not connected yet"),
            Err(_) => {
                tracing::warn!(failures, "a member does not answer, and is not connected yet")
            }
        }
    }
}

impl fmt::Debug for LateDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LateDriver").field(&self.inner.connected.get()).finish()
    }
}

#[async_trait]
impl LockDriver for LateDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    async fn carry(&self, steps: &[Step]) -> Result<Replies, Error> {
        self.driver()?.carry(steps).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.driver()?.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        self.driver()?.renew(claims).await
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.driver()?.shorten(claim, ttl).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.driver()?.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.driver()?.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.driver()?.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.driver()?.list(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        self.driver()?.namespaces(after, limit).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        self.driver()?.raise(claim, token).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        self.driver()?.resize(key, limit).await
    }

    async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.driver()?.token_base(namespace).await
    }

    async fn raise_token_base(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        self.driver()?.raise_token_base(namespace, base).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.driver()?.health().await
    }

    async fn close(&self) {
        if let Ok(driver) = self.driver() {
            driver.close().await;
        }
    }
}
