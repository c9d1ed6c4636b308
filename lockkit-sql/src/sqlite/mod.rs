//! Locks in a SQLite file, for the processes of one machine. This file opens it and says what it
//! can do; `driver` has the lock, `registers` the values, `polling` the waiting, `transaction` and `queues` a transaction,
//! `tokens` its numbers, `worker` the thread that carries it out, `location` and `file` the checks of the file.
#![doc = include_str!("guide.md")]

mod boot;
mod connection;
mod context;
mod driver;
mod fence;
mod file;
mod foreign;
mod inspect;
mod location;
mod polling;
mod queues;
mod registers;
mod tokens;
mod transaction;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::capabilities::{Fault, Guarantee, LeaseClock, TokenSource, WakeUp};
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{BatchLimits, KnownBases, split_query};
use lockkit_core::{Capabilities, Error, Result};
use sqlx::sqlite::SqlitePool;

use context::{FileContext, FileMark};
pub use fence::TOKENS_TABLE;
use tokens::IssuedNumbers;
use worker::Worker;

use crate::waiters::WaiterRegistry;

/// The backend's name.
pub(crate) const BACKEND: &str = "sqlite";

const CAPABILITIES: Capabilities = {
    let mut c = Capabilities::of(BACKEND);
    c.min_ttl = Duration::from_millis(50);
    c.wake_up = WakeUp::Poll { within: Duration::from_millis(50) };
    c.token_source = TokenSource::ClockCounter;
    c.shorten = true;
    c.raise = true;
    c.detached = true;
    c.registers = true;
    c.namespaces = true;
    c.resize = true;
    c.lease_clock = LeaseClock::Machine;
    c.round_trips = None;
    c.batches = BatchLimits::of(64, 4);
    c.batches.same_key = true;
    c.faults = &[
        (Fault::ConnectionCut, Guarantee::Impossible),
        (Fault::Partition, Guarantee::Impossible),
        (Fault::ServerPaused, Guarantee::Impossible),
        (Fault::DataLost, Guarantee::Tokens),
        (Fault::OlderDataRestored, Guarantee::Tokens),
        (Fault::Failover, Guarantee::Impossible),
        (Fault::SplitBrain, Guarantee::Impossible),
        (Fault::OtherClockTakesOver, Guarantee::Impossible),
        (Fault::LeaderLost, Guarantee::Impossible),
        (Fault::BrokenByForce, Guarantee::Tokens),
    ];
    c
};

/// What waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// What must outlive a power failure: registers, limits, detached claims, breaks, blocks of tokens.
    /// Everything else outlives the death of any process, which is all that its owner outlives.
    #[default]
    Needed,
    /// Every operation.
    Everything,
}

/// How to open a file.
///
/// ```
/// use lockkit_sql::{Durability, SqliteOptions};
///
/// // A lock that was taken is still taken after a power failure.
/// let options = SqliteOptions::default().durability(Durability::Everything);
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    durability: Durability,
    clock: Arc<dyn Clock>,
    boot: Option<String>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { durability: Durability::default(), clock: BootClock::shared(), boot: None }
    }
}

impl SqliteOptions {
    /// What waits for the disk.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Another clock and another boot id than the system's, to stage a reboot in a test. All who
    /// use the file must agree on both.
    #[must_use]
    pub fn clock_of_boot(mut self, clock: Arc<dyn Clock>, boot_id: impl Into<String>) -> Self {
        self.clock = clock;
        self.boot = Some(boot_id.into());
        self
    }

    fn boot_id(&self) -> Result<String> {
        self.boot.clone().map_or_else(boot::boot_id, Ok)
    }
}

/// Locks and registers in one SQLite file. Cheap to clone; clones share their connections.
///
/// ```
/// use lockkit_core::LockManager;
/// use lockkit_sql::{SqliteDriver, SqliteOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("locks.db");
/// let driver = SqliteDriver::open(&path, SqliteOptions::default()).await?;
/// let locks = LockManager::new(driver);
/// let guard = locks.mutex("invoice/42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteDriver {
    inner: Arc<SqliteInner>,
}

/// What the driver and its tasks share.
#[derive(Debug)]
struct SqliteInner {
    context: Arc<FileContext>,
    writer: Worker,
    reader: Worker,
    waiters: Arc<WaiterRegistry>,
    bases: KnownBases,
}

