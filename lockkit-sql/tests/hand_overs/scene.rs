//! A server with commits that wait for the disk, behind a proxy, and a driver.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, Batch, Grant, LockDriver, Patience};
use lockkit_core::{Claim, ClientIdentity, Error, Key, Mode, Name, Namespace, Space};
use lockkit_lab::proxy::{Protocol, Proxy};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, Row};
use tokio::task::JoinHandle;

pub(crate) const KINDS: [ServerKind; 2] = [ServerKind::Postgres, ServerKind::MariaDb];
/// A time that no test outlasts.
pub(crate) const LONG: Duration = Duration::from_secs(300);
/// Much longer than what has to happen within it, and shorter than any lease.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) struct Scene {
    pub(crate) kind: ServerKind,
    pub(crate) driver: Arc<dyn LockDriver>,
    pub(crate) proxy: Proxy,
    server: Server,
}

impl Scene {
    pub(crate) async fn on(kind: ServerKind) -> Self {
        let server = Server::start(kind).await.unwrap();
        let protocol = match kind {
            ServerKind::Postgres => Protocol::Postgres,
            _ => Protocol::MySql,
        };
        let proxy = Proxy::start(server.addr(), protocol).await.unwrap();
        let driver = connect(kind, &server.url_at(proxy.addr())).await;
        let scene = Self { kind, driver, proxy, server };
        match kind {
            ServerKind::Postgres => {
                scene.run("ALTER SYSTEM SET fsync = on").await;
                scene.run("SELECT pg_reload_conf()").await;
            }
            _ => scene.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1").await,
        }
        scene
    }

    /// A driver through the proxy.
    pub(crate) async fn connect(&self) -> Arc<dyn LockDriver> {
        connect(self.kind, &self.server.url_at(self.proxy.addr())).await
    }

    /// A driver of another process, not through the proxy.
    pub(crate) async fn other(&self) -> Arc<dyn LockDriver> {
        connect(self.kind, &self.server.url()).await
    }

    pub(crate) async fn run(&self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        match self.kind {
            ServerKind::Postgres => {
                PgConnection::connect(&self.server.url())
                    .await
                    .unwrap()
                    .execute(sql)
                    .await
                    .unwrap();
            }
            _ => {
                let mut admin = MySqlConnection::connect(&self.server.url()).await.unwrap();
                admin.execute(sql).await.unwrap();
            }
        }
    }

    /// How often the log was flushed to disk; on MariaDB also other files. PostgreSQL's processes tell when they
    /// have ended.
    pub(crate) async fn flushes(&self) -> u64 {
        match self.kind {
            ServerKind::Postgres => {
                let mut admin = PgConnection::connect(&self.server.url()).await.unwrap();
                let there = "SELECT count(*) FROM pg_stat_activity
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                while admin.fetch_one(there).await.unwrap().get::<i64, _>(0) > 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let row = admin.fetch_one("SELECT wal_sync FROM pg_stat_wal").await.unwrap();
                row.get::<i64, _>(0) as u64
            }
            _ => {
                let mut admin = MySqlConnection::connect(&self.server.url()).await.unwrap();
                let status = "SHOW GLOBAL STATUS WHERE Variable_name = 'Innodb_data_fsyncs'";
                let row = admin.fetch_one(status).await.unwrap();
                row.get::<String, _>(1).parse().unwrap()
            }
        }
    }

    /// How often the log was flushed, and how many rows were read. On PostgreSQL this ends the driver's
    /// connections, as their processes tell it then.
    pub(crate) async fn work(&self) -> [u64; 2] {
        let rows = match self.kind {
            ServerKind::Postgres => {
                self.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                )
                .await;
                let flushes = self.flushes().await;
                let mut admin = PgConnection::connect(&self.server.url()).await.unwrap();
                let rows =
                    "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables";
                return [flushes, admin.fetch_one(rows).await.unwrap().get::<i64, _>(0) as u64];
            }
            _ => {
                let mut admin = MySqlConnection::connect(&self.server.url()).await.unwrap();
                let rows = "SELECT CAST(SUM(variable_value) AS UNSIGNED)
                    FROM information_schema.global_status WHERE variable_name LIKE 'HANDLER_READ%'";
                admin.fetch_one(rows).await.unwrap().get::<u64, _>(0)
            }
        };
        [self.flushes().await, rows]
    }

    pub(crate) fn requests(&self) -> u64 {
        self.proxy.counts().requests
    }

    /// Returns once the driver relies on messages: it does not poll any more.
    pub(crate) async fn is_quiet(&self) {
        loop {
            let before = self.requests();
            tokio::time::sleep(Duration::from_millis(400)).await;
            if self.requests() == before {
                return;
            }
        }
    }

    /// Waits for a claim that is queued through this driver.
    pub(crate) fn waiting(&self, claim: &Arc<Claim>) -> JoinHandle<Result<Grant, Error>> {
        let (driver, claim) = (self.driver.clone(), claim.clone());
        tokio::spawn(async move { driver.granted(&claim).await })
    }

    pub(crate) async fn release(&self, claims: &[Arc<Claim>]) {
        let batch = Batch { releases: claims, acquires: &[] };
        for released in self.driver.submit(batch).await.unwrap().released {
            released.unwrap();
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

pub(crate) fn claim(name: &str) -> Arc<Claim> {
    claim_for(name, LONG)
}

fn claim_for(name: &str, wait_ttl: Duration) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, wait_ttl, me))
}

/// One that waits for a moment only, unless it is renewed.
pub(crate) fn short_claim(name: &str) -> Arc<Claim> {
    // Longer than a busy machine takes to queue the next one: that would remove this one.
    claim_for(name, Duration::from_millis(400))
}

pub(crate) async fn take(driver: &Arc<dyn LockDriver>, claim: &Arc<Claim>) -> Grant {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn queue(driver: &Arc<dyn LockDriver>, claim: &Arc<Claim>) -> u32 {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Queued { ahead } => ahead,
        other => panic!("not queued: {other:?}"),
    }
}
