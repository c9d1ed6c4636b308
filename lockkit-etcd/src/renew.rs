//! Renewing many claims in one flight: a keep-alive for each lease among them (one, usually), and
//! beside it the question which keys stand on it. A claim that was broken, by whatever means, is
//! not on its lease any more, and is looked at by itself.
//!
//! What concerns one claim costs that claim alone: the flight is answered for all others, whatever
//! becomes of the few that have to be looked at or moved, and those have their time limit. Claims
//! that are only to leave their lease are told of the old one, and are moved afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{LeaseTimeToLiveOptions, Txn};
use futures_util::future::{join, join_all};
use futures_util::stream::{self, StreamExt};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{ClaimEnd, Renewal};
use lockkit_core::{Claim, Error, Key, Lifetime};
use tokio::time::{Instant, timeout_at};

use crate::calls::{BACKEND, EtcdError, ranges, revision};
use crate::claim_cache::Place;
use crate::leases::{ATTEMPTS, KeptAlive, Lease, new_leader, patience};
use crate::line::{Entry, Line};
use crate::locks::Locks;
use crate::moves::{Moved, Moving};
use crate::requests::{created, delete, get_list};

/// How often a claim is looked at while others write its key.
const LOOKS: usize = 3;
/// Claims that are looked at by themselves at once.
const AT_ONCE: usize = 32;

/// What one flight of questions brought in.
struct Findings {
    /// When it left.
    sent: Moment,
    /// The keys on each lease; `None` if it is gone.
    keys: HashMap<i64, Result<Option<Keys>, EtcdError>>,
    /// The lists in which any of the claims waits.
    lines: HashMap<Key, Result<Line, EtcdError>>,
}

/// What is to be done about a claim.
enum Due {
    Tell(Renewal),
    /// Its turn has come: it gets the lease of a holder.
    Promote(Place),
    /// The flight says too little of it.
    Look,
}

type Answer = Result<Renewal, EtcdError>;
type Keys = HashSet<Vec<u8>>;
/// A lease, and the claims that are to live on it, with what is to be moved.
type Group = (Arc<Lease>, Vec<Arc<Claim>>, Vec<Moving>);

