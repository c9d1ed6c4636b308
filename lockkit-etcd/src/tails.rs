//! The last part of the key of each claim, and when it may be used again. No I/O.
//!
//! etcd passes over all keys that ever stood in a list when it is asked whether the list is empty,
//! until a compaction. So a driver gives the last parts of its keys, its *tails*, to one claim
//! after the other, and a lock that is taken again and again leaves one key behind and not a
//! million. A tail is 128 random bits of this driver's own: no other driver has the same.
//!
//! (One key for whoever finds a list empty, and the claim's own for all others, would need nothing of
//! this. But then readers and permits beside others, and all who wait, leave a key each time.)
//!
//! Nothing may be under way then that could take one claim for another. A tail is given on only if
//! - the request that put the claim in was **sent once and answered** ([`Tails::sure`]): one that
//!   was repeated, or given up, may reach etcd later still, and would put the old claim in under
//!   the new one's key. Such a tail stays that claim's, so that whatever is released under it is
//!   that claim. (So does the tail of a claim that was asked about before that answer.)
//! - the claim's **release was answered** by "it was there, and nobody has written it but we"
//!   ([`Tails::back`]). A claim that was broken, or has ended, keeps its tail: so no two claims
//!   share the word of a break, which lies beside the list under the same tail.
//!
//! What else is sent about a claim names its create revision or its last one, which no other claim
//! has, and may come as late as it likes. What comes in is compared with the create revision too
//! (`Locks::look`), since the question may be from before the tail was given on. Others, of
//! whatever version, see a key that goes, and later another one of the same name with a greater
//! create revision; they watch from a revision on, so that they miss neither.
//!
//! What a driver finds under a tail before it ever sent a request for the claim is not the claim:
//! somebody brought an old state back, of etcd or of this process. The claim gets another tail.
//!
//! Claims that are not renewed, or not by this process alone, are found by their id: by its digest.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, locked};
use lockkit_core::{Claim, Lifetime};

use crate::keys::{digest, tail_of};

/// How many tails are kept for later.
const SPARE: usize = 4_096;
/// How much longer than its leases the tail of a claim is remembered that nobody released.
const LONGER: Duration = Duration::from_secs(60);

/// The tails of one driver.
#[derive(Debug, Default)]
pub(crate) struct Tails(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The one that was used last goes first: so there are few.
    spare: Vec<String>,
    assigned: HashMap<ClaimId, Assigned>,
}

#[derive(Debug)]
struct Assigned {
    tail: String,
    /// How often it was asked for.
    asked: u32,
    /// Whether nothing that puts the claim in can be under way any more.
    sure: bool,
    /// The claim's create revision, if it was known and is not any more.
    created: Option<i64>,
    /// Until when it is needed at least.
    until: Moment,
}

/// The tail for a request that puts a claim in.
pub(crate) struct Taken {
    pub(crate) tail: String,
    /// Whether no request with it was sent before for this claim, so that nothing under it is the
    /// claim's.
    pub(crate) fresh: bool,
}

impl Tails {
    /// The tail for a request that puts this claim in. From here on it is the claim's, whatever
    /// becomes of the request.
    pub(crate) fn take(&self, claim: &Claim) -> Taken {
        if claim.lifetime != Lifetime::Renewed {
            return Taken { tail: digest(claim.id), fresh: false };
        }
        let state = &mut *self.state();
        if let Some(assigned) = state.assigned.get_mut(&claim.id) {
            assigned.asked += 1;
            assigned.sure = false;
            return Taken { tail: assigned.tail.clone(), fresh: false };
        }
        let tail = state.spare.pop().unwrap_or_else(|| ClaimId::random().to_hex());
        let until = needed(claim.hold_ttl.max(claim.wait_ttl));
        state.give(
            claim.id,
            Assigned { tail: tail.clone(), asked: 1, sure: false, created: None, until },
        );
        Taken { tail, fresh: true }
    }

    /// The one request that puts this claim in was answered, and sent once.
    pub(crate) fn sure(&self, id: ClaimId) {
        if let Some(assigned) = self.state().assigned.get_mut(&id) {
            assigned.sure = assigned.asked == 1;
        }
    }

    /// The tail of a claim of which it is not known whether it was put in, and its create revision
    /// if it was known once. From here on the tail is this claim's alone.
    pub(crate) fn of(&self, claim: &Claim) -> (String, Option<i64>) {
        let state = &mut *self.state();
        match state.assigned.get_mut(&claim.id) {
            Some(assigned) => {
                assigned.asked += 1;
                assigned.sure = false;
                (assigned.tail.clone(), assigned.created)
            }
            None => (digest(claim.id), None),
        }
    }

