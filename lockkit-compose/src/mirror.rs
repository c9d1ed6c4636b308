//! A lock on two backends at once, for the time in which a fleet moves from one to the other. The
//! argument that no step of the move breaks a promise is in `docs/moving.md`.
//!
//! It does no I/O of its own and keeps only how far its claims got.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use lockkit_core::capabilities::{Capabilities, Fault, Guarantee, WakeUp};
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, ClaimEnd, ClaimId,
    Gate, Grant, LockDriver, Renewal, submit_each,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Finding, Health, ListPage, ListRequest, LockState, Page, Severity};
use lockkit_core::{BreakRecord, Claim, Error, Key, Namespace, Token};

mod path;
mod state;

use crate::named::Named;
use crate::together::{self, NoNeighbours, all_namespaces};
use state::{MirrorClaim, MirrorRenewal, MirrorState, NoteTag, TokenBases, at_new, at_old, lost};

const BACKEND: &str = "mirror";

/// What is worst of any two backends.
const FAULTS: &[(Fault, Guarantee)] = &[
    (Fault::WritesLost, Guarantee::Nothing),
    (Fault::DataLost, Guarantee::Nothing),
    (Fault::OlderDataRestored, Guarantee::Nothing),
    (Fault::Failover, Guarantee::Nothing),
    (Fault::SplitBrain, Guarantee::Nothing),
    (Fault::OtherClockTakesOver, Guarantee::Tokens),
    (Fault::ServerClockSteps, Guarantee::Tokens),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::ServerClockSlewedMore, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

/// A lock that is held on an old backend and on a new one.
///
/// A client that uses it excludes clients of only the old one, and clients of only the new one;
/// these two do not exclude each other, so a fleet passes through it in steps:
///
/// 1. all use the old backend;
/// 2. some use the mirror, in the end all: tokens are those of the old backend;
/// 3. the new one takes the tokens over ([`LockAdmin::take_over_tokens`]), once no client uses the
///    old one alone: from here on tokens are those of the new one, and greater;
/// 4. some use the new one alone, in the end all.
///
/// A claim goes to the old backend first and to the new one when it holds there, everywhere in the
/// same order, so no two wait for each other. An uncontended acquire costs three round
/// trips after another, a release one. While either backend is away nothing is granted. There are
/// no registers, and no claims that outlive their process: those stay behind or are moved by hand.
///
/// [`LockAdmin::take_over_tokens`]: lockkit_core::LockAdmin::take_over_tokens
///
/// ```
/// use lockkit_compose::MirrorDriver;
/// use lockkit_core::{LockManager, MemoryDriver};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lockkit_core::Error> {
/// let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
/// let mirror = MirrorDriver::new(Arc::new(old.clone()), Arc::new(new.clone()));
/// let guard = LockManager::new(mirror).mutex("invoice/42").lock().await?;
/// assert!(LockManager::new(old).mutex("invoice/42").try_lock().await?.is_none());
/// assert!(LockManager::new(new).mutex("invoice/42").try_lock().await?.is_none());
/// # guard.release().await
/// # }
/// ```
#[derive(Debug)]
pub struct MirrorDriver {
    old: Arc<dyn LockDriver>,
    new: Arc<dyn LockDriver>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    claims: Mutex<HashMap<ClaimId, MirrorClaim>>,
    /// As last read.
    bases: Mutex<HashMap<Namespace, TokenBases>>,
}

impl MirrorDriver {
    /// Locks on both. The new one is the backend itself: a lock service over it does not tell whether the
    /// tokens were taken over.
    pub fn new(old: Arc<dyn LockDriver>, new: Arc<dyn LockDriver>) -> Self {
        let (a, b) = (old.capabilities(), new.capabilities());
        let mut c = together::capabilities(BACKEND, &[a, b]);
        let polling = |wake_up| match wake_up {
            WakeUp::Poll { within } => Some(within),
            _ => None,
        };
        c.wake_up = match (polling(a.wake_up), polling(b.wake_up)) {
            (None, None) => WakeUp::Push,
            (a, b) => WakeUp::Poll { within: a.unwrap_or_default() + b.unwrap_or_default() },
        };
        c.faults = FAULTS;
        let clocks = [(a, &old.clock()), (b, &new.clock())];
        let clock = together::clock(clocks.into_iter());
        Self { old, new, capabilities: c, clock, claims: Mutex::default(), bases: Mutex::default() }
    }

    /// The same, whose errors call the two backends so: by URLs without logins, say.
    #[must_use]
    pub fn named(mut self, old: impl Into<String>, new: impl Into<String>) -> Self {
        self.old = Named::new(self.old, old);
        self.new = Named::new(self.new, new);
        self
    }
}

#[async_trait]
impl LockDriver for MirrorDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn gate(&self) -> Option<&dyn Gate> {
        let has_gate = self.old.gate().is_some() || self.new.gate().is_some();
        has_gate.then_some(&NoNeighbours)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        // One of the two backends may have taken part in what failed.
        let acquire = |Acquire { claim, patience }| async move {
            self.acquire_at_both(&claim, patience).await.map_err(|error| match error {
                error @ Error::Backend { .. } => BatchError::unknown(error),
                error => BatchError::refused(error),
            })
        };
        let release = |claim| async move {
            self.release_at_both(&claim).await.map(Attempted::from).map_err(BatchError::unknown)
        };
        Ok(submit_each(batch, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        loop {
            let asked = self.clock.now();
            match self.renew_both(std::slice::from_ref(claim)).await.pop().transpose()? {
                Some(MirrorRenewal::WaitsForOld(_)) => drop(self.old.granted(claim).await?),
                Some(MirrorRenewal::WaitsForNew(_)) => {
                    // It holds in the old queue, so it is renewed as one that holds.
                    let granted = self.new.granted(claim);
                    if let Ok(granted) = tokio::time::timeout(claim.hold_ttl / 3, granted).await {
                        granted?;
                    }
                }
                Some(MirrorRenewal::Ended(why)) => return Err(lost(why)),
                Some(holds) => {
                    let step = self.change(claim, |known| known.step.clone())?;
                    let _step = step.lock().await;
                    if let Acquisition::Granted(grant) = self.step(claim, holds, asked).await? {
                        return Ok(grant);
                    }
                }
                None => return Err(lost(ClaimEnd::NotFound)),
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let asked = self.clock.now();
        let renewals = self.renew_both(claims).await;
        let steps = claims.iter().zip(renewals).map(|(claim, renewal)| async move {
            match renewal {
                Ok(renewal) => Ok(self.advance(claim, renewal, asked).await),
                Err(error) => Err(error),
            }
        });
        Ok(futures_util::future::join_all(steps).await)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        if !self.capabilities.shorten {
            return Err(self.unsupported("shortening a lease at the server"));
        }
        let asked = self.clock.now();
        let both =
            futures_util::future::join(self.old.shorten(claim, ttl), self.new.shorten(claim, ttl));
        let (old, new) = both.await;
        Ok(self.changed_lease(claim, old?, new?, asked))
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let asked = self.clock.now();
        // Some backends write the note again.
        let under = self.state_of(claim).and_then(MirrorState::under).unwrap_or(0);
        let (at_old, at_new) = (at_old(claim), at_new(claim, under));
        let both =
            futures_util::future::join(self.old.downgrade(&at_old), self.new.downgrade(&at_new));
        let (old, new) = both.await;
        Ok(self.changed_lease(claim, old?, new?, asked))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let bases = self.bases(&key.namespace).await?;
        let (giving, other) = self.giving(bases);
        let state = giving.inspect(key).await?;
        let tokens = self.tokens_in(&state, bases).await?;
        let Some(at) = tokens.iter().position(|borne| *borne == token) else {
            return Ok(false);
        };
        let aim = &state.queue[at];
        let broken = giving.break_claim(key, aim.token, mode, record).await?;
        if let Some(tag) = NoteTag::of(aim).filter(|_| broken) {
            let queue = other.inspect(key).await?.queue;
            if let Some(twin) = tag.twin(&queue) {
                other.break_claim(key, twin.token, mode, record).await?;
            }
        }
        Ok(broken)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let bases = self.bases(&key.namespace).await?;
        let state = self.giving(bases).0.inspect(key).await?;
        self.with_tokens(state, bases).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let bases = self.bases(&request.namespace).await?;
        let Page { states, next } = self.giving(bases).0.list(request).await?;
        let mut with_tokens = Vec::with_capacity(states.len());
        for state in states {
            with_tokens.push(self.with_tokens(state, bases).await?);
        }
        Ok(Page { states: with_tokens, next })
    }

    /// Those of either: locks of programs that use one alone are in that one.
    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        if !self.capabilities.namespaces {
            return Err(self.unsupported("listing namespaces"));
        }
        let (old, new) = (all_namespaces(&self.old), all_namespaces(&self.new));
        let (old, new) = futures_util::future::try_join(old, new).await?;
        let all: BTreeSet<_> = old.into_iter().chain(new).collect();
        Ok(ListPage::first(limit, all.into_iter().filter(|name| after.is_none_or(|a| name > a))))
    }

    /// What the mirror itself states, less what the settings of either backend cost.
    async fn promises(&self) -> Result<Promises, Error> {
        let mut kept = Promises::of(&self.capabilities);
        for driver in [&self.old, &self.new] {
            kept = kept.worse(driver.promises().await?.losses(driver.capabilities()));
        }
        Ok(kept)
    }

    async fn health(&self) -> Result<Health, Error> {
        let (old, new) = futures_util::future::join(self.old.health(), self.new.health()).await;
        let (old, new) = (old?, new?);
        let named = |which: &'static str, findings: Vec<Finding>| {
            findings.into_iter().map(move |finding| finding.at(which))
        };
        let moving = Finding::new(
            Severity::Note,
            "Locks are held on two backends.",
            "Finish the move: each of the two must answer for any lock.",
        );
        let server = format!("mirror of {} and {}", old.server, new.server);
        let findings = named("Old", old.findings).chain(named("New", new.findings));
        Ok(findings.fold(Health::well(server).with(moving), Health::with))
    }

    async fn close(&self) {
        futures_util::future::join(self.old.close(), self.new.close()).await;
    }
}
