//! A lock on two backends at once, for the time in which a fleet moves from one to the other. The
//! argument that no step of the move breaks a promise stands in `docs/moving.md`.
//!
//! It does no I/O of its own and keeps only where its claims stand.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::capabilities::{Capabilities, Fault, Keeps, LeaseScope, TokenSource, WakeUp};
use crate::clock::{Clock, Moment};
use crate::driver::{
    Acquisition, Answered, Ended, Force, Grant, LockDriver, Patience, Released, Renewal,
};
use crate::state::{Finding, Health, ListRequest, LockState, Page, Severity};
use crate::{BreakRecord, Claim, ClaimId, Error, Key, Lifetime, LossReason, Namespace, Token};

mod marks;

use marks::{for_members, mark_of, shown};

const BACKEND: &str = "mirror";

/// What is worst of any two backends.
const FAULTS: &[(Fault, Keeps)] = &[
    (Fault::WritesLost, Keeps::Nothing),
    (Fault::DataLost, Keeps::Nothing),
    (Fault::Failover, Keeps::Nothing),
    (Fault::SplitBrain, Keeps::Nothing),
    (Fault::ServerClockSteps, Keeps::Tokens),
    (Fault::BrokenByForce, Keeps::Tokens),
];

/// A lock that is held on an old backend and on a new one.
///
/// Whoever uses it excludes those who use the old one alone, and those who use the new one alone;
/// these two do not exclude each other, so a fleet passes through it in steps:
///
/// 1. all use the old backend;
/// 2. some use the mirror, in the end all: tokens are those of the old backend;
/// 3. the new one takes the tokens over ([`LockManager::take_over_tokens`]), once nobody uses the
///    old one alone: from here on tokens are those of the new one, and greater;
/// 4. some use the new one alone, in the end all.
///
/// A claim goes to the old backend first and to the new one when it holds there, everywhere in the
/// same order; so nobody waits for one who waits for him. An uncontended acquire costs three round
/// trips after another, a release one. While either backend is away nothing is granted. There are
/// no registers, and no claims that outlive their process: those stay behind or are moved by hand.
///
/// [`LockManager::take_over_tokens`]: crate::LockManager::take_over_tokens
///
/// ```
/// use lockkit_core::compose::MirrorDriver;
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
pub struct MirrorDriver {
    old: Arc<dyn LockDriver>,
    new: Arc<dyn LockDriver>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    stands: Mutex<HashMap<ClaimId, Stand>>,
}

/// Where a claim stands, as far as answers told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// In the old line; perhaps in the new one, where nobody has been told so.
    InOld,
    /// Holding in the old line, and standing in the new one.
    InBoth,
    /// Holding in both, under this token.
    Holds(Token),
}

/// What a claim's renewal said.
enum Look {
    Holds(Grant, Grant),
    WaitsForOld(u32),
    WaitsForNew(u32),
    /// Holds in the old line, and is not known to be in the new one.
    AtTheDoor(Grant),
    Ended(Ended),
}

impl MirrorDriver {
    /// Locks on both.
    pub fn new(old: Arc<dyn LockDriver>, new: Arc<dyn LockDriver>) -> Self {
        let (a, b) = (old.capabilities(), new.capabilities());
        let mut c = Capabilities::of(BACKEND);
        c.lease_scope = LeaseScope::Claim;
        c.granularity = a.granularity.max(b.granularity);
        c.least_ttl = a.least_ttl.max(b.least_ttl);
        c.longest_ttl = a.longest_ttl.min(b.longest_ttl);
        c.expiry_slack = a.expiry_slack.max(b.expiry_slack);
        c.wake_up = match (a.wake_up, b.wake_up) {
            (WakeUp::Push, WakeUp::Push) => WakeUp::Push,
            (WakeUp::Poll { within }, WakeUp::Push) | (WakeUp::Push, WakeUp::Poll { within }) => {
                WakeUp::Poll { within }
            }
            (WakeUp::Poll { within: a }, WakeUp::Poll { within: b }) => {
                WakeUp::Poll { within: a + b }
            }
        };
        c.fifo = false;
        c.token_source = TokenSource::Counter;
        c.permits = a.permits && b.permits;
        c.shorten = a.shorten && b.shorten;
        c.shared_between_processes = a.shared_between_processes && b.shared_between_processes;
        c.faults = FAULTS;
        let clock = old.clock();
        Self { old, new, capabilities: c, clock, stands: Mutex::default() }
    }

