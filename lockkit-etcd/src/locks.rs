//! What the operations of the driver share: its client, leases, watches, and the cache of its claims.
//! The operations are in files of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, KnownBases, LeaseStart, Recent, Successors, locked};
use tokio::sync::OnceCell;

use crate::claim_cache::{CachedClaim, make_room};
use crate::client::{EtcdClient, EtcdError, EtcdResult};
use crate::key_suffixes::KeySuffixPool;
use crate::keys::{Root, in_list};
use crate::leases::{EtcdLease, Leases, YOUNG, seconds, trusted};
use crate::queue_snapshot::{Position, QueueSnapshot, StoredClaim};
use crate::requests::token_of;
use crate::value::KnownRegister;
use crate::watches::Watches;

/// Of how many registers it is remembered how they were.
const REMEMBERED: usize = 4_096;

/// The state of one driver that its operations share.
#[derive(Debug)]
pub(crate) struct EtcdLocks {
    pub(crate) client: Arc<EtcdClient>,
    pub(crate) root: Root,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    pub(crate) suffixes: KeySuffixPool,
    /// Registers, by the keys of their values.
    pub(crate) registers: Recent<Vec<u8>, KnownRegister>,
    pub(crate) bases: KnownBases,
    /// Whether the format of what is stored was checked.
    pub(crate) format: OnceCell<()>,
    /// The claims of this driver.
    pub(crate) claims: Mutex<HashMap<ClaimId, CachedClaim>>,
    /// The same by their positions, with the waiters directly after them.
    pub(crate) successors: Successors<Position>,
    /// Held while claims are moved away from leases that were retired.
    pub(crate) leaving: Arc<tokio::sync::Mutex<()>>,
}

impl EtcdLocks {
    pub(crate) fn new(client: EtcdClient, root: Root) -> Self {
        let client = Arc::new(client);
        Self {
            leases: Leases::new(client.clone(), root.bytes()),
            root,
            watches: Watches::new(client.clone()),
            suffixes: KeySuffixPool::default(),
            registers: Recent::new(REMEMBERED),
            bases: KnownBases::default(),
            format: OnceCell::new(),
            client,
            claims: Mutex::default(),
            successors: Successors::default(),
            leaving: Arc::default(),
        }
    }

