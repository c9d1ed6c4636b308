//! Locks in a database server: what all kinds of them share. The driver, its connections, its
//! waiters; the statements and what differs between servers are in the [dialects](dialect::Dialect).

pub mod dialect;

pub(crate) mod batch;
mod driver;
mod inspect;
mod options;
mod polling;
mod pool;
mod registers;
mod renewal;
mod request;
mod shedlock;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::capabilities::{Fault, Guarantee, TokenSource};
use lockkit_core::driver::{BatchLimits, ClaimId, KnownBases, Writes};
use lockkit_core::{Capabilities, Error, Result};
use sqlx::Pool;
use tokio::sync::Notify;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use dialect::{Dialect, NeighbourGate, StatementId};
use options::is_plain;
pub use options::{ServerDurability, ServerOptions, ShedLockTable, SqlNeighbours, Tables};
use pool::Connections;

use crate::rows::other_version;
use crate::waiters::{ClaimTag, WaiterRegistry};

/// Locks and registers in a database server. Cheap to clone; clones share their connections.
///
/// ```no_run
/// use lockkit_core::LockManager;
/// use lockkit_sql::PostgresDriver;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let driver = PostgresDriver::connect("postgres://locks@10.0.0.7/shop").await?;
/// let locks = LockManager::new(driver);
/// let guard = locks.mutex("invoice/42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
pub struct ServerDriver<D: Dialect> {
    pub(crate) inner: Arc<SqlServerInner<D>>,
}

impl<D: Dialect> Clone for ServerDriver<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

/// What the driver and its tasks share.
pub(crate) struct SqlServerInner<D: Dialect> {
    pub(crate) dialect: D,
    pub(crate) connections: Connections<D>,
    pub(crate) timeout: Duration,
    durability: ServerDurability,
    capabilities: Capabilities,
    /// The id of this client, which its channel and its claims bear.
    client: ClaimTag,
    waiters: Arc<WaiterRegistry>,
    bases: KnownBases,
    writes: Writes,
    operations: AtomicU64,
    /// Rung when a connection was lost.
    lost: Arc<Notify>,
    /// The connections on which an operation may wait for a row that another client has locked: half of
    /// them.
    may_wait: Semaphore,
    /// The connections for all but renewals.
    others: Semaphore,
    /// When a batch would last have waited as a whole.
    blocked_at: Mutex<Option<Instant>>,
    /// What the namespaces share their locks with, and how those are excluded.
    neighbours: Option<(String, GateOf)>,
}

/// Where a gate is.
enum GateOf {
    Session(Box<dyn NeighbourGate>),
    /// In ShedLock's table: the driver itself is the gate.
    Rows,
}

impl<D: Dialect> fmt::Debug for ServerDriver<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerDriver").field("backend", &D::BACKEND).finish_non_exhaustive()
    }
}

