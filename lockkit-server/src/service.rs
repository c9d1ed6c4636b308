//! The service: a driver, and what its requests have in common.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use lockkit_core::driver::{Answered, ClaimId, Gather, Grant, LockDriver, Replies, Reply, Step};
use lockkit_core::{Capabilities, Claim, Error, Namespace, Token};
use lockkit_http::wire::{Code, LONGEST_WAIT_MS, Problem};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, watch};

use crate::api;
use crate::body::Refusal;

/// A lock service on a backend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn LockDriver>,
    /// The steps of all clients share flights.
    gather: Gather,
    /// What is added to the backend's tokens, by namespace.
    bases: Mutex<HashMap<Namespace, u64>>,
    /// One permit for each request that may wait.
    waiting: Semaphore,
    stopping: watch::Sender<bool>,
}

/// How many requests wait at once. Each costs a task and a connection.
const MOST_WAITING: usize = 10_000;

/// Of how many namespaces the base is remembered.
const MOST_BASES: usize = 1_000;

impl Service {
    /// A service on the backend of this driver.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a backend whose claims end with the process that made them: there
    /// a claim would be the server's, and not its client's.
    pub fn new(driver: Arc<dyn LockDriver>) -> Result<Self, Error> {
        let &Capabilities { detached, backend, .. } = driver.capabilities();
        if !detached {
            let operation = "a lock service, whose claims outlive its servers";
            return Err(Error::Unsupported { operation, backend });
        }
        Ok(Self(Arc::new(Inner {
            gather: Gather::new(driver.clone()),
            driver,
            bases: Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
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

    pub(crate) fn driver(&self) -> &dyn LockDriver {
        &*self.0.driver
    }

    /// The claim of a request, under an id that only this service makes of the client's: who reads
    /// ids elsewhere cannot use them here.
    pub(crate) fn claim(&self, claim: lockkit_http::wire::Claim) -> Result<Arc<Claim>, Refusal> {
        let claim = claim.for_driver(hidden)?;
        claim.check(self.driver().capabilities())?;
        Ok(claim)
    }

    /// Carries steps, together with those of other requests. An acquire that could not depart while
    /// its client counts on it never does.
    pub(crate) async fn carry(&self, steps: &[Step]) -> Replies {
        let patience = steps.iter().map(|step| step.claim().wait_ttl).min().unwrap_or_default();
        let latest = self.driver().clock().now().after(patience);
        self.0.gather.carry(steps, latest).await
    }

    /// Carries one step.
    pub(crate) async fn carry_one(&self, step: Step) -> Result<Answered<Reply>, Error> {
        let reply = self.carry(&[step]).await.pop();
        reply.unwrap_or_else(|| Err(self.driver().no_reply()))
    }

    /// What is added to the tokens of this namespace.
    pub(crate) async fn base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let bases = || self.0.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = bases().get(namespace) {
            return Ok(*base);
        }
        let base = self.driver().token_base(namespace).await?;
        let mut bases = bases();
        if bases.len() >= MOST_BASES {
            bases.clear();
        }
        bases.insert(namespace.clone(), base);
        Ok(base)
    }

    /// Waits for what a request asked to wait for: `None` when its time is over or the server stops.
    pub(crate) async fn wait<T>(
        &self,
        wait_ms: u64,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, Refusal> {
        let Ok(_permit) = self.0.waiting.try_acquire() else {
            let detail = format!("{MOST_WAITING} requests wait already: ask again later");
            return Err(Refusal(Problem::new(Code::TooMany, detail)));
        };
        let mut stopping = self.0.stopping.subscribe();
        let limit = Duration::from_millis(wait_ms.min(LONGEST_WAIT_MS));
        Ok(tokio::select! {
            biased;
            it = future => Some(it),
            _ = stopping.wait_for(|stopping| *stopping) => None,
            () = tokio::time::sleep(limit) => None,
        })
    }
}

/// The backend's id of a client's claim.
fn hidden(id: ClaimId) -> ClaimId {
    let digest = Sha256::new().chain_update(b"lockkit-server\0\0").chain_update(id.as_bytes());
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
