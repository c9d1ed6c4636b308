//! Locks in PostgreSQL: the dialect. Statements are in `sql/`, most of them calls of functions;
//! nothing of the queue is said here.
#![doc = include_str!("guide.md")]

mod advisory;
mod answers;
mod fence;
mod listen;
mod promises;
mod statement;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockkit_core::capabilities::WakeUp;
use lockkit_core::driver::{BatchLimits, locked};
use lockkit_core::promises::Promises;
use lockkit_core::{Capabilities, Error, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, Postgres as Db};

use crate::rows::{micros, other_version};
use crate::server::dialect::{
    Arg, Arguments, CommandConnections, Dialect, ErrorClass, MessageHandler, NeighbourGate, Row,
    StatementId, without_header,
};
use crate::server::{ServerDriver, ServerDurability, ShedLockTable, Tables, capabilities};
use advisory::AdvisoryGate;
use answers::{freed, handed_over, taken};

pub use fence::TOKENS_TABLE;

/// The dialect of PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    /// What stands before the name of every table and function.
    prefix: String,
    schema: String,
    statements: HashMap<StatementId, Arc<str>>,
    /// Whether statements are sent as text: a pooler was met before the server, or the connections of the
    /// user's pool have another isolation level.
    plain: AtomicBool,
    /// A renewal that says as well which server answers, until a server is found that does not tell: a
    /// right is missing, or it is PostgreSQL by its protocol only.
    telling: Arc<str>,
    tells: AtomicBool,
    /// When it was last said that the queue of messages is full.
    full: Mutex<Option<Instant>>,
}

/// Locks and registers in a PostgreSQL database.
pub type PostgresDriver = ServerDriver<Postgres>;

const BACKEND: &str = "postgres";

/// Tables and functions, in the order in which they need each other.
const SCHEMA: &str = concat!(
    include_str!("sql/tables.sql"),
    include_str!("sql/queue.sql"),
    include_str!("sql/acquire.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/submit.sql"),
    include_str!("sql/pass.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/amend.sql"),
    include_str!("sql/break.sql"),
    include_str!("sql/resize.sql"),
    include_str!("sql/inspect.sql"),
    include_str!("sql/registers.sql"),
    include_str!("sql/sweep.sql"),
);

#[async_trait]
impl Dialect for Postgres {
    type Db = Db;
    const BACKEND: &'static str = BACKEND;
    const TABLES_ARE: &'static str = "the schema for lockkit's tables";
    const TABLES: &'static str = "lockkit";
    const CAPABILITIES: Capabilities = {
        let mut c = capabilities(BACKEND, BatchLimits::of(64, 2));
        c.wake_up = WakeUp::Push;
        c
    };
    const VERSION: i64 = 11;
    const STANDBY: &'static str = "it is a standby";
    const PUSHES: bool = true;

    fn new(tables: &Tables, durability: ServerDurability, shedlock: &ShedLockTable) -> Self {
        let schema = tables.0.clone();
        let prefix = format!("\"{schema}\".lockkit_");
        let statements = FUNCTIONS.map(|(id, name, args)| {
            let text = statement(&prefix, durability, id, name, args);
            (id, Arc::from(shedlock.fill(&text).replace("{utc}", UTC)))
        });
        let statements = HashMap::from(statements);
        let telling: String = without_header(include_str!("sql/evidence.sql"));
        let telling = telling.replace("{renewal}", &statements[&StatementId::Renew]).into();
        let (plain, tells) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { prefix, schema, statements, plain, telling, tells, full: Mutex::default() }
    }

