//! What the operations of the driver share: its client, leases, watches, and the cache of its claims.
//! The operations are in files of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, KnownBases, LeaseStart, Recent, locked};
use tokio::sync::OnceCell;

use crate::calls::{Calls, EtcdError};
use crate::claim_cache::{Place, make_room};
use crate::keys::{Root, in_list};
use crate::leases::{Lease, Leases, YOUNG, seconds, trusted};
use crate::line::{Entry, Line};
use crate::requests::token_of;
use crate::tails::Tails;
use crate::value::KnownRegister;
use crate::watches::Watches;

/// Of how many registers it is remembered how they were.
const REMEMBERED: usize = 4_096;

/// The locks of one driver, without its outside.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) calls: Arc<Calls>,
    pub(crate) root: Root,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    pub(crate) tails: Tails,
    /// Registers, by the keys of their values.
    pub(crate) registers: Recent<Vec<u8>, KnownRegister>,
    pub(crate) bases: KnownBases,
    /// Whether the format of what is stored was checked.
    pub(crate) format: OnceCell<()>,
    /// The claims that this driver put in line.
    pub(crate) places: Mutex<HashMap<ClaimId, Place>>,
    /// Held while claims are moved away from leases that were retired.
    pub(crate) leaving: Arc<tokio::sync::Mutex<()>>,
}

impl Locks {
    pub(crate) fn new(calls: Calls, root: Root) -> Self {
        let calls = Arc::new(calls);
        Self {
            leases: Leases::new(calls.clone(), root.bytes()),
            root,
            watches: Watches::new(calls.clone()),
            tails: Tails::default(),
            registers: Recent::new(REMEMBERED),
            bases: KnownBases::default(),
            format: OnceCell::new(),
            calls,
            places: Mutex::default(),
            leaving: Arc::default(),
        }
    }

    /// The key of a claim, and its create revision if it was seen.
    pub(crate) fn key_of(&self, claim: &Claim) -> (Vec<u8>, Option<i64>) {
        if let Some(place) = self.places().get(&claim.id) {
            return (place.entry.key.clone(), Some(place.entry.created));
        }
        let (tail, created) = self.tails.of(claim);
        (in_list(&self.root.list(&claim.key), claim, &tail), created)
    }

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

#[cfg(test)]
pub(crate) mod tests {
    use etcd_client::ConnectOptions;
    use lockkit_core::Mode;

    use lockkit_core::driver::ClaimData;

    use super::*;
    use crate::claim_cache::Move;

    /// A claim that waits on a lease of 10 s, kept alive at 100 s, and seen on it at `seen`.
    pub(crate) fn waiter(locks: &Locks, seen: u64) -> (Claim, Place) {
        let name = lockkit_core::Name::new("a").unwrap();
        let key = lockkit_core::Key::new(Default::default(), lockkit_core::Space::Lock, name);
        let (hold, wait) = (Duration::from_secs(3), Duration::from_secs(10));
        let me = Arc::new(lockkit_core::ClientIdentity::of_this_process());
        let claim = Claim::new(key, Mode::Exclusive, hold, wait, me);
        let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
        let value = Some(ClaimData::of(&claim).queued_now());
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
}
