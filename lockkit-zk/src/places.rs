//! What this process remembers of its claims: in which session they were put in line, where they
//! stand, and until when their own leases last. A memory: what counts is what ZooKeeper says.
//!
//! # Two leases
//! A claim's node lives as long as the session, which this process keeps alive for all its claims
//! together. So that a claim that nobody renews ends all the same, its own lease is kept here, and
//! the node is deleted when it is over (`leases.rs`). The session is what ends the claims of a
//! process that died.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, LeaseStart, locked};
use lockkit_core::queue::Ahead;
use lockkit_core::{Claim, Token};
use tokio::sync::Notify;

use crate::paths::{Child, Tag};
use crate::session::Session;

/// One claim's place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The session that its node lives in, or would if it was created.
    pub(crate) session: Arc<Session>,
    pub(crate) tag: Tag,
    /// The folder of its list.
    pub(crate) folder: String,
    /// `None` when it is not known whether its node was created.
    pub(crate) node: Option<Node>,
    /// When its own lease is over.
    ends: Moment,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) token: Token,
    /// Whether it is known to hold.
    pub(crate) holds: bool,
    /// What the last look saw in its way, while it waits.
    pub(crate) obstacle: Option<Obstacle>,
}

/// What a claim waits for.
#[derive(Clone, Debug)]
pub(crate) struct Obstacle {
    /// The node whose leaving is to be watched. None for permits, where any holder may make room.
    pub(crate) node: Option<String>,
    /// Whether the claim holds as soon as it is gone.
    pub(crate) sole: bool,
}

impl From<Ahead<'_, Child>> for Obstacle {
    fn from(ahead: Ahead<'_, Child>) -> Self {
        Self { node: ahead.blocker.map(|child| child.name.clone()), sole: ahead.sole }
    }
}

impl Place {
    pub(crate) fn is_over(&self) -> bool {
        self.ends <= SteadyClock.now()
    }

    /// Whether it is known to hold.
    pub(crate) fn holds(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.holds)
    }

    /// The grant of the claim in this place: both leases have to last.
    pub(crate) fn grant(&self, token: Token, claim: &Claim) -> Grant {
        let ttl = self.session.lease(claim.hold_ttl);
        let since = self.session.confirmed().min(self.ends.before(ttl));
        Grant { token, ttl, start: LeaseStart::Sent(since), margin: Duration::ZERO }
    }

    /// The same, of which it is not known whether there is a node.
    pub(crate) fn unsettled(mut self) -> Self {
        self.node = None;
        self
    }

    /// Sets the claim's lease at a moment at which it holds, or waits. A lease is never shortened,
    /// but the time of a waiter says nothing about that of a holder.
    fn begin(&mut self, claim: &Claim, holds: bool, fresh: bool) {
        let now = SteadyClock.now();
        let was = if fresh || holds != self.holds() { now } else { self.ends };
        self.ends = was.max(now.after(if holds { claim.hold_ttl } else { claim.wait_ttl }));
    }
}

/// The places of all claims of a driver.
#[derive(Debug, Default)]
pub(crate) struct Places {
    all: Mutex<All>,
    /// Told when a lease ends before the next look at all of them.
    pub(crate) earlier: Arc<Notify>,
}

#[derive(Debug, Default)]
struct All {
    places: HashMap<ClaimId, Place>,
    /// When all leases are looked at next, if that is known.
    next_look: Option<Moment>,
}

impl Places {
    fn all(&self) -> MutexGuard<'_, All> {
        locked(&self.all)
    }

    pub(crate) fn of(&self, id: ClaimId) -> Option<Place> {
        self.all().places.get(&id).cloned()
    }

    /// Makes sure that the leases are looked at when this one ends. Mostly that is so already: a
    /// look at thousands of leases for every one that begins would cost more than the rest.
    fn look_at(&self, all: &mut All, ends: Moment) {
        if all.next_look.is_none_or(|next| ends < next) {
            all.next_look = Some(ends);
            self.earlier.notify_one();
        }
    }

    /// Remembers that a claim's node is about to be created. Called before the request goes out,
    /// so that whatever becomes of it, somebody knows.
    pub(crate) fn expect(&self, claim: &Claim, folder: &str, session: &Arc<Session>) {
        let place = Place {
            session: session.clone(),
            tag: Tag::of(claim.id),
            folder: folder.to_owned(),
            node: None,
            ends: SteadyClock.now().after(claim.wait_ttl.max(claim.hold_ttl)),
        };
        let mut all = self.all();
        self.look_at(&mut all, place.ends);
        all.places.insert(claim.id, place);
    }

    /// The claim stands here now: its lease begins.
    pub(crate) fn settle(&self, claim: &Claim, node: Node) -> Option<Place> {
        let mut all = self.all();
        let place = all.places.get_mut(&claim.id)?;
        place.begin(claim, node.holds, place.node.is_none());
        place.node = Some(node);
        let settled = place.clone();
        self.look_at(&mut all, settled.ends);
        Some(settled)
    }

    /// Renews a claim's own lease; `None` when it is over already. What holds stays so.
    pub(crate) fn renew(&self, claim: &Claim, holds: bool) -> Option<Place> {
        let mut all = self.all();
        let place = all.places.get_mut(&claim.id).filter(|place| !place.is_over())?;
        place.begin(claim, holds || place.holds(), false);
        place.node.as_mut()?.holds |= holds;
        let renewed = place.clone();
        self.look_at(&mut all, renewed.ends);
        Some(renewed)
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.all().places.remove(&id);
    }

    /// The tags of all claims that somebody here owns.
    pub(crate) fn tags(&self) -> HashSet<Tag> {
        self.all().places.values().map(|place| place.tag.clone()).collect()
    }

    /// Forgets the claims whose leases are over, and hands their places out; with the moment at
    /// which to do that again, `latest` at the latest.
    pub(crate) fn take_over(&self, latest: Moment) -> (Vec<Place>, Moment) {
        let now = SteadyClock.now();
        let mut all = self.all();
        let places = &mut all.places;
        let over: Vec<_> =
            places.iter().filter(|(_, place)| place.ends <= now).map(|(id, _)| *id).collect();
        let over = over.iter().filter_map(|id| places.remove(id)).collect();
        let next = places.values().map(|place| place.ends).fold(latest, Moment::min);
        all.next_look = Some(next);
        (over, next)
    }
}
