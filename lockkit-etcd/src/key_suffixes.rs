//! The last part of the key of each claim, and when it may be used again. No I/O.
//!
//! etcd passes over all keys that were ever in a queue when it is asked whether the queue is empty,
//! until a compaction. So a driver gives the last parts of its keys, its *suffixes*, to one claim
//! after the other, and a lock that is taken again and again leaves one key behind and not a
//! million. A suffix is 128 random bits of this driver's own: no other driver has the same.
//!
//! (One key for a client that finds a queue empty, and the claim's own for all others, would need
//! nothing of this. But then readers and permits beside others, and all who wait, leave a key each
//! time.)
//!
//! Nothing may be under way then that could take one claim for another. A suffix is given on only if
//! - the request that put the claim in was **sent once and answered**
//!   ([`KeySuffixPool::mark_certain`]): one that was repeated, or given up, may reach etcd later
//!   still, and would put the old claim in under the new one's key. Such a suffix stays that
//!   claim's, so that whatever is released under it is that claim. (So does the suffix of a claim
//!   that was asked about before that answer.)
//! - the claim's **release was answered** by "it was there, and only this driver has written it"
//!   ([`KeySuffixPool::give_back`]). A claim that was broken, or has ended, keeps its suffix: so no
//!   two claims share the record of a break, which lies beside the queue under the same suffix.
//!
//! What else is sent about a claim names its create revision or its last one, which no other claim
//! has, and may come as late as it likes. What comes in is compared with the create revision too
//! (`EtcdLocks::inspect_claim`), since the question may be from before the suffix was given on.
//! Others, of whatever version, see a key that goes, and later another one of the same name with a
//! greater create revision; they watch from a revision on, so that they miss neither.
//!
//! What a driver finds under a suffix before it ever sent a request for the claim is not the claim:
//! a client brought an old state back, of etcd or of this process. The claim gets another suffix.
//!
//! Claims that are not renewed, or not by this process alone, are found by their id: by its digest.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, locked};
use lockkit_core::{Claim, Lifetime};

use crate::keys::{digest, suffix_of};

/// How many suffixes are kept for later.
const SPARE: usize = 4_096;
/// How much longer than its leases the suffix of a claim is remembered that no client released.
const LONGER: Duration = Duration::from_secs(60);

/// The suffixes of one driver.
#[derive(Debug, Default)]
pub(crate) struct KeySuffixPool(Mutex<PoolState>);

#[derive(Debug, Default)]
struct PoolState {
    /// The one that was used last goes first: so there are few.
    spare: Vec<String>,
    assigned: HashMap<ClaimId, AssignedSuffix>,
}

#[derive(Debug)]
struct AssignedSuffix {
    suffix: String,
    /// How often it was asked for.
    asked: u32,
    /// Whether nothing that puts the claim in can be under way any more.
    sure: bool,
    /// The claim's create revision, if it was known and is not any more.
    created: Option<i64>,
    /// Until when it is needed at least.
    until: Moment,
}

/// The suffix for a request that puts a claim in.
pub(crate) struct TakenSuffix {
    pub(crate) suffix: String,
    /// Whether no request with it was sent before for this claim, so that nothing under it is the
    /// claim's.
    pub(crate) fresh: bool,
}

impl KeySuffixPool {
    /// The suffix for a request that puts this claim in. From here on it is the claim's, whatever
    /// becomes of the request.
    pub(crate) fn take(&self, claim: &Claim) -> TakenSuffix {
        if claim.lifetime != Lifetime::Renewed {
            return TakenSuffix { suffix: digest(claim.id), fresh: false };
        }
        let state = &mut *locked(&self.0);
        if let Some(assigned) = state.assigned.get_mut(&claim.id) {
            assigned.asked += 1;
            assigned.sure = false;
            return TakenSuffix { suffix: assigned.suffix.clone(), fresh: false };
        }
        let suffix = state.spare.pop().unwrap_or_else(|| ClaimId::random().to_hex());
        let until = needed(claim.hold_ttl.max(claim.wait_ttl));
        state.give(
            claim.id,
            AssignedSuffix { suffix: suffix.clone(), asked: 1, sure: false, created: None, until },
        );
        TakenSuffix { suffix, fresh: true }
    }

    /// The one request that puts this claim in was answered, and sent once.
    pub(crate) fn mark_certain(&self, id: ClaimId) {
        if let Some(assigned) = locked(&self.0).assigned.get_mut(&id) {
            assigned.sure = assigned.asked == 1;
        }
    }

    /// The suffix of a claim of which it is not known whether it was put in, and its create revision
    /// if it was known once. From here on the suffix is this claim's alone.
    pub(crate) fn of(&self, claim: &Claim) -> (String, Option<i64>) {
        let state = &mut *locked(&self.0);
        match state.assigned.get_mut(&claim.id) {
            Some(assigned) => {
                assigned.asked += 1;
                assigned.sure = false;
                (assigned.suffix.clone(), assigned.created)
            }
            None => (digest(claim.id), None),
        }
    }

    /// Whether the suffix of this claim may be given on when the claim is released.
    pub(crate) fn is_certain(&self, id: ClaimId) -> bool {
        locked(&self.0).assigned.get(&id).is_some_and(|assigned| assigned.sure)
    }

