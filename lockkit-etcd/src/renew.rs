//! Renewing many claims in one flight: a keep-alive for each lease among them (one, usually), and
//! beside it the question which keys stand on it. A claim that was broken, by whatever means, is
//! not on its lease any more, and is looked at by itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use etcd_client::{LeaseTimeToLiveOptions, Txn};
use futures_util::future::{join, join_all, try_join_all};
use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::driver::{Ended, Renewal};
use lockkit_core::{Claim, ClaimId, Error, Key, Lifetime};

use crate::calls::{Failure, ranges, revision};
use crate::inner::{Inner, Place, created, delete, get_list};
use crate::leases::Lease;
use crate::line::{Entry, Line};

/// How often a claim is looked at while others write its key.
const LOOKS: usize = 3;

/// What one flight of questions brought in.
struct Seen {
    /// The keys on each lease that is alive.
    keys: HashMap<i64, HashSet<Vec<u8>>>,
    /// The lists in which any of the claims waits.
    lines: HashMap<Key, Line>,
}

impl Inner {
    pub(crate) async fn renew(
        self: &Arc<Self>,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Renewal>, Error> {
        let sent = BootClock.now();
        let places: Vec<_> = claims.iter().map(|claim| self.touch(claim.id, sent)).collect();
        let seen = self.see(claims, &places).await?;
        self.sweep(&seen, claims, sent);
        let renewals = claims.iter().zip(&places).map(|(claim, place)| async {
            match self.known(claim, place.as_ref(), &seen).await? {
                Some(renewal) => Ok(renewal),
                None => self.renew_alone(claim).await,
            }
        });
        Ok(try_join_all(renewals).await?)
    }

    /// Where the claim stands, as far as is known; notes that it was asked about.
    fn touch(&self, id: ClaimId, now: Moment) -> Option<Place> {
        let mut places = self.places();
        let place = places.get_mut(&id)?;
        place.asked = now;
        Some(place.clone())
    }

    /// One flight: all leases, and all lists in which somebody waits.
    async fn see(&self, claims: &[Arc<Claim>], places: &[Option<Place>]) -> Result<Seen, Error> {
        let mut leases = HashMap::new();
        let mut lists = HashSet::new();
        for (claim, place) in claims.iter().zip(places) {
            let Some(place) = place else {
                continue;
            };
            leases.insert(place.lease.id, place.lease.clone());
            if !place.entry.is_holding() {
                lists.insert(claim.key.clone());
            }
        }
        let leases = try_join_all(leases.values().map(|lease| self.keep_and_list(lease)));
        let lines = try_join_all(lists.into_iter().map(|key| async move {
            let line = self.line(&key).await?;
            Ok::<_, Failure>((key, line))
        }));
        let (leases, lines) = join(leases, lines).await;
        Ok(Seen {
            keys: leases?.into_iter().flatten().collect(),
            lines: lines?.into_iter().collect(),
        })
    }

    /// Keeps a lease alive, and lists its keys. `None` if it is gone.
    async fn keep_and_list(
        &self,
        lease: &Arc<Lease>,
    ) -> Result<Option<(i64, HashSet<Vec<u8>>)>, Failure> {
        let id = lease.id;
        let list = self.calls.call(|mut client| async move {
            let keys = LeaseTimeToLiveOptions::new().with_keys();
            client.lease_time_to_live(id, Some(keys)).await
        });
        let (alive, keys) = join(self.leases.keep(lease), list).await;
        let keys = keys?.answer;
        let keys = keys.keys().iter().map(|key| key.to_vec()).collect();
        Ok(alive?.then_some((id, keys)))
    }

    pub(crate) async fn line(&self, key: &Key) -> Result<Line, Failure> {
        let txn = Txn::new().and_then([get_list(&self.root.list(key))]);
        let answer = self.calls.txn(txn).await?.answer;
        let shown = ranges(&answer).pop().ok_or_else(crate::inner::odd)?;
        Ok(Line::of(shown.kvs(), shown.count(), revision(&answer)))
    }

    /// What the flight says of a claim. `None`: it has to be looked at.
    async fn known(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        place: Option<&Place>,
        seen: &Seen,
    ) -> Result<Option<Renewal>, Failure> {
        let Some(place) = place else {
            return Ok(None);
        };
        let leaves = place.lease.is_retired() && claim.lifetime == Lifetime::Renewed;
        let Some(keys) = seen.keys.get(&place.lease.id).filter(|_| !leaves) else {
            return Ok(None);
        };
        if !keys.contains(&place.entry.key) {
            return Ok(None);
        }
        if place.entry.is_holding() {
            return Ok(Some(Renewal::Holds(self.grant_of(claim, place)?)));
        }
        let Some(line) = seen.lines.get(&claim.key) else {
            return Ok(None);
        };
        match line.own(&place.entry.key, Some(place.entry.created)) {
            Some(own) if own.lease != place.lease.id => Ok(None),
            Some(own) if line.holds(own.created) => Ok(None),
            Some(own) => Ok(Some(Renewal::Waits { ahead: line.ahead(own.created) })),
            None => Ok(None),
        }
    }

    /// Looks at a claim, and sees to it that it stands where it should.
    pub(crate) async fn renew_alone(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
    ) -> Result<Renewal, Failure> {
        let mut failure = Failure::LeaseGone;
        for _ in 0..LOOKS {
            let look = self.look(claim).await?;
            if let Some(record) = look.broken {
                self.forget(claim.id);
                return Ok(Renewal::Ended(Ended::Broken(record)));
            }
            let Some(own) = look.own else {
                let place = self.forget(claim.id);
                return Ok(Renewal::Ended(self.why_gone(place.as_ref()).await));
            };
            match self.restore(claim, &own, look.line).await {
                Ok(renewal) => return Ok(renewal),
                Err(Failure::LeaseGone) => failure = Failure::LeaseGone,
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
    ) -> Result<Renewal, Failure> {
        let (holds, ahead) = (line.holds(own.created), line.ahead(own.created));
        let place = self.adopt(claim, own, line).await?;
        if !self.leases.keep(&place.lease).await? {
            return Err(Failure::LeaseGone);
        }
        if !holds {
            return Ok(Renewal::Waits { ahead });
        }
        self.promote(claim).await?;
        let place = self.place(claim.id).ok_or(Failure::LeaseGone)?;
        Ok(Renewal::Holds(self.grant_of(claim, &place)?))
    }

    /// Takes out the claims that core has forgotten, and that live on only because they share a
    /// lease with those that it renews.
    fn sweep(self: &Arc<Self>, seen: &Seen, renewed: &[Arc<Claim>], now: Moment) {
        let renewed: HashSet<_> = renewed.iter().map(|claim| claim.id).collect();
        let mut over = Vec::new();
        self.places().retain(|id, place| {
            let shared = seen.keys.contains_key(&place.lease.id) && !renewed.contains(id);
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
        let inner = self.clone();
        tokio::spawn(async move {
            join_all(over.iter().map(|entry| {
                let gone = Txn::new().when([created(&entry.key, entry.created)]);
                inner.calls.txn(gone.and_then([delete(&entry.key)]))
            }))
            .await;
        });
    }
}
