//! A lock driver made of independent ones: a claim holds while a majority of the members keeps it.
//! The argument that this excludes, and that tokens grow, is in `docs/quorum.md`.
//!
//! It does no I/O of its own. One round is in `quorum/round.rs`, waiting in `quorum/waiting.rs`, renewal and
//! repair are in `quorum/renewal.rs`, members that lost their data in `quorum/quarantine.rs`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use lockkit_core::capabilities::Capabilities;
use lockkit_core::clock::{Clock, Moment};
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, ClaimEnd, ClaimId,
    Gate, Grant, LockDriver, Patience, Recent, Renewal, Renewed, locked, no_answer, submit_each,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, Lifetime, LossReason, Mode, Namespace, Token};

mod connect;
mod evidence;
mod hold;
mod listing;
mod member;
mod options;
mod promises;
mod quarantine;
mod release;
mod renewal;
mod round;
mod runs;
mod view;
mod waiting;

pub use connect::QuorumMember;
use evidence::Watched;
pub use options::QuorumOptions;

use hold::{Hold, QuorumPhase};
use member::Member;
use options::{BACKEND, capabilities_of};
use round::RoundResult;
use waiting::WaitingStep;

use crate::together;

/// The namespace in which quorums keep at each member what they know of it.
const NAMESPACE: &str = "lockkit.quorum";

/// How many contended locks are remembered.
const CONTENDED: usize = 1024;

/// A lock over independent backends, of which a minority may fail in any way.
///
/// Locks are exclusive or shared. There are no semaphores and no registers: majorities meet in
/// pairs, they do not count. Claims that wait queue at one member, so waiters are usually granted in their
/// order; none is promised, and no other client sees them. Of several that try at once, all may
/// find it busy. A try that some members grant and others refuse is repeated until a majority shows
/// a holder, for [`member_limit`](QuorumOptions::member_limit) at most.
///
/// Clones are not needed: a manager shares it.
///
/// ```
/// use std::sync::Arc;
/// use lockkit_compose::{QuorumDriver, QuorumOptions};
/// use lockkit_core::driver::LockDriver;
/// use lockkit_core::{LockManager, MemoryDriver};
///
/// let member = || -> Arc<dyn LockDriver> { Arc::new(MemoryDriver::new()) };
/// let members = vec![member(), member(), member()];
/// let locks = LockManager::new(QuorumDriver::new(members, QuorumOptions::default())?);
/// # Ok::<(), lockkit_core::Error>(())
/// ```
pub struct QuorumDriver {
    inner: Arc<QuorumInner>,
}

struct QuorumInner {
    members: Vec<Member>,
    options: QuorumOptions,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    holds: Mutex<HashMap<ClaimId, Arc<Hold>>>,
    /// The locks of which releases are under way at members.
    releasing: Mutex<HashMap<Key, Weak<()>>>,
    /// The locks for which claims had to wait.
    contended: Recent<Key, ()>,
    opened: OnceCell<()>,
    listing: listing::Listing,
    /// How many steps of watches are being taken.
    steps: tokio::sync::watch::Sender<usize>,
    /// What the members' answers tell of their servers.
    watched: Watched,
}

impl QuorumDriver {
    /// A quorum of these members. All programs that use it name the same members. In any order; but claims
    /// wait in order, and are handed the lock fastest, where all programs name them in the same one.
    ///
    /// # Errors
    /// [`Error::Config`] when there are fewer than three, or one that cannot
    /// [`raise`](LockDriver::raise), or that would count its tokens from the beginning again when its
    /// data is lost.
    pub fn new(members: Vec<Arc<dyn LockDriver>>, options: QuorumOptions) -> Result<Self, Error> {
        let name = |(at, driver): (usize, Arc<dyn LockDriver>)| {
            let backend = driver.capabilities().backend;
            Member::new(format!("member {} ({backend})", at + 1), driver)
        };
        Self::of(members.into_iter().enumerate().map(name).collect(), options)
    }

    fn of(members: Vec<Member>, options: QuorumOptions) -> Result<Self, Error> {
        let capabilities = capabilities_of(&members, options)?;
        let clock = together::clock(members.iter().map(|m| (&m.capabilities, &m.clock)));
        let watched = Watched::new(members.len(), options.margin);
        let inner = QuorumInner {
            members,
            options,
            capabilities,
            clock,
            holds: Mutex::default(),
            releasing: Mutex::default(),
            contended: Recent::new(CONTENDED),
            opened: OnceCell::new(),
            listing: listing::Listing::default(),
            steps: tokio::sync::watch::Sender::new(0),
            watched,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

fn going_down() -> Error {
    Error::retryable(BACKEND, "the runtime is going down")
}

impl fmt::Debug for QuorumDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumDriver").field("members", &self.inner.members).finish()
    }
}

impl QuorumInner {
    fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// How long to wait before something that failed so many times is tried again.
    fn pause(&self, failures: u32) -> Duration {
        (self.options.pause)(failures)
    }