impl<D: Dialect> ServerDriver<D> {
    /// Connects to the server that the URL names, and makes lockkit's tables if they are missing.
    ///
    /// The URL is sqlx's, with the options of [`ServerOptions`] beside them in its query.
    ///
    /// # Cancel safety
    /// Dropping it leaves the database without the tables or with all of them.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, ServerOptions::default()).await
    }

    /// As [`connect`](Self::connect); the URL's query goes before these options.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn connect_with(url: &str, options: ServerOptions) -> Result<Self> {
        let (options, rest) = options.parse(url)?;
        let connections = Connections::own(D::parse(&rest)?, options.connections);
        Self::start(connections, options).await
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. No I/O.
    pub fn check_url(url: &str) -> Result<()> {
        let (options, rest) = ServerOptions::default().parse(url)?;
        D::parse(&rest)?;
        Self::dialect(&options).map(drop)
    }

    /// Uses a pool that the caller has. It must not be one that work *under* locks can exhaust: a
    /// renewal that finds no connection in time loses the locks. The pool's own habits cost: unless
    /// told otherwise, sqlx's asks a connection for a sign of life before and after each use, which
    /// triples the round trips. Waiters are notified on a connection outside the pool.
    ///
    /// On PostgreSQL this opens a connection beside the pool and closes it, to find out whether a pooler
    /// stands before the server; where that fails, statements are sent as behind a pooler.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    pub async fn with_pool(pool: Pool<D::Db>, options: ServerOptions) -> Result<Self> {
        Self::start(Connections::Pool(pool), options).await
    }

    /// The statements that make the tables, for who may: the driver then runs with
    /// rights to use them only. `url` and `options` say where they are to be; no I/O.
    pub fn schema(url: &str, options: ServerOptions) -> Result<String> {
        let (options, _) = options.parse(url)?;
        Ok(Self::dialect(&options)?.schema())
    }

    fn dialect(options: &ServerOptions) -> Result<D> {
        let tables = options.tables.clone().unwrap_or_else(|| Tables(D::TABLES.to_owned()));
        if !is_plain(&tables.0) {
            let named = D::TABLES_ARE;
            let rule = format!("{named} is made of a-z, 0-9 and _, 40 at most");
            return Err(Error::Config(rule));
        }
        options.setting()?;
        Ok(D::new(&tables, options.durability, &options.shedlock))
    }

    async fn start(connections: Connections<D>, options: ServerOptions) -> Result<Self> {
        let mut capabilities = D::CAPABILITIES;
        match options.durability {
            ServerDurability::Full => capabilities.faults = FAULTS_ON_DISK,
            // A quorum's members keep what they acknowledged.
            ServerDurability::Needed => capabilities.raise = false,
        }
        let most = connections.most();
        let others = most.saturating_sub(1).max(1);
        capabilities.batches.at_once = capabilities.batches.at_once.min(others);
        let dialect = Self::dialect(&options)?;
        let gate = match options.neighbours {
            None => None,
            Some(SqlNeighbours::ShedLock) => Some(GateOf::Rows),
            Some(SqlNeighbours::Advisory) => {
                let gate = dialect.advisory(&connections.options(), options.timeout).await?;
                Some(GateOf::Session(gate))
            }
        };
        let neighbours = options.setting()?.zip(gate);
        let inner = SqlServerInner {
            dialect,
            connections,
            timeout: options.timeout,
            durability: options.durability,
            capabilities,
            client: polling::tag(&ClaimId::random()),
            waiters: WaiterRegistry::new(polling::tag, D::PUSHES),
            bases: KnownBases::default(),
            writes: Writes::default(),
            operations: AtomicU64::new(0),
            lost: Arc::default(),
            may_wait: Semaphore::new((most / 2).max(1)),
            others: Semaphore::new(others),
            blocked_at: Mutex::default(),
            neighbours,
        };
        let driver = Self { inner: Arc::new(inner) };
        driver.meet().await;
        let opened = driver.open().await;
        if opened.is_err() {
            driver.inner.close().await;
        }
        opened.map(|()| driver)
    }

    /// A pool's connections are opened by the program: what is at their other end is found out beside
    /// it.
    async fn meet(&self) {
        if let Connections::Pool(pool) = &self.inner.connections {
            let options = pool.connect_options();
            let meeting = self.inner.dialect.meet(&options);
            let _ = tokio::time::timeout(self.inner.timeout, meeting).await;
        }
    }

    /// Checks the version of the tables, and makes them where there are none.
    async fn open(&self) -> Result<()> {
        for _ in 0..2 {
            let answer = self.inner.call(StatementId::Health, &[]).await?;
            let row = answer.rows.first().cloned().unwrap_or_default();
            match row.int(0) {
                None => self.inner.install().await?,
                Some(version) if version == D::VERSION => {
                    if row.int(2) == Some(1) {
                        self.inner.sweep().await;
                    }
                    return match &self.inner.neighbours {
                        Some((_, GateOf::Rows)) => self.inner.check_shedlock().await,
                        _ => Ok(()),
                    };
                }
                Some(version) => {
                    let place = self.inner.dialect.tables();
                    let refusal = other_version(place, version, D::VERSION);
                    return Err(Error::permanent(D::BACKEND, refusal));
                }
            }
        }
        Err(Error::permanent(D::BACKEND, "the tables have no version"))
    }
}

impl<D: Dialect> SqlServerInner<D> {
    async fn close(&self) {
        self.waiters.claims.close();
        if let Some((_, GateOf::Session(gate))) = &self.neighbours {
            gate.close().await;
        }
        self.connections.close().await;
    }

    /// Every so many operations, a bite of the sweep, beside the caller's work.
    fn sweep_in_passing(self: &Arc<Self>, operations: u64) {
        const EVERY: u64 = 512;
        let before = self.operations.fetch_add(operations, Ordering::Relaxed);
        if before % EVERY + operations >= EVERY {
            let driver = self.clone();
            tokio::spawn(async move { driver.sweep().await });
        }
    }

    async fn sweep(&self) {
        const BITE: i64 = 1_000;
        if let Err(error) = self.call(StatementId::Sweep, &[dialect::Arg::Int(BITE)]).await {
            tracing::debug!(%error, "a sweep failed; the next one goes on");
        }
    }
}

/// What every server can do.
pub(crate) const fn capabilities(backend: &'static str, batches: BatchLimits) -> Capabilities {
    let mut c = Capabilities::of(backend);
    c.min_ttl = Duration::from_millis(50);
    c.token_source = TokenSource::ClockCounter;
    c.shorten = true;
    c.raise = true;
    c.detached = true;
    c.registers = true;
    c.namespaces = true;
    c.resize = true;
    c.batches = batches;
    c.batches.same_key = true;
    c.batches.waits = true;
    c.faults = FAULTS;
    c
}

/// Those of lost writes and of failovers to an asynchronous replica were seen in `tests/failovers`, where
/// a replica for which commits wait lost nothing.
const FAULTS: &[(Fault, Guarantee)] = &[
    (Fault::WritesLost, Guarantee::Tokens),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::DataLost, Guarantee::Tokens),
    (Fault::OlderDataRestored, Guarantee::Tokens),
    (Fault::Failover, Guarantee::Tokens),
    (Fault::SplitBrain, Guarantee::Nothing),
    // Ends of leases are absolute times.
    (Fault::OtherClockTakesOver, Guarantee::Tokens),
    (Fault::LeaderLost, Guarantee::Impossible),
    // Leases end early; tokens do not go back with the clock.
    (Fault::ServerClockSteps, Guarantee::Tokens),
    (Fault::ServerClockSlewedMore, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

/// Where every operation waits for the disk, no write is lost.
const FAULTS_ON_DISK: &[(Fault, Guarantee)] = {
    assert!(matches!(FAULTS[0].0, Fault::WritesLost));
    FAULTS.split_at(1).1
};