    fn stands(&self) -> MutexGuard<'_, HashMap<ClaimId, Stand>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand(&self, claim: &Claim) -> Option<Stand> {
        self.stands().get(&claim.id).copied()
    }

    /// Takes a claim back from both, since its owner will not.
    async fn take_back(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        self.stands().remove(&claim.id);
        let (old, new) =
            futures_util::future::join(self.old.release(claim), self.new.release(claim)).await;
        old.and(new).map(drop)
    }

    /// The lease that both gave: the shorter, from when it began to count. `asked` is before the
    /// requests were sent.
    fn lease(&self, old: &Grant, new: &Grant, token: Token, asked: Moment) -> Grant {
        let began = |driver: &Arc<dyn LockDriver>, grant: &Grant| match grant.since {
            Some(since) => self.clock.now().before(driver.clock().now().since(since)).min(asked),
            None => asked,
        };
        let since = began(&self.old, old).min(began(&self.new, new));
        Grant { token, ttl: old.ttl.min(new.ttl), since: Some(since) }
    }

    /// What a claim that holds in both is granted. Who gives the tokens is asked while it holds:
    /// asked earlier, somebody could get a greater one of the new backend in between.
    async fn settle(
        &self,
        claim: &Arc<Claim>,
        (old, new): (Grant, Grant),
        asked: Moment,
    ) -> Result<Grant, Error> {
        let token = match self.stand(claim) {
            Some(Stand::Holds(token)) => token,
            _ => {
                let base = self.new.token_base(&claim.key.namespace).await?;
                match token_of(base, old.token, new.token) {
                    Ok(token) => token,
                    Err(error) => {
                        self.take_back(claim).await?;
                        return Err(error);
                    }
                }
            }
        };
        self.stands().insert(claim.id, Stand::Holds(token));
        Ok(self.lease(&old, &new, token, asked))
    }

    /// Renews these at both, and says where each stands.
    async fn look(&self, claims: &[Arc<Claim>]) -> Result<Vec<Look>, Error> {
        let stands: Vec<_> = claims.iter().map(|claim| self.stand(claim)).collect();
        let both = |stand: Option<Stand>| !matches!(stand, None | Some(Stand::InOld));
        let known = claims.iter().zip(&stands);
        let in_both: Vec<_> = known.filter(|(_, s)| both(**s)).map(|(c, _)| c.clone()).collect();
        let (old, new) =
            futures_util::future::join(renewed(&self.old, claims), renewed(&self.new, &in_both))
                .await;
        let (mut old, mut new) = (old?.into_iter(), new?.into_iter());
        let gone = || Renewal::Ended(Ended::NotInLine);
        let mut looks = Vec::with_capacity(claims.len());
        for stand in stands {
            let at_old = old.next().unwrap_or_else(gone);
            let at_new = both(stand).then(|| new.next().unwrap_or_else(gone));
            looks.push(match (at_old, at_new) {
                (Renewal::Ended(why), _) | (_, Some(Renewal::Ended(why))) => Look::Ended(why),
                (Renewal::Waits { ahead }, _) => Look::WaitsForOld(ahead),
                (Renewal::Holds(old), None) => Look::AtTheDoor(old),
                (Renewal::Holds(_), Some(Renewal::Waits { ahead })) => Look::WaitsForNew(ahead),
                (Renewal::Holds(old), Some(Renewal::Holds(new))) => Look::Holds(old, new),
            });
        }
        Ok(looks)
    }

    /// The backend that gives the tokens, the other one, and what is added to the tokens.
    async fn giving(
        &self,
        namespace: &Namespace,
    ) -> Result<(&Arc<dyn LockDriver>, &Arc<dyn LockDriver>, u64), Error> {
        Ok(match self.new.token_base(namespace).await? {
            0 => (&self.old, &self.new, 0),
            base => (&self.new, &self.old, base),
        })
    }

    /// Asks for what holds in the old line in the new one as well.
    async fn acquire_at_new(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
        old: Grant,
        asked: Moment,
    ) -> Result<Answered<Acquisition>, Error> {
        let answered = match self.new.acquire(claim, patience).await {
            Ok(answered) => answered,
            Err(error) => {
                if !matches!(error, Error::Backend { .. }) {
                    self.take_back(claim).await?;
                }
                return Err(error);
            }
        };
        let answer = match answered.answer {
            Acquisition::Granted(new) => {
                Acquisition::Granted(self.settle(claim, (old, new), asked).await?)
            }
            Acquisition::Queued { ahead } => {
                self.stands().insert(claim.id, Stand::InBoth);
                Acquisition::Queued { ahead }
            }
            Acquisition::Busy => {
                self.take_back(claim).await?;
                Acquisition::Busy
            }
        };
        Ok(Answered::after(answered.unanswered, answer))
    }

    /// Takes a claim a step further, if it can go one, and says where it stands then.
    async fn advance(&self, claim: &Arc<Claim>, look: Look, asked: Moment) -> Renewal {
        let advanced = match look {
            Look::Holds(old, new) => self.settle(claim, (old, new), asked).await,
            Look::AtTheDoor(old) => {
                let answer = self.acquire_at_new(claim, Patience::Wait, old, asked).await;
                match answer.map(|answered| answered.answer) {
                    Ok(Acquisition::Granted(grant)) => Ok(grant),
                    Ok(Acquisition::Queued { ahead }) => return Renewal::Waits { ahead },
                    Ok(Acquisition::Busy) => return Renewal::Ended(Ended::NotInLine),
                    Err(error) => Err(error),
                }
            }
            Look::WaitsForOld(ahead) | Look::WaitsForNew(ahead) => {
                return Renewal::Waits { ahead };
            }
            // What stands at the other one excludes until its owner, who learns it now, lets go.
            Look::Ended(why) => return Renewal::Ended(why),
        };
        match advanced {
            Ok(grant) => Renewal::Holds(grant),
            // The next renewal tries again.
            Err(Error::Backend { .. }) => Renewal::Waits { ahead: 0 },
            Err(_) => Renewal::Ended(Ended::NotInLine),
        }
    }

    /// What both say of a change to a claim that holds in both.
    fn changed_lease(
        &self,
        claim: &Arc<Claim>,
        old: Renewal,
        new: Renewal,
        asked: Moment,
    ) -> Renewal {
        match (old, new, self.stand(claim)) {
            (Renewal::Holds(old), Renewal::Holds(new), Some(Stand::Holds(token))) => {
                Renewal::Holds(self.lease(&old, &new, token, asked))
            }
            (Renewal::Ended(why), ..) | (_, Renewal::Ended(why), _) => Renewal::Ended(why),
            _ => Renewal::Waits { ahead: 0 },
        }
    }
}

