//! The gate that a claim takes so that it excludes locks of other libraries. The scripts are
//! `scripts/gate*.lua`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Gate, GateAttempt, GateRenewal, answered_once, keep_in_groups};
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Claim, Error, Name};
use redis::Value;

use crate::error::to_error;
use crate::inner::RedisInner;
use crate::neighbours::RedisNeighbours;
use crate::script::{self, Call};
use crate::{BACKEND, decode, keys};

/// Gates that one call of the script renews.
const GATES_PER_CALL: usize = 100;

/// The gate of a driver with neighbours.
pub(crate) struct RedisGate {
    inner: Arc<RedisInner>,
    neighbours: RedisNeighbours,
    /// Whether the server refused a message, which is logged once.
    is_muted: AtomicBool,
}

impl RedisGate {
    pub(crate) fn new(inner: Arc<RedisInner>, neighbours: RedisNeighbours) -> Self {
        Self { inner, neighbours, is_muted: AtomicBool::new(false) }
    }

    async fn keep_group(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<GateRenewal, Error>>, Error> {
        let names: Vec<_> = claims.iter().map(|claim| claim.key.name.as_str()).collect();
        let mut args = vec![self.neighbours.as_str().to_owned()];
        for claim in claims {
            let lease = keys::millis(claim.hold_ttl).to_string();
            args.extend([self.neighbours.owner(claim), lease]);
        }
        let answers = decode::array(self.inner.run(&script::GATE_KEEP, &names, &args).await?)?;
        let kept = |(claim, answer): (&Arc<Claim>, &Value)| match answer {
            Value::ServerError(error) => Err(to_error(error.clone().into())),
            Value::Int(1) => Ok(GateRenewal::Kept { ttl: lease(claim) }),
            Value::Int(0) => Ok(GateRenewal::NotFound),
            other => Err(decode::unexpected(other)),
        };
        Ok(claims.iter().zip(&answers).map(kept).collect())
    }

    /// Locks of neighbours that claims of lockkit meet and that have no end.
    pub(crate) async fn examine(&self, names: &[Name]) -> Result<Vec<Finding>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = names.iter().map(Name::as_str).collect();
        let none: [&str; 0] = [];
        let ends = decode::array(self.inner.run(&script::GATE_EXPIRY, &keys, &none).await?)?;
        let is_endless = |end: &Value| decode::number(end) == Some(-1);
        let endless = keys.iter().zip(&ends).filter(|(_, end)| is_endless(end));
        Ok(endless.map(|(name, _)| endless_lock(name)).collect())
    }
}

fn endless_lock(name: &str) -> Finding {
    Finding::new(
        Severity::Problem,
        format!(
            "the neighbours' lock {name:?} has no expiry: if its holder died, it blocks for ever"
        ),
        "give locks of neighbours a lease (redis-py: timeout=); delete the key once its holder is gone",
    )
}

/// How long the lease lasts that a gate of this claim has.
fn lease(claim: &Claim) -> Duration {
    Duration::from_millis(keys::millis(claim.hold_ttl))
}

impl fmt::Debug for RedisGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisGate").field("neighbours", &self.neighbours).finish_non_exhaustive()
    }
}

#[async_trait]
impl Gate for RedisGate {
    fn check_name(&self, name: &Name) -> Result<(), Error> {
        match name.as_str().starts_with("lockkit:") {
            false => Ok(()),
            true => Err(Error::config(
                "with neighbours, a name is a key of the database, and those that begin with lockkit: are \
                 lockkit's own: use another name",
            )),
        }
    }

    async fn take(&self, claim: &Arc<Claim>) -> Result<GateAttempt, Error> {
        let (kind, owner) = (self.neighbours.as_str(), self.neighbours.owner(claim));
        let lease_ms = keys::millis(claim.hold_ttl).to_string();
        let (keys, args) = ([claim.key.name.as_str()], [kind, &owner, &lease_ms]);
        let response = self.inner.call(&script::GATE_TAKE, &Call::new(&keys, &args)).await;
        let response = response.map_err(|failed| failed.error)?;
        answered_once(BACKEND, response.ambiguous)?;
        let answer = decode::array(response.value)?;
        match answer.as_slice() {
            [word] if decode::text(word) == Some("taken") => {
                Ok(GateAttempt::Taken { ttl: lease(claim) })
            }
            [_, left] => {
                let left = decode::number(left).and_then(|ms| u64::try_from(ms).ok());
                Ok(GateAttempt::Busy { remaining: left.map(Duration::from_millis) })
            }
            _ => Err(decode::unexpected(&Value::Array(answer))),
        }
    }

    async fn keep(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal, Error>>, Error> {
        Ok(keep_in_groups(claims, GATES_PER_CALL, |group| self.keep_group(group)).await)
    }

    async fn give(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        let name = claim.key.name.as_str();
        let (kind, owner) = (self.neighbours.as_str(), self.neighbours.owner(claim));
        let args = [kind, &owner, &*self.neighbours.channel(name)];
        let answer = self.inner.run(&script::GATE_GIVE, &[name], &args).await?;
        match decode::text(&answer) {
            Some(why) if !self.is_muted.swap(true, Ordering::Relaxed) => tracing::warn!(
                "the server refuses to notify neighbours that wait for a lock, so they wait until its \
                 lease would have ended: {why}"
            ),
            _ => {}
        }
        Ok(())
    }
}
