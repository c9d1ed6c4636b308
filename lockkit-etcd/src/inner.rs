//! What the verbs of the driver share: the requests, the leases, the watches, and what this driver
//! knows of the claims that it put in line. The verbs are in files of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp,
};
use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::driver::Grant;
use lockkit_core::{BreakRecord, Claim, ClaimId, Error, Token};

use crate::calls::{BACKEND, Calls, Failure, ranges, revision};
use crate::keys::{Root, end_of_claims, in_list};
use crate::leases::{Lease, Leases, seconds};
use crate::line::{Entry, Line};
use crate::tails::Tails;
use crate::watches::Watches;

/// A driver without its outside.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) calls: Arc<Calls>,
    pub(crate) root: Root,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    pub(crate) tails: Tails,
    places: Mutex<HashMap<ClaimId, Place>>,
    /// The token bases that were read, for fences.
    pub(crate) bases: Mutex<HashMap<String, Vec<u64>>>,
}

/// What this driver knows of a claim that it put in line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) entry: Entry,
    /// The lease of a holder, or of one that waits.
    pub(crate) lease: Arc<Lease>,
    /// When core asked about it last: a claim that core forgets about must not live on because it
    /// shares its lease with others.
    pub(crate) asked: Moment,
    /// For whom it waits, as far as is known.
    pub(crate) line: Option<Line>,
}

impl Place {
    /// As it is now.
    pub(crate) fn now(entry: Entry, lease: Arc<Lease>, line: Option<Line>) -> Self {
        Self { entry, lease, asked: BootClock.now(), line }
    }
}

impl Inner {
    pub(crate) fn new(calls: Calls, root: Root) -> Self {
        let calls = Arc::new(calls);
        Self {
            leases: Leases::new(calls.clone(), root.bytes()),
            root,
            watches: Watches::new(calls.clone()),
            tails: Tails::default(),
            calls,
            places: Mutex::default(),
            bases: Mutex::default(),
        }
    }

    pub(crate) fn places(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self, id: ClaimId) -> Option<Place> {
        self.places().get(&id).cloned()
    }

    /// Notes where a claim stands. (It may have been released meanwhile: see [`Tails`].)
    pub(crate) fn settle(
        &self,
        claim: &Claim,
        entry: &Entry,
        lease: Arc<Lease>,
        line: Option<Line>,
    ) -> Place {
        let place = Place::now(entry.clone(), lease, line);
        self.note(claim.id, place.clone());
        place
    }

    /// The same, where nothing more is to be done with the place.
    pub(crate) fn note(&self, id: ClaimId, place: Place) {
        let mut places = self.places();
        if places.len() == places.capacity() {
            make_room(&mut places);
        }
        places.insert(id, place);
    }

    pub(crate) fn forget(&self, id: ClaimId) -> Option<Place> {
        let place = self.places().remove(&id);
        if let Some(place) = &place {
            let Entry { key, created, .. } = &place.entry;
            self.tails.keep(id, key, *created, place.lease.ttl);
        }
        place
    }

    /// The key of a claim, and its create revision if it was seen.
    pub(crate) fn key_of(&self, claim: &Claim) -> (Vec<u8>, Option<i64>) {
        if let Some(place) = self.places().get(&claim.id) {
            return (place.entry.key.clone(), Some(place.entry.created));
        }
        let (tail, created) = self.tails.of(claim);
        (in_list(&self.root.list(&claim.key), claim, &tail), created)
    }

    /// The grant of a claim that holds.
    ///
    /// A claim that has just begun to hold still has the lease of one that waits; it is moved
    /// to that of a holder in the background, so that the hand-over costs no round trip. Until
    /// then it may be trusted for as long as the old lease lasts, and no longer than the new one
    /// will, which is kept alive after this moment and before the move. Both in terms of the ttl of
    /// a holder, which is what was asked for.
    pub(crate) fn grant_of(&self, claim: &Claim, place: &Place) -> Result<Grant, Error> {
        let token = token_of(place.entry.created)?;
        if place.entry.is_holding() {
            return Ok(Grant { token, ttl: place.lease.ttl, since: Some(place.lease.since()) });
        }
        let ttl = std::time::Duration::from_secs(seconds(claim.hold_ttl));
        let (since, waiting) = (place.lease.since(), place.lease.ttl);
        let since = match waiting.checked_sub(ttl) {
            Some(more) => since.after(more),
            None => since.before(ttl - waiting),
        };
        Ok(Grant { token, ttl, since: Some(since.min(BootClock.now())) })
    }

