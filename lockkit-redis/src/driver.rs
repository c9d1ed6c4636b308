//! The driver: each operation is one call of a script. No deadlines and no rule of the queue here; the
//! first are core's, the second is in `scripts/queue.lua`.

use std::fmt;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::{Capabilities, Fault, Guarantee, TokenSource, WakeUp};
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{
    Batch, BatchError, BatchLimits, BatchOutcome, BreakMode, Gate, Grant, KnownBases, LockDriver,
    Registers, Renewal, Renewed, ServerRun, SetLimit, Writes, names_in_use,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Finding, Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Claim, Error, Key, Mode, Namespace, Token};
use redis::Value;

use crate::batch::BATCH_LIMITS;
use crate::gate::RedisGate;
use crate::inner::RedisInner;
use crate::locator::ServerLocator;
use crate::neighbours::RedisNeighbours;
use crate::publisher::Publisher;
use crate::replicas::Replicas;
use crate::scan::ScanCache;
use crate::script::{self, Script};
use crate::tokens::HighestTokens;
use crate::transport::Transport;
use crate::waiters::WaiterRegistry;
use crate::{BACKEND, decode, health, keys};

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
    pub(crate) inner: Arc<RedisInner>,
    gate: Option<RedisGate>,
}

const CAPABILITIES: Capabilities = {
    let mut capabilities = Capabilities::of(BACKEND);
    capabilities.batches = BATCH_LIMITS;
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
        // Each of two masters has its own queue, and the claims in it keep tokens of the old master.
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
        transport: Transport,
        locator: Arc<ServerLocator>,
        publisher: Arc<Publisher>,
        replicas: Option<Replicas>,
        limit: Duration,
        neighbours: Option<RedisNeighbours>,
    ) -> Self {
        let mut capabilities = CAPABILITIES;
        if let Transport::Cluster(_) = transport {
            // A call reaches one slot, and no claim is to wait for another's node.
            capabilities.batches = BatchLimits::SINGLE;
            // Each of its shards has data and failovers of its own: no run tells of them all, and so
            // it is no member of a quorum.
            capabilities.raise = false;
        }
        let inner = Arc::new(RedisInner {
            transport,
            publisher,
            waiters: WaiterRegistry::default(),
            tokens: HighestTokens::new(),
            bases: KnownBases::default(),
            writes: Writes::default(),
            replicas,
            listing: ScanCache::default(),
            locator,
            limit,
            capabilities,
            neighbours,
        });
        let gate = neighbours.map(|neighbours| RedisGate::new(inner.clone(), neighbours));
        let driver = Self { inner, gate };
        driver.ensure_listening();
        driver
    }

    /// Makes sure that there is a subscription. (It ends when its runtime does, which may be before the
    /// driver does.)
    pub(crate) fn ensure_listening(&self) {
        self.inner.waiters.claims.start_polling(&self.inner);
    }

    /// One claim, one call of a script that answers as `renew` does, and renews: so replicas are to have that, too.
    async fn change(
        &self,
        claim: &Arc<Claim>,
        script: &Script,
        argument: Option<String>,
    ) -> Result<Renewal, Error> {
        let (key, bucket) = keys::lock(&claim.key);
        let counter = keys::counter(bucket);
        let mut args = keys::claim_args(claim).to_vec();
        args.extend(argument);
        let answer = self.inner.run(script, &[&key, &counter], &args).await?;
        let (renewal, lease) = decode::renewal(claim, &answer)?;
        self.inner.waiters.claims.renewed(&claim.id, &renewal, lease);
        match (&renewal, &self.inner.replicas) {
            (Renewal::Holds(_), Some(replicas)) => {
                let mut renewed = self.inner.renew_all(from_ref(claim), Some(replicas)).await;
                Ok(renewed.remove(0)?.renewal)
            }
            _ => Ok(renewal),
        }
    }
}

impl fmt::Debug for RedisDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisDriver").field("waiters", &self.inner.waiters).finish_non_exhaustive()
    }
}