    /// Whether the tail of this claim may be given on when the claim is released.
    pub(crate) fn is_sure(&self, id: ClaimId) -> bool {
        self.state().assigned.get(&id).is_some_and(|assigned| assigned.sure)
    }

    /// The claim is out of its list, and nobody but this driver has written its key.
    pub(crate) fn back(&self, id: ClaimId) {
        let state = &mut *self.state();
        if state.assigned.get(&id).is_some_and(|assigned| assigned.sure)
            && let Some(assigned) = state.assigned.remove(&id)
            && state.spare.len() < SPARE
        {
            state.spare.push(assigned.tail);
        }
    }

    /// Nothing under its tail is this claim's: it gets another one.
    pub(crate) fn leave(&self, id: ClaimId) {
        self.state().assigned.remove(&id);
    }

    /// The claim with this key is known no more, but may be there, and be released.
    pub(crate) fn keep(&self, id: ClaimId, key: &[u8], created: i64, ttl: Duration) {
        let (tail, created, until) = (tail_of(key), Some(created), needed(ttl));
        self.state().give(id, Assigned { tail, asked: 1, sure: false, created, until });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }
}

impl State {
    fn give(&mut self, id: ClaimId, assigned: Assigned) {
        if self.assigned.len() == self.assigned.capacity() {
            // Who holds for longer than that is known by the key, and its tail is not given on.
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

    /// The tail that the next claim would get.
    fn next(tails: &Tails) -> String {
        let claim = claim();
        let Taken { tail, fresh } = tails.take(&claim);
        assert!(fresh);
        tails.sure(claim.id);
        tails.back(claim.id);
        tail
    }

    #[test]
    fn a_tail_is_given_on_once_its_claim_was_put_in_and_taken_out_for_certain() {
        let tails = Tails::default();
        let (one, two) = (claim(), claim());
        let (first, second) = (tails.take(&one).tail, tails.take(&two).tail);
        assert_ne!(first, second, "each has its own at a time");
        tails.sure(one.id);
        assert_ne!(next(&tails), first, "it has not been released");
        tails.back(one.id);
        tails.back(one.id);
        assert_eq!(next(&tails), first);
        tails.back(two.id);
        assert!((0..9).all(|_| next(&tails) != second), "perhaps it is still under way");
    }

    #[test]
    fn a_claim_that_was_asked_for_again_keeps_its_tail() {
        let tails = Tails::default();
        let one = claim();
        let first = tails.take(&one).tail;
        let again = tails.take(&one);
        assert_eq!((&again.tail, again.fresh), (&first, false));
        tails.sure(one.id);
        tails.back(one.id);
        assert_ne!(next(&tails), first);
        assert_eq!(tails.of(&one).0, first, "it may have to be released again");
    }

    #[test]
    fn a_claim_that_was_looked_for_before_it_was_known_keeps_its_tail() {
        let tails = Tails::default();
        let one = claim();
        let first = tails.take(&one).tail;
        assert_eq!(tails.of(&one), (first.clone(), None));
        tails.sure(one.id);
        tails.back(one.id);
        assert_ne!(next(&tails), first);
    }

    #[test]
    fn a_claim_that_is_known_no_more_is_found_by_its_key_and_create_revision() {
        let tails = Tails::default();
        let one = claim();
        let first = tails.take(&one).tail;
        tails.sure(one.id);
        tails.keep(one.id, format!("lockkit/semaphore//s/00000003-{first}").as_bytes(), 7, TTL);
        assert_eq!(tails.of(&one), (first.clone(), Some(7)));
        tails.back(one.id);
        assert_ne!(next(&tails), first);
    }

    #[test]
    fn what_is_not_renewed_by_one_process_is_found_by_its_id() {
        let tails = Tails::default();
        let detached = claim().with_lifetime(Lifetime::Detached);
        let Taken { tail, fresh } = tails.take(&detached);
        assert_eq!((tail, fresh), (digest(detached.id), false));
        assert_eq!(Tails::default().of(&detached), (digest(detached.id), None));
    }

    #[test]
    fn tails_of_claims_that_ended_long_ago_are_forgotten() {
        let tails = Tails::default();
        let long_ago = SteadyClock.now().before(TTL);
        for n in 0..10_000 {
            let id = claim().id;
            tails.keep(id, b"k/0123", n, TTL);
            tails.state().assigned.get_mut(&id).unwrap().until = long_ago;
        }
        assert!(tails.state().assigned.capacity() < 1_000);
    }
}
