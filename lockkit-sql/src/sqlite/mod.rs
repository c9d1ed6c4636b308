//! Locks in a SQLite file, for the processes of one machine. This file opens it and says what it
//! can do; `verbs` has the lock, `registers` the values, `file` the checks of the file.
#![doc = include_str!("guide.md")]

mod boot;
mod file;
mod hub;
mod link;
mod look;
mod mark;
mod place;
mod poller;
mod registers;
mod verbs;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::capabilities::{Fault, Keeps, LeaseClock, LeaseScope, TokenSource, WakeUp};
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::{Capabilities, ClaimId, Error, Key};
use sqlx::sqlite::{SqlitePool, SqliteSynchronous};
use sqlx::{Connection, Executor, Row};

use file::SCHEMA_VERSION;
use hub::Hub;
use link::{Link, Source, connect, explain, refusal};
use mark::FileMark;

/// The backend's name.
pub(crate) const BACKEND: &str = "sqlite";

/// How many tokens are put on disk in advance; see the guide.
const TOKEN_BLOCK: i64 = 1 << 20;

/// What every connection of ours makes for itself, in memory: the verbs, as triggers.
const SET_UP: &str = concat!(
    include_str!("sql/scratch.sql"),
    include_str!("sql/verbs/find.sql"),
    include_str!("sql/verbs/settle.sql"),
    include_str!("sql/verbs/look.sql"),
    include_str!("sql/verbs/swift_acquire.sql"),
    include_str!("sql/verbs/acquire.sql"),
    include_str!("sql/verbs/release.sql"),
    include_str!("sql/verbs/renew.sql"),
    include_str!("sql/verbs/amend.sql"),
    include_str!("sql/verbs/resize.sql"),
    include_str!("sql/verbs/break.sql"),
    include_str!("sql/verbs/sweep.sql"),
    include_str!("sql/verbs/store.sql"),
    include_str!("sql/verbs/takeover.sql"),
);

const CAPABILITIES: Capabilities = {
    let mut c = Capabilities::of(BACKEND);
    c.lease_scope = LeaseScope::Claim;
    c.granularity = Duration::from_millis(1);
    c.least_ttl = Duration::from_millis(50);
    c.expiry_slack = Duration::from_millis(100);
    c.wake_up = WakeUp::Poll { within: Duration::from_millis(50) };
    c.token_source = TokenSource::ClockCounter;
    c.shorten = true;
    c.raise = true;
    c.detached = true;
    c.registers = true;
    c.resize = true;
    c.lease_clock = LeaseClock::Machine;
    c.round_trips = None;
    c.faults = &[
        (Fault::ConnectionCut, Keeps::Impossible),
        (Fault::Partition, Keeps::Impossible),
        (Fault::ServerStandsStill, Keeps::Impossible),
        (Fault::WritesLost, Keeps::All),
        (Fault::DataLost, Keeps::Tokens),
        (Fault::Failover, Keeps::Impossible),
        (Fault::SplitBrain, Keeps::Impossible),
        (Fault::LeaderLost, Keeps::Impossible),
        (Fault::ServerClockSteps, Keeps::All),
        (Fault::ClientClockSteps, Keeps::All),
        (Fault::BrokenByForce, Keeps::Tokens),
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

    fn boot_id(&self) -> Result<String, Error> {
        self.boot.clone().map_or_else(boot::boot_id, Ok)
    }

    fn synchronous(&self) -> SqliteSynchronous {
        match self.durability {
            Durability::Needed => SqliteSynchronous::Normal,
            Durability::Everything => SqliteSynchronous::Full,
        }
    }
}

/// Locks and registers in one SQLite file. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct SqliteDriver {
    inner: Arc<Inner>,
}

