//! Putting a claim's node into its folder: which transaction does it, and what its answer means.
//! Nothing is waited for here.
//!
//! A claim's node is created by a transaction that also writes to the folder, for what that
//! answers: the number of the change, which is the token (servers before 3.8.2 do not tell it of a
//! create within a transaction), and how many nodes the folder has now. If it has one, the claim
//! holds, and nothing else has to be asked. (A create and a list that leave back to back would tell
//! as much, but the client does not set TCP_NODELAY: the second request waits for the answer to the
//! first.)

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{Acquisition, ClaimData};
use lockkit_core::queue::{GivenLimit, RuleResult};
use lockkit_core::{Claim, Error, Mode, Result, Token};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError, MultiWriteResult, Stat};

use crate::claim_cache::Node;
use crate::errors::{BACKEND, failed, not_done};
use crate::fixed_limit::{NODES, admits_first, limit_at};
use crate::locks::{FolderState, ZkLocks};
use crate::paths::{NodeKind, NodeTag};
use crate::queue_ends::FolderChange;
use crate::queue_snapshot::QueueSnapshot;
use crate::session::Session;

/// How often an attempt is refused by what others did before the backend is said to fail.
const TRIES: usize = 8;
/// For how long folders may come and go. ZooKeeper and other drivers remove those that are empty, at
/// any moment before something lies in it, so that is no failure of anything.
const VANISHING: Duration = Duration::from_secs(5);

/// Under which condition a node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CreateCondition {
    /// The folder is not there; it is made along.
    New,
    /// The folder is there.
    Existing,
    /// The folder is there, and empty: it is deleted, which the server refuses otherwise, and made
    /// again.
    Empty,
    /// The folder is there, and has this fixed limit.
    Limited(GivenLimit),
    /// The folder has this version: no claim has come since it was read.
    Unchanged(i32),
}

/// A node that was created.
pub(crate) struct CreatedNode {
    pub(crate) node: Node,
    /// Whether nothing else was in the folder.
    pub(crate) is_only: bool,
    /// The claim directly ahead, if it is known, and how many are ahead.
    pub(crate) ahead: Option<(String, u32)>,
    /// By which change the folder was made.
    folder_made: i64,
}

/// What came of an attempt that the server decided on.
enum CreateResult {
    Created(CreatedNode),
    Refused(ZkError),
}

