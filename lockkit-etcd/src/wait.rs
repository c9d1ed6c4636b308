//! Waiting in line, and what happens when it ends.
//!
//! A waiter watches the one key that is in its way, and its own; for permits, all of the list. What
//! stood ahead is known from the transaction that put it in line, and only becomes less, so when
//! its obstacle goes it often knows that it holds without asking.
//!
//! # The lease of a waiter, and of a holder
//! The two ttls of a claim are two leases. It is put in line on that of a waiter (unless it holds
//! at once), and when it holds its key is moved to that of a holder, from one revision of the key
//! to the next, so that no late or repeated request can move it back. That takes a round trip, for
//! which nobody waits: until it is done the claim may be trusted for as long as its old lease
//! lasts, and no longer than it will on the new one. Only claims that nobody renews wait for the
//! move, since the old lease may be too short for them; and those of whose time nothing is left.

use std::sync::Arc;

use etcd_client::KeyValue;
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{ClaimEnd, Grant};
use lockkit_core::{Claim, Error, Lifetime, LossReason, Mode};
use tokio::sync::mpsc;

use crate::calls::EtcdError;
use crate::claim_cache::Place;
use crate::keys::{end_of, given_limit};
use crate::line::{Entry, Line};
use crate::locks::Locks;
use crate::moves::{Moved, Moving};
use crate::watchers::{News, WatchRange};
use crate::watches::Watching;

/// What a piece of news means to a waiter.
enum Turn {
    Wait,
    Hold,
    Look,
}

