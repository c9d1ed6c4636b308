//! What the operations of the driver share: sessions, paths, and what this process remembers; and
//! how they read folders. The operations are in files of their own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join;
use lockkit_core::Result;
use lockkit_core::driver::{Background, KnownBases, Recent};
use lockkit_core::queue::GivenLimit;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{CreateMode, CreateOptions, Error as ZkError};

use crate::claim_cache::ClaimCache;
use crate::errors::{failed, if_there};
use crate::lists::{Lists, snapshot_of};
use crate::paths::Layout;
use crate::queue_ends::QueueEnds;
use crate::queue_snapshot::QueueSnapshot;
use crate::register_record::RegisterRecord;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::unused_folders::UnusedFolders;

/// Of how many folders, and registers, it is remembered how they were.
const REMEMBERED: usize = 4096;

/// Lists, or registers, that are read at once.
pub(crate) const AT_ONCE: usize = 64;

/// How the folder of a list was when it was last seen. It only chooses which request is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderState {
    /// It is there; no client may be in it.
    There,
    /// A client is in it.
    InUse,
    /// It has this fixed limit; it may have no claims.
    Limited(GivenLimit),
    /// It has seen so many claims that their numbers come to an end.
    NearSequenceEnd,
}

/// The state of one driver that its operations share.
pub(crate) struct ZkLocks {
    pub(crate) sessions: Sessions,
    pub(crate) layout: Layout,
    pub(crate) claims: ClaimCache,
    /// Lists that waiters share.
    pub(crate) lists: Lists,
    /// The folders of lists.
    pub(crate) folders: Recent<String, FolderState>,
    /// What is known of the ends of queues.
    pub(crate) ends: QueueEnds,
    /// Registers: the version of the node, and the cell without its value (but for whether there is
    /// one).
    pub(crate) registers: Recent<String, (i32, RegisterRecord)>,
    pub(crate) bases: KnownBases,
    /// Whether the format of what is stored was checked.
    pub(crate) format: OnceCell<()>,
    pub(crate) leases: Mutex<Option<JoinHandle<()>>>,
    pub(crate) unused_folders: UnusedFolders,
    /// What goes on without a caller that waits for it.
    pub(crate) background: Background,
}

/// How long `close` waits for an answer to what it deletes, and for what goes on in the background; and how
/// long for the end of sessions.
const CLOSING: Duration = Duration::from_millis(750);
const ENDING: Duration = Duration::from_millis(250);

/// A list as the leader has it.
pub(crate) struct ReadList {
    pub(crate) snapshot: QueueSnapshot,
    /// The version of its folder; none when there is no folder.
    pub(crate) version: Option<i32>,
}

impl ZkLocks {
    pub(crate) fn over(sessions: Sessions) -> Self {
        Self {
            layout: Layout::new(&sessions.options().chroot, sessions.options().neighbours),
            sessions,
            claims: ClaimCache::default(),
            lists: Lists::default(),
            folders: Recent::new(REMEMBERED),
            ends: QueueEnds::default(),
            registers: Recent::new(REMEMBERED / 4),
            bases: KnownBases::default(),
            format: OnceCell::new(),
            leases: Mutex::default(),
            unused_folders: UnusedFolders::default(),
            background: Background::default(),
        }
    }

    /// The main session, whose server has caught up with the leader: a follower that is cut off shows
    /// what was.
    pub(crate) async fn synced(&self) -> Result<Arc<Session>> {
        let session = self.sessions.get().await?;
        session.answer(session.ask_majority(self.layout.root())).await.map_err(failed)?;
        Ok(session)
    }

    /// Lets go of all sessions, once nothing is under way in them: a program may end its runtime right
    /// after. Where no server is connected, nothing is waited for.
    pub(crate) async fn close(&self) {
        let mut until = Instant::now() + CLOSING + ENDING;
        if self.sessions.latest().is_some_and(|session| session.is_connected()) {
            let ended = self.background.ended_within(CLOSING);
            let _ = join(self.remove_unused_folders(CLOSING), ended).await;
            until = until.max(Instant::now() + ENDING);
        }
        let _ = timeout_at(until, self.sessions.close()).await;
    }

    /// Makes the folder at this path, and those above it. They are containers: ZooKeeper removes
    /// them some time after their last child is gone, so any of them can vanish at any time before
    /// something lies in it.
    pub(crate) async fn make_folder(&self, session: &Session, path: &str) -> Result<(), ZkError> {
        if path.is_empty() {
            return Ok(()); // the root is always there
        }
        let acls = self.sessions.options().acls();
        let options = self.layout.folder_mode().with_acls(acls);
        session.answer(session.client.mkdir(path, &options)).await
    }

    /// Makes the folder in which this path lies.
    pub(crate) async fn make_above(&self, session: &Session, path: &str) -> Result<(), ZkError> {
        self.make_folder(session, path.rsplit_once('/').map_or("", |(above, _)| above)).await
    }

    /// Creates a node that stays, and the folders above it.
    pub(crate) async fn create_kept(
        &self,
        session: &Session,
        path: &str,
        data: &[u8],
    ) -> Result<(), ZkError> {
        let options = CreateMode::Persistent.with_acls(self.sessions.options().acls());
        self.create_with(session, path, data, &options).await
    }

    /// Creates a node as these options say, and the folders above it.
    pub(crate) async fn create_with(
        &self,
        session: &Session,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> Result<(), ZkError> {
        let created = session.answer(session.client.create(path, data, options)).await;
        if !matches!(created, Err(ZkError::NoNode)) {
            return created.map(drop);
        }
        self.make_above(session, path).await?;
        session.answer(session.client.create(path, data, options)).await.map(drop)
    }

    /// The list as the leader has it, with everything that this session sent before.
    pub(crate) async fn read_list(&self, session: &Session, folder: &str) -> Result<ReadList> {
        let synced = session.ask_majority(self.layout.root());
        let listed = session.client.get_children(folder);
        let (synced, listed) = session.answers(async { tokio::join!(synced, listed) }).await?;
        let Some((names, stat)) = if_there(listed)? else {
            // There may be no root to be synchronized, but then nor are there folders.
            return Ok(ReadList { snapshot: QueueSnapshot::default(), version: None });
        };
        synced.map_err(failed)?;
        let snapshot = snapshot_of(session, folder, names).await?;
        Ok(ReadList { snapshot, version: Some(stat.version) })
    }

    /// The claims of a folder, in order; none when it is not there.
    pub(crate) async fn snapshot(&self, session: &Session, folder: &str) -> Result<QueueSnapshot> {
        let listed = session.answer(session.client.get_children(folder)).await;
        let Some((names, stat)) = if_there(listed)? else {
            return Ok(QueueSnapshot::default());
        };
        let children = names.len();
        let snapshot = snapshot_of(session, folder, names).await?;
        self.ends.listed(folder, &stat, children, &snapshot);
        Ok(snapshot)
    }

    /// The children of a folder; none when it is not there.
    pub(crate) async fn children(&self, session: &Session, path: &str) -> Result<Vec<String>> {
        let listed = session.answer(session.client.list_children(path)).await;
        Ok(if_there(listed)?.unwrap_or_default())
    }
}
