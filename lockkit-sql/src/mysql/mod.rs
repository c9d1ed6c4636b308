//! Locks in MySQL and MariaDB: the dialect. Statements are calls of the procedures in `sql/`;
//! nothing of the queue is said here.
#![doc = include_str!("guide.md")]

mod fence;
mod flight;
mod memory;
mod schema;
mod statement;
mod verbs;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::{Fault, Keeps, TokenSource, WakeUp};
use lockkit_core::driver::Flights;
use lockkit_core::{Capabilities, Error};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{ConnectOptions, Executor};

use crate::server::dialect::{Arg, Dialect, Heard, Row, Verb, Verdict};
use crate::server::{ServerDriver, ServerDurability, Tables, is_plain};
pub use fence::TOKENS_TABLE;
use memory::Memory;
use schema::Step;
use verbs::plain;

/// The dialect of MySQL and MariaDB.
#[derive(Debug)]
pub struct MySql {
    statements: Statements,
    /// What makes the tables and procedures, in order.
    schema: Vec<Step>,
    prefix: String,
    alone: Memory,
    /// Where the last bite of the sweep ended.
    swept: Mutex<(Vec<u8>, i64, Vec<u8>)>,
}

/// Locks and registers in a MySQL or MariaDB database.
pub type MySqlDriver = ServerDriver<MySql>;

const BACKEND: &str = "mysql";

const CAPABILITIES: Capabilities = {
    let mut c = Capabilities::of(BACKEND);
    c.granularity = Duration::from_micros(1);
    c.least_ttl = Duration::from_millis(50);
    c.expiry_slack = Duration::from_millis(100);
    c.wake_up = WakeUp::Poll { within: Duration::from_millis(200) };
    c.token_source = TokenSource::ClockCounter;
    c.shorten = true;
    c.raise = true;
    c.detached = true;
    c.registers = true;
    c.namespaces = true;
    c.resize = true;
    c.flights = Flights::of(128, 4);
    c.flights.same_key = true;
    c.faults = FAULTS;
    c
};

const FAULTS: &[(Fault, Keeps)] = &[
    (Fault::DataLost, Keeps::Tokens),
    (Fault::Failover, Keeps::Tokens),
    (Fault::SplitBrain, Keeps::Nothing),
    (Fault::LeaderLost, Keeps::Impossible),
    // Leases end early; tokens do not go back with the clock.
    (Fault::ServerClockSteps, Keeps::Tokens),
    (Fault::BrokenByForce, Keeps::Tokens),
];

const FAULTS_WHEN_TRADED: &[(Fault, Keeps)] = &[
    (Fault::WritesLost, Keeps::Tokens),
    (Fault::DataLost, Keeps::Tokens),
    (Fault::Failover, Keeps::Tokens),
    (Fault::SplitBrain, Keeps::Nothing),
    (Fault::LeaderLost, Keeps::Impossible),
    (Fault::ServerClockSteps, Keeps::Tokens),
    (Fault::BrokenByForce, Keeps::Tokens),
];

/// Names that nobody used for so long are removed.
const IDLE: Duration = Duration::from_secs(86_400);
/// For how long the last write of an empty register is remembered.
const GRACE: Duration = Duration::from_secs(600);

/// The text of every verb.
#[derive(Debug)]
struct Statements {
    acquire: Arc<str>,
    swift_acquire: Arc<str>,
    release: Arc<str>,
    carry: Arc<str>,
    swift_release: Arc<str>,
    renew: Arc<str>,
    look: Arc<str>,
    amend: Arc<str>,
    break_claim: Arc<str>,
    inspect: Arc<str>,
    page: Arc<str>,
    load: Arc<str>,
    resize: Arc<str>,
    store: Arc<str>,
    registers: Arc<str>,
    namespaces: Arc<str>,
    base: Arc<str>,
    raise_base: Arc<str>,
    health: Arc<str>,
    sweep: Arc<str>,
}

