//! Fenced transactions on SQLite. See [`Fence`] for what they mean.
//!
//! A file has one writer at a time, and a claim leaves its queue by a write. So a transaction that has
//! the file's write lock, and sees the claim hold, needs no more: the claim stays until it ends.

use async_trait::async_trait;
use lockkit_core::{Error, Fence, HeldLock, Result, Token};
use sqlx::{Sqlite, Transaction};

use super::{BACKEND, SqliteDriver};
use crate::fence::{Fenced, FencedWrite, lost};
use crate::rows::columns;

/// Makes the table for [`FencedWrite`].
pub const TOKENS_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkit_tokens (\
    resource BLOB NOT NULL PRIMARY KEY, highest INTEGER NOT NULL) WITHOUT ROWID";

#[async_trait]
impl<'t> Fence<Transaction<'t, Sqlite>, SqliteDriver> for HeldLock {
    async fn fence(&self, tx: &mut Transaction<'t, Sqlite>) -> Result<()> {
        self.anchor(BACKEND).await?;
        let claim = self.claim();
        let (namespace, space, name) = columns(&claim.key);
        let there = sqlx::query(include_str!("sql/fence.sql"))
            .bind(namespace)
            .bind(space)
            .bind(name)
            .bind(&claim.id.as_bytes()[..])
            .execute(&mut **tx)
            .await
            .map_err(refused)?;
        match there.rows_affected() {
            0 => Err(lost(self)),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl FencedWrite for Transaction<'_, Sqlite> {
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced> {
        let written = sqlx::query(
            "INSERT INTO lockkit_tokens (resource, highest) VALUES (?1, ?2) \
             ON CONFLICT (resource) DO UPDATE SET highest = excluded.highest \
             WHERE highest <= excluded.highest",
        )
        .bind(resource.as_bytes())
        .bind(token.as_i64())
        .execute(&mut **self)
        .await
        .map_err(refused)?;
        Ok(Fenced::admitted(written.rows_affected() > 0))
    }
}

/// Busy for longer than the connection waits, or, where the transaction has read before, because of
/// another writer since then.
fn refused(error: sqlx::Error) -> Error {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
    match code.map(|code| code & 0xff) {
        Some(5 | 6) => Error::retryable(BACKEND, error),
        _ => Error::permanent(BACKEND, error),
    }
}
