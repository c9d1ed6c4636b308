//! MariaDB, a single server: all cases.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::{Connection, MySqlConnection};

struct MySql;

async fn server() -> Result<SharedServer, Error> {
    SharedServer::server(ServerKind::MariaDb).await.map_err(|e| Error::permanent("lab", e))
}

#[async_trait]
impl Harness for MySql {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        // A row may be locked for longer than usual on a machine that is busy.
        let options = ServerOptions::default().timeout(Duration::from_secs(60));
        Ok(Arc::new(MySqlDriver::connect_with(server().await?.url(), options).await?))
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        count(server().await?.url(), namespace)
            .await
            .map(Some)
            .map_err(|e| Error::permanent("lab", e))
    }
}

/// Rows of claims, and claims that stand in their name's own row. The row of a name stays for a day
/// after it was used, with what the last one left in it; records of breaks are kept for as long as
/// the trait asks.
async fn count(url: &str, namespace: &Namespace) -> Result<u64, sqlx::Error> {
    let mut connection = MySqlConnection::connect(url).await?;
    let (rows,): (i64,) = sqlx::query_as(
        "SELECT (SELECT COUNT(*) FROM lockkit_claims WHERE namespace = ?) \
         + (SELECT COUNT(*) FROM lockkit_names WHERE namespace = ? \
           AND fixed_limit IS NULL \
           AND (has_claim_rows OR \
           expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))) \
         + (SELECT COUNT(*) FROM lockkit_registers WHERE namespace = ? AND value IS NOT NULL \
           AND expires IS NULL)",
    )
    .bind(namespace.as_str().as_bytes())
    .bind(namespace.as_str().as_bytes())
    .bind(namespace.as_str().as_bytes())
    .fetch_one(&mut connection)
    .await?;
    connection.close().await?;
    Ok(rows.unsigned_abs())
}

lockkit_conformance::suite!(MySql);