impl Locks {
    /// Returns once the claim holds.
    pub(crate) async fn granted(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Grant, Error> {
        loop {
            let place = match self.place(claim.id) {
                Some(place) if place.line.is_some() || place.entry.is_holding() => place,
                _ => self.look_for(claim).await?,
            };
            if let Some(line) = place.line.clone().filter(|_| !place.entry.is_holding())
                && !line.holds(place.entry.created)
                && !self.wait(claim, &place, Line::clone(&line)).await?
            {
                self.look_for(claim).await?;
                continue;
            }
            // Its renewals may have moved it meanwhile.
            let place = self.place(claim.id).unwrap_or(place);
            if place.until() <= SteadyClock.now() {
                self.check(claim, &place).await?;
            }
            return Ok(self.begin(claim).await?);
        }
    }

    /// Waits for the one that is in the way. `true` when the claim then holds, `false` when that
    /// has to be looked up.
    async fn wait(&self, claim: &Claim, place: &Place, mut line: Line) -> Result<bool, Error> {
        let own = &place.entry;
        let (to, mut news) = mpsc::unbounded_channel();
        let _watching = self.watch(claim, own, &line, to);
        loop {
            let turn = match news.recv().await {
                None | Some(News::Missed) => Turn::Look,
                Some(News::Gone(key)) if key == own.key => {
                    return Err(self.lost(claim, place).await);
                }
                // It was moved by a renewal, or broken gracefully.
                Some(News::Changed(kv)) if kv.key() == own.key => Turn::Look,
                // Its list was given another limit.
                Some(News::Gone(key)) if given_limit(&key).is_some() => Turn::Look,
                Some(News::Gone(key)) => {
                    line.remove(&key);
                    turn(&line, own)
                }
                Some(News::Changed(kv)) => changed(&mut line, &kv, own),
            };
            match turn {
                Turn::Wait => {}
                // Both may have gone at once, and the words of it come in any order.
                Turn::Hold => match has_gone(&mut news, own) {
                    true => return Err(self.lost(claim, place).await),
                    false => return Ok(true),
                },
                Turn::Look => return Ok(false),
            }
        }
    }

    fn watch(
        &self,
        claim: &Claim,
        own: &Entry,
        line: &Line,
        to: mpsc::UnboundedSender<News>,
    ) -> Vec<Watching> {
        let from = line.revision + 1;
        let Some(entry) = line.obstacle(own.created) else {
            // All of the list, itself included, in one watch that all who wait here share. Where a
            // limit goes another one has come: so what is seen of both is seen in its order, and
            // nobody takes a turn by a limit that was not in force any more when it came.
            let list = self.root.list(&claim.key);
            let all =
                WatchRange { end: end_of(&list), key: list, from, changes: false, content: None };
            return vec![self.watches.watch(all, to)];
        };
        // Who reads may go on when a writer becomes a reader; others wait until it has gone.
        let changes = own.mode == Mode::Shared;
        let one = |key: &[u8], changes| {
            let key = key.to_vec();
            WatchRange { key, end: Vec::new(), from, changes, content: None }
        };
        let (obstacle, mine) = (one(&entry.key, changes), one(&own.key, true));
        vec![self.watches.watch(mine, to.clone()), self.watches.watch(obstacle, to)]
    }

    /// Looks where a claim stands, for one that waits.
    async fn look_for(self: &Arc<Self>, claim: &Claim) -> Result<Place, Error> {
        let look = self.look_ahead(claim).await?;
        if let Some(record) = look.broken {
            self.forget(claim.id);
            return Err(Error::Lost { reason: LossReason::Broken(record) });
        }
        match look.own {
            Some(own) => Ok(self.adopt(claim, &own, look.line, look.sent).await?),
            None => {
                let place = self.forget(claim.id);
                Err(Error::Lost { reason: self.why_gone(place.as_ref()).await.into() })
            }
        }
    }

    /// Its lease may have ended while nothing was heard: asks, before a late grant.
    async fn check(self: &Arc<Self>, claim: &Claim, place: &Place) -> Result<(), Error> {
        let alive = self.leases.keep(&place.lease).await?;
        match alive {
            true => self.look_for(claim).await.map(drop),
            false => Err(self.lost(claim, place).await),
        }
    }

    /// The error for a claim whose key is gone.
    async fn lost(&self, claim: &Claim, place: &Place) -> Error {
        self.forget(claim.id);
        let broken = self.look(claim).await.ok().and_then(|look| look.broken);
        let reason = match broken {
            Some(record) => LossReason::Broken(record),
            None => self.why_gone(Some(place)).await.into(),
        };
        Error::Lost { reason }
    }

    /// Why a key is gone that nobody broke: with its lease, and before that was over?
    pub(crate) async fn why_gone(&self, place: Option<&Place>) -> ClaimEnd {
        let Some(place) = place.filter(|place| place.lease.until() > SteadyClock.now()) else {
            return ClaimEnd::NotFound;
        };
        let until = place.lease.until();
        match self.leases.keep(&place.lease).await {
            Ok(false) if until > SteadyClock.now() => ClaimEnd::SessionEnded,
            _ => ClaimEnd::NotFound,
        }
    }

    /// A claim begins to hold.
    pub(crate) async fn begin(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Grant, EtcdError> {
        let place = self.place(claim.id).ok_or(EtcdError::LeaseGone)?;
        if place.entry.is_holding() {
            return self.grant_of(claim);
        }
        if claim.lifetime != Lifetime::Renewed || place.until() <= SteadyClock.now() {
            self.promote(claim).await?;
            return self.grant_of(claim);
        }
        let grant = self.grant_of(claim)?;
        let (locks, claim) = (self.clone(), claim.clone());
        // When it fails, the next renewal does it.
        self.calls.background.spawn(async move { drop(locks.promote(&claim).await) });
        Ok(grant)
    }

    /// Moves a claim that holds to the lease of a holder.
    pub(crate) async fn promote(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<(), EtcdError> {
        let Some(place) = self.place(claim.id).filter(|place| !place.entry.is_holding()) else {
            return Ok(());
        };
        let target = self.leases.holding(claim).await?;
        let moving = Moving::to_hold(claim, place.entry);
        match self.relocate_one(&target, moving).await? {
            Moved::Done(_) => Ok(()),
            Moved::Elsewhere | Moved::Gone => {
                if claim.lifetime != Lifetime::Renewed {
                    target.end();
                }
                Err(EtcdError::LeaseGone)
            }
        }
    }
}

/// Whether what has come in already says that this key has gone.
fn has_gone(news: &mut mpsc::UnboundedReceiver<News>, own: &Entry) -> bool {
    let mut come = std::iter::from_fn(|| news.try_recv().ok());
    come.any(|news| matches!(news, News::Gone(key) if key == own.key))
}

/// One of those ahead has gone.
fn turn(line: &Line, own: &Entry) -> Turn {
    match (line.holds(own.created), own.mode) {
        (true, _) => Turn::Hold,
        // All of them are watched, so the list is still complete.
        (false, Mode::Permits { .. }) => Turn::Wait,
        (false, _) => Turn::Look,
    }
}

/// One of those ahead was written: renewed in its lease, or downgraded.
fn changed(line: &mut Line, kv: &KeyValue, own: &Entry) -> Turn {
    line.update(kv);
    if line.holds(own.created) {
        return Turn::Hold;
    }
    match line.obstacle(own.created).is_some_and(|entry| entry.key == kv.key()) {
        true => Turn::Wait,
        false => Turn::Look,
    }
}
