//! What the verbs of the driver share: the requests, the leases, the watches, and what this driver
//! knows of the claims that it put in line. The verbs are in files of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp,
};
use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::Grant;
use lockkit_core::{BreakRecord, Claim, Error, Mode, Token};

use crate::calls::{BACKEND, Calls, Failure, ranges, revision};
use crate::keys::{Root, end_of_claims, in_list};
use crate::leases::{Lease, Leases, YOUNG, seconds, trusted};
use crate::line::{Entry, Line};
use crate::registers::Known;
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
    pub(crate) registers: Known,
    places: Mutex<HashMap<ClaimId, Place>>,
    /// Held while claims are moved away from leases that were retired.
    pub(crate) leaving: Arc<tokio::sync::Mutex<()>>,
}

/// What this driver knows of a claim that it put in line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) entry: Entry,
    /// The lease of a holder, or of one that waits.
    pub(crate) lease: Arc<Lease>,
    /// When the last request was sent whose answer showed the key on this lease.
    pub(crate) seen: Moment,
    /// Moves of the key, as it is here, to another lease: under way, or unanswered.
    pub(crate) moves: Vec<Move>,
    /// When core asked about it last: a claim that core forgets about must not live on because it
    /// shares its lease with others.
    pub(crate) asked: Moment,
    /// For whom it waits, as far as is known.
    pub(crate) line: Option<Arc<Line>>,
}

/// A request that moves a key to another lease, of which no answer has come.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) number: u64,
    /// A moment before its target was kept alive for it.
    pub(crate) begun: Moment,
    /// Not to be revoked while the key may be on it.
    pub(crate) target: Arc<Lease>,
}

impl Place {
    /// As a request showed it that was sent then.
    pub(crate) fn seen(entry: Entry, lease: Arc<Lease>, line: Option<Line>, seen: Moment) -> Self {
        let line = line.map(Arc::new);
        Self { entry, lease, seen, moves: Vec::new(), asked: BootClock.now(), line }
    }

    /// Until when the key certainly is there, unless somebody breaks the claim by force.
    ///
    /// Its lease counts from the last keep-alive that was answered, but not from one after the key
    /// was last seen on it: from then on it may have been broken politely, which moves it to a
    /// lease that lasts as long as this one would have. And where it may have been moved without
    /// an answer, it lasts no longer than it would on the other lease.
    pub(crate) fn until(&self) -> Moment {
        let here = self.lease.until_from(self.lease.since().min(self.seen));
        let there = self.moves.iter().map(|m| m.target.until_from(m.begun));
        there.fold(here, Moment::min)
    }

