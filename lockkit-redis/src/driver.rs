//! The driver: each verb is one call of a script. No deadlines and no rule of the queue here; the
//! first are core's, the second is in `scripts/line.lua`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::{Capabilities, Fault, Guarantee, TokenSource, WakeUp};
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{
    Attempted, BreakMode, Flights, Grant, KnownBases, LockDriver, Registers, Renewal, Renewed,
    Replies, ServerRun, SetLimit, Step, Writes,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Health, ListRequest, Listed, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, Mode, Namespace, Token};
use redis::Value;

use crate::failure::to_error;
use crate::flight::FLIGHTS;
use crate::link::Link;
use crate::listing::Listing;
use crate::peer::Heard;
use crate::replicas::Replicas;
use crate::script::{self, Call, Script};
use crate::source::Source;
use crate::tokens::HighestTokens;
use crate::voice::{Voice, is_about_rights};
use crate::wake::Wakes;
use crate::{BACKEND, health, keys, reply};

/// Locks in Redis or Valkey: a single server, a master that sentinels name, or a cluster.
///
/// Made by [`RedisDriver::connect`] from a URL, or by [`RedisOptions`](crate::RedisOptions) from
/// the user's own client.
///
/// ```no_run
/// use lockkit_core::LockManager;
/// use lockkit_redis::RedisDriver;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let driver = RedisDriver::connect("redis://10.0.0.7/0").await?;
/// let locks = LockManager::new(driver);
/// let guard = locks.mutex("invoice/42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
pub struct RedisDriver {
    pub(crate) shared: Arc<Shared>,
}

/// What the driver and its subscription share.
pub(crate) struct Shared {
    pub(crate) link: Link,
    pub(crate) wakes: Wakes,
    pub(crate) tokens: HighestTokens,
    pub(crate) bases: KnownBases,
    pub(crate) writes: Writes,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) listing: Listing,
    pub(crate) source: Arc<Source>,
    pub(crate) limit: Duration,
    pub(crate) capabilities: Capabilities,
}

const CAPABILITIES: Capabilities = {
    let mut capabilities = Capabilities::of(BACKEND);
    capabilities.flights = FLIGHTS;
    capabilities.min_ttl = Duration::from_millis(20);
    capabilities.wake_up = WakeUp::Push;
    capabilities.token_source = TokenSource::ClockCounter;
    capabilities.resize = true;
    capabilities.shorten = true;
    capabilities.raise = true;
    capabilities.detached = true;
    capabilities.registers = true;
    capabilities.namespaces = true;
    capabilities.faults = &[
        (Fault::WritesLost, Guarantee::Tokens),
        (Fault::DataLost, Guarantee::Tokens),
        (Fault::OlderDataRestored, Guarantee::Tokens),
        (Fault::Failover, Guarantee::Tokens),
        // Each of two masters has its own line, and who stood in it keeps an old token.
        (Fault::SplitBrain, Guarantee::Nothing),
        // Ends of leases are absolute times.
        (Fault::OtherClockTakesOver, Guarantee::Tokens),
        (Fault::LeaderLost, Guarantee::Impossible),
        // Leases end early; tokens come from a counter that does not go back with the clock.
        (Fault::ServerClockSteps, Guarantee::Tokens),
        (Fault::ClientMachinePaused, Guarantee::Tokens),
        (Fault::ServerClockSlewedMore, Guarantee::Tokens),
        (Fault::BrokenByForce, Guarantee::Tokens),
    ];
    capabilities
};

