//! Waiting for a claim's turn: a watch on the one node that matters, and one on the own node.
//!
//! Directly after a claim of the same driver an exclusive claim needs neither: the driver deletes that node
//! itself, and the answer says that the waiter holds (`batch.rs`). Only one that comes first after a holder
//! for a while watches, since others may end that holder.

use std::sync::Arc;

use lockkit_core::driver::{ClaimData, Following, Grant};
use lockkit_core::queue::RuleResult;
use lockkit_core::{Claim, Error, LossReason, Mode, Result};
use zookeeper_client::EventType;

use crate::acquire::owned;
use crate::claim_cache::{CachedClaim, ClaimAhead, Node};
use crate::errors::if_there;
use crate::lists::{Event, Listing, event};
use crate::locks::ZkLocks;
use crate::paths::{NodeTag, break_name};
use crate::session::Session;
use crate::session::WatchReservation;

impl ZkLocks {
    pub(crate) async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant> {
        let Some(cached) = self.claims.get(claim.id) else {
            return Err(Error::lost(LossReason::Expired));
        };
        let Some(node) = &cached.node else {
            return Err(Error::lost(LossReason::Vanished));
        };
        let session = &cached.session;
        if session.has_ended() {
            return Err(Error::lost(LossReason::SessionEnded));
        }
        if node.holds {
            return Ok(cached.grant(node.token, claim));
        }
        match claim.mode {
            Mode::Permits { .. } => drop(self.wait_by_folder(&cached, claim, node).await?),
            _ => self.wait_for_claim_ahead(&cached, claim, node).await?,
        }
        // Its lease as a holder begins.
        match self.claims.renew(claim, true) {
            Some(cached) => Ok(cached.grant(node.token, claim)),
            None => Err(Error::lost(LossReason::Expired)),
        }
    }

    /// Returns when nothing ahead of an exclusive or shared claim conflicts with it.
    async fn wait_for_claim_ahead(
        &self,
        cached: &CachedClaim,
        claim: &Arc<Claim>,
        node: &Node,
    ) -> Result<()> {
        let session = &*cached.session;
        let mut known = node.claim_ahead.clone();
        let mut reserved = None;
        let mut own: Option<Event> = None;
        loop {
            let claim_ahead = match known.take() {
                Some(claim_ahead) => claim_ahead,
                None => match self.read_ahead(cached, claim, node).await? {
                    Some(claim_ahead) => claim_ahead,
                    None => return Ok(()),
                },
            };
            let Some(blocker) = claim_ahead.node.as_ref() else {
                return Ok(()); // locks always have one
            };
            let path = format!("{}/{blocker}", cached.folder);
            let following = match claim.mode {
                Mode::Exclusive => self.claims.successors.follow(path.clone(), claim),
                _ => None,
            };
            if let Some(following) = &following {
                tokio::select! {
                    biased;
                    () = following.woken() => match self.holds_by_now(claim) {
                        true => return Ok(()),
                        false => continue,
                    },
                    () = following.relied_on(|ahead| self.claims.certainly_waits(ahead)) => {}
                }
            }
            let room = reserved.take().or_else(|| session.reserve(&[&node.path, &path]));
            let Some(_room) = room else {
                own = None;
                let Some((claim_ahead, room)) = self.wait_by_folder(cached, claim, node).await?
                else {
                    return Ok(());
                };
                (known, reserved) = (Some(claim_ahead), Some(room));
                continue;
            };
            let mut own_event = match own.take() {
                Some(event) => event,
                None => self.watch_own(session, claim, node).await?,
            };
            let has_left = tokio::select! {
                // First the own node: it may have gone before the other did.
                biased;
                () = woken(following.as_ref()) => match self.holds_by_now(claim) {
                    true => return Ok(()),
                    false => {
                        own = Some(own_event);
                        continue;
                    }
                },
                event = &mut own_event => {
                    self.own_changed(session, claim, node, event).await?;
                    known = Some(claim_ahead);
                    continue;
                }
                has_left = left_or_changed(session, &path, claim.mode) => has_left?,
            };
            own = Some(own_event);
            // Nothing can come between two sequence numbers, so no other client is ahead now.
            if has_left && claim_ahead.sole {
                return Ok(());
            }
        }
    }

    /// Whether the answer to a release has said that this claim holds.
    fn holds_by_now(&self, claim: &Claim) -> bool {
        self.claims.get(claim.id).is_some_and(|cached| cached.holds())
    }

