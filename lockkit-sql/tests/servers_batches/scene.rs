//! A server behind a proxy that counts, a driver, and an administrator's words to the server.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::driver::LockDriver;
use lockkit_lab::proxy::Protocol;
use lockkit_lab::{Proxy, Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, Row};

use super::claim;
use super::submitting::{Operation, Outcome, release, submit, try_it};

/// A time that no test outlasts.
pub(crate) const LONG: Duration = Duration::from_secs(300);

pub(crate) struct Scene {
    pub(crate) kind: ServerKind,
    server: Server,
    proxy: Proxy,
    pub(crate) driver: Arc<dyn LockDriver>,
    pub(crate) words: &'static Words,
}

impl Scene {
    pub(crate) async fn on(kind: ServerKind) -> Self {
        let server = Server::start(kind).await.unwrap();
        let (protocol, words) = match kind {
            ServerKind::Postgres => (Protocol::Postgres, &POSTGRES),
            _ => (Protocol::MySql, &MARIADB),
        };
        let proxy = Proxy::start(server.addr(), protocol).await.unwrap();
        let driver = connect(kind, &server.url_at(proxy.addr())).await;
        Self { kind, server, proxy, driver, words }
    }

    /// A driver of another process, not through the proxy.
    pub(crate) async fn other(&self) -> Arc<dyn LockDriver> {
        connect(self.kind, &self.server.url()).await
    }

    pub(crate) async fn admin(&self) -> Admin {
        let url = self.server.url();
        match self.kind {
            ServerKind::Postgres => Admin::Postgres(PgConnection::connect(&url).await.unwrap()),
            _ => Admin::MariaDb(MySqlConnection::connect(&url).await.unwrap()),
        }
    }

    /// Locks the row of a claim among others, for the transaction in which this is said.
    pub(crate) fn lock_claim(&self, claim: &Claim) -> String {
        let id = claim.id.to_hex();
        match self.kind {
            ServerKind::Postgres => format!(
                "SELECT 1::bigint FROM lockkit.lockkit_claims WHERE id = decode('{id}', 'hex') FOR UPDATE"
            ),
            _ => format!("SELECT 1 FROM lockkit_claims WHERE id = UNHEX('{id}') FOR UPDATE"),
        }
    }

    /// How many requests the driver has sent.
    pub(crate) fn requests(&self) -> u64 {
        self.proxy.counts().requests
    }

    /// Submits a batch, which takes one round trip.
    pub(crate) async fn submitted(&self, operations: &[Operation]) -> Vec<Outcome> {
        let before = self.proxy.counts().requests;
        let replies = submit(&*self.driver, operations).await.unwrap();
        assert_eq!(self.proxy.counts().requests - before, 1, "one round trip");
        replies.into_iter().map(|reply| reply.unwrap().result).collect()
    }

    /// From here on all statements are known to the connection.
    pub(crate) async fn warm(&self) {
        for _ in 0..2 {
            let claims = [claim("warm/1"), claim("warm/2")];
            for operations in [claims.each_ref().map(try_it), claims.each_ref().map(release)] {
                submit(&*self.driver, &operations).await.unwrap();
            }
        }
    }
}

async fn connect(kind: ServerKind, url: &str) -> Arc<dyn LockDriver> {
    let options = ServerOptions::default().timeout(LONG);
    match kind {
        ServerKind::Postgres => Arc::new(PostgresDriver::connect_with(url, options).await.unwrap()),
        _ => Arc::new(MySqlDriver::connect_with(url, options).await.unwrap()),
    }
}

/// An administrator's connection.
pub(crate) enum Admin {
    Postgres(PgConnection),
    MariaDb(MySqlConnection),
}

impl Admin {
    pub(crate) async fn run(&mut self, sql: &str) -> u64 {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self {
            Self::Postgres(connection) => connection.execute(sql).await.unwrap().rows_affected(),
            Self::MariaDb(connection) => connection.execute(sql).await.unwrap().rows_affected(),
        }
    }

    pub(crate) async fn count(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(connection) => connection.fetch_one(sql).await.unwrap().get(0),
            Self::MariaDb(connection) => connection.fetch_one(sql).await.unwrap().get(0),
        }
    }
}

/// What an administrator says to a server.
pub(crate) struct Words {
    /// Others have had every lock with a 7 in its name.
    pub(crate) take_the_sevens: &'static str,
    /// Begins a transaction that locks rows, and not what is between them.
    pub(crate) begin: &'static str,
    /// Locks the rows of 4 and 5, for this transaction. One row each: of two, an optimizer might read the
    /// whole table.
    pub(crate) lock_rows: [&'static str; 2],
    /// Changes all rows of names that begin with `row/`.
    pub(crate) lock_many: &'static str,
    /// Changes the row of `warm/1`.
    pub(crate) touch: &'static str,
    /// How many transactions wait for a row.
    pub(crate) waiting: &'static str,
    /// Has the table refuse notes of 70,000 bytes, where it does not anyway.
    pub(crate) refuse_long_notes: Option<&'static str>,
    pub(crate) claims: &'static str,
    /// How many rows the names `a` have.
    pub(crate) rows_of_a: &'static str,
}

static POSTGRES: Words = Words {
    take_the_sevens: "UPDATE lockkit.lockkit_names SET expires = 1::bigint << 60,
        id = 'xxxxxxxxxxxxxxxx', weight = 2147483647, capacity = 2147483647, identity = '{}'
        WHERE position('7'::bytea IN name) > 0",
    begin: "BEGIN",
    lock_rows: [
        "SELECT 1::bigint FROM lockkit.lockkit_names WHERE name = '4' FOR UPDATE",
        "SELECT 1::bigint FROM lockkit.lockkit_names WHERE name = '5' FOR UPDATE",
    ],
    lock_many: "UPDATE lockkit.lockkit_names SET used = used
        WHERE position('row/'::bytea IN name) = 1",
    touch: "UPDATE lockkit.lockkit_names SET used = used WHERE name = 'warm/1'",
    waiting: "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    refuse_long_notes: Some("ALTER TABLE lockkit.lockkit_names ADD CHECK (length(note) < 60000)"),
    claims: "SELECT count(*) FROM lockkit.lockkit_queue",
    rows_of_a: "SELECT count(*) FROM lockkit.lockkit_names WHERE name = 'a'",
};

static MARIADB: Words = Words {
    take_the_sevens: "UPDATE lockkit_names SET expires = 1 << 60, id = REPEAT('x', 16)
        WHERE name LIKE '%7%'",
    begin: "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION",
    lock_rows: [
        "SELECT 1 FROM lockkit_names WHERE namespace = '' AND space = 0 AND name = '4' FOR UPDATE",
        "SELECT 1 FROM lockkit_names WHERE namespace = '' AND space = 0 AND name = '5' FOR UPDATE",
    ],
    lock_many: "UPDATE lockkit_names SET has_claim_rows = has_claim_rows
        WHERE namespace = '' AND space = 0 AND name LIKE 'row/%'",
    touch: "UPDATE lockkit_names SET has_claim_rows = 0
        WHERE namespace = '' AND space = 0 AND name = 'warm/1'",
    waiting: "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    refuse_long_notes: None,
    claims: "SELECT COUNT(*) FROM lockkit_queue",
    rows_of_a: "SELECT COUNT(*) FROM lockkit_names WHERE name = 'a'",
};