impl RedisDriver {
    pub(crate) fn start(
        link: Link,
        source: Arc<Source>,
        voice: Arc<Voice>,
        replicas: Option<Replicas>,
        limit: Duration,
    ) -> Self {
        let mut capabilities = CAPABILITIES;
        if let Link::Cluster(_) = link {
            // A call reaches one slot, and no claim is to wait for another's node.
            capabilities.flights = Flights::SINGLE;
            // Each of its shards has data and failovers of its own: no run tells of them all, and so
            // it is no member of a quorum.
            capabilities.raise = false;
        }
        let shared = Arc::new(Shared {
            link,
            wakes: Wakes::new(voice),
            tokens: HighestTokens::new(),
            bases: KnownBases::default(),
            writes: Writes::default(),
            replicas,
            listing: Listing::default(),
            source,
            limit,
            capabilities,
        });
        let driver = Self { shared };
        driver.ensure_listening();
        driver
    }

    /// Makes sure that somebody listens. (A subscription ends when its runtime does, which may be
    /// before the driver does.)
    pub(crate) fn ensure_listening(&self) {
        self.shared.wakes.claims.attend(&self.shared);
    }
}

impl fmt::Debug for RedisDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { link, wakes, .. } = &*self.shared;
        f.debug_struct("RedisDriver")
            .field("link", link)
            .field("wakes", wakes)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[impl script::Key],
        args: &[impl script::Arg],
    ) -> Result<Value, Error> {
        Ok(self.run_counting(script, keys, args, None).await?.result)
    }

    /// The same, with the number of attempts before this answer that were not answered. An attempt
    /// after another one has `again` behind its arguments.
    pub(crate) async fn run_counting(
        &self,
        script: &Script,
        keys: &[impl script::Key],
        args: &[impl script::Arg],
        again: Option<&[u8]>,
    ) -> Result<Attempted<Value>, Error> {
        let sent = self.run_heard(script, keys, args, again).await?;
        Ok(sent.map(|heard| heard.answer))
    }

    /// The same, with who answered.
    pub(crate) async fn run_heard(
        &self,
        script: &Script,
        keys: &[impl script::Key],
        args: &[impl script::Arg],
        again: Option<&[u8]>,
    ) -> Result<Attempted<Heard<Value>>, Error> {
        let mute = self.wakes.voice.is_mute();
        let sent = if let Link::Cluster(_) = self.link {
            // While a slot moves to another node, both of them refuse each command of a script whose key
            // they do not have, also in the middle of it, after others have written. A call that names
            // two keys, of which one never exists, is refused as a whole instead, with TRYAGAIN.
            let never = keys.first().and_then(|key| keys::never(key.as_ref()));
            let keys: Vec<_> = keys.iter().map(AsRef::as_ref).chain(never.as_deref()).collect();
            let call = Call { keys: &keys, args };
            Box::pin(script.call(&self.link, call, again, mute)).await
        } else {
            script.call(&self.link, Call { keys, args }, again, mute).await
        };
        match sent {
            Ok(Attempted { result: Heard { answer, from }, ambiguous }) => match self.heard(answer)
            {
                Value::ServerError(error) => Err(to_error(error.into())),
                answer => Ok(Attempted::after(ambiguous, Heard { answer, from })),
            },
            Err(failed) if is_about_rights(&failed.error) => {
                Err(Box::pin(self.forbidden(failed, keys[0].as_ref())).await)
            }
            Err(failed) => Err(failed.into()),
        }
    }

    /// One claim, one call of a script that answers as `renew` does.
    async fn about(
        &self,
        claim: &Claim,
        script: &Script,
        more: Option<&str>,
    ) -> Result<Renewal, Error> {
        let (key, bucket) = keys::lock(&claim.key);
        let counter = keys::counter(bucket);
        let mut args = keys::claim_args(claim).to_vec();
        args.extend(more.map(str::to_owned));
        let answer = self.run(script, &[&key, &counter], &args).await?;
        Ok(self.note(claim, reply::renewal(claim, &answer)?))
    }
}

