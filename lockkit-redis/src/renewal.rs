//! Renewals: many claims in one flight, each with an answer of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use lockkit_core::driver::{ClaimEnd, Evidence, Renewal, Renewed};
use lockkit_core::{Claim, Error};
use redis::Value;

use crate::driver::Shared;
use crate::link::Link;
use crate::peer::Heard;
use crate::replicas::Replicas;
use crate::reply::Told;
use crate::{BACKEND, keys, reply, script};

/// Claims renewed by one call of the script, so that no call holds up the server for long.
const RENEWED_AT_ONCE: usize = 100;
/// What an answer tells of its server.
pub(crate) type Seen = Option<Arc<Evidence>>;

/// What became of one of many, and by which evidence.
pub(crate) type Answered = Result<(Told, Seen), Error>;

/// How long a node of a cluster has for a renewal, however short the leases are.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

impl Shared {
    /// Renews, and says to those that wait when to be asked about next. With replicas, a renewal of a
    /// claim that holds counts when they have it, too; one that waits is confirmed when it is granted.
    pub(crate) async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewed, Error>> {
        let answers = match &self.replicas {
            None => self.renew_all(claims, None).await,
            Some(replicas) => {
                let waits = |claim: &Arc<Claim>| self.wakes.claims.is_waiting(&claim.id);
                let waits: Vec<_> = claims.iter().map(waits).collect();
                let those = |waiting: bool| -> Vec<_> {
                    let all = claims.iter().zip(&waits).filter(|(_, waits)| **waits == waiting);
                    all.map(|(claim, _)| claim.clone()).collect()
                };
                let (waiting, holding) = (those(true), those(false));
                let (waiting, holding) =
                    join(self.renew_all(&waiting, None), self.renew_all(&holding, Some(replicas)))
                        .await;
                let (mut waiting, mut holding) = (waiting.into_iter(), holding.into_iter());
                let next = |waits| if waits { waiting.next() } else { holding.next() };
                waits.into_iter().filter_map(next).collect()
            }
        };
        let answers = claims.iter().zip(answers);
        let renewed = |(claim, answer): (&Arc<Claim>, Answered)| {
            let (told, evidence) = answer?;
            Ok(Renewed { renewal: self.note(claim, told), evidence })
        };
        answers.map(renewed).collect()
    }

    /// Renews in one flight: a call of the script for each hundred claims, in a cluster for each
    /// bucket, all sent before any is answered. A call that fails costs its own claims alone.
    pub(crate) async fn renew_all(
        &self,
        claims: &[Arc<Claim>],
        replicas: Option<&Replicas>,
    ) -> Vec<Answered> {
        let keys: Vec<_> = claims.iter().map(|claim| keys::lock(&claim.key)).collect();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        if let Link::Cluster(_) = self.link {
            let mut buckets: HashMap<usize, Vec<usize>> = HashMap::new();
            for (i, (_, bucket)) in keys.iter().enumerate() {
                buckets.entry(*bucket).or_default().push(i);
            }
            for group in buckets.into_values() {
                groups.extend(group.chunks(RENEWED_AT_ONCE).map(<[usize]>::to_vec));
            }
        } else {
            let all: Vec<_> = (0..claims.len()).collect();
            groups.extend(all.chunks(RENEWED_AT_ONCE).map(<[usize]>::to_vec));
        }
        let limit = self.renewal_limit(claims);
        let calls = groups.iter().map(|group| async {
            let call = async {
                let Some(replicas) = replicas else {
                    return self.renew_group(claims, &keys, group).await;
                };
                let claims: Vec<_> = group.iter().map(|i| &claims[*i]).collect();
                self.renew_at(replicas, &claims).await
            };
            let late = || Error::retryable(BACKEND, "the server did not answer in time");
            tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
        });
        let mut answers: Vec<_> =
            claims.iter().map(|_| Ok(((Renewal::Ended(ClaimEnd::NotFound), None), None))).collect();
        for (group, renewed) in groups.iter().zip(join_all(calls).await) {
            match renewed {
                Ok(renewed) => {
                    group.iter().zip(renewed).for_each(|(i, renewal)| answers[*i] = renewal)
                }
                Err(error) => group.iter().for_each(|i| answers[*i] = Err(error.clone())),
            }
        }
        answers
    }

    /// In a cluster nobody waits so long for a node that the answers of the others come too late:
    /// whoever renews has less patience when leases are short.
    fn renewal_limit(&self, claims: &[Arc<Claim>]) -> Duration {
        let shortest = claims.iter().map(|claim| claim.hold_ttl.min(claim.wait_ttl)).min();
        match (&self.link, shortest) {
            (Link::Cluster(_), Some(ttl)) => (ttl / 4).max(LEAST_PATIENCE),
            _ => Duration::MAX,
        }
    }

    async fn renew_group(
        &self,
        claims: &[Arc<Claim>],
        keys: &[(String, usize)],
        group: &[usize],
    ) -> Result<Vec<Answered>, Error> {
        let locks: Vec<_> = group.iter().map(|i| keys[*i].0.as_str()).collect();
        let args: Vec<_> = group.iter().flat_map(|i| keys::claim_args(&claims[*i])).collect();
        let heard = self.run_heard(&script::RENEW, &locks, &args, None).await?.result;
        let claims: Vec<_> = group.iter().map(|i| &claims[*i]).collect();
        renewals(&claims, heard)
    }

    /// Says to a claim that waits when it is to be asked about next.
    pub(crate) fn note(&self, claim: &Claim, (renewal, lease): Told) -> Renewal {
        if let Renewal::Waits { ahead } = renewal {
            self.wakes.claims.queued(&claim.id, ahead, lease);
        }
        renewal
    }
}

/// What `renew.lua` answers about these claims, and the time of the server behind it.
pub(crate) fn renewals(
    claims: &[&Arc<Claim>],
    heard: Heard<Value>,
) -> Result<Vec<Answered>, Error> {
    let mut answers = reply::array(heard.answer)?;
    if answers.len() != claims.len() + 1 {
        return Err(reply::unexpected(&Value::Array(answers)));
    }
    let time = answers.pop().unwrap_or(Value::Nil);
    let evidence = heard.from.map(|from| from.evidence(&time));
    let each = claims.iter().zip(&answers);
    let each = each.map(|(claim, answer)| Ok((reply::renewal(claim, answer)?, evidence.clone())));
    Ok(each.collect())
}
