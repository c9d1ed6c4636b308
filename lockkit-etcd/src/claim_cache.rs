//! Cache of this driver's claims: the key and the lease of each, and until when they can be trusted.
//! No I/O.

use std::collections::HashMap;
use std::sync::Arc;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::ClaimId;

use crate::leases::EtcdLease;
use crate::queue_snapshot::{Position, QueueSnapshot, StoredClaim};

/// What this driver knows of one of its claims.
#[derive(Clone, Debug)]
pub(crate) struct CachedClaim {
    pub(crate) stored: StoredClaim,
    /// The lease of a holder, or of one that waits.
    pub(crate) lease: Arc<EtcdLease>,
    /// When the last request was sent whose answer showed the key on this lease.
    pub(crate) confirmed_at: Moment,
    /// Moves of the key, as it is here, to another lease: under way, or ambiguous.
    pub(crate) moves: Vec<PendingMove>,
    /// When core asked about it last: a claim that core forgets about must not live on because it
    /// shares its lease with others.
    pub(crate) asked: Moment,
    /// The queue ahead of it, as far as is known.
    pub(crate) snapshot: Option<Arc<QueueSnapshot>>,
}

/// A request that moves a key to another lease, of which no answer has come.
#[derive(Clone, Debug)]
pub(crate) struct PendingMove {
    pub(crate) number: u64,
    /// A moment before its target was kept alive for it.
    pub(crate) begun: Moment,
    /// Not to be revoked while the key may be on it.
    pub(crate) target: Arc<EtcdLease>,
}

impl CachedClaim {
    /// As an answer to a request sent then has it.
    pub(crate) fn confirmed(
        stored: StoredClaim,
        lease: Arc<EtcdLease>,
        snapshot: Option<QueueSnapshot>,
        confirmed_at: Moment,
    ) -> Self {
        let snapshot = snapshot.map(Arc::new);
        Self { stored, lease, confirmed_at, moves: Vec::new(), asked: SteadyClock.now(), snapshot }
    }

    /// Until when the key certainly is there, unless there is a forced break of the claim.
    ///
    /// Its lease counts from the last keep-alive that was answered, but not from one after the key
    /// was last seen on it: from then on it may have been broken gracefully, which moves it to a
    /// lease that lasts as long as this one would have. And where it may have been moved without
    /// an answer, it lasts no longer than it would on the other lease.
    pub(crate) fn until(&self) -> Moment {
        let here = self.lease.until_from(self.lease.since().min(self.confirmed_at));
        let there = self.moves.iter().map(|m| m.target.until_from(m.begun));
        there.fold(here, Moment::min)
    }

    /// Whether it is known that it may hold, and it only has to be moved to the lease of a
    /// holder.
    pub(crate) fn may_promote(&self) -> bool {
        let holds = |snapshot: &Arc<QueueSnapshot>| snapshot.holds(self.stored.created);
        !self.stored.is_holding() && self.snapshot.as_ref().is_some_and(holds)
    }
}

/// Forgets claims that are over and were never released: no client asked about them for their ttl, nor
/// kept their lease alive. Returns where they were.
pub(crate) fn make_room(cached_claims: &mut HashMap<ClaimId, CachedClaim>) -> Vec<Position> {
    let now = SteadyClock.now();
    let is_over =
        |cached: &CachedClaim| cached.asked.after(cached.lease.ttl).max(cached.lease.until()) < now;
    let over = cached_claims.extract_if(|_, cached| is_over(cached));
    let left = over.map(|(_, cached)| cached.stored.position()).collect();
    // So that the next time is far away.
    cached_claims.reserve(cached_claims.len());
    left
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use etcd_client::ConnectOptions;
    use lockkit_core::Mode;

    use super::*;
    use crate::client::EtcdClient;

    #[test]
    fn claims_that_ended_without_a_release_are_forgotten_and_others_are_not() {
        let client = Arc::new(EtcdClient::to(Vec::new(), &ConnectOptions::new()));
        let (now, ttl) = (SteadyClock.now(), Duration::from_secs(10));
        let (long_ago, just_now) = (now.before(ttl * 3), now.before(ttl / 3));
        let cached = |asked, kept| {
            let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
            let stored = StoredClaim { key, created: 1, modified: 1, lease: 1, mode, value: None };
            let lease = Arc::new(EtcdLease::new(1, ttl, kept, &client));
            CachedClaim { asked, ..CachedClaim::confirmed(stored, lease, None, kept) }
        };
        let mut cached_claims = HashMap::new();
        let ids = [(); 4].map(|()| ClaimId::random());
        cached_claims.insert(ids[0], cached(long_ago, long_ago));
        cached_claims.insert(ids[1], cached(just_now, long_ago));
        cached_claims.insert(ids[2], cached(long_ago, just_now));
        cached_claims.insert(ids[3], cached(just_now, just_now));
        assert_eq!(make_room(&mut cached_claims).len(), 1);
        assert!(!cached_claims.contains_key(&ids[0]));
        assert_eq!(cached_claims.len(), 3);
        assert!(cached_claims.capacity() >= 6, "the next time is far away");
    }
}