#[async_trait]
impl LockDriver for RedisDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn carry(&self, steps: &[Step]) -> Result<Replies, Error> {
        self.ensure_listening();
        self.shared.carry(steps).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.ensure_listening();
        let shared = &*self.shared;
        let outcome = shared.wakes.claims.outcome(claim).await;
        if let Ok(grant) = &outcome {
            // It waits until replicas have it: renewals meanwhile do not tell core that it holds.
            shared.confirm(&[claim]).await.pop().transpose()?;
            shared.tokens.saw(keys::lock(&claim.key).1, grant.token.get());
        }
        shared.wakes.claims.strike(&claim.id);
        outcome
    }

    async fn notified(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        self.ensure_listening();
        self.shared.wakes.claims.notified(claim).await;
        Ok(())
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        Ok(Renewed::without_evidence(self.renew_with_evidence(claims).await?))
    }

    async fn renew_with_evidence(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewed, Error>>, Error> {
        let sent = SteadyClock.now();
        let mut answers = self.shared.renew(claims).await;
        if self.shared.replicas.is_some() {
            for (claim, answer) in claims.iter().zip(&mut answers) {
                if let Ok(answer) = answer {
                    self.shared.not_before_replicas(claim, &mut answer.renewal, sent);
                }
            }
        }
        Ok(answers)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let (key, _) = keys::lock(&claim.key);
        let ms = keys::millis(ttl);
        let args = [claim.id.to_hex(), ms.to_string()];
        let answer = self.shared.run(&script::SHORTEN, &[&key], &args).await?;
        Ok(match reply::renewal(claim, &answer)?.0 {
            Renewal::Holds(grant) => {
                Renewal::Holds(Grant { ttl: Duration::from_millis(ms), ..grant })
            }
            other => other,
        })
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.shared.about(claim, &script::DOWNGRADE, None).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (key, _) = keys::lock(key);
        let record = serde_json::to_vec(record).map_err(|e| Error::permanent(BACKEND, e))?;
        let force: &[u8] = match force {
            BreakMode::Graceful => b"graceful",
            BreakMode::Forced => b"force",
        };
        let token = keys::token(token.get());
        let args = [token.as_bytes(), force, &record];
        let answer = self.shared.run(&script::BREAK, &[&key], &args).await?;
        Ok(answer == Value::Int(1))
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.shared.look_at(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.shared.page(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        self.shared.page_of_namespaces(after, limit).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        if !self.shared.capabilities.raise || matches!(claim.mode, Mode::Permits { .. }) {
            return Err(self.unsupported("raising these tokens"));
        }
        let token = keys::token(token.get());
        self.shared.about(claim, &script::RAISE, Some(&token)).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let (key, _) = keys::lock(key);
        let (when, limit) = match limit {
            SetLimit::IfUnset(limit) => ("unset", limit.to_string()),
            SetLimit::To(limit) => ("to", limit.to_string()),
        };
        let args = [when.as_bytes(), limit.as_bytes()];
        let answer = self.shared.run(&script::RESIZE, &[&key], &args).await?;
        let limit = reply::number(&answer).and_then(|limit| limit.try_into().ok());
        limit.ok_or_else(|| reply::unexpected(&answer))
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let base = self.shared.run(&script::BASE, &[&keys::base(namespace)], &[b"0"]).await?;
        let number = reply::text(&base).and_then(|text| text.parse().ok());
        let number = number.ok_or_else(|| reply::unexpected(&base))?;
        self.shared.bases.saw(BACKEND, namespace, number)
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let key = keys::base(namespace);
        let base = base.to_string();
        self.shared.run(&script::BASE, &[&key], &[base.as_bytes()]).await.map(drop)
    }

    async fn promises(&self) -> Result<Promises, Error> {
        self.shared.promises().await
    }

    async fn run_of(&self, _: &Key) -> Result<Option<ServerRun>, Error> {
        health::run(&self.shared).await
    }

    async fn keeps_writes(&self) -> Result<bool, Error> {
        health::keeps_writes(&self.shared).await
    }

    async fn health(&self) -> Result<Health, Error> {
        health::examine_all(&self.shared).await
    }

    async fn close(&self) {
        self.shared.wakes.claims.close();
        self.shared.link.close();
    }
}
