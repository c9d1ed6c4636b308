//! PostgreSQL.

use std::time::Duration;

use lockkit::{Error, Fence, LockManager};
use lockkit_lab::{Kind, Shared};
use lockkit_sql::postgres::TOKENS_TABLE;
use lockkit_sql::{Fenced, FencedWrite};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool, Postgres, Transaction};
use tokio::time::timeout;

use crate::{LONG, is_busy, short, two_managers};

const KIND: Kind = Kind::Postgres;
const TABLES: &str = "tables=elsewhere";

struct Scene {
    mine: LockManager,
    theirs: LockManager,
    data: PgPool,
    name: &'static str,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        let server = Shared::server(KIND).await.unwrap();
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

cases!();
cases_of_servers!();
