//! Locks in MySQL and MariaDB: the dialect. Statements are calls of the procedures in `sql/`;
//! nothing of the queue is said here.
#![doc = include_str!("guide.md")]

mod batch;
mod fence;
mod packet;
mod promises;
mod schema;
mod statement;
mod verbs;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::WakeUp;
use lockkit_core::driver::Flights;
use lockkit_core::promises::Promises;
use lockkit_core::{Capabilities, Error};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{ConnectOptions, Executor};

use crate::server::dialect::{Arg, Arguments, Commands, Dialect, Heard, Row, Verb, Verdict};
use crate::server::{ServerDriver, ServerDurability, Tables, capabilities};
use batch::UncontendedNames;
pub use fence::TOKENS_TABLE;
use packet::{InParts, Packet};
use statement::{Statement, wrong_arguments};

/// The dialect of MySQL and MariaDB.
#[derive(Debug)]
pub struct MySql {
    statements: HashMap<Verb, Statement>,
    fast_acquire: Statement,
    fast_release: Statement,
    rebase: Statement,
    /// What makes the tables and procedures, in order.
    schema: Vec<String>,
    prefix: String,
    uncontended: UncontendedNames,
    packet: Packet,
    /// Where the last bite of the sweep ended: a list, or nothing.
    swept: Mutex<Row>,
}

/// Locks and registers in a MySQL or MariaDB database.
pub type MySqlDriver = ServerDriver<MySql>;

const BACKEND: &str = "mysql";

/// Names that nobody used for so long are removed.
const IDLE: Duration = Duration::from_secs(86_400);
/// For how long the last write of an empty register is remembered.
const GRACE: Duration = Duration::from_secs(600);

/// The time of a statement, as the tables have it.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// What a connection of lockkit's own is told when it is opened: the server's administrator may have set
/// other values for all. They stand here as they are, since a default is what the administrator set. Some
/// variables have other names, or are missing, on one of the servers: a comment with `M!` is read by
/// MariaDB alone (from a version on), one with `!80000` by MySQL alone.
///
/// The timeouts: a verb whose caller has given up must not wait on at the server, and act then.
const SESSION: &str = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
    autocommit = 1, completion_type = 0, sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', \
    sql_safe_updates = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1, \
    sql_auto_is_null = 0 \
    /*M! , tx_isolation = 'READ-COMMITTED', tx_read_only = 0 */ \
    /*M!110602 , innodb_snapshot_isolation = 0 */ \
    /*!80000 , transaction_isolation = 'READ-COMMITTED', transaction_read_only = 0 */";