    /// The claim is out of its queue, and no client but this driver has written its key.
    pub(crate) fn give_back(&self, id: ClaimId) {
        let state = &mut *locked(&self.0);
        if state.assigned.get(&id).is_some_and(|assigned| assigned.sure)
            && let Some(assigned) = state.assigned.remove(&id)
            && state.spare.len() < SPARE
        {
            state.spare.push(assigned.suffix);
        }
    }

    /// Nothing under its suffix is this claim's: it gets another one.
    pub(crate) fn replace(&self, id: ClaimId) {
        locked(&self.0).assigned.remove(&id);
    }

    /// The claim with this key is known no more, but may be there, and be released.
    pub(crate) fn remember(&self, id: ClaimId, key: &[u8], created: i64, ttl: Duration) {
        let (suffix, created, until) = (suffix_of(key), Some(created), needed(ttl));
        locked(&self.0).give(id, AssignedSuffix { suffix, asked: 1, sure: false, created, until });
    }
}

impl PoolState {
    fn give(&mut self, id: ClaimId, assigned: AssignedSuffix) {
        if self.assigned.len() == self.assigned.capacity() {
            // A claim that holds for longer than that is known by its key, and its suffix is not
            // used again.
            let now = SteadyClock.now();
            self.assigned.retain(|_, assigned| assigned.until >= now);
            // So that the next time is far away.
            self.assigned.reserve(self.assigned.len().max(16));
        }
        self.assigned.insert(id, assigned);
    }
}

fn needed(ttl: Duration) -> Moment {
    SteadyClock.now().after(ttl.saturating_mul(2).saturating_add(LONGER))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use lockkit_core::{ClientIdentity, Key, Mode, Name, Namespace, Space};

    const TTL: Duration = Duration::from_secs(30);

    fn claim() -> Claim {
        let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
        Claim::new(key, Mode::Exclusive, TTL, TTL, Arc::new(ClientIdentity::of_this_process()))
    }

    /// The suffix that the next claim would get.
    fn next(pool: &KeySuffixPool) -> String {
        let claim = claim();
        let TakenSuffix { suffix, fresh } = pool.take(&claim);
        assert!(fresh);
        pool.mark_certain(claim.id);
        pool.give_back(claim.id);
        suffix
    }

    #[test]
    fn a_tail_is_given_on_once_its_claim_was_put_in_and_taken_out_for_certain() {
        let pool = KeySuffixPool::default();
        let (one, two) = (claim(), claim());
        let (first, second) = (pool.take(&one).suffix, pool.take(&two).suffix);
        assert_ne!(first, second, "each has its own at a time");
        pool.mark_certain(one.id);
        assert_ne!(next(&pool), first, "it has not been released");
        pool.give_back(one.id);
        pool.give_back(one.id);
        assert_eq!(next(&pool), first);
        pool.give_back(two.id);
        assert!((0..9).all(|_| next(&pool) != second), "perhaps it is still under way");
    }

    #[test]
    fn a_claim_that_was_asked_for_again_keeps_its_tail() {
        let pool = KeySuffixPool::default();
        let one = claim();
        let first = pool.take(&one).suffix;
        let again = pool.take(&one);
        assert_eq!((&again.suffix, again.fresh), (&first, false));
        pool.mark_certain(one.id);
        pool.give_back(one.id);
        assert_ne!(next(&pool), first);
        assert_eq!(pool.of(&one).0, first, "it may have to be released again");
    }

    #[test]
    fn a_claim_that_was_looked_for_before_it_was_known_keeps_its_tail() {
        let pool = KeySuffixPool::default();
        let one = claim();
        let first = pool.take(&one).suffix;
        assert_eq!(pool.of(&one), (first.clone(), None));
        pool.mark_certain(one.id);
        pool.give_back(one.id);
        assert_ne!(next(&pool), first);
    }

    #[test]
    fn a_claim_that_is_known_no_more_is_found_by_its_key_and_create_revision() {
        let pool = KeySuffixPool::default();
        let one = claim();
        let first = pool.take(&one).suffix;
        pool.mark_certain(one.id);
        pool.remember(one.id, format!("lockkit/semaphore//s/00000003-{first}").as_bytes(), 7, TTL);
        assert_eq!(pool.of(&one), (first.clone(), Some(7)));
        pool.give_back(one.id);
        assert_ne!(next(&pool), first);
    }

    #[test]
    fn what_is_not_renewed_by_one_process_is_found_by_its_id() {
        let pool = KeySuffixPool::default();
        let detached = claim().with_lifetime(Lifetime::Detached);
        let TakenSuffix { suffix, fresh } = pool.take(&detached);
        assert_eq!((suffix, fresh), (digest(detached.id), false));
        assert_eq!(KeySuffixPool::default().of(&detached), (digest(detached.id), None));
    }

    #[test]
    fn tails_of_claims_that_ended_long_ago_are_forgotten() {
        let pool = KeySuffixPool::default();
        let long_ago = SteadyClock.now().before(TTL);
        for n in 0..10_000 {
            let id = claim().id;
            pool.remember(id, b"k/0123", n, TTL);
            locked(&pool.0).assigned.get_mut(&id).unwrap().until = long_ago;
        }
        assert!(locked(&pool.0).assigned.capacity() < 1_000);
    }
}