async fn renewed(
    driver: &Arc<dyn LockDriver>,
    claims: &[Arc<Claim>],
) -> Result<Vec<Renewal>, Error> {
    match claims.is_empty() {
        true => Ok(Vec::new()),
        false => driver.renew(claims).await?.into_iter().collect(),
    }
}

/// The token of a claim that holds in both.
fn token_of(base: u64, old: Token, new: Token) -> Result<Token, Error> {
    if base == 0 {
        return Ok(old);
    }
    match new.get().checked_add(base).and_then(Token::new) {
        Some(token) if token > old => Ok(token),
        _ => Err(Error::Config(format!(
            "the new backend's tokens begin at {base}, and do not lie above the old one's, which \
             are at {old}: let it take them over again, or lock under another prefix"
        ))),
    }
}

fn lost(why: Ended) -> Error {
    let reason = match why {
        Ended::Broken(record) => LossReason::Broken(record),
        Ended::SessionEnded => LossReason::SessionEnded,
        Ended::NotInLine => LossReason::Expired,
    };
    Error::Lost { reason }
}

impl fmt::Debug for MirrorDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorDriver").field("old", &self.old).field("new", &self.new).finish()
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

    async fn acquire(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Answered<Acquisition>, Error> {
        if claim.lifetime == Lifetime::Detached {
            return Err(self.unsupported("claims that outlive their process"));
        }
        let claim = &for_members(claim);
        let asked = self.clock.now();
        let Answered { answer, unanswered } = self.old.acquire(claim, patience).await?;
        let answered = match answer {
            Acquisition::Granted(old) => self.acquire_at_new(claim, patience, old, asked).await?,
            Acquisition::Queued { ahead } => {
                self.stands().entry(claim.id).or_insert(Stand::InOld);
                Acquisition::Queued { ahead }.into()
            }
            Acquisition::Busy => {
                self.stands().remove(&claim.id);
                Acquisition::Busy.into()
            }
        };
        Ok(Answered::after(unanswered + answered.unanswered, answered.answer))
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let claim = &for_members(claim);
        loop {
            let asked = self.clock.now();
            match self.look(std::slice::from_ref(claim)).await?.pop() {
                Some(Look::Holds(old, new)) => return self.settle(claim, (old, new), asked).await,
                Some(Look::WaitsForOld(_)) => drop(self.old.granted(claim).await?),
                Some(Look::WaitsForNew(_)) => {
                    // It holds in the old line, so it is renewed as one that holds.
                    let granted = self.new.granted(claim);
                    if let Ok(granted) = tokio::time::timeout(claim.hold_ttl / 3, granted).await {
                        granted?;
                    }
                }
                Some(Look::AtTheDoor(old)) => {
                    let answer = self.acquire_at_new(claim, Patience::Wait, old, asked).await?;
                    if let Acquisition::Granted(grant) = answer.answer {
                        return Ok(grant);
                    }
                }
                Some(Look::Ended(why)) => return Err(lost(why)),
                None => return Err(lost(Ended::NotInLine)),
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let claims: Vec<_> = claims.iter().map(for_members).collect();
        let asked = self.clock.now();
        let looks = self.look(&claims).await?;
        let steps = claims.iter().zip(looks).map(|(claim, look)| self.advance(claim, look, asked));
        Ok(futures_util::future::join_all(steps).await.into_iter().map(Ok).collect())
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        self.stands().remove(&claim.id);
        let (old, new) =
            futures_util::future::join(self.old.release(claim), self.new.release(claim)).await;
        Ok(match (old?, new?) {
            (Released::Removed, _) | (_, Released::Removed) => Released::Removed,
            (Released::NoSuchLock, Released::NoSuchLock) => Released::NoSuchLock,
            _ => Released::NotInLine,
        })
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
        let both = futures_util::future::join(self.old.downgrade(claim), self.new.downgrade(claim));
        let (old, new) = both.await;
        Ok(self.changed_lease(claim, old?, new?, asked))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (giving, other, base) = self.giving(&key.namespace).await?;
        let Some(token) = token.get().checked_sub(base).and_then(Token::new) else {
            return Ok(false);
        };
        let line = giving.inspect(key).await?.line;
        let mark = line.iter().find(|s| s.token == token).and_then(mark_of);
        let broken = giving.break_claim(key, token, force, record).await?;
        if let Some(mark) = mark.filter(|_| broken) {
            let line = other.inspect(key).await?.line;
            if let Some(twin) = line.iter().find(|s| mark_of(s) == Some(mark)) {
                other.break_claim(key, twin.token, force, record).await?;
            }
        }
        Ok(broken)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let (giving, _, base) = self.giving(&key.namespace).await?;
        Ok(shown(giving.inspect(key).await?, base))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let (giving, _, base) = self.giving(&request.namespace).await?;
        let Page { states, next } = giving.list(request).await?;
        let states = states.into_iter().map(|state| shown(state, base)).collect();
        Ok(Page { states, next })
    }

    async fn health(&self) -> Result<Health, Error> {
        let (old, new) = futures_util::future::join(self.old.health(), self.new.health()).await;
        let (old, new) = (old?, new?);
        let named = |which: &'static str, findings: Vec<Finding>| {
            findings.into_iter().map(move |f| Finding { what: format!("{which}: {}", f.what), ..f })
        };
        let moving = Finding {
            severity: Severity::Note,
            what: "Locks are held on two backends.".to_owned(),
            advice: "Finish the move: each of the two must answer for any lock.".to_owned(),
        };
        let server = format!("mirror of {} and {}", old.server, new.server);
        let findings = named("Old", old.findings).chain(named("New", new.findings));
        Ok(findings.fold(Health::well(server).with(moving), Health::with))
    }

    async fn close(&self) {
        futures_util::future::join(self.old.close(), self.new.close()).await;
    }
}