impl ZkLocks {
    /// Creates the node of a claim, any other client that is there.
    pub(crate) async fn create_node(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<CreatedNode> {
        let folder = self.layout.list(&claim.key);
        let mut tries = RetryBudget::begin();
        while tries.are_left() {
            let condition = match self.folders.last(&folder) {
                None => CreateCondition::New,
                Some(FolderState::There | FolderState::InUse) => CreateCondition::Existing,
                Some(FolderState::Limited(given)) => CreateCondition::Limited(given),
                // With a folder made again the numbers begin again.
                Some(FolderState::NearSequenceEnd) => CreateCondition::Empty,
            };
            match self.attempt(session, claim, &folder, condition).await? {
                CreateResult::Created(entered) => return Ok(entered),
                CreateResult::Refused(why) => {
                    tries.note(&why);
                    self.learn(session, &folder, condition, why).await?;
                }
            }
        }
        Err(vanishing())
    }

    /// Creates the node of a claim if that holds at once; otherwise none, so that no client sees a
    /// claim that will not stay. `Err` of the answer to a try that is refused.
    pub(crate) async fn create_if_free(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<Result<CreatedNode, Acquisition>> {
        let folder = self.layout.list(&claim.key);
        let mut tries = RetryBudget::begin();
        while tries.are_left() {
            let mut checked = None;
            let condition = match self.folders.last(&folder) {
                None => CreateCondition::New,
                Some(FolderState::There | FolderState::NearSequenceEnd) => CreateCondition::Empty,
                Some(FolderState::InUse | FolderState::Limited(_)) => {
                    let (names, stat) = match self.latest_children(session, &folder).await? {
                        Ok(listed) => listed,
                        Err(why) => {
                            tries.note(&why);
                            self.learn(session, &folder, CreateCondition::Existing, why).await?;
                            continue;
                        }
                    };
                    let snapshot = QueueSnapshot::of(names);
                    self.saw_limit(&folder, &snapshot);
                    match snapshot.queue().rule_at_end(claim.mode) {
                        RuleResult::Holds => {}
                        RuleResult::Waits(_) => return Ok(Err(Acquisition::Busy)),
                        RuleResult::OtherLimit(limit) => return Err(claim.other_limit(limit)),
                    }
                    checked = Some(stat.czxid);
                    CreateCondition::Unchanged(stat.version)
                }
            };
            match self.attempt(session, claim, &folder, condition).await? {
                CreateResult::Created(mut entered) => {
                    // Versions begin again with a folder that was deleted and made again; unless
                    // that happened, no claim has come since the read. (Neighbours come without
                    // changing the version.)
                    let sure = !self.layout.has_neighbours();
                    entered.is_only |= sure && checked == Some(entered.folder_made);
                    return Ok(Ok(entered));
                }
                CreateResult::Refused(why) => {
                    tries.note(&why);
                    self.learn(session, &folder, condition, why).await?;
                }
            }
        }
        Err(vanishing())
    }

    /// What is in a folder, with all that any client was told of: a follower that lags would refuse
    /// what is free, or go by a limit that was another's.
    async fn latest_children(
        &self,
        session: &Session,
        folder: &str,
    ) -> Result<Result<(Vec<String>, Stat), ZkError>> {
        let may_follow = self.sessions.may_follow();
        let caught_up = may_follow.then(|| session.client.sync(self.layout.root()));
        let children = session.client.get_children(folder);
        let both = async { tokio::join!(OptionFuture::from(caught_up), children) };
        match session.answers(both).await? {
            (Some(Err(error)), Ok(_)) => Err(failed(error)),
            (_, children) => Ok(children),
        }
    }

    async fn attempt(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        folder: &str,
        condition: CreateCondition,
    ) -> Result<CreateResult> {
        let acls = self.sessions.options().acls();
        let container = self.layout.folder_mode().with_acls(acls);
        let ephemeral = CreateMode::EphemeralSequential.with_acls(acls);
        let path = format!("{folder}/{}", self.layout.prefix(&NodeTag::of(claim.id), claim));
        let mut multi = session.client.new_multi_writer();
        let added = match condition {
            CreateCondition::New => multi.add_create(folder, b"", &container),
            CreateCondition::Existing => Ok(()),
            CreateCondition::Empty => multi
                .add_delete(folder, None)
                .and_then(|()| multi.add_create(folder, b"", &container)),
            CreateCondition::Limited(given) => multi.add_check_version(&limit_at(folder, given), 0),
            CreateCondition::Unchanged(version) => multi.add_check_version(folder, version),
        };
        let data = ClaimData::of(claim).with_ttl(session.lease(claim.hold_ttl)).to_json();
        added
            .and_then(|()| multi.add_create(&path, &data, &ephemeral))
            .and_then(|()| multi.add_set_data(folder, b"", None))
            .map_err(failed)?;
        self.claims.note_sent(claim, folder, session);
        self.unused_folders.used(folder);
        let sent = SteadyClock.now();
        let done = session.answers(multi.commit()).await?;
        let (path, stat) = match done.as_deref() {
            Ok([.., MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }]) => {
                (path.clone(), *stat)
            }
            Ok(_) => return Err(Error::retryable(BACKEND, "an answer of another form")),
            Err(MultiWriteError::OperationFailed { source, .. }) if not_done(source) => {
                self.claims.forget(claim.id);
                return Ok(CreateResult::Refused(source.clone()));
            }
            Err(error) => return Err(failed(error.clone().into())),
        };
        session.confirm(sent);
        if matches!(condition, CreateCondition::New | CreateCondition::Empty) {
            self.unused_folders.made(folder);
        }
        let mut entered = self.entered(claim, folder, path, stat, &[])?;
        if let CreateCondition::Limited(given) = condition {
            entered.is_only = stat.num_children == 1 + NODES && admits_first(given, claim.mode);
        }
        Ok(CreateResult::Created(entered))
    }

    /// Notes that the node of a claim was created, in a transaction that deleted these nodes of its folder
    /// and left the folder in this state.
    pub(crate) fn entered(
        &self,
        claim: &Claim,
        folder: &str,
        path: String,
        stat: Stat,
        deleted: &[&str],
    ) -> Result<CreatedNode> {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        self.saw_claim(folder, &name);
        let wrong = || Error::retryable(BACKEND, "a change without a number");
        let token = Token::new(stat.mzxid as u64).ok_or_else(wrong)?;
        let ahead =
            self.ends.changed(folder, &FolderChange { stat, deleted, created: Some(&name) });
        if self.folders.last(folder) == Some(FolderState::NearSequenceEnd) {
            self.ends.forget(folder);
        }
        // Two exclusive claims conflict, whatever else is there.
        let knows = claim.mode == Mode::Exclusive && !self.layout.has_neighbours();
        let ahead = ahead.filter(|_| knows);
        let count = u32::try_from(stat.num_children - 1).unwrap_or(0);
        let node = Node { path, name, token, holds: false, claim_ahead: None };
        self.claims.update(claim, node.clone());
        Ok(CreatedNode {
            node,
            is_only: stat.num_children == 1,
            ahead: ahead.map(|ahead| (ahead, count)),
            folder_made: stat.czxid,
        })
    }

    /// Takes note that a claim is in the folder; a limit that is known of stays known.
    fn saw_claim(&self, folder: &str, name: &str) {
        let kind = NodeKind::of(name.to_owned());
        let is_near_the_end = matches!(kind, NodeKind::Claim(child) if child.is_near_the_end());
        let state = match self.folders.last(folder) {
            Some(limited @ FolderState::Limited(_)) => limited,
            _ if is_near_the_end => FolderState::NearSequenceEnd,
            _ => FolderState::InUse,
        };
        self.folders.saw(folder, state);
    }

    /// Takes note of the fixed limit of a queue.
    pub(crate) fn saw_limit(&self, folder: &str, snapshot: &QueueSnapshot) {
        if let Some(given) = snapshot.queue().given() {
            self.folders.saw(folder, FolderState::Limited(given));
        }
    }

    /// Takes note of why an attempt was refused, and makes what is missing above the folder.
    async fn learn(
        &self,
        session: &Session,
        folder: &str,
        condition: CreateCondition,
        why: ZkError,
    ) -> Result<()> {
        match (why, condition) {
            (ZkError::NoNode, CreateCondition::New) => {
                self.make_above(session, folder).await.map_err(failed)?;
            }
            // It has another limit now.
            (ZkError::NoNode, CreateCondition::Limited(_)) => {
                self.folders.saw(folder, FolderState::InUse)
            }
            (ZkError::NoNode, _) => self.folders.forget(folder),
            (ZkError::NodeExists, CreateCondition::New) => {
                self.folders.saw(folder, FolderState::There)
            }
            (ZkError::NotEmpty, CreateCondition::Empty) => {
                self.folders.saw(folder, FolderState::InUse)
            }
            // A client that may make folders above it need not be allowed to delete them.
            (ZkError::NoAuth, CreateCondition::Empty) => {
                self.folders.saw(folder, FolderState::InUse)
            }
            (ZkError::BadVersion, CreateCondition::Unchanged(_)) => {}
            (why, _) => return Err(failed(why)),
        }
        Ok(())
    }
}

/// How often an attempt may yet be refused.
struct RetryBudget {
    remaining: usize,
    begun: Moment,
}

impl RetryBudget {
    fn begin() -> Self {
        Self { remaining: TRIES, begun: SteadyClock.now() }
    }

    fn are_left(&self) -> bool {
        self.remaining > 0
    }

    fn note(&mut self, why: &ZkError) {
        let came_or_went = matches!(why, ZkError::NoNode | ZkError::NodeExists);
        if !came_or_went || SteadyClock.now().since(self.begun) > VANISHING {
            self.remaining -= 1;
        }
    }
}

fn vanishing() -> Error {
    Error::retryable(BACKEND, "the folder of the lock came and went again and again")
}
