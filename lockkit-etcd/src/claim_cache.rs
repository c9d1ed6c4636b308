//! Cache of this driver's claims: the key and the lease of each, and until when they can be trusted.
//! No I/O.

use std::collections::HashMap;
use std::sync::Arc;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::ClaimId;

use crate::leases::Lease;
use crate::line::{Entry, Line};

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

/// Forgets claims that are over and were never released: nobody asked about them for their ttl, nor
/// kept their lease alive.
pub(crate) fn make_room(places: &mut HashMap<ClaimId, Place>) {
    let now = SteadyClock.now();
    places.retain(|_, place| place.asked.after(place.lease.ttl).max(place.lease.until()) >= now);
    // So that the next time is far away.
    places.reserve(places.len());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use etcd_client::ConnectOptions;
    use lockkit_core::Mode;

    use super::*;
    use crate::calls::Calls;

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
