//! Renewals: many claims at once, each with an answer of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use lockkit_core::clock::Moment;
use lockkit_core::driver::{Grant, LeaseStart, Renewal, Renewed, no_answer};
use lockkit_core::{Claim, Error};

use crate::decode::{self, ClaimRenewal};
use crate::inner::RedisInner;
use crate::replicas::Replicas;
use crate::script::{self, Call};
use crate::transport::Transport;
use crate::{BACKEND, keys};

/// Claims renewed by one call of the script, so that no call holds up the server for long.
const CLAIMS_PER_CALL: usize = 100;

/// How long a node of a cluster has for a renewal, however short the leases are.
const MIN_LIMIT: Duration = Duration::from_millis(100);

impl RedisInner {
    /// Renews, and notes of those that wait when to be polled next. With replicas, a renewal of a claim
    /// that holds counts when they have it, too; one that waits is confirmed when it is granted.
    pub(crate) async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewed, Error>> {
        let answers = match &self.replicas {
            None => self.renew_all(claims, None).await,
            Some(replicas) => {
                let waits = |claim: &Arc<Claim>| self.waiters.claims.is_waiting(&claim.id);
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
        let renewed = |(claim, answer): (&Arc<Claim>, Result<ClaimRenewal, Error>)| {
            let ClaimRenewal { renewal, lease, evidence } = answer?;
            self.waiters.claims.renewed(&claim.id, &renewal, lease);
            Ok(Renewed { renewal, evidence })
        };
        claims.iter().zip(answers).map(renewed).collect()
    }

    /// A call of the script for each hundred claims, in a cluster for each bucket, all sent before any is
    /// answered. A call that fails costs its own claims alone.
    pub(crate) async fn renew_all(
        &self,
        claims: &[Arc<Claim>],
        replicas: Option<&Replicas>,
    ) -> Vec<Result<ClaimRenewal, Error>> {
        let is_cluster = matches!(self.transport, Transport::Cluster(_));
        let mut buckets: HashMap<usize, Vec<usize>> = HashMap::new();
        for (i, claim) in claims.iter().enumerate() {
            let bucket = if is_cluster { keys::lock(&claim.key).1 } else { 0 };
            buckets.entry(bucket).or_default().push(i);
        }
        let groups: Vec<_> = buckets.values().flat_map(|all| all.chunks(CLAIMS_PER_CALL)).collect();
        let limit = self.renewal_limit(claims);
        let calls = groups.iter().map(|group| async {
            let claims: Vec<_> = group.iter().map(|i| claims[*i].clone()).collect();
            let call = async {
                match replicas {
                    Some(replicas) => replicas.renew(&self.publisher, &claims).await,
                    None => self.renew_group(&claims).await,
                }
            };
            tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(no_answer(BACKEND)))
        });
        let mut answers: Vec<_> = claims.iter().map(|_| Err(no_answer(BACKEND))).collect();
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

    /// In a cluster a silent node must not delay the answers of the others until they come too late: its
    /// limit is shorter when leases are short.
    fn renewal_limit(&self, claims: &[Arc<Claim>]) -> Duration {
        let shortest = claims.iter().map(|claim| claim.hold_ttl.min(claim.wait_ttl)).min();
        match (&self.transport, shortest) {
            (Transport::Cluster(_), Some(ttl)) => (ttl / 4).max(MIN_LIMIT),
            _ => Duration::MAX,
        }
    }

    async fn renew_group(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<ClaimRenewal, Error>>, Error> {
        let (locks, mut args) = keys::renewal_args(claims);
        args.push(self.publisher.client.clone());
        let response = self
            .call(&script::RENEW, &Call::new(&locks, &args))
            .await
            .map_err(|failed| failed.error)?;
        decode::renewals(claims, response)
    }

    /// A claim that waits may learn from a renewal that it holds. That counts no more than a message
    /// does until replicas have it, so the task that waits in `granted` sees to it.
    pub(crate) fn not_before_replicas(&self, claim: &Claim, answer: &mut Renewal, sent: Moment) {
        let Renewal::Holds(grant) = answer else { return };
        let grant = Grant { start: LeaseStart::Sent(sent), ..*grant };
        if self.waiters.claims.holds(&claim.id, grant) {
            *answer = Renewal::Waits { ahead: 0 };
        }
    }
}
