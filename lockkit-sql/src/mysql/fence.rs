//! Fenced transactions on MySQL and MariaDB. See [`Fence`] for what they mean.
//!
//! The claim's own row is not locked, or its renewal would wait for the transaction: a row in
//! `lockkit_fences` stands for it, made by [`HeldLock::anchor`] on lockkit's own connection. The
//! transaction locks that row for sharing, which reads it as it is now at every isolation level;
//! and an operation that takes the claim out of its queue deletes the row first, or leaves the claim.

use async_trait::async_trait;
use lockkit_core::{Error, Fence, HeldLock, Result, Token};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AssertSqlSafe, Executor, MySql as Db, Transaction};

use super::{BACKEND, MySqlDriver, judge};
use crate::fence::{Fenced, FencedWrite, lost};

/// Makes the table for [`FencedWrite`].
pub const TOKENS_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkit_tokens (\
    resource VARBINARY(512) NOT NULL PRIMARY KEY, highest BIGINT NOT NULL) ENGINE=InnoDB";

const ON_GALERA: &str = "a fence does not hold on Galera, where other nodes do not see the locks of rows: use fenced_write";

#[async_trait]
impl<'t> Fence<Transaction<'t, Db>, MySqlDriver> for HeldLock {
    async fn fence(&self, tx: &mut Transaction<'t, Db>) -> Result<()> {
        let tables = String::from_utf8_lossy(&self.anchor(BACKEND).await?.at).into_owned();
        // MariaDB has no `FOR SHARE`. MySQL has no Galera, and takes what is in `/*M! */` for a comment.
        let statement = format!(
            "SELECT 0 /*M! + EXISTS(SELECT 1 FROM information_schema.session_variables \
             WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */ \
             FROM {tables}fences WHERE id = ? LOCK IN SHARE MODE"
        );
        let there = sqlx::query_scalar(AssertSqlSafe(statement))
            .bind(self.claim().id.as_bytes().to_vec())
            .fetch_optional(&mut **tx)
            .await;
        match there {
            // Another node would give the lock on: a lock of a row is known to its node only.
            Ok(Some(1)) => Err(Error::permanent(BACKEND, ON_GALERA)),
            Ok(there) => there.map(|_: i64| ()).ok_or_else(|| lost(self)),
            Err(error) => Err(refused(tx, error).await),
        }
    }
}

#[async_trait]
impl FencedWrite for Transaction<'_, Db> {
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced> {
        // The count of rows does not tell an equal token from a lower one; the last insert id is
        // the greater of the two tokens.
        let written = sqlx::query(
            "INSERT INTO lockkit_tokens (resource, highest) VALUES (?, LAST_INSERT_ID(?)) \
             ON DUPLICATE KEY UPDATE highest = LAST_INSERT_ID(GREATEST(highest, ?))",
        )
        .bind(resource.as_bytes())
        .bind(token.as_i64())
        .bind(token.as_i64())
        .execute(&mut **self)
        .await;
        match written {
            Ok(written) => Ok(Fenced::admitted(written.last_insert_id() == token.get())),
            Err(error) => Err(refused(self, error).await),
        }
    }
}

/// The error that the program gets. Where the server has rolled back, sqlx takes the transaction for open, and each
/// statement that follows would commit by itself: in a transaction that takes no writes it fails, until
/// sqlx's rollback.
async fn refused(tx: &mut Transaction<'_, Db>, error: sqlx::Error) -> Error {
    if !has_ended(tx, &error).await {
        return judge(&error).into_error(BACKEND, error);
    }
    // Where this fails, so does what follows: the connection is gone.
    let _ = tx.execute("START TRANSACTION READ ONLY").await;
    Error::retryable(BACKEND, Over(error))
}

/// Whether the server has rolled the whole transaction back, not the statement only.
async fn has_ended(tx: &mut Transaction<'_, Db>, error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref());
    match error.map(MySqlDatabaseError::number) {
        // A deadlock; a record that is newer than the snapshot.
        Some(1213 | 1020) => true,
        // A wait for a lock that was too long.
        Some(1205) => {
            let all = sqlx::query_scalar("SELECT @@innodb_rollback_on_timeout = 1");
            all.fetch_one(&mut **tx).await.is_ok_and(|all: i64| all == 1)
        }
        _ => false,
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the server has ended this transaction ({0}): begin it again, and fence it first")]
struct Over(sqlx::Error);
