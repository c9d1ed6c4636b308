//! The public driver: how it is made, and the operations of the trait, each of which is done in a file
//! of its own.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::{
    Anchored, Attempted, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver,
    RegisterEntry, RegisterKey, Registers, Renewal, SetLimit, Version, Write, WriteResult,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{
    Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, LossReason, Namespace, Result, Token,
};
use zookeeper_client::Client;

use crate::ZkOptions;
use crate::capabilities::capabilities;
use crate::locks::ZkLocks;
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
    pub(crate) locks: Arc<ZkLocks>,
    capabilities: Capabilities,
}

impl ZkDriver {
    /// Connects to `zk://[user:password@]host:port,host:port[/chroot][?ttl=30s&…]`;
    /// [`ZkOptions::parse`] has the grammar.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind but a session that ends by itself.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(ZkOptions::parse(url)?).await
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. No I/O.
    pub fn check_url(url: &str) -> Result<()> {
        ZkOptions::parse(url).map(drop)
    }

    /// Connects as the options say.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(options: ZkOptions) -> Result<Self> {
        let driver = Self::over(Sessions::open(options).await?);
        driver.locks.check_format().await?;
        Ok(driver)
    }

    /// Uses a client that is there already, and its session. When that session has ended every
    /// call fails: the driver cannot make another one.
    ///
    /// Of the options, the servers, the times and the connector do not count here.
    pub fn from_client(client: Client, options: ZkOptions) -> Self {
        Self::over(Sessions::of(client, options))
    }

    /// The locks, once their format was checked: for every operation that may be the first one.
    async fn ready(&self) -> Result<&Arc<ZkLocks>> {
        self.locks.check_format().await?;
        Ok(&self.locks)
    }

    fn over(sessions: Sessions) -> Self {
        let capabilities = capabilities(&sessions);
        Self { locks: Arc::new(ZkLocks::over(sessions)), capabilities }
    }
}

impl fmt::Debug for ZkDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkDriver").field("options", self.locks.sessions.options()).finish()
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

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let locks = self.ready().await.map_err(BatchError::refused)?;
        locks.start_cleanup();
        Ok(locks.submit(batch).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant> {
        self.locks.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal>>> {
        Ok(self.locks.renew(claims).await)
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal> {
        self.locks.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        self.ready().await?.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState> {
        self.ready().await?.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page> {
        self.ready().await?.list(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        match self.capabilities.namespaces {
            true => self.ready().await?.namespaces(after, limit).await,
            false => Err(self.unsupported(
                "listing namespaces where locks are shared with Curator or kazoo: a folder may be a \
                 namespace or a lock",
            )),
        }
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState> {
        self.ready().await?.changed(key, seen).await
    }

    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored> {
        let node = self.locks.claims.get(claim.id).and_then(|cached| cached.node);
        let path = node.map(|node| node.path.into_bytes());
        path.map(Anchored::At).ok_or(Error::lost(LossReason::Vanished))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32> {
        self.ready().await?.resize(key, limit).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64> {
        self.ready().await?.namespace_counter(namespace).await
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<()> {
        self.ready().await?.raise_namespace_counter(namespace, base).await
    }

    async fn promises(&self) -> Result<Promises> {
        let mut promises = Promises::of(self.capabilities());
        let why = "a server with forceSync=no answers before a write is on disk, and no client can \
                   read that setting: look into its zoo.cfg and its -Dzookeeper.forceSync";
        promises.set(Fault::WritesLost, None, why);
        Ok(promises)
    }

    async fn health(&self) -> Result<Health> {
        self.locks.health().await
    }

    async fn close(&self) {
        self.locks.close().await;
    }
}

#[async_trait]
impl Registers for ZkDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        self.ready().await?.load(at).await
    }

    async fn write(&self, at: &RegisterKey, write: &Write) -> Result<Attempted<WriteResult>> {
        self.ready().await?.change(at, write).await.map(Attempted::from)
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>> {
        self.ready().await?.register_changed(at, after).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>> {
        self.ready().await?.page_of_registers(request).await
    }
}
