//! The SQLite driver: all cases, each on a file of its own.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_sql::SqliteDriver;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

struct Sqlite {
    folder: tempfile::TempDir,
}

impl Sqlite {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self { folder }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    async fn count(&self, namespace: &Namespace) -> Result<i64, sqlx::Error> {
        let pool =
            SqlitePool::connect_with(SqliteConnectOptions::new().filename(self.file())).await?;
        // Not lockkit_news, a ring of a fixed size; nor the row of the last claim of a list, which
        // remembers its place (`expires` 0).
        let rows =
            "SELECT (SELECT count(*) FROM lockkit_claims WHERE namespace = ?1 AND expires > 0)
                         + (SELECT count(*) FROM lockkit_registers
                            WHERE namespace = ?1 AND value IS NOT NULL AND expires IS NULL)";
        let count = sqlx::query_scalar(rows).bind(namespace.as_str()).fetch_one(&pool).await?;
        pool.close().await;
        Ok(count)
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(SqliteDriver::connect(&self.url()).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("sql_worker");
        let url = self.url();
        Some(Worker { program, url })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let count = self.count(namespace).await;
        count.map(|rows| Some(rows as u64)).map_err(|e| Error::permanent("sqlite", e))
    }
}

lockkit_conformance::suite!(Sqlite::new());
