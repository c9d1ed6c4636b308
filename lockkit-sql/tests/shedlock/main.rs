//! Exclusion beside ShedLock, on PostgreSQL and MariaDB: by the statements that its JDBC lock providers send with
//! `usingDbTime()`, as version 7.9 has them.

mod both_ways;
mod rows;
mod storm;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{ClaimId, LockDriver};
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_sql::{MySqlDriver, PostgresDriver, ServerOptions};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, MySqlConnection, PgConnection, Row,
};

const KINDS: [ServerKind; 2] = [ServerKind::Postgres, ServerKind::MariaDb];
/// A time that no test outlasts.
const LONG: Duration = Duration::from_secs(300);
/// Much longer than what has to happen within it.
const SOON: Duration = Duration::from_secs(60);

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

/// What ShedLock sends, with its names of the parameters: `PostgresSqlServerTimeStatementsSource` and
/// `MySqlServerTimeStatementsSource`.
struct Statements {
    table: &'static str,
    insert: &'static str,
    update: &'static str,
    unlock: &'static str,
    extend: &'static str,
    /// How `:lockAtMostForInterval` is said, per millisecond.
    per_millisecond: f64,
}

const POSTGRES: Statements = Statements {
    table: "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
        locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))",
    insert: "INSERT INTO shedlock(name, lock_until, locked_at, locked_by) VALUES(:name, \
        timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => :lockAtMostFor), \
        timezone('utc', CURRENT_TIMESTAMP), :lockedBy) ON CONFLICT (name) DO UPDATE SET lock_until = \
        timezone('utc', CURRENT_TIMESTAMP) + make_interval(secs => :lockAtMostFor), locked_at = \
        timezone('utc', CURRENT_TIMESTAMP), locked_by = :lockedBy WHERE shedlock.name = :name AND \
        shedlock.lock_until <= timezone('utc', CURRENT_TIMESTAMP)",
    update: "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + \
        make_interval(secs => :lockAtMostFor), locked_at = timezone('utc', CURRENT_TIMESTAMP), \
        locked_by = :lockedBy WHERE shedlock.name = :name AND shedlock.lock_until <= \
        timezone('utc', CURRENT_TIMESTAMP)",
    unlock: "UPDATE shedlock SET lock_until = CASE WHEN locked_at + make_interval(secs => :lockAtLeastFor) > \
        timezone('utc', CURRENT_TIMESTAMP) THEN locked_at + make_interval(secs => :lockAtLeastFor) ELSE \
        timezone('utc', CURRENT_TIMESTAMP) END WHERE name = :name AND locked_by = :lockedBy",
    extend: "UPDATE shedlock SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + \
        make_interval(secs => :lockAtMostFor) WHERE name = :name AND locked_by = :lockedBy AND lock_until > \
        timezone('utc', CURRENT_TIMESTAMP)",
    per_millisecond: 0.001,
};

const MYSQL: Statements = Statements {
    table: "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL,
        locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL,
        PRIMARY KEY (name))",
    insert: "INSERT IGNORE INTO shedlock(name, lock_until, locked_at, locked_by) VALUES(:name, \
        TIMESTAMPADD(MICROSECOND, :lockAtMostFor, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), :lockedBy)",
    update: "UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, :lockAtMostFor, UTC_TIMESTAMP(3)), \
        locked_at = UTC_TIMESTAMP(3), locked_by = :lockedBy WHERE name = :name AND lock_until <= UTC_TIMESTAMP(3)",
    unlock: "UPDATE shedlock SET lock_until = IF (TIMESTAMPADD(MICROSECOND, :lockAtLeastFor, locked_at) > \
        UTC_TIMESTAMP(3) , TIMESTAMPADD(MICROSECOND, :lockAtLeastFor, locked_at), UTC_TIMESTAMP(3)) \
        WHERE name = :name AND locked_by = :lockedBy",
    extend: "UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, :lockAtMostFor, UTC_TIMESTAMP(3)) \
        WHERE name = :name AND locked_by = :lockedBy AND lock_until > UTC_TIMESTAMP(3)",
    per_millisecond: 1_000.0,
};

enum AnyConnection {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl AnyConnection {
    /// As ShedLock's users connect: with the server's time zone.
    async fn open(url: &str) -> Self {
        match url.starts_with("postgres") {
            true => Self::Postgres(PgConnection::connect(url).await.unwrap()),
            false => {
                let options: MySqlConnectOptions =
                    url.replace("mariadb:", "mysql:").parse().unwrap();
                Self::MySql(options.timezone(None).connect().await.unwrap())
            }
        }
    }

    /// How many rows it changed.
    async fn run(&mut self, text: impl Into<String>) -> Result<u64, sqlx::Error> {
        let query = sqlx::raw_sql(AssertSqlSafe(text.into()));
        match self {
            Self::Postgres(it) => it.execute(query).await.map(|done| done.rows_affected()),
            Self::MySql(it) => it.execute(query).await.map(|done| done.rows_affected()),
        }
    }