impl SqliteDriver {
    /// Opens the file at `path`, and makes it and its tables if they are missing; its folder must be there.
    ///
    /// Fails, and leaves the file as it was, where it is another program's, damaged, of a newer
    /// version, read-only, or on a network file system.
    ///
    /// # Cancel safety
    /// Dropping it leaves the file untouched or whole.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self> {
        let boot = options.boot_id()?;
        let path = path.as_ref().to_owned();
        let prepare = move |boot: &str| file::prepare(&path, boot);
        Self::start(prepare, boot, options).await
    }

    /// Opens what a URL names: `sqlite:relative/path`, `sqlite:/absolute/path`; `?` and `%` in a
    /// path are written as `%3F` and `%25`. The one parameter is `durability=needed` or
    /// `everything`.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn connect(url: &str) -> Result<Self> {
        let (path, options) = parse_url(url)?;
        Self::open(path, options).await
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. No I/O.
    pub fn check_url(url: &str) -> Result<()> {
        parse_url(url).map(drop)
    }

    /// Uses a database that the caller has open already, and puts lockkit's tables beside the
    /// others.
    ///
    /// The pool says which file it is; the driver opens connections of its own to it, so that
    /// neither exhausts the other. The journal mode stays as it is: WAL is best. An encrypted
    /// database cannot be used, since a pool does not tell its key.
    ///
    /// # Cancel safety
    /// Dropping it leaves the database without the tables or with all of them.
    pub async fn with_pool(pool: SqlitePool, options: SqliteOptions) -> Result<Self> {
        let boot = options.boot_id()?;
        let path = file::path_of(&pool).await?;
        let prepare = move |boot: &str| file::prepare_beside(path, boot);
        Self::start(prepare, boot, options).await
    }

    /// The file, without links.
    pub fn path(&self) -> &Path {
        self.inner.context.file.path()
    }

    /// Makes sure that there is a file, on a thread where that may take its time.
    async fn start(
        prepare: impl FnOnce(&str) -> Result<PathBuf> + Send + 'static,
        boot: String,
        options: SqliteOptions,
    ) -> Result<Self> {
        let enter = move || -> Result<SqliteInner> {
            file::refuse_old_library(rusqlite::version_number())?;
            let file = FileMark::of(&prepare(&boot)?)?;
            let epoch = file::enter(&file, &boot, &*options.clock)?;
            let durable = options.durability == Durability::Everything;
            let issued = IssuedNumbers::of(file.path());
            let context =
                Arc::new(FileContext { file, epoch, issued, clock: options.clock, durable });
            Ok(SqliteInner {
                writer: Worker::start(context.clone(), true)?,
                reader: Worker::start(context.clone(), false)?,
                context,
                waiters: WaiterRegistry::new(transaction::tag, false),
                bases: KnownBases::default(),
            })
        };
        let entered = tokio::task::spawn_blocking(enter).await;
        let inner = entered.map_err(|error| Error::permanent(BACKEND, error))??;
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// The path and the options of a URL.
fn parse_url(url: &str) -> Result<(PathBuf, SqliteOptions)> {
    let (place, query) = split_query(url);
    let path = place.strip_prefix("sqlite:");
    let path =
        path.ok_or_else(|| Error::config(format!("{url:?} does not begin with `sqlite:`")))?;
    let path = percent_encoding::percent_decode_str(path.strip_prefix("//").unwrap_or(path));
    let path = path.decode_utf8();
    let path = path.map_err(|_| Error::config("the path of a `sqlite:` URL is UTF-8"))?;
    let wrong = match &*path {
        "" => "`sqlite:` needs a path: `sqlite:locks.db`, `sqlite:/var/lib/app/locks.db`",
        path if path.starts_with(":memory:") => {
            "a SQLite database in memory is seen by one connection only: use `memory:` for locks \
             within one process, `sqlite:PATH` between processes"
        }
        path if path.contains('\0') => "a path has no NUL byte",
        _ => "",
    };
    if !wrong.is_empty() {
        return Err(Error::config(wrong));
    }
    let mut options = SqliteOptions::default();
    for option in query {
        if option.name != "durability" {
            let told = "the one option of a `sqlite:` URL is durability, not";
            return Err(Error::Config(format!("{told} {}", option.text)));
        }
        let choices = [("needed", Durability::Needed), ("everything", Durability::Everything)];
        options.durability = option.choice(&choices)?;
    }
    Ok((PathBuf::from(&*path), options))
}
