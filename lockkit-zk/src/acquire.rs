//! Putting a claim in line and taking it out: one round trip each, and what to do when an answer
//! was lost.

use std::sync::Arc;

use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{Acquisition, Patience, Released};
use lockkit_core::{Claim, Error, LossReason, Mode, Token};
use zookeeper_client::{
    CreateMode, CreateSequence, Error as ZkError, MultiWriteError, MultiWriteResult, Stat,
};

use crate::driver::Inner;
use crate::failure::{BACKEND, failed, not_done};
use crate::line::{Line, Verdict};
use crate::node::Label;
use crate::paths::Tag;
use crate::places::{Node, Place};
use crate::session::Session;

/// How often a create meets a folder that vanished before the backend is said to fail.
const TRIES: usize = 8;

impl Inner {
    pub(crate) async fn acquire(
        &self,
        claim: &Claim,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        let session = self.sessions.get().await?;
        if let Some(place) = self.places.of(claim.id)
            && let Some(answer) = self.again(&session, claim, patience, &place).await?
        {
            return Ok(answer);
        }
        let exclusive = claim.mode == Mode::Exclusive;
        if patience == Patience::Try {
            let line = Line::of(self.children(&session, &self.layout.list(&claim.key)).await?);
            match line.verdict_at_end(claim.mode) {
                Verdict::Holds => {}
                Verdict::Waits(_) => return Ok(Acquisition::Busy),
                Verdict::OtherLimit(limit) => return Err(mismatch(claim, limit)),
            }
        }
        if exclusive && let Some(node) = self.enter_empty(&session, claim).await? {
            return self.stand(&session, claim, patience, node, Verdict::Holds).await;
        }
        self.enter(&session, claim, patience).await
    }