impl Statements {
    fn new(prefix: &str) -> Self {
        let of = |text: &str| -> Arc<str> { text.replace("lockkit_", prefix).into() };
        Self {
            acquire: of("CALL lockkit_acquire(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
            swift_acquire: of(include_str!("sql/swift_acquire.sql")),
            release: of("CALL lockkit_release(?, ?, ?, ?)"),
            carry: of("CALL lockkit_carry(?, ?, ?, ?, ?, ?, ?)"),
            swift_release: of(include_str!("sql/swift_release.sql")),
            renew: of("CALL lockkit_renew(?)"),
            look: of(include_str!("sql/look.sql")),
            amend: of("CALL lockkit_amend(?, ?, ?, ?, ?, ?)"),
            break_claim: of("CALL lockkit_break(?, ?, ?, ?, ?, ?, ?)"),
            inspect: of(include_str!("sql/inspect.sql")),
            page: of(include_str!("sql/page.sql")),
            load: of(include_str!("sql/load.sql")),
            resize: of("CALL lockkit_resize(?, ?, ?, ?, ?)"),
            store: of("CALL lockkit_write(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
            registers: of(include_str!("sql/page_of_registers.sql")),
            namespaces: of(include_str!("sql/namespaces.sql")),
            base: of("SELECT base FROM lockkit_bases WHERE namespace = ?"),
            raise_base: of("INSERT INTO lockkit_bases (namespace, base) VALUES (?, ?) \
                            ON DUPLICATE KEY UPDATE base = GREATEST(base, VALUES(base))"),
            health: of(include_str!("sql/health.sql")),
            sweep: of("CALL lockkit_sweep(?, ?, ?, ?, ?)"),
        }
    }
}

#[async_trait]
impl Dialect for MySql {
    type Db = sqlx::MySql;
    const BACKEND: &'static str = BACKEND;
    const TABLES: &'static str = "lockkit_";
    const VERSION: i64 = 4;
    const PUSHES: bool = false;

    fn new(tables: &Tables, _: ServerDurability) -> Self {
        let prefix = tables.0.clone();
        Self {
            statements: Statements::new(&prefix),
            schema: schema::steps(&prefix),
            prefix,
            alone: Memory::default(),
            swept: Mutex::new((Vec::new(), -1, Vec::new())),
        }
    }

    fn capabilities(durability: ServerDurability) -> Capabilities {
        let mut capabilities = CAPABILITIES;
        if durability == ServerDurability::Needed {
            capabilities.faults = FAULTS_WHEN_TRADED;
        }
        capabilities
    }

    fn parse(url: &str) -> Result<MySqlConnectOptions, Error> {
        // Both names are of one protocol; sqlx knows the first.
        let known = url.strip_prefix("mariadb:").map(|rest| format!("mysql:{rest}"));
        let parsed: Result<MySqlConnectOptions, sqlx::Error> =
            known.as_deref().unwrap_or(url).parse();
        let options = parsed.map_err(|error| {
            Error::Config(format!("this is not a URL of MySQL or MariaDB: {error}"))
        })?;
        match options.get_database() {
            Some(_) => Ok(options),
            None => Err(Error::config(
                "a URL of MySQL or MariaDB names the database for lockkit's tables: \
                 `mysql://user@host/database`",
            )),
        }
    }

    fn tables(&self) -> &str {
        &self.prefix
    }

    fn check(tables: &Tables) -> Result<(), Error> {
        match is_plain(&tables.0) {
            true => Ok(()),
            false => Err(Error::config(
                "what the names of lockkit's tables begin with is made of a-z, 0-9 and _, 40 at \
                 most",
            )),
        }
    }

    fn schema(&self) -> String {
        schema::as_text(&self.schema, &self.prefix)
    }

    async fn install(&self, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        schema::install(self, connection).await
    }

    async fn open(&self, options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
        let mut connection = options.connect().await?;
        // A verb whose caller has given up must not wait on for the server's 50 s, and act then.
        let set = "SET SESSION innodb_lock_wait_timeout = 1, autocommit = 1";
        connection.execute(sqlx::raw_sql(set)).await?;
        Ok(connection)
    }

    async fn run(
        &self,
        connection: &mut MySqlConnection,
        verb: Verb,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        let texts = &self.statements;
        match verb {
            Verb::Acquire => self.acquire(connection, args).await,
            Verb::Release => self.release(connection, args).await,
            Verb::Carry => self.carry(connection, args).await,
            Verb::Renew => self.batch(connection, &texts.renew, args).await,
            Verb::Look => self.batch(connection, &texts.look, args).await,
            Verb::Amend => {
                self.alone.forget(args);
                plain(connection, &texts.amend, args).await
            }
            Verb::Break => plain(connection, &texts.break_claim, args).await,
            Verb::Inspect => {
                let thrice = [args, args, args].concat();
                plain(connection, &texts.inspect, &thrice).await
            }
            Verb::List => self.list(connection, args).await,
            Verb::Load => plain(connection, &texts.load, args).await,
            Verb::Store => self.store(connection, args).await,
            Verb::Registers => plain(connection, &texts.registers, args).await,
            Verb::Namespaces => self.namespaces(connection, args).await,
            Verb::Base => plain(connection, &texts.base, args).await,
            Verb::RaiseBase => plain(connection, &texts.raise_base, args).await,
            Verb::Health => plain(connection, &texts.health, args).await,
            Verb::Sweep => self.sweep(connection, args).await,
            Verb::Resize => {
                self.alone.forget(args);
                plain(connection, &texts.resize, args).await
            }
        }
    }

    fn verdict(&self, error: &sqlx::Error) -> Verdict {
        judge(error)
    }

    async fn listen(_: &MySqlConnectOptions, _: &str, _: &Heard<'_>) -> Result<(), sqlx::Error> {
        std::future::pending().await
    }
}

/// What an error of the client or the server means.
fn judge(error: &sqlx::Error) -> Verdict {
    let Some(database) = error.as_database_error() else {
        return match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::PoolTimedOut => Verdict::Gone,
            _ => Verdict::Never,
        };
    };
    match database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
        // Deadlock, a record that changed (Galera, MariaDB's snapshots).
        Some(1213 | 1020) => Verdict::Again,
        Some(1205) => Verdict::HeldUp,
        // Ended by an administrator or for idleness; a statement that was cancelled may have
        // left a transaction open, which ends with its connection.
        Some(1053 | 1077 | 1079 | 1152 | 1153 | 1158..=1161 | 1184 | 1317 | 1927 | 1969) => {
            Verdict::Gone
        }
        Some(3024 | 3169) => Verdict::Gone,
        // Closed for idleness.
        Some(4031) => Verdict::Closed,
        // No such table, procedure, or column of an older one.
        Some(1146 | 1305 | 1318) => Verdict::NoTables,
        Some(1290 | 1792 | 1836) => Verdict::ReadOnly,
        // No right to the database, the table, the column, the procedure, or at all.
        Some(1044 | 1142 | 1143 | 1227 | 1370) => Verdict::Forbidden,
        // Too many connections, no memory, no disk, a node that is not ready.
        Some(1021 | 1037..=1041 | 1047 | 1203 | 1226 | 3100) => Verdict::Later,
        _ => Verdict::Never,
    }
}