/// What each verb sends; see [`Statement`].
const STATEMENTS: [(Verb, &str); 21] = [
    (Verb::Acquire, "CALL lockkit_acquire(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?10, ?11, ?12)"),
    (Verb::Release, "CALL lockkit_release(?1, ?2, ?3, ?4)"),
    (Verb::Carry, "CALL lockkit_carry(?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
    (Verb::Renew, "CALL lockkit_renew(?1)"),
    (Verb::Look, include_str!("sql/look.sql")),
    (Verb::Amend, "CALL lockkit_amend(?1, ?2, ?3, ?4, ?5, ?6)"),
    (Verb::Break, "CALL lockkit_break(?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
    (Verb::Resize, "CALL lockkit_resize(?1, ?2, ?3, ?4, ?5)"),
    (Verb::Inspect, include_str!("sql/inspect.sql")),
    (Verb::List, include_str!("sql/page.sql")),
    (Verb::Load, include_str!("sql/load.sql")),
    (
        Verb::Store,
        "CALL lockkit_write(?1, ?2, ?3, ?4, ?5, NULLIF(?6, 0), ?7, NULLIF(?8, 0), ?10, ?9)",
    ),
    (Verb::Registers, include_str!("sql/page_of_registers.sql")),
    (Verb::Namespaces, include_str!("sql/namespaces.sql")),
    (Verb::Base, "SELECT base FROM lockkit_bases WHERE namespace = ?1"),
    (Verb::RaiseBase, include_str!("sql/raise_base.sql")),
    (Verb::Health, include_str!("sql/health.sql")),
    (Verb::Settings, include_str!("sql/settings.sql")),
    (Verb::Run, include_str!("sql/run.sql")),
    (Verb::Sweep, "CALL lockkit_sweep(?1, ?2, ?3, ?4, ?5)"),
    (Verb::Standby, "SELECT CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')"),
];

#[async_trait]
impl Dialect for MySql {
    type Db = sqlx::MySql;
    const BACKEND: &'static str = BACKEND;
    const TABLES_ARE: &'static str = "what the names of lockkit's tables begin with";
    const TABLES: &'static str = "lockkit_";
    const CAPABILITIES: Capabilities = {
        let mut c = capabilities(BACKEND, Flights::of(128, 4));
        c.granularity = Duration::from_micros(1);
        c.wake_up = WakeUp::Poll { within: Duration::from_millis(200) };
        c
    };
    const VERSION: i64 = 7;
    const STANDBY: &'static str = "read_only is on, as on a standby";
    const PUSHES: bool = false;

    fn new(tables: &Tables, _: ServerDurability) -> Self {
        let prefix = tables.0.clone();
        let place = |text: &str| text.replace("lockkit_", &prefix).replace("{now}", NOW);
        let statement = |text: &str| Statement::new(&place(text));
        Self {
            statements: STATEMENTS.map(|(verb, text)| (verb, statement(text))).into(),
            fast_acquire: statement(include_str!("sql/fast_acquire.sql")),
            fast_release: statement(include_str!("sql/fast_release.sql")),
            rebase: statement(include_str!("sql/rebase.sql")),
            schema: schema::steps(&prefix),
            prefix,
            uncontended: UncontendedNames::default(),
            packet: Packet::default(),
            swept: Mutex::default(),
        }
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
        verb: Verb,
        arguments: Arguments<'_>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let args = match arguments {
            Arguments::Batch([one], client) if verb != Verb::Carry => {
                return self.single(connection, one, client).await;
            }
            Arguments::Batch(operations, _) => return self.carry(connection, operations).await,
            Arguments::Claims(claims, _) => {
                return self.claim_states(connection, verb, claims).await;
            }
            Arguments::List(args) => args,
        };
        match verb {
            Verb::List => {
                let Some(Arg::Bytes(prefix)) = args.get(2) else { return Err(wrong_arguments()) };
                // Names have 512 bytes at most, so none that has the prefix is greater.
                let end = [prefix, [0xff; 512].as_slice()].concat();
                self.ask(connection, verb, &[args, &[Arg::Bytes(&end)]].concat()).await
            }
            Verb::Store => {
                let grace = Arg::Int(GRACE.as_micros() as i64);
                self.ask(connection, verb, &[args, &[grace]].concat()).await
            }
            Verb::Sweep => self.sweep(connection, args).await,
            Verb::Load => self.load(connection, args).await,
            Verb::Health => self.health(connection).await,
            _ => self.ask(connection, verb, args).await,
        }
    }

    fn judge(settings: &[(String, String)], promises: &mut Promises) {
        promises::judge(settings, promises);
    }

    fn verdict(&self, error: &sqlx::Error) -> Verdict {
        match error {
            sqlx::Error::Configuration(cause) if cause.is::<InParts>() => Verdict::InParts,
            _ => judge(error),
        }
    }

    async fn listen(
        _: &MySqlConnectOptions,
        _: &str,
        _: &Heard<'_>,
        _: &dyn Commands,
    ) -> Result<(), sqlx::Error> {
        std::future::pending().await
    }
}

/// More than `max_allowed_packet`. The server closes the connection.
const TOO_LARGE: u16 = 1153;

/// What an error of the client or the server means.
fn judge(error: &sqlx::Error) -> Verdict {
    let Some(database) = error.as_database_error() else {
        return Verdict::of_client(error);
    };
    match database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
        // Deadlock, a record that changed (Galera, MariaDB's snapshots).
        Some(1213 | 1020) => Verdict::Again,
        Some(1205) => Verdict::HeldUp,
        // Ended by an administrator or for idleness; a statement that was cancelled may have
        // left a transaction open, which ends with its connection.
        Some(1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1927 | 1969) => Verdict::Gone,
        Some(3024 | 3169) => Verdict::Gone,
        Some(TOO_LARGE) => Verdict::TooLarge,
        // Closed for idleness.
        Some(4031) => Verdict::Closed,
        // No such table, procedure, or column of an older one.
        Some(1054 | 1146 | 1305 | 1318) => Verdict::NoTables,
        Some(1290 | 1792 | 1836) => Verdict::ReadOnly,
        // No right to the database, the table, the column, the procedure, or at all.
        Some(1044 | 1142 | 1143 | 1227 | 1370) => Verdict::Forbidden,
        // Too many connections, no memory, no disk, a node that is not ready.
        Some(1021 | 1037..=1041 | 1047 | 1203 | 1226 | 3100) => Verdict::Later,
        _ => Verdict::Never,
    }
}