    /// Whether it is known that its turn has come, and it only has to be moved to the lease of a
    /// holder.
    pub(crate) fn has_turn(&self) -> bool {
        let holds = |line: &Arc<Line>| line.holds(self.entry.created);
        !self.entry.is_holding() && self.line.as_ref().is_some_and(holds)
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
            registers: Known::default(),
            calls,
            places: Mutex::default(),
            leaving: Arc::default(),
        }
    }

    pub(crate) fn places(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self, id: ClaimId) -> Option<Place> {
        self.places().get(&id).cloned()
    }

    /// Notes where a claim stands, as a request showed it that was sent then. (It may have been
    /// released meanwhile: see [`Tails`].)
    pub(crate) fn settle(
        &self,
        claim: &Claim,
        entry: &Entry,
        lease: Arc<Lease>,
        line: Option<Line>,
        seen: Moment,
    ) -> Place {
        let mut place = Place::seen(entry.clone(), lease, line, seen);
        if let Some(known) = self.place(claim.id).filter(|p| p.entry.created == entry.created) {
            if known.entry.modified > entry.modified {
                return known; // what was shown is past
            }
            if known.entry.modified == entry.modified {
                place.seen = place.seen.max(known.seen);
                place.moves = known.moves;
            }
        }
        self.note(claim.id, place.clone());
        place
    }

    /// The same of a claim that is new here.
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
    /// A claim that has just begun to hold still has the lease of one that waits; it is moved to
    /// that of a holder in the background, so that the hand-over costs no round trip. Until then it
    /// may be trusted for as long as the old lease lasts, and no longer than the new one will. Of
    /// that a part may have passed when it is moved, but no move has begun before this moment that
    /// is not [known](Place::until). Both in terms of the ttl of a holder, which was asked for.
    pub(crate) fn grant_of(&self, claim: &Claim) -> Result<Grant, Failure> {
        let places = self.places();
        let place = places.get(&claim.id).ok_or(Failure::LeaseGone)?;
        let now = BootClock.now(); // before a move can begin that is not known here
        let token = token_of(place.entry.created)?;
        let (ttl, until) = match place.entry.is_holding() {
            true => (place.lease.ttl, place.until()),
            false => {
                let ttl = Duration::from_secs(seconds(claim.hold_ttl));
                let young = trusted(ttl - ttl / YOUNG);
                (ttl, place.until().min(now.after(young)))
            }
        };
        Ok(Grant { token, ttl, since: Some(until.before(trusted(ttl))) })
    }

    /// One look at the list of a claim, the claim's own key among them, and at its break.
    pub(crate) async fn look(&self, claim: &Claim) -> Result<Look, Failure> {
        // What was known when it was asked: the key may be another claim's when the answer comes.
        let (key, created) = self.key_of(claim);
        let (list, sent) = (self.root.list(&claim.key), BootClock.now());
        let broken = TxnOp::get(self.root.broken(&claim.key, &key), None);
        let answer = self.calls.txn(Txn::new().and_then([broken, get_list(&list)])).await?.answer;
        let [broken, shown] = pair(ranges(&answer))?;
        let line = Line::of(shown.kvs(), shown.count(), revision(&answer));
        Ok(Look {
            own: line.own(&key, created).cloned(),
            line,
            broken: broken.kvs().first().and_then(record),
            sent,
        })
    }

    /// The same for one that waits in line, where no more of the list is shown than matters to it:
    /// who wants the lock alone needs no more than the last one ahead.
    pub(crate) async fn look_ahead(&self, claim: &Claim) -> Result<Look, Failure> {
        let (Mode::Exclusive, (key, Some(created))) = (claim.mode, self.key_of(claim)) else {
            return self.look(claim).await;
        };
        let (list, sent) = (self.root.list(&claim.key), BootClock.now());
        let broken = TxnOp::get(self.root.broken(&claim.key, &key), None);
        let own = TxnOp::get(&*key, None);
        let txn = Txn::new().and_then([broken, own, get_last_before(&list, created)]);
        let answer = self.calls.txn(txn).await?.answer;
        let shown = <[GetResponse; 3]>::try_from(ranges(&answer)).map_err(|_| odd())?;
        let [broken, own, ahead] = shown;
        let kvs: Vec<_> = ahead.kvs().iter().chain(own.kvs()).cloned().collect();
        let hidden = i64::from(ahead.more());
        let line = Line::of(&kvs, kvs.len() as i64 + hidden, revision(&answer));
        Ok(Look {
            own: line.own(&key, Some(created)).cloned(),
            line,
            broken: broken.kvs().first().and_then(record),
            sent,
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
    /// When it was asked for.
    pub(crate) sent: Moment,
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

/// The last key of a list before a place in the line.
fn get_last_before(list: &[u8], created: i64) -> TxnOp {
    let last = GetOptions::new().with_range(end_of_claims(list));
    let last = last.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(1);
    TxnOp::get(list, Some(last.with_max_create_revision(created - 1)))
}

#[cfg(test)]
pub(crate) mod tests {
    use etcd_client::ConnectOptions;

    use super::*;
    use crate::value::Value;

    /// A claim that waits on a lease of 10 s, kept alive at 100 s, and seen on it at `seen`.
    pub(crate) fn waiter(inner: &Inner, seen: u64) -> (Claim, Place) {
        let name = lockkit_core::Name::new("a").unwrap();
        let key = lockkit_core::Key::new(Default::default(), lockkit_core::Space::Lock, name);
        let (hold, wait) = (Duration::from_secs(3), Duration::from_secs(10));
        let me = Arc::new(lockkit_core::Identity::of_this_process());
        let claim = Claim::new(key, Mode::Exclusive, hold, wait, me);
        let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
        let value = Some(Value::of(&claim));
        let entry = Entry { key, created: 1, modified: 1, lease: 1, mode, value };
        let lease = Arc::new(Lease::new(1, wait, at(100), &inner.calls));
        (claim, Place::seen(entry, lease, None, at(seen)))
    }

    pub(crate) fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    pub(crate) fn nobody() -> Inner {
        Inner::new(Calls::to(Vec::new(), &ConnectOptions::new()), Root::new(""))
    }

    #[tokio::test]
    async fn a_claim_counts_from_when_its_key_was_seen_and_its_lease_kept_alive() {
        let inner = nobody();
        for (seen, from) in [(90, 90), (100, 100), (105, 100)] {
            let (_, place) = waiter(&inner, seen);
            assert_eq!(place.until(), at(from).after(Duration::from_millis(9_900)), "{seen}");
        }
    }

    #[tokio::test]
    async fn a_claim_that_may_have_been_moved_counts_from_before_the_move() {
        let inner = nobody();
        let (claim, mut place) = waiter(&inner, 100);
        let target = Arc::new(Lease::new(2, Duration::from_secs(3), at(200), &inner.calls));
        for (number, begun) in [(0, 104), (1, 102), (2, 106)] {
            place.moves.push(Move { number, begun: at(begun), target: target.clone() });
        }
        let until = at(102).after(Duration::from_millis(2_970));
        assert_eq!(place.until(), until);
        inner.note(claim.id, place.clone());
        let grant = inner.grant_of(&claim).unwrap();
        assert_eq!(grant.since.unwrap().after(trusted(grant.ttl)), until);
        // What shows the key as it was says nothing of the moves; what shows it moved does.
        let mut again = place.entry.clone();
        let lease = place.lease.clone();
        assert_eq!(inner.settle(&claim, &again, lease.clone(), None, at(103)).until(), until);
        again.modified = 2;
        assert_eq!(
            inner.settle(&claim, &again, target, None, at(104)).until(),
            at(104).after(Duration::from_millis(2_970))
        );
        // An answer from before comes late.
        let known = inner.settle(&claim, &place.entry, lease, None, at(105));
        assert_eq!(known.entry.modified, 2);
    }

    #[test]
    fn claims_that_ended_without_a_release_are_forgotten_and_others_are_not() {
        let calls = Arc::new(Calls::to(Vec::new(), &ConnectOptions::new()));
        let (now, ttl) = (BootClock.now(), Duration::from_secs(10));
        let (long_ago, just_now) = (now.before(ttl * 3), now.before(ttl / 3));
        let place = |asked, kept| {
            let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
            let entry = Entry { key, created: 1, modified: 1, lease: 1, mode, value: None };
            let lease = Arc::new(Lease::new(1, ttl, kept, &calls));
            Place { asked, ..Place::seen(entry, lease, None, kept) }
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