    /// One look at the list of a claim, the claim's own key among them, and at its break.
    pub(crate) async fn look(&self, claim: &Claim) -> Result<Look, Failure> {
        // What was known when it was asked: the key may be another claim's when the answer comes.
        let (key, created) = self.key_of(claim);
        let broken = self.root.broken(&claim.key, &key);
        let txn =
            Txn::new().and_then([TxnOp::get(broken, None), get_list(&self.root.list(&claim.key))]);
        let answer = self.calls.txn(txn).await?.answer;
        let [broken, list] = pair(ranges(&answer))?;
        let line = Line::of(list.kvs(), list.count(), revision(&answer));
        Ok(Look {
            own: line.own(&key, created).cloned(),
            line,
            broken: broken.kvs().first().and_then(record),
        })
    }
}

/// Forgets claims that are over and were never released: nobody asked about them for their ttl, nor
/// kept their lease alive.
fn make_room(places: &mut HashMap<ClaimId, Place>) {
    let now = BootClock.now();
    places.retain(|_, place| place.asked.after(place.lease.ttl).max(place.lease.until()) >= now);
    // So that the next time is far away.
    places.reserve(places.len());
}

/// What a look at a list showed to one of its claims.
pub(crate) struct Look {
    pub(crate) own: Option<Entry>,
    pub(crate) line: Line,
    pub(crate) broken: Option<BreakRecord>,
}

/// Two ranges, as asked for.
pub(crate) fn pair(ranges: Vec<GetResponse>) -> Result<[GetResponse; 2], Failure> {
    <[GetResponse; 2]>::try_from(ranges).map_err(|_| odd())
}

/// The error for an answer that does not fit the question.
pub(crate) fn odd() -> Failure {
    Failure::Other(Error::permanent(BACKEND, "etcd's answer does not fit the request"))
}

pub(crate) fn record(kv: &KeyValue) -> Option<BreakRecord> {
    serde_json::from_slice(kv.value()).ok()
}

pub(crate) fn token_of(created: i64) -> Result<Token, Error> {
    let token = u64::try_from(created).ok().and_then(Token::new);
    token.ok_or_else(|| Error::permanent(BACKEND, "a revision that is no positive number"))
}

/// "This key was created then", and with 0 "there is no such key".
pub(crate) fn created(key: &[u8], revision: i64) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, revision)
}

/// "There is no key in this range."
pub(crate) fn none_in(start: &[u8], end: &[u8]) -> Compare {
    // Of a range, a comparison must be true for all keys, and for an empty one it is about 0.
    created(start, 0).with_range(end)
}

/// "There is no claim in this list."
pub(crate) fn none_of(list: &[u8]) -> Compare {
    none_in(list, &end_of_claims(list))
}

/// "This key was written last then."
pub(crate) fn written(key: &[u8], revision: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// "Nobody has written this key since."
pub(crate) fn unchanged(entry: &Entry) -> Compare {
    written(&entry.key, entry.modified)
}

pub(crate) fn put(key: &[u8], value: impl Into<Vec<u8>>, lease: i64) -> TxnOp {
    TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
}

/// Moves a key to another lease, and leaves its value.
pub(crate) fn put_lease(key: &[u8], lease: i64) -> TxnOp {
    TxnOp::put(key, Vec::new(), Some(PutOptions::new().with_ignore_value().with_lease(lease)))
}

pub(crate) fn delete(key: &[u8]) -> TxnOp {
    TxnOp::delete(key, None::<DeleteOptions>)
}

/// A list, with the limit that it was given.
pub(crate) fn get_list(list: &[u8]) -> TxnOp {
    TxnOp::get(list, Some(GetOptions::new().with_prefix()))
}

/// The last keys of a list, by their place in the line.
pub(crate) fn get_last(list: &[u8], n: i64) -> TxnOp {
    let last = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend);
    TxnOp::get(list, Some(last.with_limit(n)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use etcd_client::ConnectOptions;
    use lockkit_core::Mode;

    use super::*;

    #[test]
    fn claims_that_ended_without_a_release_are_forgotten_and_others_are_not() {
        let calls = Arc::new(Calls::to(Vec::new(), &ConnectOptions::new()));
        let (now, ttl) = (BootClock.now(), Duration::from_secs(10));
        let (long_ago, just_now) = (now.before(ttl * 3), now.before(ttl / 3));
        let place = |asked, kept| {
            let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
            let entry = Entry { key, created: 1, modified: 1, lease: 1, mode, value: None };
            let lease = Arc::new(Lease::new(1, ttl, kept, &calls));
            Place { entry, lease, asked, line: None }
        };
        let mut places = HashMap::new();
        let ids = [(); 4].map(|()| ClaimId::random());
        places.insert(ids[0], place(long_ago, long_ago));
        places.insert(ids[1], place(just_now, long_ago));
        places.insert(ids[2], place(long_ago, just_now));
        places.insert(ids[3], place(just_now, just_now));
        make_room(&mut places);
        assert!(!places.contains_key(&ids[0]));
        assert_eq!(places.len(), 3);
        assert!(places.capacity() >= 6, "the next time is far away");
    }
}
