//! The option that a grant counts only when replicas have it: `WAIT`, on a connection of its own,
//! since it holds up everything behind it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Grant, Renewal};
use lockkit_core::{Claim, Error};
use redis::Value;

use crate::driver::Shared;
use crate::failure::to_error;
use crate::link::Link;
use crate::{BACKEND, keys, reply};

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

    /// Says of each claim whether it is there and enough replicas have everything that was written
    /// until now at its server. In a cluster, of one.
    async fn confirm(&self, claims: &[&Arc<Claim>]) -> Result<Vec<Result<(), Error>>, Error> {
        let Some(first) = claims.first() else { return Ok(Vec::new()) };
        // WAIT waits for what its own connection wrote last; any command takes that up to now. The
        // commands ask for the claims, in either form of their lists: after a failover it may be that
        // only another server had them.
        let mut pipe = redis::pipe();
        for claim in claims {
            let ((key, _), id) = (keys::lock(&claim.key), claim.id.to_hex());
            pipe.cmd("GETRANGE").arg(&key).arg(0).arg(id.len() - 1);
            pipe.cmd("HEXISTS").arg(&key).arg(&id);
        }
        pipe.cmd("WAIT").arg(self.least).arg((self.limit / 2).as_millis() as u64);
        let commands = 2 * claims.len() + 1;
        let mut answers = self.link.send_all(&pipe, commands, &keys::lock(&first.key).0).await?;
        if answers.len() != commands {
            return Err(reply::unexpected(&Value::Array(answers)));
        }
        let have = match answers.pop() {
            Some(Value::ServerError(error)) => return Err(to_error(error.into())),
            have => have.as_ref().and_then(reply::number).unwrap_or_default(),
        };
        if have < i64::from(self.least) {
            let message = format!(
                "{have} of the {} replicas that min_replicas asks for acknowledged the grant in time",
                self.least
            );
            return Err(Error::retryable(BACKEND, message));
        }
        let each = claims.iter().zip(answers.chunks(2)).map(|(claim, found)| {
            if reply::text(&found[0]) == Some(&claim.id.to_hex()) || found[1] == Value::Int(1) {
                return Ok(());
            }
            let message = "another server took over before replicas had the grant";
            Err(Error::retryable(BACKEND, message.to_owned()))
        });
        Ok(each.collect())
    }
}

impl Shared {
    /// Says of each grant whether enough replicas have it. What they do not have is given back. Says
    /// nothing when nobody asked for replicas.
    pub(crate) async fn confirm(&self, claims: &[&Arc<Claim>]) -> Vec<Result<(), Error>> {
        let Some(replicas) = &self.replicas else { return Vec::new() };
        let confirmed = match replicas.confirm(claims).await {
            Ok(confirmed) => confirmed,
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        };
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
            && self.wakes.claims.holds(&claim.id, Grant { since: Some(sent), ..*grant })
        {
            *answer = Renewal::Waits { ahead: 0 };
        }
    }
}
