//! PostgreSQL.

use std::time::Duration;

use lockkit::{Error, Fence, LockManager};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_sql::postgres::TOKENS_TABLE;
use lockkit_sql::{Fenced, FencedWrite, PostgresDriver, ServerOptions};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool, Postgres, Transaction};
use tokio::time::timeout;

use crate::{LONG, is_busy, short, two_managers};

const KIND: ServerKind = ServerKind::Postgres;
const TABLES: &str = "tables=elsewhere";

struct Scene {
    mine: LockManager,
    theirs: LockManager,
    data: PgPool,
    name: &'static str,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        let server = SharedServer::server(KIND).await.unwrap();
        let data = PgPool::connect(server.url()).await.unwrap();
        let account =
            "CREATE TABLE IF NOT EXISTS account (name text PRIMARY KEY, cents bigint NOT NULL)";
        // A lock of its own: two tests that make the same table at once may collide.
        let mut making = data.begin().await.unwrap();
        making.execute("SELECT pg_advisory_xact_lock(1)").await.unwrap();
        making.execute(account).await.unwrap();
        making.execute(TOKENS_TABLE).await.unwrap();
        making.commit().await.unwrap();
        sqlx::query(
            "INSERT INTO account VALUES ($1, 100) ON CONFLICT (name) DO UPDATE SET cents = 100",
        )
        .bind(name)
        .execute(&data)
        .await
        .unwrap();
        let (mine, theirs) = two_managers(server.url()).await;
        Self { mine, theirs, data, name }
    }

    async fn cents(&self) -> i64 {
        let cents = sqlx::query_scalar("SELECT cents FROM account WHERE name = $1");
        cents.bind(self.name).fetch_one(&self.data).await.unwrap()
    }

    async fn add(&self, tx: &mut Transaction<'_, Postgres>, cents: i64) {
        let add = sqlx::query("UPDATE account SET cents = cents + $2 WHERE name = $1");
        add.bind(self.name).bind(cents).execute(&mut **tx).await.unwrap();
    }

    async fn is_kept(&self) {
        for _ in 0..20 {
            assert!(is_busy(&self.theirs, self.name).await);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
}

async fn begin_at<'c>(
    connection: &'c mut PoolConnection<Postgres>,
    level: &str,
) -> Transaction<'c, Postgres> {
    let mut tx = connection.begin().await.unwrap();
    let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
    tx.execute(sqlx::raw_sql(AssertSqlSafe(set))).await.unwrap();
    tx
}

/// A user whose transactions, and so those of its lockkit, are serializable unless they say otherwise.
async fn serializable_login() -> String {
    let url = SharedServer::server(KIND).await.unwrap().url().to_owned();
    let mut admin = sqlx::PgConnection::connect(&url).await.unwrap();
    let text = "DO $$ BEGIN
          CREATE ROLE strict LOGIN SUPERUSER;
          ALTER ROLE strict SET default_transaction_isolation = 'serializable';
        EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    admin.execute(sqlx::raw_sql(text)).await.unwrap();
    url.replacen("//postgres@", "//strict@", 1)
}

/// Another transaction has read what the fenced one writes; so it fails where it depends on one more, as
/// it would on a serializable renewal of the claim that its fence read.
#[tokio::test]
async fn a_renewal_fails_no_serializable_transaction_that_is_fenced() {
    let scene = Scene::set("serializable").await;
    let url = serializable_login().await;
    let data = PgPool::connect(&url).await.unwrap();
    let own = PostgresDriver::connect(&url).await.unwrap();
    let options = ServerOptions::default();
    let pooled = PostgresDriver::with_pool(data.clone(), options).await.unwrap();
    for driver in [own, pooled] {
        let locks = LockManager::new(driver);
        let guard = locks.mutex("serializable").lock().await.unwrap();
        let mut reading = data.begin().await.unwrap();
        let read = "SELECT cents FROM account WHERE name = 'serializable'";
        reading.execute(read).await.unwrap();
        let mut tx = data.begin().await.unwrap();
        guard.fence(&mut tx).await.unwrap();
        guard.renew().await.unwrap();
        scene.add(&mut tx, 1).await;
        tx.commit().await.expect("nothing of the user's own failed it");
        reading.commit().await.unwrap();
        guard.release().await.unwrap();
        locks.shutdown().await;
    }
    assert_eq!(scene.cents().await, 102);
}

cases!();
cases_of_servers!();
