//! MariaDB: what its operations cost, and what happens when server or network misbehave.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_lab::raw::mysql::MySqlClient;
use lockkit_lab::{Concerns, Deletion, Deployment, RefusalMode};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::MySqlDriver;
use sqlx::{Connection as _, Executor, MySqlConnection};

struct MySql;

#[async_trait]
impl Deployment for MySql {
    fn kind(&self) -> ServerKind {
        ServerKind::MariaDb
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(MySqlDriver::connect(url).await?))
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![
            Deletion {
                what: "all connections are killed",
                fault: None,
                act: |s| Box::pin(kill_all(s)),
            },
            Deletion {
                what: "DROP TABLE",
                fault: Some(Fault::DataLost),
                act: |s| {
                    ask(
                        s,
                        &["DROP TABLE lockkit.lockkit_names, lockkit.lockkit_claims, \
                           lockkit.lockkit_meta, lockkit.lockkit_breaks"],
                    )
                },
            },
            Deletion {
                what: "TRUNCATE",
                fault: Some(Fault::DataLost),
                act: |s| {
                    ask(s, &["TRUNCATE lockkit.lockkit_names", "TRUNCATE lockkit.lockkit_claims"])
                },
            },
            Deletion {
                what: "older rows are put back",
                fault: Some(Fault::OlderDataRestored),
                act: |s| {
                    ask(
                        s,
                        &[
                            "DELETE FROM lockkit.lockkit_claims",
                            "UPDATE lockkit.lockkit_names SET last = 1, expires = 0, has_claim_rows = 0, \
                             next = 0, ends = 0, since = 1",
                        ],
                    )
                },
            },
        ]
    }

    fn refusals(&self) -> Vec<RefusalMode> {
        vec![
            RefusalMode {
                what: "the server is read-only for whoever connects",
                retryable: true,
                concerns: Concerns::Claims,
                begin: |s| {
                    Box::pin(async move {
                        ask(s, READ_ONLY).await?;
                        kill_all(s).await
                    })
                },
                end: |s| Box::pin(take_writes(s)),
            },
            RefusalMode {
                what: "the tables are of a newer version",
                retryable: false,
                concerns: Concerns::Newcomers,
                begin: |s| ask(s, &["UPDATE lockkit.lockkit_meta SET version = version + 98"]),
                end: |s| ask(s, &["UPDATE lockkit.lockkit_meta SET version = version - 98"]),
            },
        ]
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("sql_worker"))
    }
}

/// Also for the lab's user, who may do everything, except to end it: another one can.
const READ_ONLY: &[&str] = &[
    "CREATE USER IF NOT EXISTS keeper@'127.0.0.1'",
    "GRANT ALL ON *.* TO keeper@'127.0.0.1' WITH GRANT OPTION",
    "SET GLOBAL /*M! read_only */ /*!80000 super_read_only */ = 1",
    "/*M! REVOKE READ ONLY ADMIN ON *.* FROM root@'127.0.0.1' */ /*!80000 DO 0 */",
];

async fn take_writes(server: &Server) -> io::Result<()> {
    let url = server.url().replacen("root@", "keeper@", 1);
    let mut keeper = MySqlConnection::connect(&url).await.map_err(io::Error::other)?;
    for statement in
        ["SET GLOBAL read_only = 0", "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION"]
    {
        keeper.execute(sqlx::raw_sql(statement)).await.map_err(io::Error::other)?;
    }
    keeper.close().await.map_err(io::Error::other)?;
    kill_all(server).await
}

fn ask<'a>(
    server: &'a Server,
    statements: &'static [&'static str],
) -> BoxFuture<'a, io::Result<()>> {
    Box::pin(async move {
        let mut connection = MySqlClient::open(server.addr()).await?;
        for statement in statements {
            connection.query(statement).await?;
        }
        Ok(())
    })
}

async fn kill_all(server: &Server) -> io::Result<()> {
    let mut connection = MySqlClient::open(server.addr()).await?;
    let others = "SELECT id FROM information_schema.processlist \
                  WHERE id <> CONNECTION_ID() AND command <> 'Daemon'";
    for row in connection.query(others).await? {
        if let Some(Some(id)) = row.first() {
            // It may have ended by itself.
            let _ = connection.query(&format!("KILL {id}")).await;
        }
    }
    Ok(())
}

lockkit_lab::trials!(MySql);
