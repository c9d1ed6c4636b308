//! How claims that wait are asked about, and how messages come, where the server has them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, LeaseStart, Renewal};
use lockkit_core::waiting::{PolledDriver, Waiters};
use lockkit_core::{Claim, Error, Result, Token};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::SqlServerInner;
use super::dialect::{Arg, CommandConnections, Dialect, StatementId, hex};
use crate::rows::micros;
use crate::waiters::{ClaimTag, PolledState, WaiterRegistry, since};

/// The tag of a claim, as the database makes it from the id: others can read it, and there is no way back.
pub(super) fn tag(id: &ClaimId) -> ClaimTag {
    let hash = Sha256::digest(id.as_bytes());
    std::array::from_fn(|i| hash[i])
}

impl<D: Dialect> PolledDriver for SqlServerInner<D> {
    type Name = ClaimTag;

    fn waiting(&self) -> &Waiters<ClaimTag> {
        &self.waiters.claims
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<PolledState>> {
        let answers = match self.waiters.claims.gets_notifications() {
            // It is only asked when a lease ends: the queue has to move on.
            true => self.renew_waiting(claims).await,
            false => self.poll(claims).await,
        };
        // A wait outlasts what a server says while its data are deleted or restored under it. What
        // stays so, core hears when it renews.
        let passing = |error: Error| Error::retryable(D::BACKEND, error.to_string());
        match answers {
            Ok(answers) => answers.into_iter().map(|answer| answer.map_err(passing)).collect(),
            Err(error) => vec![Err(passing(error)); claims.len()],
        }
    }

    async fn listen(driver: Weak<Self>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Some(driver) = driver.upgrade() else { return Ok(()) };
        let (options, waiters) = (driver.connections.options(), driver.waiters.clone());
        let channel = format!("lockkit_{}", hex(&driver.client));
        let commands =
            DriverConnections { lost: driver.lost.clone(), driver: Arc::downgrade(&driver) };
        drop(driver);
        let hear = |message: Option<&str>| match message {
            Some(message) => on_message(&waiters, message),
            None => {
                waiters.claims.listening_started();
                waiters.registers.notify(None);
            }
        };
        Ok(D::listen(&options, &channel, &hear, &commands).await?)
    }
}

/// The connections of a driver, which this does not keep alive.
struct DriverConnections<D: Dialect> {
    lost: Arc<Notify>,
    driver: Weak<SqlServerInner<D>>,
}

#[async_trait]
impl<D: Dialect> CommandConnections for DriverConnections<D> {
    async fn notify(&self, channel: &str) -> Result<()> {
        let driver = self.driver.upgrade().ok_or(Error::Closed)?;
        driver.call(StatementId::Notify, &[Arg::Bytes(channel.as_bytes())]).await?;
        Ok(())
    }

    async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl<D: Dialect> SqlServerInner<D> {
    /// Polls, which locks and renews nothing, and renews in the queues in which a claim ahead has ended.
    async fn poll(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<PolledState>>> {
        let states = self.states(claims).await?;
        let is_stuck = |(state, lease): &PolledState| {
            matches!(state, Renewal::Waits { .. }) && *lease == Some(Duration::ZERO)
        };
        let stuck: Vec<_> = (0..claims.len()).filter(|at| is_stuck(&states[*at])).collect();
        let mut answers: Vec<_> = states.into_iter().map(Ok).collect();
        if !stuck.is_empty() {
            let claims: Vec<_> = stuck.iter().map(|at| claims[*at].clone()).collect();
            let moved = self.renew_waiting(&claims).await?;
            stuck.into_iter().zip(moved).for_each(|(at, answer)| answers[at] = answer);
        }
        Ok(answers)
    }

    /// The claims that the execution of a request made holders, as its column *woken* names them; sent at this
    /// moment. Those that wait through this driver hold from then on, unless they were broken; others of this process
    /// are asked about.
    /// Those that the request took out as well (`released`) are not reported.
    pub(super) fn report_holders(&self, woken: &[u8], sent: Moment, released: &[Arc<Claim>]) {
        let (holders, _) = woken.as_chunks::<16>();
        let mut tags = Vec::with_capacity(holders.len());
        for holder in holders {
            let ([named, token], _) = holder.as_chunks::<8>() else { continue };
            if released.iter().any(|claim| tag(&claim.id) == *named) {
                continue;
            }
            tags.push(*named);
            match Token::new(u64::from_be_bytes(*token)) {
                Some(token) => {
                    let start = LeaseStart::Sent(sent);
                    self.waiters.claims.granted(named, |claim| granted(claim, token, start));
                }
                None => self.waiters.claims.ask_now(named), // it was broken, which its state says
            }
        }
        WaiterRegistry::wake(&tags, Some(&self.waiters));
    }

    /// Renews, which prunes and promotes.
    async fn renew_waiting(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<PolledState>>> {
        let sent = SteadyClock.now();
        let (answers, _) = self.renew(claims).await?;
        Ok(answers.into_iter().map(|told| told.map(|told| since(sent, told))).collect())
    }
}

/// A message to this client: `g TAG TOKEN`, the claim holds; `l TAG`, it is to poll; `r`, a
/// register was written.
fn on_message(waiters: &WaiterRegistry, message: &str) {
    let mut words = message.split(' ');
    let kind = words.next();
    if kind == Some("r") {
        return waiters.registers.notify(None);
    }
    let Some(tag) = words.next().and_then(read_tag) else { return };
    let token = words.next().and_then(|token| token.parse().ok()).and_then(Token::new);
    match token {
        Some(token) if kind == Some("g") => {
            let start = LeaseStart::LastAnswered;
            waiters.claims.granted(&tag, |claim| granted(claim, token, start));
        }
        _ => waiters.claims.ask_now(&tag),
    }
}

fn read_tag(hex: &str) -> Option<ClaimTag> {
    let tag = u64::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 16)?;
    Some(tag.to_be_bytes())
}

/// The grant of a claim that another operation made a holder. Where another client sent that, its lease counts
/// from the last request of its owner that was answered: the database counts it from later.
fn granted(claim: &Claim, token: Token, start: LeaseStart) -> Grant {
    Grant {
        token,
        ttl: Duration::from_micros(micros(claim.hold_ttl) as u64),
        start,
        margin: Duration::ZERO,
    }
}
