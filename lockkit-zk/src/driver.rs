//! The driver: which verb does what. The verbs themselves stand in pages of their own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::driver::{
    Anchored, Answered, Force, Grant, LockDriver, Registers, Renewal, Replies, SetLimit, Step,
    one_by_one,
};
use lockkit_core::state::{Health, ListRequest, Listed, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Lifetime, LossReason, Namespace, Token,
};
use tokio::task::JoinHandle;
use zookeeper_client::{Client, Error as ZkError};

use crate::ZkOptions;
use crate::capable::capabilities;
use crate::failure::failed;
use crate::folders::Folders;
use crate::line::Line;
use crate::paths::Layout;
use crate::places::Places;
use crate::registers::Memory;
use crate::session::Session;
use crate::sessions::Sessions;

/// Locks in ZooKeeper: one ephemeral node per claim.
///
/// Claims of one ttl live in one session, and with it they end. A driver that was made from a URL or
/// from options makes a new session when the old one has ended; what was held then is lost, and the
/// next `lock()` works.
///
/// ```no_run
/// use lockkit_core::LockManager;
/// use lockkit_zk::ZkDriver;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let driver = ZkDriver::connect("zk://10.0.0.7:2181,10.0.0.8:2181/locks").await?;
/// let locks = LockManager::new(driver);
/// let guard = locks.mutex("invoice/42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
pub struct ZkDriver {
    pub(crate) inner: Arc<Inner>,
    capabilities: Capabilities,
}

/// What the verbs work on.
pub(crate) struct Inner {
    pub(crate) sessions: Sessions,
    pub(crate) layout: Layout,
    pub(crate) places: Places,
    pub(crate) folders: Folders,
    pub(crate) registers: Memory,
    pub(crate) leases: Mutex<Option<JoinHandle<()>>>,
}

impl ZkDriver {
    /// Connects to `zk://[user:password@]host:port,host:port[/chroot][?ttl=30s&…]`;
    /// [`ZkOptions::parse`] has the grammar.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind but a session that ends by itself.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(ZkOptions::parse(url)?).await
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. No I/O.
    pub fn check_url(url: &str) -> Result<(), Error> {
        ZkOptions::parse(url).map(drop)
    }

    /// Connects as the options say.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(options: ZkOptions) -> Result<Self, Error> {
        let sessions = Sessions::open(options).await?;
        Ok(Self::over(sessions))
    }

    /// Uses a client that is there already, and its session. When that session has ended every
    /// call fails: the driver cannot make another one.
    ///
    /// Of the options, the servers, the times and the connector do not count here.
    pub fn from_client(client: Client, options: ZkOptions) -> Self {
        Self::over(Sessions::of(client, options))
    }

    fn over(sessions: Sessions) -> Self {
        let layout = Layout::new(&sessions.options().chroot, sessions.options().neighbours);
        let capabilities = capabilities(&sessions);
        let inner = Inner {
            sessions,
            layout,
            places: Places::default(),
            folders: Folders::default(),
            registers: Memory::default(),
            leases: Mutex::default(),
        };
        Self { inner: Arc::new(inner), capabilities }
    }
}

impl fmt::Debug for ZkDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkDriver").field("options", self.inner.sessions.options()).finish()
    }
}

impl Inner {
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

    /// The claims of a folder, in order; none when it is not there.
    pub(crate) async fn line(&self, session: &Session, folder: &str) -> Result<Line, Error> {
        let names = self.children(session, folder).await?;
        self.line_of(session, folder, names).await
    }

    /// The same, when its children were listed already.
    pub(crate) async fn line_of(
        &self,
        session: &Session,
        folder: &str,
        names: Vec<String>,
    ) -> Result<Line, Error> {
        let mut line = Line::of(names);
        if !line.is_unsure() {
            return Ok(line);
        }
        let names: Vec<_> = line.claims().iter().map(|child| child.name.clone()).collect();
        let paths: Vec<_> = names.iter().map(|name| format!("{folder}/{name}")).collect();
        let stats: Vec<_> = paths.iter().map(|path| session.client.check_stat(path)).collect();
        let stats = session.answers(join_all(stats)).await?;
        let mut made = HashMap::with_capacity(names.len());
        for (name, stat) in names.into_iter().zip(stats) {
            made.insert(name, stat.map_err(failed)?.map(|stat| stat.czxid));
        }
        line.settle(&made);
        Ok(line)
    }

    /// The children of a folder; none when it is not there.
    pub(crate) async fn children(
        &self,
        session: &Session,
        path: &str,
    ) -> Result<Vec<String>, Error> {
        match session.answer(session.client.list_children(path)).await {
            Err(ZkError::NoNode) => Ok(Vec::new()),
            other => other.map_err(failed),
        }
    }
}

#[async_trait]
impl LockDriver for ZkDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn carry(&self, steps: &[Step]) -> Result<Replies, Error> {
        self.inner.watch_leases();
        let acquire = |claim: Arc<Claim>, patience| async move {
            if claim.lifetime == Lifetime::Detached {
                return Err(self.unsupported("claims that outlive their process"));
            }
            self.inner.acquire(&claim, patience).await.map(Answered::from)
        };
        let release =
            |claim: Arc<Claim>| async move { self.inner.release(&claim).await.map(Answered::from) };
        Ok(one_by_one(steps, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.inner.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        Ok(self.inner.renew(claims).await)
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.inner.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.inner.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.inner.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.inner.list(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        match self.capabilities.namespaces {
            true => self.inner.namespaces(after, limit).await,
            false => Err(self.unsupported(
                "listing prefixes where locks are shared with Curator or kazoo: a folder may be a \
                 prefix or a lock",
            )),
        }
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        self.inner.changed(key, seen).await
    }

    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored, Error> {
        let node = self.inner.places.of(claim.id).and_then(|place| place.node);
        let path = node.map(|node| node.path.into_bytes());
        path.map(Anchored::At).ok_or(Error::Lost { reason: LossReason::Vanished })
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        self.inner.resize(key, limit).await
    }

    async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.inner.token_base(namespace).await
    }

    async fn raise_token_base(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        self.inner.raise_token_base(namespace, base).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }

    async fn close(&self) {
        self.inner.sessions.close();
    }
}
