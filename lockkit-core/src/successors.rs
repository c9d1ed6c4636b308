//! The waiters that come directly after claims of the same driver: when such a claim leaves, its driver
//! knows so from the answer to its own request, and the waiter needs no watch. For drivers whose server
//! keeps the order of a queue. No I/O.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Claim;
use crate::concurrency::locked;
use crate::driver::ClaimId;

/// For how long a waiter directly after a claim of its own driver relies on that driver alone. Most locks
/// are held for less; and a holder that others end is missed for no longer.
const RELIES: Duration = Duration::from_millis(250);

/// The claims of a driver by their positions, each with the waiter that comes directly after it, where
/// that is a claim of this driver too. `P` identifies a claim in its queue for ever: no other claim has the
/// same one, then or later.
///
/// A driver says when a claim [enters](Self::enter) its queue, and when it [leaves](Self::leave). A waiter
/// that [follows](Self::follow) such a claim is woken when that claim leaves, or when that
/// [may have happened](Self::wake): an attempt to release it got no answer.
#[derive(Debug)]
pub struct Successors<P: Eq + Hash>(Mutex<HashMap<P, OwnClaim>>);

#[derive(Debug)]
struct OwnClaim {
    id: ClaimId,
    next: Option<NextWaiter>,
}

#[derive(Debug)]
struct NextWaiter {
    claim: Arc<Claim>,
    woken: Arc<Notify>,
}

/// A waiter's place directly after another claim of its driver. Dropped, it is woken no more.
#[derive(Debug)]
pub struct Following<'a, P: Eq + Hash> {
    successors: &'a Successors<P>,
    ahead: P,
    woken: Arc<Notify>,
}

impl<P: Eq + Hash> Default for Successors<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P: Eq + Hash> Successors<P> {
    /// A claim of this driver is in its queue.
    pub fn enter(&self, position: P, id: ClaimId) {
        locked(&self.0).entry(position).or_insert(OwnClaim { id, next: None });
    }

    /// A claim is in its queue no more, or this driver no longer knows of it: the waiter that follows it is woken.
    pub fn leave(&self, position: &P) {
        let removed = locked(&self.0).remove(position);
        if let Some(next) = removed.and_then(|own| own.next) {
            next.woken.notify_one();
        }
    }

    /// A claim may have left its queue: the waiter that follows it has to read the queue.
    pub fn wake(&self, position: &P) {
        if let Some(next) = locked(&self.0).get(position).and_then(|own| own.next.as_ref()) {
            next.woken.notify_one();
        }
    }

    /// Lets a waiter follow the claim directly ahead of it; `None` where that is no claim of this driver.
    pub fn follow(&self, ahead: P, claim: &Arc<Claim>) -> Option<Following<'_, P>> {
        let woken = Arc::new(Notify::new());
        let next = NextWaiter { claim: claim.clone(), woken: woken.clone() };
        locked(&self.0).get_mut(&ahead)?.next = Some(next);
        Some(Following { successors: self, ahead, woken })
    }

    /// The waiter that follows this claim.
    pub fn next(&self, position: &P) -> Option<Arc<Claim>> {
        let claims = locked(&self.0);
        claims.get(position)?.next.as_ref().map(|next| next.claim.clone())
    }
}

impl<P: Eq + Hash> Following<'_, P> {
    /// Returns once the claim ahead has left, or may have.
    ///
    /// # Cancel safety
    /// It only waits: it may be dropped at any time.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Returns when the claim ahead has held for a while, or when its driver cannot say any more whether it
    /// waits: then others may end it, or it ends with its lease, so the waiter has to watch. `waits`: whether
    /// a claim certainly is in its queue, and waits.
    ///
    /// # Cancel safety
    /// It only waits: it may be dropped at any time.
    pub async fn relied_on(&self, waits: impl Fn(ClaimId) -> bool) {
        let mut held_before = false;
        loop {
            tokio::time::sleep(RELIES / 2).await;
            let holds = !self.ahead().is_some_and(&waits);
            // Twice: a claim that holds only now is not one that has held for a while.
            if holds && held_before {
                return;
            }
            held_before = holds;
        }
    }

    /// The claim ahead, while it is in its queue.
    fn ahead(&self) -> Option<ClaimId> {
        locked(&self.successors.0).get(&self.ahead).map(|own| own.id)
    }
}

impl<P: Eq + Hash> Drop for Following<'_, P> {
    fn drop(&mut self) {
        if let Some(own) = locked(&self.successors.0).get_mut(&self.ahead)
            && own.next.as_ref().is_some_and(|next| Arc::ptr_eq(&next.woken, &self.woken))
        {
            own.next = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::{ClientIdentity, Key, Mode, Name, Namespace, Space};

    fn claim() -> Arc<Claim> {
        let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
        let (ttl, me) = (Duration::from_secs(1), Arc::new(ClientIdentity::of_this_process()));
        Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, me))
    }

    #[test]
    fn a_waiter_is_woken_when_the_claim_ahead_leaves_or_may_have_left() {
        let (successors, waiter) = (Successors::default(), claim());
        assert!(successors.follow(1, &waiter).is_none(), "a claim of another process");
        successors.enter(1, ClaimId::random());
        let following = successors.follow(1, &waiter).unwrap();
        assert_eq!(successors.next(&1).map(|next| next.id), Some(waiter.id));
        assert!(following.woken().now_or_never().is_none() && following.ahead().is_some());
        successors.wake(&1);
        assert!(following.woken().now_or_never().is_some() && following.ahead().is_some());
        successors.leave(&1);
        assert!(following.woken().now_or_never().is_some() && following.ahead().is_none());
        assert!(successors.follow(1, &waiter).is_none(), "too late: it has left");
    }

    #[test]
    fn a_waiter_that_gave_up_is_nobodys_successor_and_one_that_follows_again_stays() {
        let (successors, waiter) = (Successors::default(), claim());
        successors.enter(1, ClaimId::random());
        let before = successors.follow(1, &waiter).unwrap();
        let again = successors.follow(1, &waiter).unwrap();
        drop(before);
        assert!(successors.next(&1).is_some());
        drop(again);
        assert!(successors.next(&1).is_none());
    }
}