    /// The key of a claim, and its create revision if it was seen.
    pub(crate) fn key_of(&self, claim: &Claim) -> (Vec<u8>, Option<i64>) {
        if let Some(cached) = self.claims().get(&claim.id) {
            return (cached.stored.key.clone(), Some(cached.stored.created));
        }
        let (suffix, created) = self.suffixes.of(claim);
        (in_list(&self.root.list(&claim.key), claim, &suffix), created)
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, CachedClaim>> {
        locked(&self.claims)
    }

    pub(crate) fn cached(&self, id: ClaimId) -> Option<CachedClaim> {
        self.claims().get(&id).cloned()
    }

    /// Caches the state of a claim as read by a request that was sent at `seen`. (It may have been
    /// released meanwhile: see [`KeySuffixPool`].)
    pub(crate) fn update_cached(
        &self,
        claim: &Claim,
        stored: &StoredClaim,
        lease: Arc<EtcdLease>,
        snapshot: Option<QueueSnapshot>,
        seen: Moment,
    ) -> CachedClaim {
        let mut cached = CachedClaim::confirmed(stored.clone(), lease, snapshot, seen);
        if let Some(known) = self.cached(claim.id).filter(|p| p.stored.created == stored.created) {
            if known.stored.modified > stored.modified {
                return known; // what was shown is past
            }
            if known.stored.modified == stored.modified {
                cached.confirmed_at = cached.confirmed_at.max(known.confirmed_at);
                cached.moves = known.moves;
            }
        }
        self.cache_claim(claim.id, cached.clone());
        cached
    }

    /// The same of a claim that is new here.
    pub(crate) fn cache_claim(&self, id: ClaimId, cached: CachedClaim) {
        let position = cached.stored.position();
        self.successors.enter(position.clone(), id);
        let mut cached_claims = self.claims();
        let mut left = match cached_claims.len() == cached_claims.capacity() {
            true => make_room(&mut cached_claims),
            false => Vec::new(),
        };
        left.extend(cached_claims.insert(id, cached).map(|before| before.stored.position()));
        drop(cached_claims);
        left.iter().filter(|left| **left != position).for_each(|left| self.successors.leave(left));
    }

    pub(crate) fn forget(&self, id: ClaimId) -> Option<CachedClaim> {
        let cached = self.claims().remove(&id);
        if let Some(cached) = &cached {
            let StoredClaim { key, created, .. } = &cached.stored;
            self.suffixes.remember(id, key, *created, cached.lease.ttl);
            self.successors.leave(&cached.stored.position());
        }
        cached
    }

    /// The grant of a claim that holds.
    ///
    /// A claim that has just begun to hold still has the lease of one that waits; it is moved to
    /// that of a holder in the background, so that the hand-over costs no round trip. Until then it
    /// may be trusted for as long as the old lease lasts, and no longer than the new one will. Of
    /// that a part may have passed when it is moved, but no move has begun before this moment that
    /// is not [known](CachedClaim::until). Both in terms of the ttl of a holder, which was asked for.
    pub(crate) fn grant_of(&self, claim: &Claim) -> EtcdResult<Grant> {
        let cached_claims = self.claims();
        let cached = cached_claims.get(&claim.id).ok_or(EtcdError::LeaseGone)?;
        let now = SteadyClock.now(); // before a move can begin that is not known here
        let token = token_of(cached.stored.created)?;
        let (ttl, until, margin) = match cached.stored.is_holding() {
            true => (cached.lease.ttl, cached.until(), Duration::ZERO),
            false => {
                let ttl = Duration::from_secs(seconds(claim.hold_ttl));
                let young = trusted(ttl - ttl / YOUNG);
                // With less margin the whole ttl would count beyond the end of the old lease.
                (ttl, cached.until().min(now.after(young)), ttl - trusted(ttl))
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
    use crate::claim_cache::PendingMove;

    /// A claim that waits on a lease of 10 s, kept alive at 100 s, and seen on it at `seen`.
    pub(crate) fn waiter(locks: &EtcdLocks, seen: u64) -> (Claim, CachedClaim) {
        let name = lockkit_core::Name::new("a").unwrap();
        let key = lockkit_core::Key::new(Default::default(), lockkit_core::Space::Lock, name);
        let (hold, wait) = (Duration::from_secs(3), Duration::from_secs(10));
        let me = Arc::new(lockkit_core::ClientIdentity::of_this_process());
        let claim = Claim::new(key, Mode::Exclusive, hold, wait, me);
        let (key, mode) = (b"k".to_vec(), Mode::Exclusive);
        let value = Some(ClaimData::of(&claim).queued_now());
        let stored = StoredClaim { key, created: 1, modified: 1, lease: 1, mode, value };
        let lease = Arc::new(EtcdLease::new(1, wait, at(100), &locks.client));
        (claim, CachedClaim::confirmed(stored, lease, None, at(seen)))
    }

    pub(crate) fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    /// No server is there.
    pub(crate) fn no_locks() -> EtcdLocks {
        let nowhere = vec!["http://127.0.0.1:1".to_owned()];
        EtcdLocks::new(EtcdClient::to(nowhere, &ConnectOptions::new()), Root::new(""))
    }

    #[tokio::test]
    async fn a_claim_counts_from_when_its_key_was_seen_and_its_lease_kept_alive() {
        let locks = no_locks();
        for (seen, from) in [(90, 90), (100, 100), (105, 100)] {
            let (_, cached) = waiter(&locks, seen);
            assert_eq!(cached.until(), at(from).after(Duration::from_millis(8_998)), "{seen}");
        }
    }

    #[tokio::test]
    async fn a_claim_that_may_have_been_moved_counts_from_before_the_move() {
        let locks = no_locks();
        let (claim, mut cached) = waiter(&locks, 100);
        let target = Arc::new(EtcdLease::new(2, Duration::from_secs(3), at(200), &locks.client));
        for (number, begun) in [(0, 104), (1, 102), (2, 106)] {
            cached.moves.push(PendingMove { number, begun: at(begun), target: target.clone() });
        }
        let until = at(102).after(Duration::from_millis(2_698));
        assert_eq!(cached.until(), until);
        locks.cache_claim(claim.id, cached.clone());
        let grant = locks.grant_of(&claim).unwrap();
        assert_eq!(grant.start.moment().unwrap().after(trusted(grant.ttl)), until);
        // What shows the key as it was says nothing of the moves; what shows it moved does.
        let mut again = cached.stored.clone();
        let lease = cached.lease.clone();
        assert_eq!(
            locks.update_cached(&claim, &again, lease.clone(), None, at(103)).until(),
            until
        );
        again.modified = 2;
        assert_eq!(
            locks.update_cached(&claim, &again, target, None, at(104)).until(),
            at(104).after(Duration::from_millis(2_698))
        );
        // An answer from before comes late.
        let known = locks.update_cached(&claim, &cached.stored, lease, None, at(105));
        assert_eq!(known.stored.modified, 2);
    }
}
