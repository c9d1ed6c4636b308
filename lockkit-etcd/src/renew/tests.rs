//! What renewals answer, and what they move, without a server.

use lockkit_core::Mode;
use lockkit_core::driver::ClaimData;

use super::*;
use crate::leases::FULL;
use crate::locks::tests::{at, no_locks, waiter};

#[tokio::test]
async fn a_claim_that_is_released_while_it_is_asked_about_is_looked_at() {
    let locks = no_locks();
    let (claim, mut cached) = waiter(&locks, 100);
    cached.stored.value = cached.stored.value.map(ClaimData::holding);
    let keys = HashSet::from([cached.stored.key.clone()]);
    let keys = HashMap::from([(cached.lease.id, Ok(Some(keys)))]);
    let seen = RenewalReads { sent: at(101), keys, snapshots: HashMap::new() };
    locks.cache_claim(claim.id, cached.clone());
    let next = locks.judge(&claim, Some(cached.clone()), &seen).unwrap();
    assert!(matches!(next, RenewalAction::Answer(Renewal::Holds(_))));
    locks.forget(claim.id);
    let next = locks.judge(&claim, Some(cached), &seen).unwrap();
    assert!(matches!(next, RenewalAction::Inspect));
}

/// The queue was read before the release was carried out, whose answer came first.
#[tokio::test]
async fn a_claim_that_was_granted_since_its_queue_was_read_is_not_said_to_wait() {
    let locks = no_locks();
    let (claim, cached) = waiter(&locks, 100);
    let own = cached.stored.clone();
    let ahead = StoredClaim { key: b"ahead".to_vec(), created: 0, mode: Mode::Exclusive, ..own };
    let snapshot = QueueSnapshot::shown(vec![ahead, cached.stored.clone()]);
    let keys = HashSet::from([cached.stored.key.clone()]);
    let keys = HashMap::from([(cached.lease.id, Ok(Some(keys)))]);
    let snapshots = HashMap::from([(claim.key.clone(), Ok(snapshot))]);
    let seen = RenewalReads { sent: at(101), keys, snapshots };
    locks.cache_claim(claim.id, cached.clone());
    let judged = || locks.judge(&claim, Some(cached.clone()), &seen).unwrap();
    assert!(matches!(judged(), RenewalAction::Answer(Renewal::Waits { ahead: 1 })));
    let value = cached.stored.value.clone().map(ClaimData::holding);
    let stored = StoredClaim { modified: 2, value, ..cached.stored.clone() };
    locks.cache_claim(claim.id, CachedClaim { stored, ..cached.clone() });
    assert!(matches!(judged(), RenewalAction::Answer(Renewal::Holds(_))));
}

/// (Another lease cannot be had: no server is there.)
#[tokio::test]
async fn a_lease_takes_no_more_of_the_claims_that_are_moved_together_than_of_others() {
    let locks = no_locks();
    let (claim, cached) = waiter(&locks, 100);
    let claim = Arc::new(claim);
    locks.leases.share(EtcdLease::new(2, claim.hold_ttl, SteadyClock.now(), &locks.client));
    let moving = LeaseMove::to_hold(&claim, cached.stored);
    let claims = vec![(claim.clone(), moving); FULL + 1];
    let mut answers = Vec::new();
    let groups = locks.by_target(claims, &mut answers).await;
    assert_eq!(groups.iter().map(|(_, claims, _)| claims.len()).collect::<Vec<_>>(), [FULL]);
    assert!(matches!(answers[..], [(_, Err(_))]), "{answers:?}");
}