    fn parse(url: &str) -> Result<PgConnectOptions> {
        let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
            Error::Config(format!("this is not a URL of PostgreSQL: {error}"))
        })?;
        Ok(options.application_name("lockkit").disable_statement_logging())
    }

    fn tables(&self) -> &str {
        &self.schema
    }

    fn counters(&self) -> String {
        format!("{}.lockkit_counters", self.schema)
    }

    fn schema(&self) -> String {
        let body = SCHEMA.replace("{p}", &self.prefix).replace("{schema}", &self.schema);
        // PostgreSQL puts the version that it finds there in place of `%`.
        let body =
            body.replace("{other_version}", &other_version(&self.schema, "%", Self::VERSION));
        body.replace("{version}", &Self::VERSION.to_string())
    }

    async fn install(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        // In one message, so in one transaction: the second to run it finds everything done.
        let mut attempts = 0..5;
        loop {
            let schema = sqlx::raw_sql(AssertSqlSafe(self.schema()));
            match connection.execute(schema).await {
                Err(error)
                    if self.class(&error) == ErrorClass::Again && attempts.next().is_some() =>
                {
                    connection.execute("ROLLBACK").await?;
                }
                done => return done.map(drop),
            }
        }
    }

    async fn open(&self, options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
        if self.plain.load(Ordering::Relaxed) {
            return options.connect().await;
        }
        let (connection, is_server) = listen::open(options).await?;
        if !is_server {
            self.plain.store(true, Ordering::Relaxed);
        }
        Ok(connection)
    }

    async fn meet(&self, options: &PgConnectOptions) {
        // Until it is known better, also when this is dropped.
        self.plain.store(true, Ordering::Relaxed);
        if let Ok(prepares) = listen::prepares(options).await {
            self.plain.store(!prepares, Ordering::Relaxed);
        }
    }

    async fn run(
        &self,
        connection: &mut PgConnection,
        id: StatementId,
        arguments: Arguments<'_>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let text = &self.statements[&id];
        let args = &*statement::arguments(id, arguments);
        let rows = match id == StatementId::Renew && self.tells.load(Ordering::Relaxed) {
            false => self.send(connection, text, args).await,
            true => match self.send(connection, &self.telling, args).await {
                // It did nothing. Where it fails without the evidence as well, that was not why.
                Err(error) if is_untold(&error) => {
                    let rows = self.send(connection, text, args).await;
                    self.tells.fetch_and(rows.is_err(), Ordering::Relaxed);
                    rows
                }
                rows => rows,
            },
        };
        let rows = match rows {
            // Its commit failed, so nothing was done: done again without a message. Those who wait ask
            // when a lease ends and when they are renewed.
            Err(error) if is_queue_full(&error) && id != StatementId::Notify => {
                self.warn_of_full_queue(&error);
                statement::plain(connection, &format!("{BEGIN}{MUTE}{text}"), args).await?
            }
            rows => rows?,
        };
        match (id, arguments) {
            (StatementId::Acquire, Arguments::Batch([one], _)) => {
                Ok(rows.iter().map(|row| taken(row, micros(one.claim.hold_ttl))).collect())
            }
            (StatementId::Release, _) => Ok(rows.iter().map(freed).collect()),
            (StatementId::Pass, _) => Ok(rows.first().map(handed_over).unwrap_or_default()),
            _ => Ok(rows),
        }
    }

    fn judge(settings: &[(String, String)], promises: &mut Promises) {
        promises::judge(settings, promises);
    }

    fn class(&self, error: &sqlx::Error) -> ErrorClass {
        let pooled = error.as_database_error().and_then(|error| error.code());
        // Prepared by one connection of a pooler that was not noticed, asked of another.
        if matches!(pooled.as_deref(), Some("26000" | "42P05")) {
            self.plain.store(true, Ordering::Relaxed);
            return ErrorClass::Again;
        }
        judge(error)
    }

    async fn listen(
        options: &PgConnectOptions,
        channel: &str,
        on_message: &MessageHandler<'_>,
        commands: &dyn CommandConnections,
    ) -> Result<(), sqlx::Error> {
        listen::listen(options, channel, on_message, commands).await
    }

    async fn advisory(
        &self,
        options: &PgConnectOptions,
        timeout: Duration,
    ) -> Result<Box<dyn NeighbourGate>> {
        Ok(Box::new(AdvisoryGate::connect(options, timeout).await?))
    }

    fn shedlock_name(name: &str) -> String {
        name.to_owned()
    }

    /// The server says in words what a right is missing for. In another language than English they are
    /// not understood: then all rights are named.
    fn missing_grant(&self, error: &sqlx::Error, options: &PgConnectOptions) -> Option<String> {
        let message = error.as_database_error()?.message();
        let is_of = |what: &str| message.contains(&format!("permission denied for {what}"));
        let known = [
            ("schema", RIGHTS[0]),
            ("table", RIGHTS[1]),
            ("view", RIGHTS[1]),
            ("function", RIGHTS[2]),
        ];
        let known = known.into_iter().find(|(what, _)| is_of(what));
        let rights = known.map_or(RIGHTS.to_vec(), |(_, right)| vec![right]);
        let (schema, user) = (&self.schema, options.get_username().replace('"', "\"\""));
        let grant = |right: &str| format!("GRANT {right} \"{schema}\" TO \"{user}\"");
        Some(rights.into_iter().map(grant).collect::<Vec<_>>().join("; "))
    }
}

