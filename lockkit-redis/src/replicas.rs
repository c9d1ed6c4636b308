//! The option that a grant or a renewal counts only when replicas have it: `WAIT`, on a connection of
//! its own, since it holds up everything behind it.
//!
//! Since Redis 7.2, and in every Valkey, `WAIT` covers only what its own connection wrote. So each claim
//! is renewed over that connection, which always writes, with `WAIT` in the same pipeline.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Grant, LeaseStart, Renewal};
use lockkit_core::{Claim, Error};
use redis::{ErrorKind, ServerErrorKind, Value};

use crate::driver::Shared;
use crate::failure::to_error;
use crate::link::Link;
use crate::peer::Heard;
use crate::renewal::{Answered, renewals};
use crate::script::Call;
use crate::{BACKEND, keys, reply, script};

/// Waits for replicas.
pub(crate) struct Replicas {
    least: u32,
    link: Link,
    limit: Duration,
}

impl Replicas {
    /// `link` is for nothing else: what goes over it may be held up.
    pub(crate) fn new(least: u32, link: Link, limit: Duration) -> Self {
        Self { least, link, limit }
    }

    fn is_enough(&self, have: &Value) -> Result<(), Error> {
        let have = match have {
            Value::ServerError(error) => return Err(to_error(error.clone().into())),
            have => reply::number(have).unwrap_or_default(),
        };
        if have >= i64::from(self.least) {
            return Ok(());
        }
        let message = format!(
            "{have} of the {} replicas that min_replicas asks for acknowledged it in time",
            self.least
        );
        Err(Error::retryable(BACKEND, message))
    }
}

fn is_unknown_script(answer: &Value) -> bool {
    let error = answer.clone().extract_error().err();
    error.is_some_and(|it| it.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}

impl Shared {
    /// Renews these claims, and says of each that holds whether enough replicas have that, and so all
    /// that was written before at its server. In a cluster, claims of one slot.
    pub(crate) async fn renew_at(
        &self,
        replicas: &Replicas,
        claims: &[&Arc<Claim>],
    ) -> Result<Vec<Answered>, Error> {
        let Some(first) = claims.first() else { return Ok(Vec::new()) };
        let (key, _) = keys::lock(&first.key);
        let mut locks: Vec<_> = claims.iter().map(|claim| keys::lock(&claim.key).0).collect();
        if let Link::Cluster(_) = self.link {
            locks.extend(keys::never(&key)); // see `run_counting`
        }
        let args: Vec<_> = claims.iter().flat_map(|claim| keys::claim_args(claim)).collect();
        let (call, mute) = (Call { keys: &locks, args: &args }, self.wakes.voice.is_mute());
        let (mut answers, mut from) = (Vec::new(), None);
        for whole in [false, true] {
            let mut pipe = redis::pipe();
            pipe.add_command(script::RENEW.command(&call, mute, whole));
            pipe.cmd("WAIT").arg(replicas.least).arg((replicas.limit / 2).as_millis() as u64);
            Heard { answer: answers, from } = replicas.link.send_all(&pipe, 2, &key).await?;
            if !answers.first().is_some_and(is_unknown_script) {
                break;
            }
        }
        let [renewed, have] = <[Value; 2]>::try_from(answers)
            .map_err(|answers| reply::unexpected(&Value::Array(answers)))?;
        let confirmed = replicas.is_enough(&have);
        let renewed = match renewed {
            Value::ServerError(error) => return Err(to_error(error.into())),
            renewed => renewals(claims, Heard { answer: self.heard(renewed), from })?,
        };
        let each = renewed.into_iter().map(|renewed| {
            let renewed = renewed?;
            if let ((Renewal::Holds(_), _), _) = renewed {
                confirmed.clone()?;
            }
            Ok(renewed)
        });
        Ok(each.collect())
    }

    /// Says of each grant whether enough replicas have it. What they do not have is given back. Says
    /// nothing when nobody asked for replicas.
    pub(crate) async fn confirm(&self, claims: &[&Arc<Claim>]) -> Vec<Result<(), Error>> {
        let Some(replicas) = &self.replicas else { return Vec::new() };
        let renewed = match self.renew_at(replicas, claims).await {
            Ok(renewed) => renewed,
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let taken_over = "another server took over before replicas had the grant";
        let confirmed = renewed.into_iter().map(|told| match told?.0.0 {
            Renewal::Holds(_) => Ok(()),
            _ => Err(Error::retryable(BACKEND, taken_over)),
        });
        let confirmed: Vec<Result<(), Error>> = confirmed.collect();
        let each = claims.iter().zip(&confirmed);
        let failed: Vec<_> = each.filter(|(_, it)| it.is_err()).map(|(claim, _)| *claim).collect();
        if !failed.is_empty() {
            failed.iter().for_each(|claim| self.wakes.claims.strike(&claim.id));
            // Core gives them back as well, should this fail.
            let _ = self.release(&failed).await;
        }
        confirmed
    }

    /// A claim that waits may learn from a renewal that it holds. That counts no more than a message
    /// does until replicas have it, so whoever waits in `granted` sees to it.
    pub(crate) fn not_before_replicas(&self, claim: &Claim, answer: &mut Renewal, sent: Moment) {
        if let Renewal::Holds(grant) = answer
            && self.wakes.claims.holds(&claim.id, Grant { start: LeaseStart::Sent(sent), ..*grant })
        {
            *answer = Renewal::Waits { ahead: 0 };
        }
    }
}
