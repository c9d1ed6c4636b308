//! MariaDB.

use std::time::Duration;

use lockkit::{Error, Fence, LockManager};
use lockkit_lab::{Kind, Shared};
use lockkit_sql::mysql::TOKENS_TABLE;
use lockkit_sql::{Fenced, FencedWrite};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, MySql, MySqlPool, Transaction};
use tokio::time::timeout;

use crate::{LONG, is_busy, short, two_managers};

const KIND: Kind = Kind::MariaDb;
const TABLES: &str = "tables=elsewhere_";

struct Scene {
    mine: LockManager,
    theirs: LockManager,
    data: MySqlPool,
    name: &'static str,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        let server = Shared::server(KIND).await.unwrap();
        let data = MySqlPool::connect(server.url()).await.unwrap();
        let account = "CREATE TABLE IF NOT EXISTS account \
                       (name VARCHAR(64) PRIMARY KEY, cents BIGINT NOT NULL)";
        data.execute(account).await.unwrap();
        data.execute(TOKENS_TABLE).await.unwrap();
        sqlx::query("INSERT INTO account VALUES (?, 100) ON DUPLICATE KEY UPDATE cents = 100")
            .bind(name)
            .execute(&data)
            .await
            .unwrap();
        let (mine, theirs) = two_managers(server.url()).await;
        Self { mine, theirs, data, name }
    }

    async fn cents(&self) -> i64 {
        let cents = sqlx::query_scalar("SELECT cents FROM account WHERE name = ?");
        cents.bind(self.name).fetch_one(&self.data).await.unwrap()
    }

    async fn add(&self, tx: &mut Transaction<'_, MySql>, cents: i64) {
        let add = sqlx::query("UPDATE account SET cents = cents + ? WHERE name = ?");
        add.bind(cents).bind(self.name).execute(&mut **tx).await.unwrap();
    }

    async fn is_kept(&self) {
        for _ in 0..20 {
            assert!(is_busy(&self.theirs, self.name).await);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
}

/// The level is of the next transaction, so it is set before that begins.
async fn begin_at<'c>(
    connection: &'c mut PoolConnection<MySql>,
    level: &str,
) -> Transaction<'c, MySql> {
    let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
    connection.execute(sqlx::raw_sql(AssertSqlSafe(set))).await.unwrap();
    connection.begin().await.unwrap()
}

cases!();
cases_of_servers!();
