//! The driver: which verb does what. The verbs themselves stand in pages of their own.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lockkit_core::driver::{
    Acquisition, Force, Grant, LockDriver, Patience, Registers, Released, Renewal,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Lifetime, Namespace, Token};
use tokio::task::JoinHandle;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use crate::ZkOptions;
use crate::capable::capabilities;
use crate::failure::failed;
use crate::paths::Layout;
use crate::places::Places;
use crate::session::{Session, Sessions};

/// Locks in ZooKeeper: one ephemeral node per claim.
///
/// All claims of a driver live in one session, and with it they end. A driver that was made from a
/// URL or from options makes a new session when the old one has ended; what was held then is lost,
/// and the next `lock()` works.
pub struct ZkDriver {
    pub(crate) inner: Arc<Inner>,
    capabilities: Capabilities,
}

/// What the verbs work on.
pub(crate) struct Inner {
    pub(crate) sessions: Sessions,
    pub(crate) layout: Layout,
    pub(crate) places: Places,
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
        let layout = Layout::new(sessions.options().root.clone());
        let timeout = sessions.latest().map(|session| session.timeout()).unwrap_or_default();
        let capabilities = capabilities(sessions.options(), timeout);
        let inner = Inner { sessions, layout, places: Places::default(), leases: Mutex::default() };
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
        let acls = self.sessions.options().acls();
        let options = CreateMode::Container.with_acls(acls);
        session.answer(session.client.mkdir(path, &options)).await
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

    async fn acquire(&self, claim: &Arc<Claim>, patience: Patience) -> Result<Acquisition, Error> {
        if claim.lifetime == Lifetime::Detached {
            return Err(self.unsupported("claims that outlive their process"));
        }
        self.inner.watch_leases();
        self.inner.acquire(claim, patience).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.inner.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Renewal>, Error> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        self.inner.release(claim).await
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
        let session = self.inner.sessions.get().await?;
        self.inner.inspect(&session, key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.inner.list(request).await
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        self.inner.changed(key, seen).await
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
