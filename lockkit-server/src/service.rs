//! The service: a driver, and what its requests have in common.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, Batcher, ClaimId, Grant,
    LockDriver, Registers, Released, locked,
};
use lockkit_core::{Capabilities, Claim, Error, Namespace, Token};
use lockkit_http::wire::{Code, LONGEST_WAIT_MS};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use crate::caller::{Caller, CallerId, Peer};
use crate::metrics::Metrics;
use crate::quota::{Full, Quota, QuotaPermit};
use crate::response::ErrorResponse;
use crate::settings::{Limits, ServiceSettings, TerraformSettings};
use crate::tokens::{AccessTokens, Permission};

/// A lock service on a backend. Cheap to clone.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use std::sync::Arc;
/// use lockkit_core::MemoryDriver;
/// use lockkit_server::Service;
///
/// let service = Service::new(Arc::new(MemoryDriver::new()))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Service(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    driver: Arc<dyn LockDriver>,
    /// The operations of all clients share batches.
    batcher: Batcher,
    /// What is added to the backend's tokens, by namespace, and when it was asked for.
    offsets: Mutex<HashMap<Namespace, (u64, Moment)>>,
    settings: ServiceSettings,
    /// One permit for each connection.
    connections: Arc<Semaphore>,
    /// The connections of each peer.
    peers: Quota<Peer>,
    waiting: Quota<CallerId>,
    /// One permit for each state that is received.
    uploads: Semaphore,
    metrics: Metrics,
    stopping: watch::Sender<bool>,
}

/// Of how many namespaces the offset is remembered, and for how long. It is raised at the backend, past this
/// server: `docs/moving.md` says to wait for this time then.
const MOST_OFFSETS: usize = 1_000;
const OFFSET_LASTS: Duration = Duration::from_secs(5);

