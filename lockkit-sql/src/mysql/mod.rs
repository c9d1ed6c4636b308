//! Locks in MySQL and MariaDB: the dialect. Statements are calls of the procedures in `sql/`;
//! nothing of the queue is said here.
#![doc = include_str!("guide.md")]

mod batch;
mod fence;
mod packet;
mod promises;
mod requests;
mod schema;
mod statement;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::WakeUp;
use lockkit_core::driver::{BatchLimits, Recent};
use lockkit_core::promises::Promises;
use lockkit_core::{Capabilities, Error, Key, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{ConnectOptions, Executor};

use crate::server::dialect::{
    Arg, Arguments, CommandConnections, Dialect, ErrorClass, MessageHandler, Row, StatementId,
};
use crate::server::{ServerDriver, ServerDurability, ShedLockTable, Tables, capabilities};
use batch::UncontendedNames;
pub use fence::TOKENS_TABLE;
use packet::{InParts, Packet};
use statement::{Statement, wrong_arguments};

/// The dialect of MySQL and MariaDB.
#[derive(Debug)]
pub struct MySql {
    statements: HashMap<StatementId, Statement>,
    fast_acquire: Statement,
    fast_release: Statement,
    redate: Statement,
    /// What makes the tables and procedures, in order.
    schema: Vec<String>,
    prefix: String,
    uncontended: UncontendedNames,
    /// What the last hand-over of a queue answered: when it was, the sequence number of the holder, and how many were ahead
    /// of the claim that came. `lockkit_pass` uses it where nothing has changed since.
    passed: Recent<Key, [i64; 3]>,
    packet: Packet,
    /// Where the last bite of the sweep ended: a queue, or nothing.
    swept: Mutex<Row>,
}

/// Locks and registers in a MySQL or MariaDB database.
pub type MySqlDriver = ServerDriver<MySql>;

const BACKEND: &str = "mysql";

/// Names that were not used for so long are removed.
const IDLE: Duration = Duration::from_secs(86_400);
/// For how long the last write of an empty register is remembered.
const GRACE: Duration = Duration::from_secs(600);

/// The time of a statement, as the tables have it.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The settings of a connection of lockkit's own when it is opened: the server's administrator may have set
/// other values for all. They stand here as they are, since a default is what the administrator set. Some
/// variables have other names, or are missing, on one of the servers: a comment with `M!` is read by
/// MariaDB alone (from a version on), one with `!80000` by MySQL alone.
///
/// The time zone: that of ShedLock's sessions, which decides what they read in a TIMESTAMP. lockkit's tables have none.
///
/// The timeouts: an operation whose caller has given up must not wait on at the server, and act then.
const SESSION: &str = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
    autocommit = 1, completion_type = 0, sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', \
    sql_safe_updates = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1, \
    sql_auto_is_null = 0, time_zone = @@global.time_zone \
    /*M! , tx_isolation = 'READ-COMMITTED', tx_read_only = 0 */ \
    /*M!110602 , innodb_snapshot_isolation = 0 */ \
    /*!80000 , transaction_isolation = 'READ-COMMITTED', transaction_read_only = 0 */";

/// What each operation sends; see [`Statement`].
const STATEMENTS: [(StatementId, &str); 26] = [
    (StatementId::Acquire, "CALL lockkit_acquire(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?10, ?11, ?12)"),
    (StatementId::Release, "CALL lockkit_release(?1, ?2, ?3, ?4)"),
    (StatementId::Submit, "CALL lockkit_submit(?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
    (
        StatementId::Pass,
        "CALL lockkit_pass(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    ),
    (StatementId::Renew, "CALL lockkit_renew(?1)"),
    (StatementId::Poll, include_str!("sql/poll.sql")),
    (StatementId::Amend, "CALL lockkit_amend(?1, ?2, ?3, ?4, ?5, ?6)"),
    (StatementId::Break, "CALL lockkit_break(?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
    (StatementId::Resize, "CALL lockkit_resize(?1, ?2, ?3, ?4, ?5)"),
    (StatementId::Inspect, include_str!("sql/inspect.sql")),
    (StatementId::List, include_str!("sql/page.sql")),
    (StatementId::Load, include_str!("sql/load.sql")),
    (
        StatementId::Write,
        "CALL lockkit_write(?1, ?2, ?3, ?4, ?5, NULLIF(?6, 0), ?7, NULLIF(?8, 0), ?10, ?9)",
    ),
    (StatementId::Registers, include_str!("sql/page_of_registers.sql")),
    (StatementId::Namespaces, include_str!("sql/namespaces.sql")),
    (StatementId::Counter, "CALL lockkit_counter(?1, ?2)"),
    (StatementId::RaiseCounter, include_str!("sql/raise_counter.sql")),
    (StatementId::Health, include_str!("sql/health.sql")),
    (StatementId::Settings, include_str!("sql/settings.sql")),
    (StatementId::Run, include_str!("sql/run.sql")),
    (StatementId::Sweep, "CALL lockkit_sweep(?1, ?2, ?3, ?4, ?5)"),
    (StatementId::Standby, "SELECT CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')"),
    (StatementId::GateTake, include_str!("sql/shedlock/take.sql")),
    (StatementId::GateKeep, include_str!("sql/shedlock/keep.sql")),
    (StatementId::GateGive, include_str!("sql/shedlock/give.sql")),
    (StatementId::GateExamine, include_str!("sql/shedlock/examine.sql")),
];

#[async_trait]
impl Dialect for MySql {
    type Db = sqlx::MySql;
    const BACKEND: &'static str = BACKEND;
    const TABLES_ARE: &'static str = "what the names of lockkit's tables begin with";
    const TABLES: &'static str = "lockkit_";
    const CAPABILITIES: Capabilities = {
        let mut c = capabilities(BACKEND, BatchLimits::of(128, 4));
        c.granularity = Duration::from_micros(1);
        c.wake_up = WakeUp::Poll { within: Duration::from_millis(200) };
        c
    };
    const VERSION: i64 = 11;
    const STANDBY: &'static str = "read_only is on, as on a standby";
    const PUSHES: bool = false;

    fn new(tables: &Tables, _: ServerDurability, shedlock: &ShedLockTable) -> Self {
        let prefix = tables.0.clone();
        let place = |text: &str| {
            let text = text.replace("lockkit_", &prefix).replace("{now}", NOW);
            // Rounded down, as ShedLock has it: a lease that ends now has ended for it.
            shedlock.fill(&text).replace("{utc}", "UTC_TIMESTAMP(3)")
        };
        let statement = |text: &str| Statement::new(&place(text));
        Self {
            statements: STATEMENTS.map(|(id, text)| (id, statement(text))).into(),
            fast_acquire: statement(include_str!("sql/fast_acquire.sql")),
            fast_release: statement(include_str!("sql/fast_release.sql")),
            redate: statement(include_str!("sql/redate.sql")),
            schema: schema::steps(&prefix),
            prefix,
            uncontended: UncontendedNames::default(),
            passed: Recent::new(256),
            packet: Packet::default(),
            swept: Mutex::default(),
        }
    }

    fn parse(url: &str) -> Result<MySqlConnectOptions> {
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

    fn counters(&self) -> String {
        format!("{}counters", self.prefix)
    }

    fn schema(&self) -> String {
        schema::as_text(&self.schema, &self.prefix)
    }

    async fn install(&self, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        schema::install(self, connection).await
    }

    async fn open(&self, options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
        let mut connection = options.connect().await?;
        connection.execute(sqlx::raw_sql(SESSION)).await?;
        Ok(connection)
    }

    /// The single statements of the fast path run as the session's variables say, and those of a pool are the
    /// program's. Procedures say themselves what they need.
    async fn meet(&self, _: &MySqlConnectOptions) {
        self.uncontended.turn_off();
    }

    async fn run(
        &self,
        connection: &mut MySqlConnection,
        id: StatementId,
        arguments: Arguments<'_>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let args = match arguments {
            Arguments::Batch([one], client) if id != StatementId::Submit => {
                return self.single(connection, one, client).await;
            }
            Arguments::Batch(both, _) if id == StatementId::Pass => {
                return self.pass(connection, both).await;
            }
            Arguments::Batch(operations, _) => return self.submit(connection, operations).await,
            Arguments::Claims(claims, _) => {
                return self.claim_states(connection, id, claims).await;
            }
            Arguments::List(args) => args,
        };
        match id {
            StatementId::List => {
                let Some(Arg::Bytes(prefix)) = args.get(2) else { return Err(wrong_arguments()) };
                // Names have 512 bytes at most, so none that has the prefix is greater.
                let end = [prefix, [0xff; 512].as_slice()].concat();
                self.ask(connection, id, &[args, &[Arg::Bytes(&end)]].concat()).await
            }
            StatementId::Write => {
                let grace = Arg::Int(GRACE.as_micros() as i64);
                self.ask(connection, id, &[args, &[grace]].concat()).await
            }
            StatementId::Sweep => self.sweep(connection, args).await,
            StatementId::Load => self.load(connection, args).await,
            StatementId::Health => self.health(connection).await,
            // Several statements in one message: these cannot be prepared.
            StatementId::GateTake | StatementId::GateKeep | StatementId::GateGive => {
                statement::plain(&self.statements[&id], args, connection).await
            }
            _ => self.ask(connection, id, args).await,
        }
    }

    fn judge(settings: &[(String, String)], promises: &mut Promises) {
        promises::judge(settings, promises);
    }

    fn class(&self, error: &sqlx::Error) -> ErrorClass {
        match error {
            sqlx::Error::Configuration(cause) if cause.is::<InParts>() => ErrorClass::InParts,
            _ => judge(error),
        }
    }

    /// Collations ignore case and, the older ones, spaces at the end.
    fn shedlock_name(name: &str) -> String {
        name.trim_end_matches(' ').to_ascii_lowercase()
    }

    async fn listen(
        _: &MySqlConnectOptions,
        _: &str,
        _: &MessageHandler<'_>,
        _: &dyn CommandConnections,
    ) -> Result<(), sqlx::Error> {
        std::future::pending().await
    }
}

/// More than `max_allowed_packet`. The server closes the connection.
const TOO_LARGE: u16 = 1153;

/// What an error of the client or the server means.
fn judge(error: &sqlx::Error) -> ErrorClass {
    let Some(database) = error.as_database_error() else {
        return ErrorClass::of_client(error);
    };
    match database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
        // Deadlock, a record that changed (Galera, MariaDB's snapshots).
        Some(1213 | 1020) => ErrorClass::Again,
        Some(1205) => ErrorClass::Blocked,
        // Ended by an administrator or for idleness; a statement that was cancelled may have
        // left a transaction open, which ends with its connection.
        Some(1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1927 | 1969) => {
            ErrorClass::ConnectionLost
        }
        Some(3024 | 3169) => ErrorClass::ConnectionLost,
        Some(TOO_LARGE) => ErrorClass::TooLarge,
        // Closed for idleness.
        Some(4031) => ErrorClass::Closed,
        // No such table, procedure, or column of an older one.
        Some(1054 | 1146 | 1305 | 1318) => ErrorClass::NoTables,
        Some(1290 | 1792 | 1836) => ErrorClass::ReadOnly,
        // No right to the database, the table, the column, the procedure, or at all.
        Some(1044 | 1142 | 1143 | 1227 | 1370) => ErrorClass::Forbidden,
        // Too many connections, no memory, no disk, a node that is not ready.
        Some(1021 | 1037..=1041 | 1047 | 1203 | 1226 | 3100) => ErrorClass::Later,
        _ => ErrorClass::Never,
    }
}
