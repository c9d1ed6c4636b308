//! Where the claims of this driver stand, and until when that can be trusted. No I/O.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, LeaseStart, locked};

use crate::calls::EtcdError;
use crate::leases::{Lease, YOUNG, seconds, trusted};
use crate::line::{Entry, Line};
use crate::locks::Locks;
use crate::requests::token_of;

/// What this driver knows of a claim that it put in line.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) entry: Entry,
    /// The lease of a holder, or of one that waits.
    pub(crate) lease: Arc<Lease>,
    /// When the last request was sent whose answer showed the key on this lease.
    pub(crate) seen: Moment,
    /// Moves of the key, as it is here, to another lease: under way, or ambiguous.
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
        Self { entry, lease, seen, moves: Vec::new(), asked: SteadyClock.now(), line }
    }

    /// Until when the key certainly is there, unless somebody breaks the claim by force.
    ///
    /// Its lease counts from the last keep-alive that was answered, but not from one after the key
    /// was last seen on it: from then on it may have been broken gracefully, which moves it to a
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

impl Locks {
    pub(crate) fn places(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        locked(&self.places)
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

    /// The grant of a claim that holds.
    ///
    /// A claim that has just begun to hold still has the lease of one that waits; it is moved to
    /// that of a holder in the background, so that the hand-over costs no round trip. Until then it
    /// may be trusted for as long as the old lease lasts, and no longer than the new one will. Of
    /// that a part may have passed when it is moved, but no move has begun before this moment that
    /// is not [known](Place::until). Both in terms of the ttl of a holder, which was asked for.
    pub(crate) fn grant_of(&self, claim: &Claim) -> Result<Grant, EtcdError> {
        let places = self.places();
        let place = places.get(&claim.id).ok_or(EtcdError::LeaseGone)?;
        let now = SteadyClock.now(); // before a move can begin that is not known here
        let token = token_of(place.entry.created)?;
        let (ttl, until, margin) = match place.entry.is_holding() {
            true => (place.lease.ttl, place.until(), Duration::ZERO),
            false => {
                let ttl = Duration::from_secs(seconds(claim.hold_ttl));
                let young = trusted(ttl - ttl / YOUNG);
                // With less margin the whole ttl would count beyond the end of the old lease.
                (ttl, place.until().min(now.after(young)), ttl - trusted(ttl))
            }
        };
        Ok(Grant { token, ttl, start: LeaseStart::Sent(until.before(trusted(ttl))), margin })
    }
}

/// Forgets claims that are over and were never released: nobody asked about them for their ttl, nor
/// kept their lease alive.
fn make_room(places: &mut HashMap<ClaimId, Place>) {
    let now = SteadyClock.now();
    places.retain(|_, place| place.asked.after(place.lease.ttl).max(place.lease.until()) >= now);
    // So that the next time is far away.
    places.reserve(places.len());
}

#[cfg(test)]
pub(crate) mod tests {
    use etcd_client::ConnectOptions;
    use lockkit_core::Mode;

    use super::*;
    use crate::calls::Calls;
    use crate::keys::Root;
    use crate::value::Value;

    /// A claim that waits on a lease of 10 s, kept alive at 100 s, and seen on it at `seen`.
    pub(crate) fn waiter(locks: &Locks, seen: u64) -> (Claim, Place) {
        let name = lockkit_core::Name::new("a").unwrap();
        let key = lockkit_core::Key::new(Default::default(), lockkit_core::Space::Lock, name);
        let (hold, wait) = (Duration::from_secs(3), Duration::from_secs(10));
        let me = Arc::new(lockkit_core::ClientIdentity::of_this_process());
        let claim = Claim::new(key, Mode::Exclusive, hold, wait, me);
        let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
        let value = Some(Value::of(&claim));
        let entry = Entry { key, created: 1, modified: 1, lease: 1, mode, value };
        let lease = Arc::new(Lease::new(1, wait, at(100), &locks.calls));
        (claim, Place::seen(entry, lease, None, at(seen)))
    }

    pub(crate) fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    pub(crate) fn nobody() -> Locks {
        Locks::new(Calls::to(Vec::new(), &ConnectOptions::new()), Root::new(""))
    }

    #[tokio::test]
    async fn a_claim_counts_from_when_its_key_was_seen_and_its_lease_kept_alive() {
        let locks = nobody();
        for (seen, from) in [(90, 90), (100, 100), (105, 100)] {
            let (_, place) = waiter(&locks, seen);
            assert_eq!(place.until(), at(from).after(Duration::from_millis(8_998)), "{seen}");
        }
    }

    #[tokio::test]
    async fn a_claim_that_may_have_been_moved_counts_from_before_the_move() {
        let locks = nobody();
        let (claim, mut place) = waiter(&locks, 100);
        let target = Arc::new(Lease::new(2, Duration::from_secs(3), at(200), &locks.calls));
        for (number, begun) in [(0, 104), (1, 102), (2, 106)] {
            place.moves.push(Move { number, begun: at(begun), target: target.clone() });
        }
        let until = at(102).after(Duration::from_millis(2_698));
        assert_eq!(place.until(), until);
        locks.note(claim.id, place.clone());
        let grant = locks.grant_of(&claim).unwrap();
        assert_eq!(grant.start.moment().unwrap().after(trusted(grant.ttl)), until);
        // What shows the key as it was says nothing of the moves; what shows it moved does.
        let mut again = place.entry.clone();
        let lease = place.lease.clone();
        assert_eq!(locks.settle(&claim, &again, lease.clone(), None, at(103)).until(), until);
        again.modified = 2;
        assert_eq!(
            locks.settle(&claim, &again, target, None, at(104)).until(),
            at(104).after(Duration::from_millis(2_698))
        );
        // An answer from before comes late.
        let known = locks.settle(&claim, &place.entry, lease, None, at(105));
        assert_eq!(known.entry.modified, 2);
    }

    #[test]
    fn claims_that_ended_without_a_release_are_forgotten_and_others_are_not() {
        let calls = Arc::new(Calls::to(Vec::new(), &ConnectOptions::new()));
        let (now, ttl) = (SteadyClock.now(), Duration::from_secs(10));
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