    /// Reads what is ahead; `None` when nothing conflicts.
    async fn read_ahead(
        &self,
        cached: &CachedClaim,
        claim: &Claim,
        node: &Node,
    ) -> Result<Option<ClaimAhead>> {
        let session = &cached.session;
        let listing = self.lists.of(session, &cached.folder, false).read(None).await?;
        match listing.rule_result(&node.name, node.token) {
            Some(RuleResult::Holds) => Ok(None),
            Some(RuleResult::Waits(ahead)) => Ok(Some(ahead.into())),
            Some(RuleResult::OtherLimit(_)) | None => Err(self.removal(session, claim, node).await),
        }
    }

    /// Makes sure that the own node is there and this session's, and watches it.
    async fn watch_own(&self, session: &Session, claim: &Claim, node: &Node) -> Result<Event> {
        let watched = session.answer(session.client.get_and_watch_data(&node.path)).await;
        let Some((_, stat, watcher)) = if_there(watched)? else {
            return Err(self.removal(session, claim, node).await);
        };
        owned(session, &stat)?;
        Ok(event(watcher))
    }

    async fn own_changed(
        &self,
        session: &Session,
        claim: &Claim,
        node: &Node,
        event: EventType,
    ) -> Result<()> {
        match event {
            EventType::NodeDeleted => Err(self.removal(session, claim, node).await),
            EventType::Session => Err(Error::lost(LossReason::SessionEnded)),
            _ => Ok(()),
        }
    }

    /// Follows the lists of the folder, which all waiters of it share. Returns when the claim holds, or
    /// when there is room to watch what is ahead of it, which is kept for it then.
    ///
    /// That is how permits wait: any holder may make room, and so may another limit.
    async fn wait_by_folder(
        &self,
        cached: &CachedClaim,
        claim: &Claim,
        node: &Node,
    ) -> Result<Option<(ClaimAhead, WatchReservation)>> {
        let session = &cached.session;
        let lists = self.lists.of(session, &cached.folder, true);
        let mut seen: Option<Arc<Listing>> = None;
        loop {
            let listing = lists.read(seen.as_deref()).await?;
            match listing.rule_result(&node.name, node.token) {
                Some(RuleResult::Holds) => return Ok(None),
                Some(RuleResult::Waits(ahead)) => {
                    if let Some(blocker) = ahead.blocker {
                        let path = format!("{}/{}", cached.folder, blocker.name);
                        if let Some(room) = session.reserve(&[&node.path, &path]) {
                            return Ok(Some((ahead.into(), room)));
                        }
                    }
                }
                _ => return Err(self.removal(session, claim, node).await),
            }
            if listing.changed().await == EventType::Session {
                return Err(Error::lost(LossReason::SessionEnded));
            }
            seen = Some(listing);
        }
    }

    /// Why a claim is not in its queue any more.
    async fn removal(&self, session: &Session, claim: &Claim, node: &Node) -> Error {
        if session.has_ended() {
            return Error::lost(LossReason::SessionEnded);
        }
        let record = break_name(&claim.key, node.token, &NodeTag::of(claim.id));
        let reason = match self.break_record(session, &claim.key, &record).await {
            Ok(Some(record)) => LossReason::Broken(record),
            Ok(None) => LossReason::Vanished,
            Err(error) => return error,
        };
        // The waiter after it has to read what is ahead now.
        self.claims.forget(claim.id);
        Error::lost(reason)
    }
}

/// Returns when the claim ahead has left, or may have, if it is one of this driver's.
async fn woken(following: Option<&Following<'_, String>>) {
    match following {
        Some(following) => following.woken().await,
        None => std::future::pending().await,
    }
}

/// Returns when the node has left or changed, and whether it has left.
async fn left_or_changed(session: &Session, path: &str, mode: Mode) -> Result<bool> {
    // Reading rather than asking whether it exists: that leaves no watch behind when it does not.
    let watched = session.answer(session.client.get_and_watch_data(path)).await;
    let Some((data, _, watcher)) = if_there(watched)? else { return Ok(true) };
    // It may have been downgraded before any client watched. (That makes no room for a writer.)
    let is_shared = |data: ClaimData| data.mode() == Mode::Shared;
    if mode == Mode::Shared && ClaimData::from_json(&data).is_some_and(is_shared) {
        return Ok(false);
    }
    match event(watcher).await {
        EventType::Session => Err(Error::lost(LossReason::SessionEnded)),
        event => Ok(event == EventType::NodeDeleted),
    }
}
