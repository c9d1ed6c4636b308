//! Renewing many claims in one round trip: a keep-alive for each lease among them (one, usually), and
//! beside it the question which keys are on it. A claim that was broken, by whatever means, is
//! not on its lease any more, and is inspected by itself.
//!
//! What concerns one claim costs that claim alone: the renewal is answered for all others, whatever
//! becomes of the few that have to be inspected or moved, and those have their time limit. Claims
//! that are only to leave their lease are answered for the old one, and are moved afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{LeaseTimeToLiveOptions, Txn};
use futures_util::future::{join, join_all};
use futures_util::stream::{self, StreamExt};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{ClaimEnd, Renewal};
use lockkit_core::{Claim, Error, Key, Lifetime, Result};
use tokio::time::{Instant, timeout_at};

use crate::claim_cache::CachedClaim;
use crate::client::{BACKEND, EtcdError, EtcdResult, ranges, revision};
use crate::lease_moves::{LeaseMove, LeaseMoveResult};
use crate::leases::{ATTEMPTS, EtcdLease, KeptAlive, new_leader, patience};
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{QueueSnapshot, StoredClaim};
use crate::requests::{created, delete, get_list};

/// How often a claim is inspected while others write its key.
const MAX_READS: usize = 3;
/// Claims that are inspected by themselves at once.
const AT_ONCE: usize = 32;

/// What the reads of one renewal returned.
struct RenewalReads {
    /// When it left.
    sent: Moment,
    /// The keys on each lease; `None` if it is gone.
    keys: HashMap<i64, EtcdResult<Option<LeaseKeys>>>,
    /// The lists in which any of the claims waits.
    snapshots: HashMap<Key, EtcdResult<QueueSnapshot>>,
}

/// What is to be done about a claim.
enum RenewalAction {
    Answer(Renewal),
    /// It may hold: it gets the lease of a holder.
    Promote(CachedClaim),
    /// The reads say too little of it.
    Inspect,
}

type RenewalResult = EtcdResult<Renewal>;
type LeaseKeys = HashSet<Vec<u8>>;
/// A lease, once for each claim that is to live on it, so that it is full of them; these claims, and what is to
/// be moved.
type Group = (Vec<Arc<EtcdLease>>, Vec<Arc<Claim>>, Vec<LeaseMove>);