    /// The text in the first column of the first row.
    async fn text(&mut self, text: &str) -> Option<String> {
        let query = AssertSqlSafe(text.to_owned());
        match self {
            Self::Postgres(it) => {
                let row = it.fetch_optional(sqlx::query(query)).await.unwrap()?;
                row.get(0)
            }
            Self::MySql(it) => {
                let row = it.fetch_optional(sqlx::query(query)).await.unwrap()?;
                row.get(0)
            }
        }
    }
}

/// A program with ShedLock: what its `StorageBasedLockProvider` does.
struct ShedLock {
    connection: AnyConnection,
    statements: &'static Statements,
    table: String,
    name: String,
    host: String,
    /// Whether it knows that there is a row, which it then never inserts again.
    is_known: bool,
}

impl ShedLock {
    async fn send(&mut self, text: &str, at_most: Duration, at_least: Duration) -> u64 {
        let duration =
            |it: Duration| (it.as_millis() as f64 * self.statements.per_millisecond).to_string();
        let text = text.replace("shedlock", &self.table);
        let text = text.replace(":lockAtMostFor", &duration(at_most));
        let text = text.replace(":lockAtLeastFor", &duration(at_least));
        let text = text.replace(":lockedBy", &format!("'{}'", self.host));
        let text = text.replace(":name", &format!("'{}'", self.name));
        self.connection.run(text).await.unwrap_or(0)
    }

    async fn lock(&mut self, at_most: Duration) -> bool {
        if !std::mem::replace(&mut self.is_known, true)
            && self.send(self.statements.insert, at_most, Duration::ZERO).await > 0
        {
            return true;
        }
        self.send(self.statements.update, at_most, Duration::ZERO).await > 0
    }

    async fn unlock(&mut self) {
        self.unlock_after(Duration::ZERO).await;
    }

    async fn unlock_after(&mut self, at_least: Duration) {
        self.send(self.statements.unlock, Duration::ZERO, at_least).await;
    }

    async fn extend(&mut self, at_most: Duration) -> bool {
        self.send(self.statements.extend, at_most, Duration::ZERO).await > 0
    }
}

/// A server with a table of ShedLock, and a namespace of this test's own.
struct Scene {
    url: String,
    _server: Option<SharedServer>,
    statements: &'static Statements,
    table: String,
    unique: String,
}

impl Scene {
    async fn on(kind: ServerKind) -> Self {
        let server = SharedServer::server(kind).await.unwrap();
        let url = server.url().to_owned();
        Self { _server: Some(server), ..Self::at(url).await }
    }

    async fn at(url: String) -> Self {
        let unique = ClaimId::random().to_hex()[..8].to_owned();
        let statements = if url.starts_with("postgres") { &POSTGRES } else { &MYSQL };
        let table = format!("shed_{unique}");
        let made = statements.table.replace("shedlock", &table);
        AnyConnection::open(&url).await.run(made).await.unwrap();
        Self { url, _server: None, statements, table, unique }
    }

    async fn driver(&self) -> Arc<dyn LockDriver> {
        self.driver_with(&self.url, "").await.unwrap()
    }

    /// With more options in the URL.
    async fn driver_with(&self, url: &str, more: &str) -> Result<Arc<dyn LockDriver>, Error> {
        let sign = if url.contains('?') { '&' } else { '?' };
        let table = &self.table;
        let url =
            format!("{url}{sign}neighbours=shedlock&shedlock_table={table}&timeout=30s{more}");
        let options = ServerOptions::default();
        Ok(match url.starts_with("postgres") {
            true => Arc::new(PostgresDriver::connect_with(&url, options).await?),
            false => Arc::new(MySqlDriver::connect_with(&url, options).await?),
        })
    }

    fn settings(&self, ttl: Duration) -> Settings {
        Settings::default().namespace(format!("shedlock-{}", self.unique)).ttl(ttl).wait_ttl(ttl)
    }

    async fn locks(&self, ttl: Duration) -> LockManager {
        LockManager::with(self.driver().await, self.settings(ttl)).unwrap()
    }

    async fn neighbour(&self, name: &str) -> ShedLock {
        ShedLock {
            connection: AnyConnection::open(&self.url).await,
            statements: self.statements,
            table: self.table.clone(),
            name: name.to_owned(),
            host: format!("host-{}", ClaimId::random().to_hex()),
            is_known: false,
        }
    }

    fn claim(&self, name: &str, ttl: Duration) -> Arc<Claim> {
        let namespace = Namespace::new(format!("shedlock-{}", self.unique)).unwrap();
        let key = Key::new(namespace, Space::Lock, Name::new(name).unwrap());
        let me = Arc::new(ClientIdentity::of_this_process());
        Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, me))
    }

    async fn sql(&self, text: &str) -> u64 {
        let text = text.replace("shedlock", &self.table);
        AnyConnection::open(&self.url).await.run(text).await.unwrap()
    }

    async fn owner_of(&self, name: &str) -> Option<String> {
        let text = format!("SELECT locked_by FROM {} WHERE name = '{name}'", self.table);
        AnyConnection::open(&self.url).await.text(&text).await
    }
}
