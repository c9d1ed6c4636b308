//! What this process remembers of its claims: in which session they were put in its queue, where they
//! stand, and until when their own leases last. A memory: what counts is what ZooKeeper says.
//!
//! # Two leases
//! A claim's node lives as long as the session, which this process keeps alive for all its claims
//! together. So that a claim that is never renewed ends all the same, its own lease is kept here, and
//! the node is deleted when it is over (`cleanup.rs`). The session is what ends the claims of a
//! process that died.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{ClaimId, Grant, LeaseStart, Successors, locked};
use lockkit_core::queue::Ahead;
use lockkit_core::{Claim, Token};
use tokio::sync::Notify;

use crate::paths::{Child, NodeTag};
use crate::session::Session;

/// One claim's place.
#[derive(Clone, Debug)]
pub(crate) struct CachedClaim {
    /// The session that its node lives in, or would if it was created.
    pub(crate) session: Arc<Session>,
    pub(crate) tag: NodeTag,
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
    /// What the last read saw ahead of it, while it waits.
    pub(crate) claim_ahead: Option<ClaimAhead>,
}

/// What a claim waits for.
#[derive(Clone, Debug)]
pub(crate) struct ClaimAhead {
    /// The node whose leaving is to be watched. None for permits, where any holder may make room.
    pub(crate) node: Option<String>,
    /// Whether the claim holds as soon as it is gone.
    pub(crate) sole: bool,
}

impl From<Ahead<'_, Child>> for ClaimAhead {
    fn from(ahead: Ahead<'_, Child>) -> Self {
        Self { node: ahead.blocker.map(|child| child.name.clone()), sole: ahead.sole }
    }
}

impl CachedClaim {
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
pub(crate) struct ClaimCache {
    all: Mutex<CacheState>,
    /// Notified when a lease ends before the next check of all of them.
    pub(crate) earlier: Arc<Notify>,
    /// The claims by the paths of their nodes, with the waiters directly after them.
    pub(crate) successors: Successors<String>,
}

#[derive(Debug, Default)]
struct CacheState {
    claims: HashMap<ClaimId, CachedClaim>,
    /// When all leases are checked next, if that is known.
    next_look: Option<Moment>,
}

impl ClaimCache {
    pub(crate) fn get(&self, id: ClaimId) -> Option<CachedClaim> {
        locked(&self.all).claims.get(&id).cloned()
    }

    /// Makes sure that the leases are checked when this one ends. Mostly that is so already: a
    /// check of thousands of leases for every one that begins would cost more than the rest.
    fn look_at(&self, all: &mut CacheState, ends: Moment) {
        if all.next_look.is_none_or(|next| ends < next) {
            all.next_look = Some(ends);
            self.earlier.notify_one();
        }
    }

    /// Remembers that a claim's node is about to be created. Called before the request goes out,
    /// so that whatever becomes of it, a client knows.
    pub(crate) fn note_sent(&self, claim: &Claim, folder: &str, session: &Arc<Session>) {
        let cached = CachedClaim {
            session: session.clone(),
            tag: NodeTag::of(claim.id),
            folder: folder.to_owned(),
            node: None,
            ends: SteadyClock.now().after(claim.wait_ttl.max(claim.hold_ttl)),
        };
        let mut all = locked(&self.all);
        self.look_at(&mut all, cached.ends);
        let before = all.claims.insert(claim.id, cached);
        drop(all);
        self.ended(before);
    }

    /// The claim has this node now: its lease begins.
    pub(crate) fn update(&self, claim: &Claim, node: Node) -> Option<CachedClaim> {
        let mut all = locked(&self.all);
        let cached = all.claims.get_mut(&claim.id)?;
        cached.begin(claim, node.holds, cached.node.is_none());
        self.successors.enter(node.path.clone(), claim.id);
        cached.node = Some(node);
        let settled = cached.clone();
        self.look_at(&mut all, settled.ends);
        Some(settled)
    }

    /// Renews a claim's own lease; `None` when it is over already. What holds stays so.
    pub(crate) fn renew(&self, claim: &Claim, holds: bool) -> Option<CachedClaim> {
        let mut all = locked(&self.all);
        let cached = all.claims.get_mut(&claim.id).filter(|cached| !cached.is_over())?;
        cached.begin(claim, holds || cached.holds(), false);
        cached.node.as_mut()?.holds |= holds;
        let renewed = cached.clone();
        self.look_at(&mut all, renewed.ends);
        Some(renewed)
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        let before = locked(&self.all).claims.remove(&id);
        self.ended(before);
    }

    /// This claim is not known to be in its queue any more.
    fn ended(&self, cached: Option<CachedClaim>) {
        if let Some(node) = cached.and_then(|cached| cached.node) {
            self.successors.leave(&node.path);
        }
    }

    /// Whether a claim is in its queue, unless another client removed it, and waits.
    pub(crate) fn certainly_waits(&self, id: ClaimId) -> bool {
        let cached = self.get(id);
        cached.is_some_and(|it| !it.holds() && !it.is_over() && !it.session.has_ended())
    }

    /// The tags of all claims that a client here owns.
    pub(crate) fn tags(&self) -> HashSet<NodeTag> {
        locked(&self.all).claims.values().map(|cached| cached.tag.clone()).collect()
    }

    /// Forgets the claims whose leases are over, and hands their places out; with the moment at
    /// which to do that again, `latest` at the latest.
    pub(crate) fn take_expired(&self, latest: Moment) -> (Vec<CachedClaim>, Moment) {
        let now = SteadyClock.now();
        let mut all = locked(&self.all);
        let claims = &mut all.claims;
        let over: Vec<_> =
            claims.iter().filter(|(_, cached)| cached.ends <= now).map(|(id, _)| *id).collect();
        let over: Vec<_> = over.iter().filter_map(|id| claims.remove(id)).collect();
        over.iter().flat_map(|it| &it.node).for_each(|node| self.successors.leave(&node.path));
        let next = claims.values().map(|cached| cached.ends).fold(latest, Moment::min);
        all.next_look = Some(next);
        (over, next)
    }
}