    /// How long a member may take for one answer.
    fn limit(&self, ttl: Duration) -> Duration {
        self.options.member_limit.min(ttl / 4)
    }

    /// Asks a member, and waits for its answer for this long. What takes longer is not dropped: by
    /// limits of its own a driver notices that a connection is dead, and makes another one.
    async fn ask<T, F>(
        &self,
        member: usize,
        limit: Duration,
        ask: impl FnOnce(Arc<dyn LockDriver>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let Member { name, .. } = &self.members[member];
        let asking = ask(self.members[member].driver()?.clone());
        let answer = self.answer_of(member, limit, asking).await.and_then(|answer| answer);
        answer.map_err(|error| error.at(name))
    }

    /// The same, with the number of requests to the member that got no answer.
    async fn ask_counting<T, F>(
        &self,
        member: usize,
        limit: Duration,
        ask: impl FnOnce(Arc<dyn LockDriver>) -> F,
    ) -> Result<T, BatchError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BatchError>> + Send + 'static,
    {
        let Member { name, .. } = &self.members[member];
        let driver = self.members[member].driver().map_err(BatchError::refused)?;
        let asking = ask(driver.clone());
        let answer = self.answer_of(member, limit, asking).await.map_err(BatchError::unknown);
        answer.and_then(|answer| answer).map_err(|mut failed| {
            failed.error = failed.error.at(name);
            failed
        })
    }

    /// What a member answers within this time; an error where it does not.
    async fn answer_of<T: Send + 'static>(
        &self,
        member: usize,
        limit: Duration,
        asking: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        match tokio::time::timeout(limit, tokio::spawn(asking)).await {
            Ok(answer) => answer.map_err(|_| going_down()),
            Err(_) => Err(no_answer(self.members[member].capabilities.backend)),
        }
    }

    /// From when on a member's lease counts, where it says so, on our clock.
    fn began(&self, member: usize, grant: &Grant) -> Option<Moment> {
        let since = grant.start.moment()?;
        // Ours first: time that passes between the two makes it earlier, not later.
        let now = self.clock.now();
        Some(now.before(self.members[member].clock.now().since(since)))
    }

    fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Hold>>> {
        locked(&self.holds)
    }

    fn hold(&self, claim: &Claim) -> Option<Arc<Hold>> {
        self.holds().get(&claim.id).cloned()
    }

    /// Refuses what a quorum cannot do, before any I/O.
    fn check(&self, claim: &Claim) -> Result<(), Error> {
        let unsupported = |operation| Err(Error::unsupported(operation, BACKEND));
        if matches!(claim.mode, Mode::Permits { .. }) {
            return unsupported("semaphores");
        }
        if claim.lifetime == Lifetime::Detached {
            return unsupported("claims that outlive their process");
        }
        let longest = self.options.max_ttl;
        if claim.hold_ttl > longest {
            let message = format!(
                "this quorum keeps leases of {longest:?} at most: use a shorter ttl, or give all \
                 its users a greater max_ttl"
            );
            return Err(Error::Config(message));
        }
        Ok(())
    }

    /// What is there already of a claim that is acquired (again).
    async fn acquire_again(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        hold: &Arc<Hold>,
        patience: Patience,
    ) -> Result<Option<Acquisition>, Error> {
        let phase = hold.state().phase;
        match phase {
            QuorumPhase::Over => Ok(None),
            QuorumPhase::Held { .. } => match self.renew(std::slice::from_ref(claim)).await.pop() {
                Some(Ok(Renewal::Holds(grant))) => Ok(Some(Acquisition::Granted(grant))),
                Some(Ok(Renewal::Ended(ended))) => Err(Error::lost(ended.into())),
                Some(Err(error)) => Err(error),
                _ => Err(Error::lost(LossReason::Expired)),
            },
            _ if patience == Patience::Wait => {
                match self.renew(std::slice::from_ref(claim)).await.pop() {
                    Some(Ok(Renewal::Ended(broken @ ClaimEnd::Broken(_)))) => {
                        Err(Error::lost(broken.into()))
                    }
                    _ => Ok(Some(Acquisition::Queued { ahead: 1 })),
                }
            }
            _ => {
                self.release(claim).await?;
                Ok(Some(Acquisition::Busy))
            }
        }
    }