impl fmt::Debug for SqliteDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteDriver")
            .field("path", &self.inner.file.path())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Inner {
    file: FileMark,
    clock: Arc<dyn Clock>,
    /// The boot that this driver was opened in, as the file counts them.
    epoch: i64,
    /// What need not be on disk when it is answered.
    fast: Link,
    /// What must be.
    durable: Link,
    /// What only looks.
    reader: Link,
    hub: Arc<Hub>,
    watch: Mutex<poller::Watch>,
    /// The lists that were found in use a moment ago, for which the swift way is not tried.
    crowded: Mutex<HashSet<Key>>,
    sweeper: Sweeper,
}

impl SqliteDriver {
    /// Opens the file at `path`, and makes it, its folder and its tables if they are missing.
    ///
    /// Fails, and leaves the file as it was, where it is another program's, damaged, of a newer
    /// version, read-only, or on a network file system.
    ///
    /// # Cancel safety
    /// Dropping it leaves the file untouched or whole.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, Error> {
        let boot = options.boot_id()?;
        let path = file::prepare(path.as_ref(), &boot).await?;
        let source = |synchronous| Source::Options(Box::new(file::options(&path, synchronous)));
        let sources = [
            source(options.synchronous()),
            source(SqliteSynchronous::Full),
            source(SqliteSynchronous::Normal),
        ];
        Self::start(&path, sources, "", &boot, options).await
    }

    /// Opens what a URL names: `sqlite:relative/path`, `sqlite:/absolute/path`; `?` and `%` in a
    /// path are written as `%3F` and `%25`. The one parameter is `durability=needed` or
    /// `everything`.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let (path, options) = parse_url(url)?;
        Self::open(path, options).await
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. No I/O.
    pub fn check_url(url: &str) -> Result<(), Error> {
        parse_url(url).map(drop)
    }

    /// Uses a database that the caller has open already, and puts lockkit's tables beside his.
    ///
    /// Three connections are taken out of the pool for good, so that neither exhausts the other;
    /// the pool makes new ones when it needs them. The journal mode stays as it is: WAL is best.
    ///
    /// # Cancel safety
    /// Dropping it leaves the database without the tables or with all of them.
    pub async fn with_pool(pool: SqlitePool, options: SqliteOptions) -> Result<Self, Error> {
        let boot = options.boot_id()?;
        let source = Source::Pool(pool);
        let path = file::path_of(&source).await?;
        file::prepare_beside(&source, &boot).await?;
        let sources = [source.clone(), source.clone(), source];
        let pragmas = "PRAGMA busy_timeout = 0; PRAGMA foreign_keys = OFF;";
        Self::start(&path, sources, pragmas, &boot, options).await
    }

    /// The file, without links.
    pub fn path(&self) -> &Path {
        self.inner.file.path()
    }

    async fn start(
        path: &Path,
        [fast, durable, reader]: [Source; 3],
        pragmas: &str,
        boot: &str,
        options: SqliteOptions,
    ) -> Result<Self, Error> {
        let mark = FileMark::of(path).map_err(|e| Error::permanent(BACKEND, e))?;
        let synchronous = match options.durability {
            Durability::Needed => "NORMAL",
            Durability::Everything => "FULL",
        };
        let set_up =
            |synchronous: &str| format!("{pragmas} PRAGMA synchronous = {synchronous}; {SET_UP}");
        let epoch = enter_boot(&durable, &set_up("FULL"), &mark, boot, &*options.clock).await?;
        let inner = Arc::new(Inner {
            hub: Hub::of(mark.id()),
            clock: options.clock,
            epoch,
            fast: Link::new(fast, set_up(synchronous), mark.clone()),
            durable: Link::new(durable, set_up("FULL"), mark.clone()),
            reader: Link::new(reader, pragmas.to_owned(), mark.clone()),
            file: mark,
            watch: Mutex::default(),
            crowded: Mutex::default(),
            sweeper: Sweeper::default(),
        });
        let driver = Self { inner };
        if let Err(error) = driver.inner.sweep().await {
            driver.inner.close().await;
            return Err(error);
        }
        Ok(driver)
    }
}