/// What a user of locks needs in the schema whose name follows.
const RIGHTS: [&str; 3] = [
    "USAGE ON SCHEMA",
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA",
    "EXECUTE ON ALL FUNCTIONS IN SCHEMA",
];

impl Postgres {
    async fn send(
        &self,
        connection: &mut PgConnection,
        text: &Arc<str>,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, sqlx::Error> {
        match self.plain.load(Ordering::Relaxed) {
            true => statement::plain(connection, &format!("{BEGIN}{text}"), args).await,
            false => statement::prepared(connection, text, args).await,
        }
    }

    /// Once a minute at most.
    fn warn_of_full_queue(&self, error: &sqlx::Error) {
        let mut full = locked(&self.full);
        if full.is_none_or(|since| since.elapsed() > Duration::from_secs(60)) {
            *full = Some(Instant::now());
            tracing::warn!(
                %error,
                "waiters are not notified: a client that listens has not read for long (look for old \
                 transactions in pg_stat_activity)"
            );
        }
    }
}

/// Whether a server may say this to the evidence, which others tell: no right, no such function, not now.
fn is_untold(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
    matches!(&*code, "42501" | "42601" | "42883" | "42704" | "0A000" | "55000" | "XX000")
}

/// PostgreSQL fails the commit of a transaction whose messages its queue has no room for.
fn is_queue_full(error: &sqlx::Error) -> bool {
    let full = |error: &dyn sqlx::error::DatabaseError| {
        error.code().as_deref() == Some("54000") && error.message().contains("NOTIFY")
    };
    error.as_database_error().is_some_and(full)
}

/// What an error of the client or the server means.
fn judge(error: &sqlx::Error) -> ErrorClass {
    let Some(database) = error.as_database_error() else {
        return ErrorClass::of_client(error);
    };
    let code = database.code().unwrap_or_default();
    match &*code {
        // Another transaction came first.
        "40001" | "40P01" => ErrorClass::Again,
        "55P03" => ErrorClass::Blocked,
        // Ended by an administrator.
        "57P01" | "57P02" => ErrorClass::ConnectionLost,
        // Closed for idleness.
        "57P05" | "25P03" => ErrorClass::Closed,
        "3F000" | "42P01" | "42703" | "42883" => ErrorClass::NoTables,
        "25006" => ErrorClass::ReadOnly,
        "42501" => ErrorClass::Forbidden,
        // Starting, cancelled, out of memory or disk or connections.
        "57P03" | "57014" => ErrorClass::Later,
        code if code.starts_with("08") => ErrorClass::ConnectionLost,
        code if code.starts_with("53") || code.starts_with("58") => ErrorClass::Later,
        _ => ErrorClass::Never,
    }
}

/// What each operation calls, and with how many arguments. An operation without a function has a statement of its
/// own.
const FUNCTIONS: [(StatementId, &str, usize); 27] = [
    (StatementId::Acquire, "acquire_packed", 12),
    (StatementId::Release, "release_packed", 5),
    (StatementId::Submit, "submit", 12),
    (StatementId::Pass, "pass", 11),
    (StatementId::Renew, "renew", 7),
    (StatementId::Poll, "poll", 7),
    (StatementId::Amend, "amend", 6),
    (StatementId::Break, "break", 7),
    (StatementId::Resize, "resize", 5),
    (StatementId::Inspect, "inspect", 3),
    (StatementId::List, "list", 6),
    (StatementId::Load, "load", 2),
    (StatementId::Write, "write", 9),
    (StatementId::Registers, "", 4),
    (StatementId::Namespaces, "", 2),
    (StatementId::Counter, "counter", 2),
    (StatementId::RaiseCounter, "raise_counter", 2),
    (StatementId::Health, "health", 0),
    (StatementId::Settings, "", 0),
    (StatementId::Run, "", 0),
    (StatementId::Sweep, "sweep", 1),
    (StatementId::Notify, "", 1),
    (StatementId::Standby, "", 0),
    (StatementId::GateTake, "", 3),
    (StatementId::GateKeep, "", 3),
    (StatementId::GateGive, "", 2),
    (StatementId::GateExamine, "", 0),
];

/// The time in ShedLock's table: now, not when the transaction began.
const UTC: &str = "timezone('utc', clock_timestamp())";

/// What stands before a statement that is sent as text, in the same message and so in the same transaction:
/// connections to the server itself have it as settings. Behind a pooler a setting of the connection
/// would be handed on to other clients.
const BEGIN: &str =
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; ";

/// Lets a transaction send no messages.
const MUTE: &str = "SET LOCAL lockkit.mute = 'on'; ";

/// What a transaction begins with that does not wait for the disk.
const QUICK: &str = "length(set_config('synchronous_commit', 'off', true))::bigint";

/// The text of an operation. Where it is not to wait for the disk, it says so for its own transaction
/// alone, so that it works behind a pooler too.
fn statement(
    prefix: &str,
    durability: ServerDurability,
    id: StatementId,
    function: &str,
    args: usize,
) -> String {
    let is_needed = durability == ServerDurability::Needed;
    let args: Vec<_> = (1..=args).map(|n| format!("${n}")).collect();
    let call = format!("{{p}}{function}({})", args.join(", "));
    let text = match id {
        StatementId::Acquire => include_str!("sql/fast_acquire.sql"),
        StatementId::Release => include_str!("sql/fast_release.sql"),
        StatementId::Registers => include_str!("sql/page_of_registers.sql"),
        StatementId::Settings => include_str!("sql/settings.sql"),
        StatementId::Namespaces => include_str!("sql/namespaces.sql"),
        StatementId::Run => include_str!("sql/run.sql"),
        StatementId::Notify => {
            "SELECT (pg_notify(convert_from($1, 'UTF8'), 'self') IS NOT NULL)::int::bigint"
        }
        StatementId::Standby => "SELECT pg_is_in_recovery()::int::bigint",
        StatementId::GateTake => include_str!("sql/shedlock/take.sql"),
        StatementId::GateKeep => include_str!("sql/shedlock/keep.sql"),
        StatementId::GateGive => include_str!("sql/shedlock/give.sql"),
        StatementId::GateExamine => include_str!("sql/shedlock/examine.sql"),
        StatementId::Renew | StatementId::Submit | StatementId::Pass if is_needed => {
            "SELECT f.* FROM (SELECT {settings}) AS s, LATERAL {call} AS f WHERE s IS NOT NULL"
        }
        _ => "SELECT * FROM {call}",
    };
    let settings = if is_needed { QUICK } else { "NULL::bigint" };
    let text = without_header(text).replace("{call}", &call).replace("{settings}", settings);
    text.replace("{p}", prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(durability: ServerDurability) -> Postgres {
        Postgres::new(&Tables("shop".into()), durability, &ShedLockTable::default())
    }

    #[test]
    fn every_place_in_the_statements_is_filled() {
        let schema = dialect(ServerDurability::Full).schema();
        assert!(!schema.contains('{') && !schema.contains('}'), "{schema}");
        assert!(schema.contains(r#"CREATE TABLE IF NOT EXISTS "shop".lockkit_claims"#));
    }

    #[test]
    fn every_verb_has_a_statement_that_names_each_of_its_arguments() {
        for (id, _, args) in FUNCTIONS {
            let text = dialect(ServerDurability::Full).statements[&id].clone();
            assert!(!text.contains('{'), "{text}");
            for n in 1..=args {
                assert!(text.contains(&format!("${n}")), "{id:?}: {n}");
            }
            assert!(!text.contains(&format!("${}", args + 1)), "{id:?}");
        }
    }

    #[test]
    fn only_what_is_repeated_or_may_be_forgotten_does_not_wait_for_the_disk() {
        let asks =
            |durability, id| dialect(durability).statements[&id].contains("synchronous_commit");
        for id in [
            StatementId::Acquire,
            StatementId::Release,
            StatementId::Renew,
            StatementId::Break,
            StatementId::Write,
        ] {
            assert!(!asks(ServerDurability::Full, id), "{id:?}");
        }
        assert!(asks(ServerDurability::Needed, StatementId::Acquire));
        assert!(!asks(ServerDurability::Needed, StatementId::Write));
    }

    #[test]
    fn a_connection_that_broke_is_worth_another_and_a_wrong_url_is_not() {
        let dialect = dialect(ServerDurability::Full);
        let broken = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert_eq!(dialect.class(&broken), ErrorClass::ConnectionLost);
        assert_eq!(dialect.class(&sqlx::Error::PoolClosed), ErrorClass::Never);
        assert!(matches!(Postgres::parse("postgres://h:port/db"), Err(Error::Config(_))));
    }
}
