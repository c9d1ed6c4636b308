//! PostgreSQL: all cases.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_sql::PostgresDriver;
use sqlx::{Connection, PgConnection};

struct Postgres;

/// The server of this process, once a driver was made.
static URL: OnceLock<String> = OnceLock::new();

async fn url() -> Result<String, Error> {
    let server =
        SharedServer::server(ServerKind::Postgres).await.map_err(|e| Error::permanent("lab", e))?;
    Ok(server.url().to_owned())
}

/// Rows of claims, and claims that stand in their name's own row. The row of a name stays for a day,
/// with what the last one left in it.
async fn count(namespace: &Namespace) -> Result<i64, sqlx::Error> {
    let url = url().await.map_err(|e| sqlx::Error::Configuration(e.to_string().into()))?;
    let mut connection = PgConnection::connect(&url).await?;
    let rows = "SELECT (SELECT count(*) FROM lockkit.lockkit_claims JOIN lockkit.lockkit_names \
                        USING (queue) WHERE namespace = $1) \
                     + (SELECT count(*) FROM lockkit.lockkit_names WHERE namespace = $1 \
                        AND id IS NOT NULL AND expires > lockkit.lockkit_clock()) \
                     + (SELECT count(*) FROM lockkit.lockkit_registers WHERE namespace = $1 \
                        AND value IS NOT NULL AND expires IS NULL)";
    let count =
        sqlx::query_scalar(rows).bind(namespace.as_str().as_bytes()).fetch_one(&mut connection);
    let count = count.await?;
    connection.close().await?;
    Ok(count)
}

#[async_trait]
impl Harness for Postgres {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = url().await?;
        Ok(Arc::new(PostgresDriver::connect(URL.get_or_init(|| url)).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("sql_worker");
        Some(Worker { program, url: URL.get()?.clone() })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let rows = count(namespace).await.map_err(|e| Error::permanent("postgres", e))?;
        Ok(Some(rows as u64))
    }
}

lockkit_conformance::suite!(Postgres);