/// Finds out how the file counts this boot; takes the file over from an earlier one.
async fn enter_boot(
    source: &Source,
    set_up: &str,
    mark: &FileMark,
    boot: &str,
    clock: &dyn Clock,
) -> Result<i64, Error> {
    let before = mark.log();
    let mut connection = connect(source, set_up).await?;
    let entered = enter_boot_on(&mut connection, mark, boot, clock).await;
    let entered = match entered {
        Ok(epoch) if !before.is_there() || mark.log() != before => {
            raise_floor(&mut connection, epoch).await.map(|()| epoch)
        }
        other => other,
    };
    let _ = connection.close().await;
    entered
}

/// Where a log begins, the tokens of an earlier one may be lost, if somebody deleted it in use: they
/// go on above the wall clock, as in a new file.
async fn raise_floor(connection: &mut sqlx::SqliteConnection, epoch: i64) -> Result<(), Error> {
    let mut tries = link::Tries::new();
    loop {
        let raised = sqlx::query(include_str!("sql/raise_floor.sql"))
            .bind(file::first_token())
            .bind(TOKEN_BLOCK)
            .bind(epoch)
            .execute(&mut *connection)
            .await;
        match raised {
            Ok(_) => return Ok(()),
            Err(error) => tries.after(error, &mut None::<()>).await?,
        }
    }
}

async fn enter_boot_on(
    connection: &mut sqlx::SqliteConnection,
    mark: &FileMark,
    boot: &str,
    clock: &dyn Clock,
) -> Result<i64, Error> {
    let mut tries = link::Tries::new();
    loop {
        let step = async {
            let row = sqlx::query("SELECT version, boot, epoch FROM main.lockkit_meta")
                .fetch_one(&mut *connection)
                .await?;
            let (version, known): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
            let epoch: i64 = row.try_get(2)?;
            if version > SCHEMA_VERSION || known == boot {
                return Ok(Some((version, epoch)));
            }
            sqlx::query("INSERT INTO lockkit_takeover VALUES (?1, ?2, ?3)")
                .bind(boot)
                .bind(clock.now().as_nanos() as i64)
                .bind(epoch)
                .execute(&mut *connection)
                .await?;
            Ok(None)
        };
        let entered = match step.await {
            Ok(Some((version, epoch))) => {
                file::check_version(mark.path(), version)?;
                // What the first files of this version lack.
                connection.execute(include_str!("sql/limits.sql")).await.map(|_| Some(epoch))
            }
            other => other.map(|_| None),
        };
        match entered {
            Ok(Some(epoch)) => return Ok(epoch),
            Ok(None) => {}
            Err(error) => tries.after(error, &mut None::<()>).await?,
        }
    }
}

/// Where the sweep of what nobody visits has come to.
#[derive(Debug, Default)]
struct Sweeper {
    operations: AtomicU64,
    at: Mutex<(String, i64, String)>,
}

impl Inner {
    fn now(&self) -> i64 {
        self.clock.now().as_nanos() as i64
    }

    /// Every so many operations, a bite of the sweep.
    async fn sweep_in_passing(&self) {
        const EVERY: u64 = 512;
        let count = self.sweeper.operations.fetch_add(1, Ordering::Relaxed);
        if count % EVERY == EVERY - 1
            && let Err(error) = self.sweep().await
        {
            tracing::debug!(%error, "a sweep failed; the next one goes on");
        }
    }

