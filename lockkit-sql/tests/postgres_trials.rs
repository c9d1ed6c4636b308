//! PostgreSQL: what its operations cost, and what happens when server or network misbehave.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_lab::raw::postgres::PostgresConnection;
use lockkit_lab::{Concerns, Costs, Deletion, Deployment, RefusalMode};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::PostgresDriver;

struct Postgres;

#[async_trait]
impl Deployment for Postgres {
    fn kind(&self) -> ServerKind {
        ServerKind::Postgres
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(PostgresDriver::connect(url).await?))
    }

    fn costs(&self) -> Costs {
        Costs::BUDGET
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![
            Deletion {
                what: "all connections are ended",
                fault: None,
                act: |s| {
                    ask(
                        s,
                        &["SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                              WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"],
                    )
                },
            },
            Deletion {
                what: "DROP SCHEMA",
                fault: Some(Fault::DataLost),
                act: |s| ask(s, &["DROP SCHEMA lockkit CASCADE"]),
            },
            Deletion {
                what: "TRUNCATE",
                fault: Some(Fault::DataLost),
                act: |s| ask(s, &["TRUNCATE lockkit.lockkit_names, lockkit.lockkit_claims"]),
            },
            Deletion {
                what: "older rows are put back",
                fault: Some(Fault::OlderDataRestored),
                act: |s| {
                    ask(
                        s,
                        &[
                            "DELETE FROM lockkit.lockkit_claims",
                            "UPDATE lockkit.lockkit_names SET last = 1, id = NULL, expires = 0, \
                           has_claim_rows = false, used = 1",
                        ],
                    )
                },
            },
        ]
    }

    fn refusals(&self) -> Vec<RefusalMode> {
        vec![
            RefusalMode {
                what: "the server is read-only",
                retryable: true,
                concerns: Concerns::Claims,
                begin: |s| ask(s, &["ALTER SYSTEM SET default_transaction_read_only = on", RELOAD]),
                end: |s| ask(s, &["ALTER SYSTEM RESET default_transaction_read_only", RELOAD]),
            },
            RefusalMode {
                what: "a right is missing",
                retryable: false,
                concerns: Concerns::Newcomers,
                // Whoever connects is another user from now on.
                begin: |s| {
                    ask(
                        s,
                        &["CREATE ROLE nobody_much", "ALTER ROLE postgres SET role = nobody_much"],
                    )
                },
                end: |s| {
                    ask(
                        s,
                        &[
                            "SET ROLE postgres",
                            "ALTER ROLE postgres RESET role",
                            "DROP ROLE nobody_much",
                        ],
                    )
                },
            },
        ]
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("sql_worker"))
    }
}

const RELOAD: &str = "SELECT pg_reload_conf()";

fn ask<'a>(
    server: &'a Server,
    statements: &'static [&'static str],
) -> BoxFuture<'a, io::Result<()>> {
    Box::pin(async move {
        let mut connection = PostgresConnection::open(server.addr()).await?;
        for statement in statements {
            connection.query(statement).await?;
        }
        Ok(())
    })
}

lockkit_lab::trials!(Postgres);
