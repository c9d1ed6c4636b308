//! The claims and the sessions of this driver. Core decides about renewal: a claim that it stopped renewing
//! is taken out of its queue, although other claims keep its session alive.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{ClaimId, locked};
use lockkit_core::{Claim, Error, Lifetime};
use tokio::sync::Notify;

use crate::context::StoreContext;
use crate::session::{BeatError, Session};

/// A claim of this driver.
#[derive(Clone, Debug)]
pub(crate) struct OwnClaim {
    pub(crate) claim: Arc<Claim>,
    pub(crate) session: Arc<Session>,
    /// When it is taken out unless it is renewed.
    pub(crate) due: Moment,
    pub(crate) holds: bool,
    /// An answer has shown it in its queue.
    is_known: bool,
    /// It was taken out, or is about to be: it is renewed no longer.
    pub(crate) is_over: bool,
}

/// The claims of this driver, and its sessions by their TTL.
#[derive(Debug, Default)]
pub(crate) struct OwnClaims {
    claims: Arc<Mutex<HashMap<ClaimId, OwnClaim>>>,
    sessions: tokio::sync::Mutex<BTreeMap<Duration, Arc<Session>>>,
    changed: Notify,
}

impl OwnClaims {
    /// The session for a claim, with a beat that is fresh enough for it to enter a queue (rule 6).
    pub(crate) async fn session_for(
        &self,
        context: &Arc<StoreContext>,
        claim: &Claim,
    ) -> Result<Arc<Session>, Error> {
        for _ in 0..3 {
            // A claim that is in a queue stays with its session; one whose session has ended is none.
            let own = self.get(&claim.id).filter(|own| !own.session.is_lost());
            let session = match own {
                Some(own) => own.session,
                None => self.session(context, claim.hold_ttl).await?,
            };
            let now = context.now();
            let since = match claim.lifetime {
                Lifetime::Renewed => now.before(claim.hold_ttl / 6),
                // It is never renewed, so its lease must be whole.
                _ => now,
            };
            match session.fresh(since).await {
                Ok(_) => return Ok(session),
                Err(BeatError::Lost) => {}
                Err(BeatError::Store(error)) => return Err(error),
            }
        }
        Err(context.unavailable("sessions end as soon as they are created"))
    }

    async fn session(
        &self,
        context: &Arc<StoreContext>,
        ttl: Duration,
    ) -> Result<Arc<Session>, Error> {
        let mut sessions = self.sessions.lock().await;
        if let Some(session) = sessions.get(&ttl).filter(|session| !session.is_lost()) {
            return Ok(session.clone());
        }
        let claims = Arc::downgrade(&self.claims);
        let is_claim_here = move |claim: &str| {
            let claims = claims.upgrade();
            let id = ClaimId::from_hex(claim);
            claims.zip(id).is_some_and(|(claims, id)| locked(&claims).contains_key(&id))
        };
        let session = Session::create(context, ttl, is_claim_here).await?;
        sessions.insert(ttl, session.clone());
        Ok(session)
    }

    /// The claim is about to enter a queue; says whether it was not known here.
    pub(crate) fn enter(&self, claim: &Arc<Claim>, session: &Arc<Session>, now: Moment) -> bool {
        let due = now.after(claim.hold_ttl.max(claim.wait_ttl));
        let mut claims = locked(&self.claims);
        let known = claims.get(&claim.id).is_some_and(|own| Arc::ptr_eq(&own.session, session));
        if !known {
            let (claim, session) = (claim.clone(), session.clone());
            let (holds, is_known, is_over) = (false, false, false);
            let own = OwnClaim { claim, session, due, holds, is_known, is_over };
            claims.insert(own.claim.id, own);
        }
        drop(claims);
        self.changed.notify_one();
        !known
    }

    /// The claim of this id, if it is one of this driver.
    pub(crate) fn get(&self, id: &ClaimId) -> Option<OwnClaim> {
        locked(&self.claims).get(id).cloned()
    }

    /// The claim is in no queue any more, and never will be.
    pub(crate) fn forget(&self, id: &ClaimId) {
        locked(&self.claims).remove(id);
    }

    /// An answer showed the claim in its queue: it was acquired, renewed or promoted. `false` where this
    /// driver has given it up meanwhile: its release may be under way, so the answer must not count.
    #[must_use]
    pub(crate) fn extend(&self, id: &ClaimId, holds: bool, ttl: Duration, now: Moment) -> bool {
        let mut claims = locked(&self.claims);
        let Some(own) = claims.get_mut(id).filter(|own| !own.is_over) else { return false };
        let due = now.after(ttl);
        // What was set when it entered is a guess; from there on nothing shortens it.
        let was_guessed = !own.is_known || (holds && !own.holds);
        own.due = if was_guessed { due } else { own.due.max(due) };
        (own.holds, own.is_known) = (holds, true);
        drop(claims);
        self.changed.notify_one();
        true
    }

    /// Core asks for a renewal, whatever becomes of it: the claim is not given up while it is asked.
    pub(crate) fn is_asked_for(&self, id: &ClaimId, now: Moment) {
        if let Some(own) = locked(&self.claims).get_mut(id) {
            let ttl = if own.holds { own.claim.hold_ttl } else { own.claim.wait_ttl };
            own.due = own.due.max(now.after(ttl));
        }
    }

    /// Claims that core stopped renewing, now over; and when the next one will be.
    pub(crate) fn end_overdue(&self, now: Moment) -> (Vec<OwnClaim>, Option<Moment>) {
        let mut claims = locked(&self.claims);
        let (mut over, mut next) = (Vec::new(), None::<Moment>);
        for own in claims.values_mut() {
            if own.due <= now {
                own.is_over = true;
                over.push(own.clone());
            } else {
                next = Some(next.map_or(own.due, |next| next.min(own.due)));
            }
        }
        over.sort_by_key(|own| own.claim.id);
        (over, next)
    }

    /// Tries again later to take out a claim that is over.
    pub(crate) fn end_again(&self, id: &ClaimId, at: Moment) {
        if let Some(own) = locked(&self.claims).get_mut(id) {
            own.due = at;
        }
        self.changed.notify_one();
    }

    /// Returns when a claim may be due earlier than before.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Gives up the sessions that have no claims: all of them at the end, otherwise those that were not used for
    /// twice their TTL. Returns those to be removed from the store.
    pub(crate) async fn retire_unused(&self, now: Moment, at_end: bool) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.lock().await;
        let is_used = |session: &Arc<Session>| {
            locked(&self.claims).values().any(|own| Arc::ptr_eq(&own.session, session))
        };
        let retires = |session: &&Arc<Session>| {
            let since = (!at_end).then(|| now.before(session.ttl * 2));
            !is_used(session) && session.retire(since)
        };
        let retired: Vec<_> = sessions.values().filter(retires).cloned().collect();
        sessions.retain(|_, session| !session.is_lost());
        retired
    }
}