impl Locks {
    pub(crate) async fn renew(
        self: &Arc<Self>,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewal, Error>>, Error> {
        // Who is named twice is renewed once, and answered twice.
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

    /// Renews claims of which each is named once. Those of which nothing is told took too long.
    async fn renew_once(self: &Arc<Self>, claims: &[Arc<Claim>]) -> HashMap<ClaimId, Answer> {
        let sent = SteadyClock.now();
        let places: Vec<_> = claims.iter().map(|claim| self.touch(claim.id, sent)).collect();
        // So long as each of them can wait for, so that none waits for another.
        let ttls = claims.iter().map(|claim| claim.hold_ttl.min(claim.wait_ttl));
        let patience = patience(ttls.min().unwrap_or_default());
        let seen = self.see(claims, &places, patience).await;
        self.sweep(&seen, claims, sent);
        let mut answers = HashMap::new();
        let (mut promoted, mut alone, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (claim, place) in claims.iter().zip(places) {
            let retired = place.as_ref().is_some_and(|place| place.lease.is_retired());
            match self.judge(claim, place, &seen) {
                Ok(Due::Tell(renewal)) => {
                    answers.insert(claim.id, Ok(renewal));
                    if retired && claim.lifetime == Lifetime::Renewed {
                        leaving.push(claim.clone());
                    }
                }
                Ok(Due::Promote(place)) => promoted.push((claim.clone(), place)),
                Ok(Due::Look) => alone.push(claim.clone()),
                Err(failure) => drop(answers.insert(claim.id, Err(failure))),
            }
        }
        self.leave(leaving);
        let few = join(self.promote_all(promoted, patience), self.renew_each(alone, patience));
        let (promoted, alone) = few.await;
        answers.extend(promoted.into_iter().chain(alone));
        answers
    }

    /// Where the claim stands, as far as is known; notes that it was asked about.
    fn touch(&self, id: ClaimId, now: Moment) -> Option<Place> {
        let mut places = self.places();
        let place = places.get_mut(&id)?;
        place.asked = now;
        Some(place.clone())
    }

    /// One flight: all leases, and all lists in which somebody waits.
    async fn see(
        &self,
        claims: &[Arc<Claim>],
        places: &[Option<Place>],
        patience: Duration,
    ) -> Findings {
        let sent = SteadyClock.now();
        let mut leases = HashMap::new();
        let mut lists = HashSet::new();
        for (claim, place) in claims.iter().zip(places) {
            let Some(place) = place.as_ref().filter(|place| !place.has_turn()) else {
                continue;
            };
            leases.insert(place.lease.id, place.lease.clone());
            if !place.entry.is_holding() {
                lists.insert(claim.key.clone());
            }
        }
        let leases = join_all(leases.into_values().map(|lease| async move {
            let keys = self.keep_and_list(&lease, patience).await;
            (lease.id, keys)
        }));
        let lines = join_all(lists.into_iter().map(|key| async move {
            let line = self.line_within(&key, patience).await;
            (key, line)
        }));
        let (keys, lines) = join(leases, lines).await;
        Findings { sent, keys: keys.into_iter().collect(), lines: lines.into_iter().collect() }
    }

    /// Guarantee a lease alive, and lists its keys. `None` if it is gone.
    ///
    /// The leader answers the list by itself, so one that lost its majority shows keys that have been
    /// moved or deleted at the new one. The list counts only in the term of a leader with a majority,
    /// and only from a member that was in that term before it was asked: see
    /// [`Terms`](crate::terms::Terms). Otherwise all three questions are asked again.
    async fn keep_and_list(
        &self,
        lease: &Lease,
        patience: Duration,
    ) -> Result<Option<Keys>, EtcdError> {
        for _ in 0..ATTEMPTS {
            let kept = self.leases.keep_once(lease, patience);
            let (kept, list) = join(kept, self.list_keys(lease, patience)).await;
            let term = match kept? {
                KeptAlive::Gone => return Ok(None),
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
        lease: &Lease,
        patience: Duration,
    ) -> Result<(Option<u64>, Keys), EtcdError> {
        let (id, sent) = (lease.id, SteadyClock.now());
        let list = self.calls.call_within(patience, |mut client| async move {
            let keys = LeaseTimeToLiveOptions::new().with_keys();
            client.lease_time_to_live(id, Some(keys)).await
        });
        let list = list.await?.answer;
        let terms = &self.calls.terms;
        let term = list.header().and_then(|header| {
            let (member, term) = (header.member_id(), header.raft_term());
            terms.known_before(member, term, sent).then_some(term)
        });
        terms.heard(list.header());
        Ok((term, list.keys().iter().map(|key| key.to_vec()).collect()))
    }

    pub(crate) async fn line(&self, key: &Key) -> Result<Line, EtcdError> {
        self.line_within(key, crate::calls::ATTEMPT).await
    }

    async fn line_within(&self, key: &Key, patience: Duration) -> Result<Line, EtcdError> {
        let list = self.root.list(key);
        let txn = || Txn::new().and_then([get_list(&list)]);
        let answer = self.calls.txn_within(patience, txn).await?.answer;
        let shown = ranges(&answer).pop().ok_or_else(crate::requests::unexpected_response)?;
        Ok(Line::of(shown.kvs(), shown.count(), revision(&answer)))
    }

    /// What the flight says of a claim.
    fn judge(
        &self,
        claim: &Claim,
        place: Option<Place>,
        seen: &Findings,
    ) -> Result<Due, EtcdError> {
        let Some(place) = place else {
            return Ok(Due::Look);
        };
        let may_share = claim.lifetime == Lifetime::Renewed;
        if place.has_turn() {
            return Ok(if may_share { Due::Promote(place) } else { Due::Look });
        }
        let keys = match seen.keys.get(&place.lease.id) {
            Some(Ok(Some(keys))) => keys,
            Some(Err(failure)) => return Err(failure.clone()),
            _ => return Ok(Due::Look),
        };
        if !keys.contains(&place.entry.key) {
            return Ok(Due::Look);
        }
        if place.entry.is_holding() {
            self.is_there(claim.id, &place, seen.sent);
            return match self.grant_of(claim) {
                Ok(grant) => Ok(Due::Tell(Renewal::Holds(grant))),
                // It was released while the flight was under way.
                Err(EtcdError::LeaseGone) => Ok(Due::Look),
                Err(failure) => Err(failure),
            };
        }
        let line = match seen.lines.get(&claim.key) {
            Some(Ok(line)) => line,
            Some(Err(failure)) => return Err(failure.clone()),
            None => return Ok(Due::Look),
        };
        let own = line.own(&place.entry.key, Some(place.entry.created));
        let Some(own) = own.filter(|own| own.lease == place.lease.id) else {
            return Ok(Due::Look);
        };
        self.is_there(claim.id, &place, seen.sent);
        if !line.holds(own.created) {
            return Ok(Due::Tell(Renewal::Waits { ahead: line.ahead(own.created) }));
        }
        Ok(if may_share { Due::Promote(place) } else { Due::Look })
    }

    /// Notes that the key of a claim was seen on its lease by what was sent then.
    fn is_there(&self, id: ClaimId, seen: &Place, sent: Moment) {
        if let Some(place) = self.places().get_mut(&id)
            && place.entry.modified == seen.entry.modified
        {
            place.seen = place.seen.max(sent);
        }
    }

    /// Gives these claims the lease of a holder; those that cannot be moved are looked at.
    async fn promote_all(
        self: &Arc<Self>,
        claims: Vec<(Arc<Claim>, Place)>,
        limit: Duration,
    ) -> Vec<(ClaimId, Answer)> {
        let until = Instant::now() + limit;
        let mut answers = Vec::new();
        let mut look = Vec::new();
        let to_hold = |(claim, Place { entry, .. }): (Arc<Claim>, Place)| {
            let moving = Moving::to_hold(&claim, entry);
            (claim, moving)
        };
        let claims = claims.into_iter().map(to_hold).collect();
        for (lease, claims, moving) in self.by_target(claims, &mut answers).await {
            let moved = timeout_at(until, self.relocate(&lease, moving)).await;
            for (claim, moved) in claims.into_iter().zip(moved.into_iter().flatten()) {
                let granted = match moved {
                    Ok(Moved::Done(_)) => self.grant_of(&claim),
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
        claims: Vec<(Arc<Claim>, Moving)>,
        answers: &mut Vec<(ClaimId, Answer)>,
    ) -> Vec<Group> {
        let mut targets: HashMap<i64, Group> = HashMap::new();
        for (claim, moving) in claims {
            let target = match moving.will_hold() {
                true => self.leases.holding(&claim).await,
                false => self.leases.waiting(&claim).await,
            };
            match target {
                Ok(lease) => {
                    let new = || (lease.clone(), Vec::new(), Vec::new());
                    let (_, claims, moved) = targets.entry(lease.id).or_insert_with(new);
                    claims.push(claim);
                    moved.push(moving);
                }
                Err(failure) => answers.push((claim.id, Err(failure))),
            }
        }
        targets.into_values().collect()
    }

    /// Looks at each of these claims by itself; tells what came in time.
    async fn renew_each(
        self: &Arc<Self>,
        claims: Vec<Arc<Claim>>,
        limit: Duration,
    ) -> Vec<(ClaimId, Answer)> {
        let each = claims.into_iter().map(|claim| {
            let locks = self.clone();
            async move { (claim.id, locks.renew_alone(&claim).await) }
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
        self.calls.background.spawn(async move {
            let _alone = alone;
            let leaves = |claim: Arc<Claim>| {
                let moving = Moving::as_it_is(&claim, locks.place(claim.id)?.entry);
                Some((claim, moving))
            };
            let leaving = claims.into_iter().filter_map(leaves).collect();
            for (lease, _, moving) in locks.by_target(leaving, &mut Vec::new()).await {
                locks.relocate(&lease, moving).await;
            }
        });
    }

    /// Looks at a claim, and sees to it that it stands where it should.
    pub(crate) async fn renew_alone(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
    ) -> Result<Renewal, EtcdError> {
        let mut failure = EtcdError::LeaseGone;
        for _ in 0..LOOKS {
            let look = self.look(claim).await?;
            if let Some(record) = look.broken {
                self.forget(claim.id);
                return Ok(Renewal::Ended(ClaimEnd::Broken(record)));
            }
            let Some(own) = look.own else {
                let place = self.forget(claim.id);
                return Ok(Renewal::Ended(self.why_gone(place.as_ref()).await));
            };
            match self.restore(claim, &own, look.line, look.sent).await {
                Ok(renewal) => return Ok(renewal),
                Err(EtcdError::LeaseGone) => failure = EtcdError::LeaseGone,
                Err(other) => return Err(other),
            }
        }
        Err(failure)
    }

    /// Renews a claim that was found in line.
    async fn restore(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        own: &Entry,
        line: Line,
        sent: Moment,
    ) -> Result<Renewal, EtcdError> {
        let (holds, ahead) = (line.holds(own.created), line.ahead(own.created));
        let place = self.adopt(claim, own, line, sent).await?;
        if !self.leases.keep(&place.lease).await? {
            return Err(EtcdError::LeaseGone);
        }
        if !holds {
            return Ok(Renewal::Waits { ahead });
        }
        self.promote(claim).await?;
        Ok(Renewal::Holds(self.grant_of(claim)?))
    }

    /// Takes out the claims that core has forgotten, and that live on only because they share a
    /// lease with those that it renews.
    fn sweep(self: &Arc<Self>, seen: &Findings, renewed: &[Arc<Claim>], now: Moment) {
        let renewed: HashSet<_> = renewed.iter().map(|claim| claim.id).collect();
        let mut over = Vec::new();
        self.places().retain(|id, place| {
            let listed = matches!(seen.keys.get(&place.lease.id), Some(Ok(Some(_))));
            let shared = listed && !renewed.contains(id);
            let forgotten = shared && place.asked.after(place.lease.ttl) < now;
            if forgotten {
                let Entry { key, created, .. } = &place.entry;
                self.tails.keep(*id, key, *created, place.lease.ttl);
                over.push(place.entry.clone());
            }
            !forgotten
        });
        if over.is_empty() {
            return;
        }
        let locks = self.clone();
        self.calls.background.spawn(async move {
            join_all(over.iter().map(|entry| {
                let gone = Txn::new().when([created(&entry.key, entry.created)]);
                locks.calls.txn(gone.and_then([delete(&entry.key)]))
            }))
            .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::driver::ClaimData;

    use super::*;
    use crate::locks::tests::{at, nobody, waiter};

    #[tokio::test]
    async fn a_claim_that_is_released_while_it_is_asked_about_is_looked_at() {
        let locks = nobody();
        let (claim, mut place) = waiter(&locks, 100);
        place.entry.value = place.entry.value.map(ClaimData::holding);
        let keys = HashSet::from([place.entry.key.clone()]);
        let keys = HashMap::from([(place.lease.id, Ok(Some(keys)))]);
        let seen = Findings { sent: at(101), keys, lines: HashMap::new() };
        locks.note(claim.id, place.clone());
        let next = locks.judge(&claim, Some(place.clone()), &seen).unwrap();
        assert!(matches!(next, Due::Tell(Renewal::Holds(_))));
        locks.forget(claim.id);
        let next = locks.judge(&claim, Some(place), &seen).unwrap();
        assert!(matches!(next, Due::Look));
    }
}