    /// Looks at some rows that nobody may visit any more, and removes what has ended.
    async fn sweep(&self) -> Result<(), Error> {
        const BITE: i64 = 2048;
        let (namespace, space, name) = hub::lock(&self.sweeper.at).clone();
        let begin = (namespace.as_str(), space, name.as_str());
        let next = self
            .reader
            .row(&*self.clock, |_| {
                sqlx::query(include_str!("sql/sweep_next.sql"))
                    .bind(begin.0)
                    .bind(begin.1)
                    .bind(begin.2)
                    .bind(BITE)
            })
            .await?;
        let answer = self
            .fast
            .row(&*self.clock, |now| {
                sqlx::query(concat!(
                    "INSERT INTO lockkit_sweep VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7); ",
                    include_str!("sql/answer.sql")
                ))
                .bind(begin.0)
                .bind(begin.1)
                .bind(begin.2)
                .bind(BITE)
                .bind(registers::GRACE)
                .bind(now)
                .bind(self.epoch)
            })
            .await?;
        if let Some(row) = answer {
            self.wake_promoted(&row)?;
        }
        let at = match next {
            Some(row) => (
                row.try_get(0).map_err(explain)?,
                row.try_get(1).map_err(explain)?,
                row.try_get(2).map_err(explain)?,
            ),
            None => Default::default(),
        };
        *hub::lock(&self.sweeper.at) = at;
        Ok(())
    }

    /// Puts the next block of tokens on disk.
    async fn reserve_tokens(&self) -> Result<(), Error> {
        self.durable
            .row(&*self.clock, |_| {
                sqlx::query(include_str!("sql/reserve.sql")).bind(TOKEN_BLOCK).bind(self.epoch)
            })
            .await
            .map(drop)
    }

    /// Whether this list was found in use when it was last looked at.
    fn is_crowded(&self, key: &Key) -> bool {
        hub::lock(&self.crowded).contains(key)
    }

    /// Remembers whether a list is in use. A wrong memory costs a statement, nothing else.
    fn set_crowded(&self, key: &Key, crowded: bool) {
        const MOST: usize = 1024;
        let mut lists = hub::lock(&self.crowded);
        if !crowded {
            lists.remove(key);
        } else if !lists.contains(key) {
            if lists.len() >= MOST {
                lists.clear();
            }
            lists.insert(key.clone());
        }
    }

    /// Wakes the claims that a verb made holders, as far as they wait in this process.
    fn wake_promoted(&self, row: &sqlx::sqlite::SqliteRow) -> Result<(), Error> {
        let promoted: Option<String> = row.try_get("promoted").map_err(explain)?;
        let Some(promoted) = promoted.filter(|ids| ids.len() > 2) else {
            return Ok(());
        };
        let ids: Vec<String> = serde_json::from_str(&promoted).unwrap_or_default();
        let ids = ids.iter().filter_map(|hex| ClaimId::from_hex(&hex.to_ascii_lowercase()));
        self.hub.wake(ids);
        Ok(())
    }

    async fn close(&self) {
        self.fast.close().await;
        self.durable.close().await;
        self.reader.close().await;
    }
}

/// Whether a verb was refused because the block of tokens is used up.
fn wants_tokens(error: &Error) -> bool {
    refusal(error) == Some("ceiling")
}

/// The path and the options of a URL.
fn parse_url(url: &str) -> Result<(PathBuf, SqliteOptions), Error> {
    let rest = url
        .strip_prefix("sqlite:")
        .ok_or_else(|| Error::config(format!("{url:?} does not begin with `sqlite:`")))?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = path.strip_prefix("//").unwrap_or(path);
    let path = percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .map_err(|_| Error::config("the path of a `sqlite:` URL is UTF-8"))?
        .into_owned();
    if path.is_empty() {
        return Err(Error::config(
            "`sqlite:` needs a path: `sqlite:locks.db`, `sqlite:/var/lib/app/locks.db`",
        ));
    }
    if path == ":memory:" || path.starts_with(":memory:") {
        return Err(Error::config(
            "a SQLite database in memory is seen by one connection only: use `memory:` for locks \
             within one process, `sqlite:PATH` between processes",
        ));
    }
    if path.contains('\0') {
        return Err(Error::config("a path has no NUL byte"));
    }
    let mut options = SqliteOptions::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        options.durability = match pair {
            "durability=needed" => Durability::Needed,
            "durability=everything" => Durability::Everything,
            _ => {
                return Err(Error::config(format!(
                    "`{pair}` is not known to `sqlite:` URLs; there is `durability=needed` and \
                     `durability=everything`"
                )));
            }
        };
    }
    Ok((PathBuf::from(path), options))
}