impl Service {
    /// A service on the backend of this driver, with the default settings: every caller may do
    /// everything.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn new(driver: Arc<dyn LockDriver>) -> Result<Self, Error> {
        Self::with(driver, ServiceSettings::default())
    }

    /// A service on the backend of this driver, with these settings.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a backend whose claims end with the process that made them: there
    /// a claim would be the server's, and not its client's. [`Error::Config`] for one that excludes
    /// [neighbours](lockkit_core::driver::Gate).
    pub fn with(driver: Arc<dyn LockDriver>, settings: ServiceSettings) -> Result<Self, Error> {
        let &Capabilities { detached, backend, .. } = driver.capabilities();
        if !detached {
            let operation = "a lock service, whose claims outlive its servers";
            return Err(Error::unsupported(operation, backend));
        }
        if driver.gate().is_some() {
            return Err(Error::config(
                "a lock service excludes no neighbours, since its clients would enter past their gate: \
                 connect its backend without ?neighbours=, or its clients to the backend itself",
            ));
        }
        settings.terraform.check(driver.capabilities())?;
        let Limits { connections, connections_per_peer, waiting, waiting_per_caller, .. } =
            settings.limits;
        Ok(Self(Arc::new(Parts {
            batcher: Batcher::new(driver.clone()),
            driver,
            offsets: Mutex::default(),
            connections: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            peers: Quota::new(usize::MAX, connections_per_peer),
            waiting: Quota::new(waiting, waiting_per_caller),
            uploads: Semaphore::new(settings.terraform.uploads.min(Semaphore::MAX_PERMITS)),
            metrics: Metrics::default(),
            settings,
            stopping: watch::Sender::new(false),
        })))
    }

    /// Has requests that wait answered at once.
    pub(crate) fn stop(&self) {
        self.0.stopping.send_replace(true);
    }

    /// Returns once it does.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as this.
        let _ = self.0.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Whether it has them answered.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Reads the file of the tokens again, where there is one.
    ///
    /// # Errors
    /// [`Error::Config`] for a file that cannot be read or has an error in any line: the tokens stay
    /// as they were.
    pub fn reload(&self) -> Result<(), Error> {
        self.tokens().map_or(Ok(()), AccessTokens::reload)
    }

    pub(crate) fn tokens(&self) -> Option<&AccessTokens> {
        self.0.settings.tokens.as_ref()
    }

    /// The host names that it answers for, beside those of loopback.
    pub(crate) fn hosts(&self) -> &[String] {
        &self.0.settings.hosts
    }

    /// The longest body that it reads.
    pub(crate) fn longest_body(&self) -> usize {
        self.0.settings.limits.body
    }

    pub(crate) fn terraform(&self) -> &TerraformSettings {
        &self.0.settings.terraform
    }

    /// Whether the backend can keep states of Terraform: it has registers.
    pub fn keeps_terraform_states(&self) -> bool {
        self.driver().registers().is_some()
    }

    /// A permit to receive a state of Terraform, which may be long, unless others are being received.
    pub(crate) fn upload(&self) -> Result<SemaphorePermit<'_>, ErrorResponse> {
        self.0.uploads.try_acquire().map_err(|_| {
            let most = self.0.settings.terraform.uploads;
            let detail = format!("{most} states are being received: ask again later");
            ErrorResponse::new(Code::TooMany, detail)
        })
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Waits until there may be one more connection.
    pub(crate) async fn connection(&self) -> OwnedSemaphorePermit {
        let permit = self.0.connections.clone().acquire_owned().await;
        permit.expect("it is never closed")
    }

    /// A place for one more connection of this peer, unless it has too many.
    pub(crate) fn connection_of(&self, peer: Peer) -> Option<QuotaPermit<Peer>> {
        self.0.peers.enter(&peer).ok()
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.0.settings.limits.connections.saturating_sub(self.0.connections.available_permits())
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.waiting.count()
    }

    pub(crate) fn driver(&self) -> &dyn LockDriver {
        &*self.0.driver
    }

    /// The backend's registers.
    pub(crate) fn registers(&self) -> Result<&dyn Registers, Error> {
        self.driver().registers().ok_or_else(|| self.driver().unsupported("registers"))
    }

    /// The claim of a request that the caller may make, under an id that only this service makes of
    /// the caller and its id: who reads ids elsewhere cannot use them here.
    pub(crate) fn claim(
        &self,
        caller: &Caller,
        claim: lockkit_http::wire::Claim,
    ) -> Result<Arc<Claim>, ErrorResponse> {
        let claim = claim.for_driver(|id| hidden(caller.name(), id))?;
        caller.check(Permission::Lock, &claim.key.namespace, &claim.key.name)?;
        claim.check(self.driver().capabilities())?;
        Ok(claim)
    }

    /// Submits a batch, together with those of other requests. An operation that cannot be sent
    /// while its client counts on it never is.
    pub(crate) async fn submit(&self, batch: Batch<'_>) -> BatchOutcome {
        let patience = batch.claims().map(|claim| claim.wait_ttl).min().unwrap_or_default();
        let latest = self.driver().clock().now().after(patience);
        self.0.batcher.submit(batch, latest).await
    }

    /// Submits one acquire.
    pub(crate) async fn acquire(
        &self,
        acquire: Acquire,
    ) -> Result<Attempted<Acquisition>, BatchError> {
        let outcome = self.submit(Batch { releases: &[], acquires: &[acquire] }).await;
        outcome.acquired.into_iter().next().unwrap_or_else(|| Err(no_result()))
    }

    /// Submits one release.
    pub(crate) async fn release(
        &self,
        claim: Arc<Claim>,
    ) -> Result<Attempted<Released>, BatchError> {
        let outcome = self.submit(Batch { releases: &[claim], acquires: &[] }).await;
        outcome.released.into_iter().next().unwrap_or_else(|| Err(no_result()))
    }

    /// What is added to the tokens of this namespace.
    pub(crate) async fn token_offset(&self, namespace: &Namespace) -> Result<u64, Error> {
        let offsets = || locked(&self.0.offsets);
        let now = self.driver().clock().now();
        if let Some((offset, asked)) = offsets().get(namespace).copied()
            && now.since(asked) < OFFSET_LASTS
        {
            return Ok(offset);
        }
        let offset = self.driver().namespace_counter(namespace).await?;
        let mut offsets = offsets();
        if offsets.len() >= MOST_OFFSETS {
            offsets.clear();
        }
        offsets.insert(namespace.clone(), (offset, now));
        Ok(offset)
    }

    /// A place among those that wait, taken before anything is done for a request that may wait.
    pub(crate) fn wait_permit(
        &self,
        caller: &Caller,
    ) -> Result<QuotaPermit<CallerId>, ErrorResponse> {
        self.0.waiting.enter(&caller.who).map_err(|full| {
            let (most, of) = match full {
                Full::OfOne(most) => (most, "of this caller"),
                Full::OfAll(most) => (most, "of this server"),
            };
            let detail = format!("{most} requests {of} wait already: ask again later");
            ErrorResponse::new(Code::TooMany, detail)
        })
    }

    /// Waits for what a request asked to wait for: `None` when its time is over or the server stops.
    pub(crate) async fn wait<T>(
        &self,
        _place: &QuotaPermit<CallerId>,
        wait_ms: u64,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut stopping = self.0.stopping.subscribe();
        let limit = Duration::from_millis(wait_ms.min(LONGEST_WAIT_MS));
        tokio::select! {
            biased;
            it = future => Some(it),
            _ = stopping.wait_for(|stopping| *stopping) => None,
            () = tokio::time::sleep(limit) => None,
        }
    }
}

/// The backend's id of a caller's claim.
fn hidden(caller: &str, id: ClaimId) -> ClaimId {
    // Names of callers have no control characters, and ids have one length: no two pairs meet.
    let digest = Sha256::new()
        .chain_update(b"lockkit-server\0")
        .chain_update(caller)
        .chain_update(b"\0")
        .chain_update(id.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.finalize()[..16]);
    ClaimId::from_bytes(bytes)
}

/// The error where an operation of a batch has no result.
pub(crate) fn no_result() -> BatchError {
    BatchError::unknown(Error::permanent("http", "an operation of a batch has no result"))
}

/// A grant with the offset of its namespace.
pub(crate) fn with_offset(grant: Grant, offset: u64) -> Grant {
    let number = grant.token.get().saturating_add(offset);
    Grant { token: Token::new(number).unwrap_or(grant.token), ..grant }
}

/// The backend's own token; `None` for one below the offset.
pub(crate) fn without_offset(token: Token, offset: u64) -> Option<Token> {
    token.get().checked_sub(offset).and_then(Token::new)
}

#[cfg(test)]
mod tests {
    use lockkit_core::MemoryDriver;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_offset_that_was_raised_counts_after_five_seconds_at_the_latest() {
        let driver = Arc::new(MemoryDriver::new());
        let service = Service::new(driver.clone()).unwrap();
        let namespace = Namespace::default();
        assert_eq!(service.token_offset(&namespace).await.unwrap(), 0);
        driver.raise_namespace_counter(&namespace, 7).await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(service.token_offset(&namespace).await.unwrap(), 7);
    }
}