    async fn acquire(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        self.check(claim)?;
        self.open().await?;
        if let Some(hold) = self.hold(claim)
            && let Some(answer) = self.acquire_again(claim, &hold, patience).await?
        {
            return Ok(answer);
        }
        let waits = patience == Patience::Wait;
        let longest = if waits { claim.wait_ttl } else { self.options.member_limit };
        let until = self.clock.now().after(longest);
        let hold = Arc::new(Hold::new(claim.clone(), self.members.len(), until));
        self.keep(claim.id, &hold);
        let mut round =
            self.begin(hold.clone(), if waits { WaitingStep::Enter } else { WaitingStep::Try });
        for rounds in 1.. {
            let refused = match round.await {
                Ok(Ok(RoundResult::Granted(grant))) => return Ok(Acquisition::Granted(grant)),
                Ok(Ok(_)) if waits => {
                    let ahead = hold.queued().map_or(1, |queued| queued.ahead);
                    return Ok(Acquisition::Queued { ahead });
                }
                Ok(Ok(refused)) => refused,
                Ok(Err(error)) => {
                    self.holds().remove(&claim.id);
                    return Err(error);
                }
                Err(_) => return Err(going_down()),
            };
            // Claims on their way out may stand in the way of a try, at other members each.
            let again = matches!(refused, RoundResult::Split)
                && self.clock.now() < until
                && !self.may_be_held(claim).await;
            if again {
                tokio::time::sleep(self.pause(rounds)).await;
            }
            let next = if again { self.next_step(claim, WaitingStep::Try) } else { None };
            let Some(next) = next else { break };
            round = next;
        }
        if self.hold(claim).is_some() {
            self.release(claim).await?;
        }
        Ok(Acquisition::Busy)
    }

    /// Remembers a claim, and forgets those whose leases are over at all members.
    fn keep(&self, id: ClaimId, hold: &Arc<Hold>) {
        let now = self.clock.now();
        let mut holds = self.holds();
        if holds.len().is_power_of_two() {
            holds.retain(|_, hold| {
                let state = hold.state();
                match state.phase {
                    QuorumPhase::Trying { .. } => true,
                    QuorumPhase::Waiting { until } => now < until,
                    QuorumPhase::Held { until, .. } => now < until.after(state.claim.hold_ttl),
                    QuorumPhase::Over => {
                        state.broken.as_ref().is_some_and(|(_, until)| now < *until)
                    }
                }
            });
        }
        holds.insert(id, hold.clone());
    }
}

#[async_trait]
impl LockDriver for QuorumDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock.clone()
    }

    fn gate(&self) -> Option<&dyn Gate> {
        let mut known = self.inner.members.iter().filter_map(|member| member.driver().ok());
        known.any(|driver| driver.gate().is_some()).then_some(&together::NoNeighbours)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let inner = &self.inner;
        // A round that fails gives back by itself what may be at the members, under an id of its own. How
        // many of their requests got no answer is not told apart: a release may say nothing certain.
        let acquire = |Acquire { claim, patience }| async move {
            match inner.acquire(&claim, patience).await {
                Ok(acquisition) => Ok(Attempted::from(acquisition)),
                Err(error @ Error::Backend { .. }) => Err(BatchError::unknown(error)),
                Err(error) => Err(BatchError::refused(error)),
            }
        };
        let release = |claim: Arc<Claim>| async move {
            inner.release(&claim).await.map(Attempted::from).map_err(BatchError::unknown)
        };
        Ok(submit_each(batch, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.inner.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        Ok(self.inner.renew(claims).await)
    }

    async fn renew_with_evidence(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewed, Error>>, Error> {
        let answers = self.inner.renew(claims).await;
        let evidence = self.inner.watched.evidence();
        let with = |renewal| Renewed { renewal, evidence: Some(evidence.clone()) };
        Ok(answers.into_iter().map(|answer| answer.map(with)).collect())
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        if !self.inner.capabilities.shorten {
            return Err(self.unsupported("shortening a lease at the server"));
        }
        self.inner.shorten(claim, ttl).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.inner.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
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

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        if !self.inner.capabilities.namespaces {
            return Err(self.unsupported("listing namespaces"));
        }
        self.inner.namespaces(after, limit).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.inner.namespace_counter(namespace).await
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        self.inner.raise_namespace_counter(namespace, base).await
    }

    async fn promises(&self) -> Result<Promises, Error> {
        Ok(self.inner.promises(self.capabilities()).await)
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }

    async fn close(&self) {
        self.inner.steps_taken().await;
        let drivers = self.inner.members.iter().flat_map(Member::driver);
        let closing = drivers.map(|driver| driver.close());
        futures_util::future::join_all(closing).await;
    }
}