impl EtcdLocks {
    pub(crate) async fn renew(
        self: &Arc<Self>,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewal>>> {
        // A claim that is named twice is renewed once, and answered twice.
        let mut named = HashSet::new();
        let once: Vec<_> = claims.iter().filter(|claim| named.insert(claim.id)).cloned().collect();
        let answers = self.renew_once(&once).await;
        let answer = |claim: &Arc<Claim>| match answers.get(&claim.id) {
            Some(Ok(renewal)) => Ok(renewal.clone()),
            Some(Err(failure)) => Err(failure.clone().into()),
            None => Err(Error::retryable(BACKEND, "etcd took its time")),
        };
        Ok(claims.iter().map(answer).collect())
    }

    /// Renews claims of which each is named once. Those without an answer took too long.
    async fn renew_once(
        self: &Arc<Self>,
        claims: &[Arc<Claim>],
    ) -> HashMap<ClaimId, RenewalResult> {
        let sent = SteadyClock.now();
        let cached_claims: Vec<_> = claims.iter().map(|claim| self.touch(claim.id, sent)).collect();
        // So long as each of them can wait for, so that none waits for another.
        let ttls = claims.iter().map(|claim| claim.hold_ttl.min(claim.wait_ttl));
        let patience = patience(ttls.min().unwrap_or_default());
        let seen = self.read_for_renewal(claims, &cached_claims, patience).await;
        self.sweep(&seen, claims, sent);
        let mut answers = HashMap::new();
        let (mut promoted, mut alone, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (claim, cached) in claims.iter().zip(cached_claims) {
            let retired = cached.as_ref().is_some_and(|cached| cached.lease.is_retired());
            match self.judge(claim, cached, &seen) {
                Ok(RenewalAction::Answer(renewal)) => {
                    answers.insert(claim.id, Ok(renewal));
                    if retired && claim.lifetime == Lifetime::Renewed {
                        leaving.push(claim.clone());
                    }
                }
                Ok(RenewalAction::Promote(cached)) => promoted.push((claim.clone(), cached)),
                Ok(RenewalAction::Inspect) => alone.push(claim.clone()),
                Err(failure) => drop(answers.insert(claim.id, Err(failure))),
            }
        }
        self.leave(leaving);
        let few = join(self.promote_all(promoted, patience), self.renew_each(alone, patience));
        let (promoted, alone) = few.await;
        answers.extend(promoted.into_iter().chain(alone));
        answers
    }

    /// The cached state of a claim; notes that core asked about it.
    fn touch(&self, id: ClaimId, now: Moment) -> Option<CachedClaim> {
        let mut cached_claims = self.claims();
        let cached = cached_claims.get_mut(&id)?;
        cached.asked = now;
        Some(cached.clone())
    }

    /// One round trip: all leases, and all lists in which a client waits.
    async fn read_for_renewal(
        &self,
        claims: &[Arc<Claim>],
        cached_claims: &[Option<CachedClaim>],
        patience: Duration,
    ) -> RenewalReads {
        let sent = SteadyClock.now();
        let mut leases = HashMap::new();
        let mut lists = HashSet::new();
        for (claim, cached) in claims.iter().zip(cached_claims) {
            let Some(cached) = cached.as_ref().filter(|cached| !cached.may_promote()) else {
                continue;
            };
            leases.insert(cached.lease.id, cached.lease.clone());
            if !cached.stored.is_holding() {
                lists.insert(claim.key.clone());
            }
        }
        let leases = join_all(leases.into_values().map(|lease| async move {
            let keys = self.keep_and_list(&lease, patience).await;
            (lease.id, keys)
        }));
        let snapshots = join_all(lists.into_iter().map(|key| async move {
            let snapshot = self.snapshot(&key, patience).await;
            (key, snapshot)
        }));
        let (keys, snapshots) = join(leases, snapshots).await;
        RenewalReads {
            sent,
            keys: keys.into_iter().collect(),
            snapshots: snapshots.into_iter().collect(),
        }
    }

    /// Keeps a lease alive, and lists its keys. `None` if it is gone.
    ///
    /// The leader answers the list by itself, so one that lost its majority shows keys that have been
    /// moved or deleted at the new one. The list counts only in the term of a leader with a majority,
    /// and only from a member that was in that term before it was asked: see
    /// [`Terms`](crate::terms::Terms). Otherwise all three questions are asked again.
    async fn keep_and_list(
        &self,
        lease: &EtcdLease,
        patience: Duration,
    ) -> EtcdResult<Option<LeaseKeys>> {
        for _ in 0..ATTEMPTS {
            let kept = self.leases.keep_once(lease, patience);
            let (kept, list) = join(kept, self.list_keys(lease, patience)).await;
            let term = match kept? {
                KeptAlive::Expired => return Ok(None),
                KeptAlive::InTerm(term) => Some(term),
                KeptAlive::Unsure => None,
            };
            let (listed_in, keys) = list?;
            if term.is_some() && term == listed_in {
                return Ok(Some(keys));
            }
        }
        Err(new_leader())
    }

    /// The keys on a lease, and the term of the leader that showed them, if that is known.
    async fn list_keys(
        &self,
        lease: &EtcdLease,
        patience: Duration,
    ) -> EtcdResult<(Option<u64>, LeaseKeys)> {
        let (id, sent) = (lease.id, SteadyClock.now());
        let list = self.client.call_within(patience, |mut client| async move {
            let keys = LeaseTimeToLiveOptions::new().with_keys();
            client.lease_time_to_live(id, Some(keys)).await
        });
        let list = list.await?.answer;
        let terms = &self.client.terms;
        let term = list.header().and_then(|header| {
            let (member, term) = (header.member_id(), header.raft_term());
            terms.known_before(member, term, sent).then_some(term)
        });
        terms.record(list.header());
        Ok((term, list.keys().iter().map(|key| key.to_vec()).collect()))
    }

    pub(crate) async fn snapshot(
        &self,
        key: &Key,
        patience: Duration,
    ) -> EtcdResult<QueueSnapshot> {
        let list = self.root.list(key);
        let txn = || Txn::new().and_then([get_list(&list)]);
        let answer = self.client.txn_within(patience, txn).await?.answer;
        let shown = ranges(&answer).pop().ok_or_else(crate::requests::unexpected_response)?;
        Ok(QueueSnapshot::of(shown.kvs(), shown.count(), revision(&answer)))
    }

    /// What the reads say of a claim.
    fn judge(
        &self,
        claim: &Claim,
        cached: Option<CachedClaim>,
        seen: &RenewalReads,
    ) -> EtcdResult<RenewalAction> {
        let Some(cached) = cached else {
            return Ok(RenewalAction::Inspect);
        };
        let may_share = claim.lifetime == Lifetime::Renewed;
        if cached.may_promote() {
            return Ok(if may_share {
                RenewalAction::Promote(cached)
            } else {
                RenewalAction::Inspect
            });
        }
        let keys = match seen.keys.get(&cached.lease.id) {
            Some(Ok(Some(keys))) => keys,
            Some(Err(failure)) => return Err(failure.clone()),
            _ => return Ok(RenewalAction::Inspect),
        };
        if !keys.contains(&cached.stored.key) {
            return Ok(RenewalAction::Inspect);
        }
        if cached.stored.is_holding() {
            self.is_there(claim.id, &cached, seen.sent);
            return self.holds(claim);
        }
        let snapshot = match seen.snapshots.get(&claim.key) {
            Some(Ok(snapshot)) => snapshot,
            Some(Err(failure)) => return Err(failure.clone()),
            None => return Ok(RenewalAction::Inspect),
        };
        let own = snapshot.own(&cached.stored.key, Some(cached.stored.created));
        let Some(own) = own.filter(|own| own.lease == cached.lease.id) else {
            return Ok(RenewalAction::Inspect);
        };
        self.is_there(claim.id, &cached, seen.sent);
        if !snapshot.holds(own.created) {
            let ahead = snapshot.ahead(own.created);
            // The answer to a release may have said since the read that it holds.
            return match self.holds_by_now(claim) {
                true => self.holds(claim),
                false => Ok(RenewalAction::Answer(Renewal::Waits { ahead })),
            };
        }
        Ok(if may_share { RenewalAction::Promote(cached) } else { RenewalAction::Inspect })
    }

    /// The answer for a claim that is cached as a holder.
    fn holds(&self, claim: &Claim) -> EtcdResult<RenewalAction> {
        match self.grant_of(claim) {
            Ok(grant) => Ok(RenewalAction::Answer(Renewal::Holds(grant))),
            // It was released while the request was under way.
            Err(EtcdError::LeaseGone) => Ok(RenewalAction::Inspect),
            Err(failure) => Err(failure),
        }
    }

    /// Notes that the key of a claim was seen on its lease by what was sent then.
    fn is_there(&self, id: ClaimId, seen: &CachedClaim, sent: Moment) {
        if let Some(cached) = self.claims().get_mut(&id)
            && cached.stored.modified == seen.stored.modified
        {
            cached.confirmed_at = cached.confirmed_at.max(sent);
        }
    }

    /// Gives these claims the lease of a holder; those that cannot be moved are inspected.
    async fn promote_all(
        self: &Arc<Self>,
        claims: Vec<(Arc<Claim>, CachedClaim)>,
        limit: Duration,
    ) -> Vec<(ClaimId, RenewalResult)> {
        let until = Instant::now() + limit;
        let mut answers = Vec::new();
        let mut look = Vec::new();
        let to_hold = |(claim, CachedClaim { stored, .. }): (Arc<Claim>, CachedClaim)| {
            let moving = LeaseMove::to_hold(&claim, stored);
            (claim, moving)
        };
        let claims = claims.into_iter().map(to_hold).collect();
        for (leases, claims, moving) in self.by_target(claims, &mut answers).await {
            let moved = timeout_at(until, self.relocate(&leases[0], moving)).await;
            for (claim, moved) in claims.into_iter().zip(moved.into_iter().flatten()) {
                let granted = match moved {
                    Ok(LeaseMoveResult::Done(_)) => self.grant_of(&claim),
                    Ok(_) => Err(EtcdError::LeaseGone),
                    Err(failure) => Err(failure),
                };
                match granted {
                    // Released meanwhile, or others were at it as well.
                    Err(EtcdError::LeaseGone) => look.push(claim),
                    granted => answers.push((claim.id, granted.map(Renewal::Holds))),
                }
            }
        }
        answers.extend(self.renew_each(look, until - Instant::now()).await);
        answers
    }

    /// The leases to which these claims are to be moved.
    async fn by_target(
        &self,
        claims: Vec<(Arc<Claim>, LeaseMove)>,
        answers: &mut Vec<(ClaimId, RenewalResult)>,
    ) -> Vec<Group> {
        let mut targets: HashMap<i64, Group> = HashMap::new();
        for (claim, moving) in claims {
            let target = match moving.will_hold() {
                true => self.leases.holding(&claim).await,
                false => self.leases.waiting(&claim).await,
            };
            match target {
                Ok(lease) => {
                    let (leases, claims, moved) = targets.entry(lease.id).or_default();
                    leases.push(lease);
                    claims.push(claim);
                    moved.push(moving);
                }
                Err(failure) => answers.push((claim.id, Err(failure))),
            }
        }
        targets.into_values().collect()
    }

    /// Inspects each of these claims by itself; returns what was answered in time.
    async fn renew_each(
        self: &Arc<Self>,
        claims: Vec<Arc<Claim>>,
        limit: Duration,
    ) -> Vec<(ClaimId, RenewalResult)> {
        let each = claims.into_iter().map(|claim| {
            let locks = self.clone();
            async move { (claim.id, locks.renew_one(&claim).await) }
        });
        let over = Box::pin(tokio::time::sleep(limit));
        stream::iter(each).buffer_unordered(AT_ONCE).take_until(over).collect().await
    }

    /// Moves claims from a lease that was retired to another one, in the background: nothing of that
    /// is waited for. What is not moved is seen by the next renewal.
    fn leave(self: &Arc<Self>, claims: Vec<Arc<Claim>>) {
        if claims.is_empty() {
            return;
        }
        let Ok(alone) = self.leaving.clone().try_lock_owned() else {
            return;
        };
        let locks = self.clone();
        self.client.background.spawn(async move {
            let _alone = alone;
            let leaves = |claim: Arc<Claim>| {
                let moving = LeaseMove::as_it_is(&claim, locks.cached(claim.id)?.stored);
                Some((claim, moving))
            };
            let leaving = claims.into_iter().filter_map(leaves).collect();
            for (leases, _, moving) in locks.by_target(leaving, &mut Vec::new()).await {
                locks.relocate(&leases[0], moving).await;
            }
        });
    }

    /// Inspects a claim, and moves it to the lease that it should have.
    pub(crate) async fn renew_one(self: &Arc<Self>, claim: &Arc<Claim>) -> EtcdResult<Renewal> {
        let mut failure = EtcdError::LeaseGone;
        for _ in 0..MAX_READS {
            let seen = self.inspect_claim(claim).await?;
            if let Some(record) = seen.broken {
                self.forget(claim.id);
                return Ok(Renewal::Ended(ClaimEnd::Broken(record)));
            }
            let Some(own) = seen.own else {
                let cached = self.forget(claim.id);
                return Ok(Renewal::Ended(self.why_gone(cached.as_ref()).await));
            };
            match self.restore(claim, &own, seen.snapshot, seen.sent).await {
                Ok(renewal) => return Ok(renewal),
                Err(EtcdError::LeaseGone) => failure = EtcdError::LeaseGone,
                Err(other) => return Err(other),
            }
        }
        Err(failure)
    }

    /// Renews a claim that was found in its queue.
    async fn restore(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        own: &StoredClaim,
        snapshot: QueueSnapshot,
        sent: Moment,
    ) -> EtcdResult<Renewal> {
        let (holds, ahead) = (snapshot.holds(own.created), snapshot.ahead(own.created));
        let cached = self.adopt(claim, own, snapshot, sent).await?;
        if !self.leases.keep(&cached.lease).await? {
            return Err(EtcdError::LeaseGone);
        }
        if !holds && !self.holds_by_now(claim) {
            return Ok(Renewal::Waits { ahead });
        }
        self.promote(claim).await?;
        Ok(Renewal::Holds(self.grant_of(claim)?))
    }

    /// Takes out the claims that core has forgotten, and that live on only because they share a
    /// lease with those that it renews.
    fn sweep(self: &Arc<Self>, seen: &RenewalReads, renewed: &[Arc<Claim>], now: Moment) {
        let renewed: HashSet<_> = renewed.iter().map(|claim| claim.id).collect();
        let mut over = Vec::new();
        self.claims().retain(|id, cached| {
            let listed = matches!(seen.keys.get(&cached.lease.id), Some(Ok(Some(_))));
            let shared = listed && !renewed.contains(id);
            let forgotten = shared && cached.asked.after(cached.lease.ttl) < now;
            if forgotten {
                let StoredClaim { key, created, .. } = &cached.stored;
                self.suffixes.remember(*id, key, *created, cached.lease.ttl);
                self.successors.leave(&cached.stored.position());
                over.push(cached.stored.clone());
            }
            !forgotten
        });
        if over.is_empty() {
            return;
        }
        let locks = self.clone();
        self.client.background.spawn(async move {
            join_all(over.iter().map(|stored| {
                let gone = Txn::new().when([created(&stored.key, stored.created)]);
                locks.client.txn(gone.and_then([delete(&stored.key)]))
            }))
            .await;
        });
    }
}

#[cfg(test)]
mod tests;
