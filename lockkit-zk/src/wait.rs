//! Waiting for a claim's turn: a watch on the one node that matters, and one on the own node.

use std::sync::Arc;

use lockkit_core::driver::{ClaimData, Grant};
use lockkit_core::queue::Verdict;
use lockkit_core::{Claim, Error, LossReason, Mode};
use zookeeper_client::EventType;

use crate::acquire::owned;
use crate::failure::if_there;
use crate::lists::{Event, Listing, event};
use crate::locks::Locks;
use crate::paths::{Tag, break_name};
use crate::places::{Node, Obstacle, Place};
use crate::session::Room;
use crate::session::Session;

/// What became of the node ahead.
enum Blocker {
    Left,
    Changed,
}

impl Locks {
    pub(crate) async fn granted(&self, claim: &Claim) -> Result<Grant, Error> {
        let Some(place) = self.places.of(claim.id) else {
            return Err(Error::Lost { reason: LossReason::Expired });
        };
        let Some(node) = &place.node else {
            return Err(Error::Lost { reason: LossReason::Vanished });
        };
        let session = &place.session;
        if session.has_ended() {
            return Err(Error::Lost { reason: LossReason::SessionEnded });
        }
        if node.holds {
            return Ok(place.grant(node.token, claim));
        }
        match claim.mode {
            Mode::Permits { .. } => drop(self.turn_by_folder(&place, claim, node).await?),
            _ => self.turn_came(&place, claim, node).await?,
        }
        // Its lease as a holder begins.
        match self.places.renew(claim, true) {
            Some(place) => Ok(place.grant(node.token, claim)),
            None => Err(Error::Lost { reason: LossReason::Expired }),
        }
    }

    /// Returns when nothing ahead of an exclusive or shared claim conflicts with it.
    async fn turn_came(&self, place: &Place, claim: &Claim, node: &Node) -> Result<(), Error> {
        let session = &*place.session;
        let mut known = node.obstacle.clone();
        let mut reserved = None;
        let mut own: Option<Event> = None;
        loop {
            let obstacle = match known.take() {
                Some(obstacle) => obstacle,
                None => match self.look(place, claim, node).await? {
                    Some(obstacle) => obstacle,
                    None => return Ok(()),
                },
            };
            let Some(blocker) = obstacle.node.as_ref() else {
                return Ok(()); // locks always have one
            };
            let path = format!("{}/{blocker}", place.folder);
            let room = reserved.take().or_else(|| session.room(&[&node.path, &path]));
            let Some(_room) = room else {
                own = None;
                let Some((obstacle, room)) = self.turn_by_folder(place, claim, node).await? else {
                    return Ok(());
                };
                (known, reserved) = (Some(obstacle), Some(room));
                continue;
            };
            let mut own_event = match own.take() {
                Some(event) => event,
                None => self.watch_own(session, claim, node).await?,
            };
            let what = tokio::select! {
                // First the own node: it may have gone before the other did.
                biased;
                event = &mut own_event => {
                    self.own_changed(session, claim, node, event).await?;
                    known = Some(obstacle);
                    continue;
                }
                what = leaving(session, &path, claim.mode) => what?,
            };
            own = Some(own_event);
            match what {
                // Nothing can come between two sequence numbers, so nobody else is ahead now.
                Blocker::Left if obstacle.sole => return Ok(()),
                Blocker::Left | Blocker::Changed => {}
            }
        }
    }

    /// One look: what is ahead, or nothing that conflicts.
    async fn look(
        &self,
        place: &Place,
        claim: &Claim,
        node: &Node,
    ) -> Result<Option<Obstacle>, Error> {
        let session = &place.session;
        let listing = self.lists.of(session, &place.folder, false).read(None).await?;
        match listing.verdict(&node.name, node.token) {
            Some(Verdict::Holds) => Ok(None),
            Some(Verdict::Waits(ahead)) => Ok(Some(ahead.into())),
            Some(Verdict::OtherLimit(_)) | None => Err(self.gone(session, claim, node).await),
        }
    }

    /// Makes sure that the own node is there and this session's, and watches it.
    async fn watch_own(
        &self,
        session: &Session,
        claim: &Claim,
        node: &Node,
    ) -> Result<Event, Error> {
        let watched = session.answer(session.client.get_and_watch_data(&node.path)).await;
        let Some((_, stat, watcher)) = if_there(watched)? else {
            return Err(self.gone(session, claim, node).await);
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
    ) -> Result<(), Error> {
        match event {
            EventType::NodeDeleted => Err(self.gone(session, claim, node).await),
            EventType::Session => Err(Error::Lost { reason: LossReason::SessionEnded }),
            _ => Ok(()),
        }
    }

    /// Follows the lists of the folder, which all share who wait here. Returns when the claim holds, or
    /// when there is room to watch what is in its way, which is kept for it then.
    ///
    /// That is how permits wait: any holder may make room, and so may another limit.
    async fn turn_by_folder(
        &self,
        place: &Place,
        claim: &Claim,
        node: &Node,
    ) -> Result<Option<(Obstacle, Room)>, Error> {
        let session = &place.session;
        let lists = self.lists.of(session, &place.folder, true);
        let mut seen: Option<Arc<Listing>> = None;
        loop {
            let listing = lists.read(seen.as_deref()).await?;
            match listing.verdict(&node.name, node.token) {
                Some(Verdict::Holds) => return Ok(None),
                Some(Verdict::Waits(ahead)) => {
                    if let Some(blocker) = ahead.blocker {
                        let path = format!("{}/{}", place.folder, blocker.name);
                        if let Some(room) = session.room(&[&node.path, &path]) {
                            return Ok(Some((ahead.into(), room)));
                        }
                    }
                }
                _ => return Err(self.gone(session, claim, node).await),
            }
            if listing.changed().await == EventType::Session {
                return Err(Error::Lost { reason: LossReason::SessionEnded });
            }
            seen = Some(listing);
        }
    }

    /// Why a claim is not in line any more.
    async fn gone(&self, session: &Session, claim: &Claim, node: &Node) -> Error {
        if session.has_ended() {
            return Error::Lost { reason: LossReason::SessionEnded };
        }
        let record = break_name(&claim.key, node.token, &Tag::of(claim.id));
        match self.break_record(session, &claim.key, &record).await {
            Ok(Some(record)) => Error::Lost { reason: LossReason::Broken(record) },
            Ok(None) => Error::Lost { reason: LossReason::Vanished },
            Err(error) => error,
        }
    }
}

/// Returns when the node has left or changed.
async fn leaving(session: &Session, path: &str, mode: Mode) -> Result<Blocker, Error> {
    // Reading rather than asking whether it exists: that leaves no watch behind when it does not.
    let watched = session.answer(session.client.get_and_watch_data(path)).await;
    let Some((data, _, watcher)) = if_there(watched)? else { return Ok(Blocker::Left) };
    // It may have been downgraded before anybody watched. (That makes no room for a writer.)
    let is_shared = |data: ClaimData| data.mode() == Mode::Shared;
    if mode == Mode::Shared && ClaimData::from_json(&data).is_some_and(is_shared) {
        return Ok(Blocker::Changed);
    }
    match event(watcher).await {
        EventType::NodeDeleted => Ok(Blocker::Left),
        EventType::Session => Err(Error::Lost { reason: LossReason::SessionEnded }),
        _ => Ok(Blocker::Changed),
    }
}
