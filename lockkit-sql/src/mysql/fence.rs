//! Fenced transactions on MySQL and MariaDB. See [`Fence`] for what they mean.
//!
//! The claim's own row is not locked, or its renewal would wait for the transaction: a row in
//! `lockkit_fences` stands for it, made by [`Lease::anchor`] on lockkit's own connection. The
//! transaction locks that row for sharing, which reads it as it is now at every isolation level;
//! and whoever takes the claim out of its list deletes the row first, or leaves the claim.

use async_trait::async_trait;
use lockkit_core::{Error, Fence, Lease, Token};
use sqlx::{AssertSqlSafe, MySql as Db, Transaction};

use super::{BACKEND, MySqlDriver, judge};
use crate::fence::{Fenced, FencedWrite, lost};

/// Makes the table for [`FencedWrite`].
pub const TOKENS_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkit_tokens (\
    resource VARBINARY(512) NOT NULL PRIMARY KEY, highest BIGINT NOT NULL) ENGINE=InnoDB";

#[async_trait]
impl<'t> Fence<Transaction<'t, Db>, MySqlDriver> for Lease {
    async fn fence(&self, tx: &mut Transaction<'t, Db>) -> Result<(), Error> {
        let tables = String::from_utf8_lossy(&self.anchor(BACKEND).await?.at).into_owned();
        // MariaDB has no `FOR SHARE`.
        let statement = format!("SELECT id FROM {tables}fences WHERE id = ? LOCK IN SHARE MODE");
        let there = sqlx::query(AssertSqlSafe(statement))
            .bind(self.claim().id.as_bytes().to_vec())
            .fetch_optional(&mut **tx)
            .await
            .map_err(refused)?;
        there.map(drop).ok_or_else(|| lost(self))
    }
}

#[async_trait]
impl FencedWrite for Transaction<'_, Db> {
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
        Ok(Fenced::admitted(written.last_insert_id() == token.get()))
    }
}

fn refused(error: sqlx::Error) -> Error {
    judge(&error).told(BACKEND, error)
}
