//! Fenced transactions on MySQL and MariaDB. See [`Fence`] for what they promise.
//!
//! The claim's own row is not locked, or its renewal would wait for the transaction: a row in
//! `lockkit_fences` stands for it, made by [`Lease::anchor`] on lockkit's own connection. The
//! transaction locks that row for sharing, which reads it as it is now at every isolation level;
//! and whoever takes the claim out of its list deletes the row first, or leaves the claim.

use async_trait::async_trait;
use lockkit_core::{Error, Lease, LossReason, Token};
use sqlx::{AssertSqlSafe, Transaction};

use super::{BACKEND, MySql};
use crate::server::dialect::Dialect;
use crate::server::fence::{Fence, Fenced, FencedWrite};
use crate::server::{ServerDurability, Tables};

/// Makes the table for [`FencedWrite`].
pub const TOKENS_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkit_tokens (\
    resource VARBINARY(512) NOT NULL PRIMARY KEY, highest BIGINT NOT NULL) ENGINE=InnoDB";

#[async_trait]
impl<'t> Fence<Transaction<'t, sqlx::MySql>> for Lease {
    async fn fence(&self, tx: &mut Transaction<'t, sqlx::MySql>) -> Result<(), Error> {
        self.fence_in(tx, MySql::TABLES).await
    }

    /// One round trip more than elsewhere, on lockkit's own connection.
    async fn fence_in(
        &self,
        tx: &mut Transaction<'t, sqlx::MySql>,
        tables: &str,
    ) -> Result<(), Error> {
        // What this process knows to be lost needs no question.
        self.token()?;
        let tables = Tables(tables.to_owned());
        MySql::check(&tables)?;
        self.anchor().await?;
        // MariaDB has no `FOR SHARE`.
        let statement =
            format!("SELECT id FROM {}fences WHERE id = ? LOCK IN SHARE MODE", tables.0);
        let there = sqlx::query(AssertSqlSafe(statement))
            .bind(self.claim().id.as_bytes().to_vec())
            .fetch_optional(&mut **tx)
            .await
            .map_err(refused)?;
        match there {
            Some(_) => Ok(()),
            None => Err(Error::Lost { reason: self.loss().unwrap_or(LossReason::Expired) }),
        }
    }
}

#[async_trait]
impl FencedWrite for Transaction<'_, sqlx::MySql> {
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced, Error> {
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
        .await
        .map_err(refused)?;
        Ok(match written.last_insert_id() == token.get() {
            true => Fenced::Admitted,
            false => Fenced::Stale,
        })
    }
}

fn refused(error: sqlx::Error) -> Error {
    let dialect = MySql::new(&Tables(MySql::TABLES.to_owned()), ServerDurability::Full);
    match dialect.verdict(&error).may_pass() {
        true => Error::retryable(BACKEND, error),
        false => Error::permanent(BACKEND, error),
    }
}
