//! The public driver: how it is made, and the operations of the trait,
//! each of which is done in a file of its own.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::Client;
use lockkit_core::driver::{
    Anchored, Attempted, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver,
    RegisterEntry, RegisterKey, Registers, Renewal, Renewed, SetLimit, Version, Write, WriteResult,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{
    Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, LossReason, Namespace, Result, Token,
};

use crate::capabilities::{self, CAPABILITIES};
use crate::client::EtcdClient;
use crate::keys::Root;
use crate::locks::EtcdLocks;
use crate::url;

/// Locks on etcd 3.4 and later.
///
/// Clones share their connections and leases. What it keeps is under `lockkit/`, or under the path
/// in the URL.
///
/// ```no_run
/// use lockkit_core::LockManager;
/// use lockkit_etcd::EtcdDriver;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let driver = EtcdDriver::connect("etcd://10.0.0.7:2379,10.0.0.8:2379").await?;
/// let locks = LockManager::new(driver);
/// let guard = locks.mutex("invoice/42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EtcdDriver {
    pub(crate) locks: Arc<EtcdLocks>,
    capabilities: &'static Capabilities,
}

/// The proxy sends keep-alives at times of its own, and answers each request of a client by the next
/// answer that arrives there, which may be to a keep-alive from long before that request
/// (`replyToClient` in etcd's `grpcproxy/lease.go`). Its header is that of a member, so the term says
/// nothing of it.
const BEHIND_A_PROXY: &str = "an etcd grpc-proxy answers here: how long a lease lives cannot be known \
    through it, so no lock is safe; name the members of the cluster instead";

impl EtcdDriver {
    /// Connects to the cluster that the URL names:
    /// `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/ROOT]`.
    ///
    /// `etcds:` is for TLS, and takes the options `ca=FILE` (the authority's certificate), `cert=FILE`
    /// and `key=FILE` (this client's), and `domain=NAME` (the server's name if the host is not).
    /// One member that is down does no harm where several are named. Asks for a sign of life, so
    /// that a wrong address or password is an error here.
    ///
    /// # Errors
    /// [`Error::Config`] for a URL that cannot work and for an `etcd grpc-proxy` at its end,
    /// [`Error::Backend`] when no member answers.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        let target = url::parse(url)?;
        let client = EtcdClient::to(target.endpoints, &target.options);
        let mut driver = Self::over(client, &target.root);
        // That needs the leader, and the right to read.
        driver.locks.check_format().await?;
        let (version, is_behind_a_proxy) =
            futures_util::future::join(driver.locks.version(), driver.locks.is_behind_a_proxy())
                .await;
        if is_behind_a_proxy {
            return Err(Error::Config(BEHIND_A_PROXY.to_owned()));
        }
        driver.capabilities = Self::capabilities_with(&version.unwrap_or_default());
        Ok(driver)
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. Asks no server;
    /// reads the files that the URL names.
    pub fn check_url(url: &str) -> Result<()> {
        url::parse(url).map(drop)
    }

    /// What the driver can do with members of this version, such as `3.5.13`; of one that cannot
    /// be read, as with an old one.
    pub fn capabilities_with(version: &str) -> &'static Capabilities {
        capabilities::of_version(version)
    }

    /// A driver over a client that the program has already, with its keys under `root`
    /// (`lockkit` when empty).
    ///
    /// Make the client with `with_require_leader(true)`, so that its watches end on a member that
    /// was cut off, and with `with_keep_alive`, so that they end on one that stands still. Connect it
    /// to members: that no `etcd grpc-proxy` is in between is not checked here.
    pub fn with_client(client: Client, root: &str) -> Self {
        Self::over(EtcdClient::with(client), root)
    }

    /// The locks, once their format was checked: for every operation that may be the first one.
    pub(crate) async fn ready(&self) -> Result<&Arc<EtcdLocks>> {
        self.locks.check_format().await?;
        Ok(&self.locks)
    }

    fn over(client: EtcdClient, root: &str) -> Self {
        let locks = Arc::new(EtcdLocks::new(client, Root::new(root)));
        Self { locks, capabilities: &CAPABILITIES }
    }
}

impl fmt::Debug for EtcdDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdDriver").field("client", &self.locks.client).finish_non_exhaustive()
    }
}

#[async_trait]
impl LockDriver for EtcdDriver {
    fn capabilities(&self) -> &Capabilities {
        self.capabilities
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        self.ready().await.map_err(BatchError::refused)?.submit(batch).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant> {
        self.locks.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal>>> {
        self.locks.renew(claims).await
    }

    async fn renew_with_evidence(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewed>>> {
        let answers = self.locks.renew(claims).await?;
        let evidence = self.locks.client.terms.evidence();
        let with = |renewal| Renewed { renewal, evidence: evidence.clone() };
        Ok(answers.into_iter().map(|answer| answer.map(with)).collect())
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
        self.ready().await?.namespaces(after, limit).await
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState> {
        self.ready().await?.changed(key, seen).await
    }

    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored> {
        let key = self.locks.cached(claim.id).map(|cached| cached.stored.key);
        key.map(Anchored::At).ok_or(Error::lost(LossReason::Vanished))
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
        self.locks.promises().await
    }

    async fn health(&self) -> Result<Health> {
        self.locks.health().await
    }

    async fn close(&self) {
        self.locks.leases.close().await;
    }
}

#[async_trait]
impl Registers for EtcdDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        self.ready().await?.load(at).await
    }

    async fn write(&self, at: &RegisterKey, write: &Write) -> Result<Attempted<WriteResult>> {
        self.ready().await?.write(at, write.clone()).await
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
