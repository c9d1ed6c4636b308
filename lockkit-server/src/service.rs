//! The service: a driver, and what its requests have in common.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use lockkit_core::driver::{
    Acquire, Attempted, Batch, Batcher, ClaimId, Grant, LockDriver, Replies, Reply, Step,
};
use lockkit_core::{Capabilities, Claim, Error, Namespace, Token};
use lockkit_http::wire::{Code, LONGEST_WAIT_MS};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::api;
use crate::body::Refusal;
use crate::caller::{Caller, Peer, Who};
use crate::metrics::Metrics;
use crate::places::{Full, Place, Places};
use crate::settings::{Limits, Settings};
use crate::tokens::{Tokens, Verb};

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
    /// What is added to the backend's tokens, by namespace.
    bases: Mutex<HashMap<Namespace, u64>>,
    settings: Settings,
    /// One permit for each connection.
    connections: Arc<Semaphore>,
    /// The connections of each peer.
    peers: Places<Peer>,
    waiting: Places<Who>,
    metrics: Metrics,
    stopping: watch::Sender<bool>,
}

/// Of how many namespaces the base is remembered.
const MOST_BASES: usize = 1_000;

impl Service {
    /// A service on the backend of this driver, with the default settings: every caller may do
    /// everything.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn new(driver: Arc<dyn LockDriver>) -> Result<Self, Error> {
        Self::with(driver, Settings::default())
    }

    /// A service on the backend of this driver, with these settings.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a backend whose claims end with the process that made them: there
    /// a claim would be the server's, and not its client's.
    pub fn with(driver: Arc<dyn LockDriver>, settings: Settings) -> Result<Self, Error> {
        let &Capabilities { detached, backend, .. } = driver.capabilities();
        if !detached {
            let operation = "a lock service, whose claims outlive its servers";
            return Err(Error::Unsupported { operation, backend });
        }
        let Limits { connections, connections_per_peer, waiting, waiting_per_caller, .. } =
            settings.limits;
        Ok(Self(Arc::new(Parts {
            batcher: Batcher::new(driver.clone()),
            driver,
            bases: Mutex::default(),
            connections: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            peers: Places::new(usize::MAX, connections_per_peer),
            waiting: Places::new(waiting, waiting_per_caller),
            metrics: Metrics::default(),
            settings,
            stopping: watch::Sender::new(false),
        })))
    }

    /// Its requests, for a server of one's own.
    pub fn router(&self) -> Router {
        api::router(self.clone())
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
        self.tokens().map_or(Ok(()), Tokens::reload)
    }

    pub(crate) fn tokens(&self) -> Option<&Tokens> {
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

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Waits until there may be one more connection.
    pub(crate) async fn connection(&self) -> OwnedSemaphorePermit {
        let permit = self.0.connections.clone().acquire_owned().await;
        permit.expect("it is never closed")
    }

    /// A place for one more connection of this peer, unless it has too many.
    pub(crate) fn connection_of(&self, peer: Peer) -> Option<Place<Peer>> {
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

    /// The claim of a request that the caller may make, under an id that only this service makes of
    /// the caller and its id: who reads ids elsewhere cannot use them here.
    pub(crate) fn claim(
        &self,
        caller: &Caller,
        claim: lockkit_http::wire::Claim,
    ) -> Result<Arc<Claim>, Refusal> {
        let claim = claim.for_driver(|id| hidden(caller.name(), id))?;
        caller.check(Verb::Lock, &claim.key.namespace, &claim.key.name)?;
        claim.check(self.driver().capabilities())?;
        Ok(claim)
    }

    /// Carries steps, together with those of other requests. An acquire that could not depart while
    /// its client counts on it never does.
    pub(crate) async fn carry(&self, steps: &[Step]) -> Replies {
        let patience = steps.iter().map(|step| step.claim().wait_ttl).min().unwrap_or_default();
        let latest = self.driver().clock().now().after(patience);
        let (mut releases, mut acquires) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Acquire { claim, patience } => {
                    acquires.push(Acquire { claim: claim.clone(), patience: *patience });
                }
                Step::Release { claim } => releases.push(claim.clone()),
            }
        }
        let batch = Batch { releases: &releases, acquires: &acquires };
        let outcome = self.0.batcher.submit(batch, latest).await;
        let (mut released, mut acquired) =
            (outcome.released.into_iter(), outcome.acquired.into_iter());
        let reply = |step: &Step| match step {
            Step::Acquire { .. } => match acquired.next() {
                Some(result) => Ok(result?.map(Reply::Acquired)),
                None => Err(self.driver().no_reply()),
            },
            Step::Release { .. } => match released.next() {
                Some(result) => Ok(result?.map(Reply::Released)),
                None => Err(self.driver().no_reply()),
            },
        };
        steps.iter().map(reply).collect()
    }

    /// Carries one step.
    pub(crate) async fn carry_one(&self, step: Step) -> Result<Attempted<Reply>, Error> {
        let reply = self.carry(&[step]).await.pop();
        reply.unwrap_or_else(|| Err(self.driver().no_reply()))
    }

    /// What is added to the tokens of this namespace.
    pub(crate) async fn base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let bases = || self.0.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = bases().get(namespace) {
            return Ok(*base);
        }
        let base = self.driver().namespace_counter(namespace).await?;
        let mut bases = bases();
        if bases.len() >= MOST_BASES {
            bases.clear();
        }
        bases.insert(namespace.clone(), base);
        Ok(base)
    }

    /// A place among those that wait, taken before anything is done for a request that may wait.
    pub(crate) fn place(&self, caller: &Caller) -> Result<Place<Who>, Refusal> {
        self.0.waiting.enter(&caller.who).map_err(|full| {
            let (most, of) = match full {
                Full::OfOne(most) => (most, "of this caller"),
                Full::OfAll(most) => (most, "of this server"),
            };
            let detail = format!("{most} requests {of} wait already: ask again later");
            Refusal::new(Code::TooMany, detail)
        })
    }

    /// Waits for what a request asked to wait for: `None` when its time is over or the server stops.
    pub(crate) async fn wait<T>(
        &self,
        _place: &Place<Who>,
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

/// A grant with the base of its namespace.
pub(crate) fn based(grant: Grant, base: u64) -> Grant {
    let number = grant.token.get().saturating_add(base);
    Grant { token: Token::new(number).unwrap_or(grant.token), ..grant }
}

/// The backend's own token; `None` for one below the base.
pub(crate) fn unbased(token: Token, base: u64) -> Option<Token> {
    token.get().checked_sub(base).and_then(Token::new)
}