#[async_trait]
impl LockDriver for RedisDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    fn gate(&self) -> Option<&dyn Gate> {
        self.gate.as_ref().map(|gate| gate as &dyn Gate)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        self.ensure_listening();
        self.inner.submit(batch).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.ensure_listening();
        let inner = &*self.inner;
        let outcome = inner.waiters.claims.outcome(claim).await;
        if let Ok(grant) = &outcome {
            // It waits until replicas have it: renewals meanwhile do not tell core that it holds.
            inner.confirm(std::slice::from_ref(claim)).await.pop().transpose()?;
            inner.tokens.saw(keys::lock(&claim.key).1, grant.token.get());
        }
        inner.waiters.claims.remove(&claim.id);
        outcome
    }

    async fn notified(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        self.ensure_listening();
        self.inner.waiters.claims.notified(claim).await;
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
        let mut answers = self.inner.renew(claims).await;
        if self.inner.replicas.is_some() {
            for (claim, answer) in claims.iter().zip(&mut answers) {
                if let Ok(answer) = answer {
                    self.inner.not_before_replicas(claim, &mut answer.renewal, sent);
                }
            }
        }
        Ok(answers)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let (key, _) = keys::lock(&claim.key);
        let ms = keys::millis(ttl);
        let args = [claim.id.to_hex(), ms.to_string()];
        let answer = self.inner.run(&script::SHORTEN, &[&key], &args).await?;
        Ok(match decode::renewal(claim, &answer)?.0 {
            Renewal::Holds(grant) => {
                Renewal::Holds(Grant { ttl: Duration::from_millis(ms), ..grant })
            }
            other => other,
        })
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.change(claim, &script::DOWNGRADE, None).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (key, _) = keys::lock(key);
        let record = serde_json::to_vec(record).map_err(|e| Error::permanent(BACKEND, e))?;
        let mode: &[u8] = match mode {
            BreakMode::Graceful => b"graceful",
            BreakMode::Forced => b"forced",
        };
        let token = keys::token(token.get());
        let args = [token.as_bytes(), mode, &record];
        let answer = self.inner.run(&script::BREAK, &[&key], &args).await?;
        Ok(answer == Value::Int(1))
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.inner.page(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        self.inner.page_of_namespaces(after, limit).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        if !self.inner.capabilities.raise || matches!(claim.mode, Mode::Permits { .. }) {
            return Err(self.unsupported("raising these tokens"));
        }
        self.change(claim, &script::RAISE, Some(keys::token(token.get()))).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let (key, _) = keys::lock(key);
        let (when, limit) = match limit {
            SetLimit::IfUnset(limit) => ("unset", limit.to_string()),
            SetLimit::To(limit) => ("to", limit.to_string()),
        };
        let args = [when.as_bytes(), limit.as_bytes()];
        let answer = self.inner.run(&script::RESIZE, &[&key], &args).await?;
        let limit = decode::number(&answer).and_then(|limit| limit.try_into().ok());
        limit.ok_or_else(|| decode::unexpected(&answer))
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let number = self.inner.namespace_counter(namespace).await?;
        self.inner.bases.saw(BACKEND, namespace, number)
    }

    async fn raise_namespace_counter(
        &self,
        namespace: &Namespace,
        counter: u64,
    ) -> Result<(), Error> {
        let (key, counter) = (keys::base(namespace), counter.to_string());
        self.inner.run(&script::BASE, &[&key], &[counter.as_bytes()]).await.map(drop)
    }

    async fn promises(&self) -> Result<Promises, Error> {
        self.inner.promises().await
    }

    async fn run_of(&self, _: &Key) -> Result<Option<ServerRun>, Error> {
        health::run(&self.inner).await
    }

    async fn keeps_writes(&self) -> Result<bool, Error> {
        health::keeps_writes(&self.inner).await
    }

    async fn health(&self) -> Result<Health, Error> {
        health::examine_all(&self.inner).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        match &self.gate {
            // As many names a script looks at in one step.
            Some(gate) => gate.examine(&names_in_use(self, 1000).await?).await,
            None => Ok(Vec::new()),
        }
    }

    async fn close(&self) {
        self.inner.waiters.claims.close();
        self.inner.transport.close();
    }
}