    /// Creates the node of a claim if its folder is empty, in one request; `None` when it is not,
    /// or when there is no folder.
    ///
    /// The folder is deleted, which the server refuses unless it is empty, and made again, all in
    /// one step. So nobody else is there, and nobody sees a claim that could not hold. (A create
    /// and a list that leave back to back would tell as much, but the client does not set
    /// TCP_NODELAY: the second request often waits for the answer to the first.)
    async fn enter_empty(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<Option<Node>, Error> {
        let folder = self.layout.list(&claim.key);
        let prefix = Tag::of(claim.id).prefix(claim.mode);
        let acls = self.sessions.options().acls();
        let container = CreateMode::Container.with_acls(acls);
        let ephemeral = CreateMode::EphemeralSequential.with_acls(acls);
        let path = format!("{folder}/{prefix}");
        let mut multi = session.client.new_multi_writer();
        multi
            .add_delete(&folder, None)
            .and_then(|()| multi.add_create(&folder, b"", &container))
            // For its answer, which tells the number of this change: servers before 3.8.2 do not
            // tell that of a create.
            .and_then(|()| multi.add_set_data(&folder, b"", None))
            .and_then(|()| multi.add_create(&path, &Label::of(claim), &ephemeral))
            .map_err(failed)?;
        self.places.expect(claim, &folder, session);
        let sent = BootClock.now();
        let done = session.answers(multi.commit()).await?;
        let (token, path) = match done.as_deref() {
            Ok(
                [_, _, MultiWriteResult::SetData { stat }, MultiWriteResult::Create { path, .. }],
            ) => (Token::new(stat.mzxid as u64), path.clone()),
            Ok(_) => return Err(Error::retryable(BACKEND, "an answer of another form")),
            Err(MultiWriteError::OperationFailed { source, .. }) if not_done(source) => {
                self.places.forget(claim.id);
                return match source {
                    ZkError::NotEmpty | ZkError::NoNode => Ok(None),
                    other => Err(failed(other.clone())),
                };
            }
            Err(error) => return Err(failed(error.clone().into())),
        };
        session.confirm(sent);
        let wrong = || Error::retryable(BACKEND, "a change without a number");
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let token = token.ok_or_else(wrong)?;
        Ok(Some(Node { path, name, token, holds: false, ahead: None }))
    }

    /// Creates the node, and looks where it stands.
    async fn enter(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        let folder = self.layout.list(&claim.key);
        let tag = Tag::of(claim.id);
        let mut mismatches = 0;
        for _ in 0..TRIES {
            let (node, line) = match self.create(session, claim, &folder, &tag).await? {
                Some(created) => created,
                None => {
                    self.make_folder(session, &folder).await.map_err(failed)?;
                    continue;
                }
            };
            if let [earlier, _, ..] = line.find(&tag)[..]
                && earlier.name != node.name
            {
                // An attempt of which nothing was known came first, and keeps its place.
                let place = self.places.of(claim.id).ok_or_else(released_meanwhile)?;
                let unknown = place.unsettled();
                if let Some(answer) = self.again(session, claim, patience, &unknown).await? {
                    return Ok(answer);
                }
                continue;
            }
            match line.verdict(&node.name) {
                Some(Verdict::OtherLimit(limit)) => {
                    self.remove(session, claim, &node).await?;
                    mismatches += 1;
                    // The other one may just have come, found a different limit, and be leaving.
                    if mismatches > 1 {
                        return Err(mismatch(claim, limit));
                    }
                }
                Some(verdict) => return self.stand(session, claim, patience, node, verdict).await,
                None => {
                    let what = "the node of a new claim is not among its folder's children";
                    return Err(Error::retryable(BACKEND, what));
                }
            }
        }
        Err(Error::retryable(BACKEND, "the folder of the lock vanished again and again"))
    }

    /// Creates the node of a claim; with the list, in one flight. `None` when there is no folder.
    async fn create(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        folder: &str,
        tag: &Tag,
    ) -> Result<Option<(Node, Line)>, Error> {
        self.places.expect(claim, folder, session);
        let prefix = tag.prefix(claim.mode);
        let path = format!("{folder}/{prefix}");
        let options = CreateMode::EphemeralSequential.with_acls(self.sessions.options().acls());
        let sent = BootClock.now();
        // Both requests go out here, not when they are polled.
        let created = session.client.create(&path, &Label::of(claim), &options);
        let listed = session.client.list_children(folder);
        let (created, listed) = session.answers(async { tokio::join!(created, listed) }).await?;
        let (stat, sequence): (Stat, CreateSequence) = match created {
            Ok(created) => created,
            Err(error) => {
                if not_done(&error) {
                    self.places.forget(claim.id);
                }
                return if error == ZkError::NoNode { Ok(None) } else { Err(failed(error)) };
            }
        };
        session.confirm(sent);
        let name = format!("{prefix}{sequence}");
        let node = Node {
            path: format!("{folder}/{name}"),
            name,
            token: owned(session, &stat)?,
            holds: false,
            ahead: None,
        };
        self.places.settle(claim, node.clone());
        Ok(Some((node, Line::of(listed.map_err(failed)?))))
    }

    /// Answers for a claim that is in line.
    async fn stand(
        &self,
        session: &Session,
        claim: &Claim,
        patience: Patience,
        mut node: Node,
        verdict: Verdict,
    ) -> Result<Acquisition, Error> {
        let token = node.token;
        match verdict {
            Verdict::Holds => {
                node.holds = true;
                let place = self.places.settle(claim, node).ok_or_else(released_meanwhile)?;
                Ok(Acquisition::Granted(place.grant(token, claim.hold_ttl)))
            }
            Verdict::Waits(ahead) if patience == Patience::Wait => {
                let count = ahead.count;
                node.ahead = Some(ahead);
                self.places.settle(claim, node);
                Ok(Acquisition::Queued { ahead: count })
            }
            Verdict::Waits(_) => {
                self.remove(session, claim, &node).await?;
                Ok(Acquisition::Busy)
            }
            Verdict::OtherLimit(limit) => {
                self.remove(session, claim, &node).await?;
                Err(mismatch(claim, limit))
            }
        }
    }

    /// Answers for a claim that was asked for before: it may be in line, or may have been. `None`
    /// when it was never put there.
    async fn again(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        patience: Patience,
        place: &Place,
    ) -> Result<Option<Acquisition>, Error> {
        let folder = self.layout.list(&claim.key);
        let line = self.synced_line(session, &folder).await?;
        let mut found = line.find(&place.tag).into_iter().map(|child| child.name.clone());
        let Some(name) = found.next() else {
            self.places.forget(claim.id);
            // What has ended never revives.
            return match place.node {
                Some(_) => Err(Error::Lost { reason: LossReason::Vanished }),
                None => Ok(None),
            };
        };
        // Creates that came late, of attempts before this one.
        for late in found {
            self.delete(session, &format!("{folder}/{late}")).await?;
        }
        if place.is_over() {
            return Err(Error::Lost { reason: LossReason::Expired });
        }
        let path = format!("{folder}/{name}");
        let stat = session.answer(session.client.check_stat(&path)).await.map_err(failed)?;
        let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id()) else {
            // It lives in a session that has ended for us.
            self.delete(session, &path).await?;
            self.places.forget(claim.id);
            return Ok(None);
        };
        let token = owned(session, &stat)?;
        let node = Node { path, name, token, holds: false, ahead: None };
        if place.node.is_none() {
            self.places.expect(claim, &folder, session);
        }
        match line.verdict(&node.name) {
            Some(verdict) => self.stand(session, claim, patience, node, verdict).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Result<Released, Error> {
        let session = self.sessions.get().await?;
        if let Some(Place { node: Some(node), session: its, .. }) = self.places.of(claim.id)
            && its.id() == session.id()
            && self.remove(&session, claim, &node).await?
        {
            return Ok(Released::Removed);
        }
        // Whether there is a node, and where, is not known: look.
        let folder = self.layout.list(&claim.key);
        let line = self.synced_line(&session, &folder).await?;
        let mut released = match line.is_empty() {
            true => Released::NoSuchLock,
            false => Released::NotInLine,
        };
        if self.remove_found(&session, &folder, &line, &Tag::of(claim.id)).await? {
            released = Released::Removed;
        }
        self.places.forget(claim.id);
        Ok(released)
    }

    /// Deletes all nodes with this tag.
    pub(crate) async fn remove_all(
        &self,
        session: &Session,
        folder: &str,
        tag: &Tag,
    ) -> Result<(), Error> {
        let line = self.synced_line(session, folder).await?;
        self.remove_found(session, folder, &line, tag).await.map(drop)
    }

    async fn remove_found(
        &self,
        session: &Session,
        folder: &str,
        line: &Line,
        tag: &Tag,
    ) -> Result<bool, Error> {
        let mut removed = false;
        for child in line.find(tag) {
            removed |= self.delete(session, &format!("{folder}/{}", child.name)).await?;
            if child.mode == Mode::Shared && child.name.starts_with("x-") {
                self.delete(session, &format!("{folder}/{}", tag.marker())).await?;
            }
        }
        Ok(removed)
    }

    /// Deletes the node of a claim, with the marker if it was downgraded; says whether it was there.
    async fn remove(&self, session: &Session, claim: &Claim, node: &Node) -> Result<bool, Error> {
        let deleted = session.client.delete(&node.path, None);
        let downgraded = claim.mode == Mode::Shared && node.name.starts_with("x-");
        let marker = format!("{}/{}", self.layout.list(&claim.key), Tag::of(claim.id).marker());
        let unmarked = downgraded.then(|| session.client.delete(&marker, None));
        let deleted = session.answer(deleted).await;
        if let Some(unmarked) = unmarked {
            let _ = session.answer(unmarked).await; // it says nothing without its claim
        }
        match deleted {
            Ok(()) => {
                self.places.forget(claim.id);
                Ok(true)
            }
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Deletes a node; says whether it was there.
    pub(crate) async fn delete(&self, session: &Session, path: &str) -> Result<bool, Error> {
        match session.answer(session.client.delete(path, None)).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// The list as the leader has it, with everything that this session sent before.
    async fn synced_line(&self, session: &Session, folder: &str) -> Result<Line, Error> {
        let synced = session.sync(self.layout.root());
        let listed = session.client.list_children(folder);
        let (synced, listed) = session.answers(async { tokio::join!(synced, listed) }).await?;
        match listed {
            Err(ZkError::NoNode) => Ok(Line::default()),
            Ok(names) => synced.map(|()| Line::of(names)).map_err(failed),
            Err(error) => Err(failed(error)),
        }
    }
}

/// The token of a node, if it lives in this session.
pub(crate) fn owned(session: &Session, stat: &Stat) -> Result<Token, Error> {
    match Token::new(stat.czxid as u64) {
        Some(token) if stat.ephemeral_owner == session.id() => Ok(token),
        _ => Err(Error::retryable(BACKEND, "the node of the claim is not this session's")),
    }
}

fn released_meanwhile() -> Error {
    Error::retryable(BACKEND, "the claim was released while it was acquired")
}

fn mismatch(claim: &Claim, in_use: u32) -> Error {
    let asked = claim.mode.limit().unwrap_or_default();
    Error::LimitMismatch { name: claim.key.name.to_string(), in_use, asked }
}
