//! Putting a claim in its queue and taking it out, and what to do when an answer was lost.

use std::sync::Arc;

use lockkit_core::driver::{Acquisition, Attempted, BatchError, Patience, Released};
use lockkit_core::queue::RuleResult;
use lockkit_core::{Claim, Error, LossReason, Mode, Result, Token};
use zookeeper_client::{Error as ZkError, Stat};

use crate::claim_cache::{CachedClaim, ClaimAhead, Node};
use crate::create::CreatedNode;
use crate::errors::{BACKEND, failed, write_failed};
use crate::locks::FolderState;
use crate::locks::ZkLocks;
use crate::paths::{Child, NodeTag, is_downgraded};
use crate::queue_snapshot::QueueSnapshot;
use crate::session::Session;

impl ZkLocks {
    /// Puts a claim in its queue. An error is certain unless a node of the claim may be there.
    pub(crate) async fn acquire(
        &self,
        claim: &Claim,
        patience: Patience,
    ) -> Result<Acquisition, BatchError> {
        let acquired = self.try_to_acquire(claim, patience).await;
        acquired.map_err(|error| self.acquire_failed(claim, error))
    }

    /// The outcome for a claim that waits in its queue if need be, whose node was created with others in one
    /// transaction. Where claims with another limit made it leave again, it is put in by itself.
    pub(crate) async fn answered(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        entered: Result<CreatedNode>,
    ) -> Result<Attempted<Acquisition>, BatchError> {
        let answer = match entered {
            Ok(entered) => self.placed(session, claim, Patience::Wait, entered).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Some(acquired)) => Ok(Attempted::from(acquired)),
            Ok(None) => self.acquire(claim, Patience::Wait).await.map(Attempted::from),
            Err(error) => Err(self.acquire_failed(claim, error)),
        }
    }

    fn acquire_failed(&self, claim: &Claim, error: Error) -> BatchError {
        match error {
            // (What is remembered is forgotten when the server has refused or deleted the node.)
            Error::Backend { .. } if self.claims.get(claim.id).is_some() => {
                BatchError::unknown(error)
            }
            _ => BatchError::refused(error),
        }
    }

    async fn try_to_acquire(&self, claim: &Claim, patience: Patience) -> Result<Acquisition> {
        let cached = self.claims.get(claim.id);
        let session = self.session_for(claim, cached.as_ref()).await?;
        if let Some(cached) = cached
            && let Some(answer) = self.again(&session, claim, patience, &cached).await?
        {
            return Ok(answer);
        }
        if patience == Patience::Try {
            let entered = match self.create_if_free(&session, claim).await? {
                Ok(entered) => entered,
                Err(refused) => return Ok(refused),
            };
            return match self.placed(&session, claim, patience, entered).await? {
                Some(answer) => Ok(answer),
                None => Ok(Acquisition::Busy), // another limit came first, and leaves
            };
        }
        // A claim with another limit may just have come, found a different one, and be leaving: so it
        // is tried again.
        for _ in 0..2 {
            let entered = self.create_node(&session, claim).await?;
            if let Some(answer) = self.placed(&session, claim, patience, entered).await? {
                return Ok(answer);
            }
        }
        let snapshot = self.read_list(&session, &self.layout.list(&claim.key)).await?.snapshot;
        match snapshot.queue().rule_at_end(claim.mode) {
            RuleResult::OtherLimit(limit) => Err(claim.other_limit(limit)),
            _ => Err(Error::retryable(BACKEND, "claims with other limits come and go")),
        }
    }

    /// The session in which a claim lives, or is to live if it is in none that lasts.
    async fn session_for(
        &self,
        claim: &Claim,
        cached: Option<&CachedClaim>,
    ) -> Result<Arc<Session>> {
        match cached.filter(|cached| !cached.session.has_ended()) {
            Some(cached) => Ok(cached.session.clone()),
            None => self.sessions.for_ttl(claim.hold_ttl).await,
        }
    }

    /// Answers for a claim whose node was just created; `None` when others have another limit, and
    /// it was taken out again. Where the list is refused for good it does not stay, either.
    async fn placed(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        patience: Patience,
        entered: CreatedNode,
    ) -> Result<Option<Acquisition>> {
        let node = entered.node.clone();
        let answer = self.read_place(session, claim, patience, entered).await;
        if matches!(&answer, Err(Error::Backend { retryable: false, .. })) {
            let _ = self.remove(session, claim, &node).await;
        }
        answer
    }

    async fn read_place(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        patience: Patience,
        CreatedNode { mut node, is_only, ahead, .. }: CreatedNode,
    ) -> Result<Option<Acquisition>> {
        if is_only {
            return self.answer(session, claim, patience, node, RuleResult::Holds).await.map(Some);
        }
        if let (Some((name, count)), Patience::Wait) = (ahead, patience) {
            node.claim_ahead = Some(ClaimAhead { node: Some(name), sole: count == 1 });
            self.claims.update(claim, node);
            return Ok(Some(Acquisition::Queued { ahead: count }));
        }
        let folder = self.layout.list(&claim.key);
        let tag = NodeTag::of(claim.id);
        let snapshot = self.snapshot(session, &folder).await?;
        if let [earlier, _, ..] = snapshot.find(&tag)[..]
            && earlier.name != node.name
        {
            // An attempt of which nothing was known came first, and keeps its place.
            let cached = self.claims.get(claim.id).ok_or_else(released_meanwhile)?;
            let again = self.again(session, claim, patience, &cached.unsettled()).await?;
            let gone = || Error::retryable(BACKEND, "an earlier attempt of this claim has left");
            return again.ok_or_else(gone).map(Some);
        }
        self.saw_limit(&folder, &snapshot);
        if let Some(given) =
            snapshot.queue().given().filter(|given| Some(given.limit) != claim.mode.limit())
        {
            self.remove(session, claim, &node).await.map_err(|failed| failed.error)?;
            return Err(claim.other_limit(given.limit));
        }
        match snapshot.rule_result(&node.name, node.token) {
            Some(RuleResult::OtherLimit(_)) => {
                self.remove(session, claim, &node).await.map_err(|failed| failed.error)?;
                Ok(None)
            }
            Some(rule_result) => {
                self.answer(session, claim, patience, node, rule_result).await.map(Some)
            }
            None => {
                let what = "the node of a new claim is not among its folder's children";
                Err(Error::retryable(BACKEND, what))
            }
        }
    }

    /// Answers for a claim that is in its queue.
    async fn answer(
        &self,
        session: &Session,
        claim: &Claim,
        patience: Patience,
        mut node: Node,
        rule_result: RuleResult<'_, Child>,
    ) -> Result<Acquisition> {
        let token = node.token;
        match rule_result {
            RuleResult::Holds => {
                node.holds = true;
                let cached = self.claims.update(claim, node).ok_or_else(released_meanwhile)?;
                Ok(Acquisition::Granted(cached.grant(token, claim)))
            }
            RuleResult::Waits(ahead) if patience == Patience::Wait => {
                let count = ahead.count;
                node.claim_ahead = Some(ahead.into());
                self.claims.update(claim, node);
                Ok(Acquisition::Queued { ahead: count })
            }
            RuleResult::Waits(_) => {
                self.remove(session, claim, &node).await.map_err(|failed| failed.error)?;
                Ok(Acquisition::Busy)
            }
            RuleResult::OtherLimit(limit) => {
                self.remove(session, claim, &node).await.map_err(|failed| failed.error)?;
                Err(claim.other_limit(limit))
            }
        }
    }

    /// Answers for a claim that was asked for before: it may be in its queue, or may have been. `None`
    /// when it was never put there.
    async fn again(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        patience: Patience,
        cached: &CachedClaim,
    ) -> Result<Option<Acquisition>> {
        let folder = self.layout.list(&claim.key);
        let snapshot = self.read_list(session, &folder).await?.snapshot;
        let mut found = snapshot.find(&cached.tag).into_iter().map(|child| child.name.clone());
        let Some(name) = found.next() else {
            self.claims.forget(claim.id);
            // What has ended never revives.
            return match cached.node {
                Some(_) => Err(Error::lost(LossReason::Vanished)),
                None => Ok(None),
            };
        };
        // Creates that came late, of attempts before this one.
        for late in found {
            self.delete(session, &format!("{folder}/{late}"))
                .await
                .map_err(|failed| failed.error)?;
        }
        if cached.is_over() {
            return Err(Error::lost(LossReason::Expired));
        }
        let path = format!("{folder}/{name}");
        let stat = session.answer(session.client.check_stat(&path)).await.map_err(failed)?;
        let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id()) else {
            // It lives in a session that has ended for us.
            self.delete(session, &path).await.map_err(|failed| failed.error)?;
            self.claims.forget(claim.id);
            return Ok(None);
        };
        let token = owned(session, &stat)?;
        let node = Node { path, name, token, holds: false, claim_ahead: None };
        if cached.node.is_none() {
            self.claims.note_sent(claim, &folder, session);
        }
        match snapshot.rule_result(&node.name, node.token) {
            Some(rule_result) => {
                self.answer(session, claim, patience, node, rule_result).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Takes a claim out of its queue. What is ambiguous is a deletion that was not answered.
    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released, BatchError> {
        let cached = self.claims.get(claim.id).filter(|cached| !cached.session.has_ended());
        // What may still be on its way to the server came over this one, and is there before what
        // is sent now.
        let session = match &cached {
            Some(cached) => cached.session.clone(),
            None => {
                let session = self.sessions.there_for_ttl(claim.hold_ttl).await;
                session.map_err(BatchError::refused)?
            }
        };
        if let Some(CachedClaim { node: Some(node), .. }) = cached {
            let removed = self.remove(&session, claim, &node).await;
            if removed.as_ref().is_err_and(|error| error.ambiguous > 0) {
                self.claims.successors.wake(&node.path);
            }
            if removed? {
                self.left_folder(&self.layout.list(&claim.key));
                return Ok(Released::Removed);
            }
        }
        // Whether there is a node, and where, is not known: read.
        let folder = self.layout.list(&claim.key);
        let snapshot =
            self.read_list(&session, &folder).await.map_err(BatchError::refused)?.snapshot;
        let mut released = match snapshot.claims().is_empty() {
            true => Released::NoSuchLock,
            false => Released::NotFound,
        };
        if self.remove_found(&session, &folder, &snapshot, &NodeTag::of(claim.id)).await? {
            released = Released::Removed;
        }
        self.claims.forget(claim.id);
        Ok(released)
    }

    /// Notes that a claim has left this folder, which may be empty now.
    pub(crate) fn left_folder(&self, folder: &str) {
        if self.folders.last(folder) == Some(FolderState::InUse) {
            self.folders.saw(folder, FolderState::There);
        }
        self.ends.forget(folder);
        self.folder_unused(folder);
    }

    /// Deletes all nodes with this tag.
    pub(crate) async fn remove_all(
        &self,
        session: &Session,
        folder: &str,
        tag: &NodeTag,
    ) -> Result<()> {
        let snapshot = self.read_list(session, folder).await?.snapshot;
        self.remove_found(session, folder, &snapshot, tag).await.map_err(|failed| failed.error)?;
        Ok(())
    }

    async fn remove_found(
        &self,
        session: &Session,
        folder: &str,
        snapshot: &QueueSnapshot,
        tag: &NodeTag,
    ) -> Result<bool, BatchError> {
        let mut removed = false;
        for child in snapshot.find(tag) {
            removed |= self.remove_node(session, folder, &child.name, tag, child.mode).await?;
        }
        Ok(removed)
    }

    /// Deletes the node of a claim of this process; says whether it was there.
    async fn remove(
        &self,
        session: &Session,
        claim: &Claim,
        node: &Node,
    ) -> Result<bool, BatchError> {
        let (folder, tag) = (self.layout.list(&claim.key), NodeTag::of(claim.id));
        let removed = self.remove_node(session, &folder, &node.name, &tag, claim.mode).await?;
        if removed {
            self.claims.forget(claim.id);
        }
        Ok(removed)
    }

    /// Deletes the node of a claim that is of this mode now, with the marker if it was downgraded, in
    /// one round trip; says whether the node was there.
    pub(crate) async fn remove_node(
        &self,
        session: &Session,
        folder: &str,
        name: &str,
        tag: &NodeTag,
        mode: Mode,
    ) -> Result<bool, BatchError> {
        let (path, marker) = (format!("{folder}/{name}"), format!("{folder}/{}", tag.marker()));
        // Both requests go out here. A marker says nothing without its claim, so nothing waits for the
        // second answer.
        let deleted = session.client.delete(&path, None);
        if is_downgraded(name, mode) {
            drop(session.client.delete(&marker, None));
        }
        was_deleted(session.answer(deleted).await)
    }

    /// Deletes a node; says whether it was there.
    pub(crate) async fn delete(&self, session: &Session, path: &str) -> Result<bool, BatchError> {
        was_deleted(session.answer(session.client.delete(path, None)).await)
    }
}

fn was_deleted(answer: Result<(), ZkError>) -> Result<bool, BatchError> {
    match answer {
        Ok(()) => Ok(true),
        Err(ZkError::NoNode) => Ok(false),
        Err(error) => Err(write_failed(error)),
    }
}

/// The token of a node, if it lives in this session.
pub(crate) fn owned(session: &Session, stat: &Stat) -> Result<Token> {
    match Token::new(stat.czxid as u64) {
        Some(token) if stat.ephemeral_owner == session.id() => Ok(token),
        _ => Err(Error::retryable(BACKEND, "the node of the claim is not this session's")),
    }
}

fn released_meanwhile() -> Error {
    Error::retryable(BACKEND, "the claim was released while it was acquired")
}
