//! Fenced transactions on PostgreSQL. See [`Fence`] for what they mean.
//!
//! The claim's row is locked in a way that lets it be renewed. One that is in the row of its name,
//! which a transaction must not lock, is moved to a row of its own first, by [`HeldLock::anchor`] on
//! lockkit's own connection.

use async_trait::async_trait;
use lockkit_core::{Error, Fence, HeldLock, Result, Token};
use sqlx::{Postgres as Db, Transaction};

use super::{BACKEND, PostgresDriver, judge, statement};
use crate::fence::{Fenced, FencedWrite, lost};
use crate::server::dialect::Arg;

/// Makes the table for [`FencedWrite`].
pub const TOKENS_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkit_tokens (\
    resource bytea PRIMARY KEY, highest bigint NOT NULL)";

#[async_trait]
impl<'t> Fence<Transaction<'t, Db>, PostgresDriver> for HeldLock {
    async fn fence(&self, tx: &mut Transaction<'t, Db>) -> Result<()> {
        let schema = String::from_utf8_lossy(&self.anchor(BACKEND).await?.at).into_owned();
        // As text, so that nothing is prepared where the program's own connections go to a pooler.
        let statement = format!("SELECT \"{schema}\".lockkit_fence($1)");
        let claim = self.claim();
        let id = Arg::Bytes(claim.id.as_bytes());
        let rows = statement::plain(tx, &statement, &[id]).await.map_err(refused)?;
        let left = rows.first().and_then(|row| row.int(0));
        match left {
            Some(_) => Ok(()),
            None if is_older(tx).await.map_err(refused)? => Err(Error::retryable(
                BACKEND,
                "the transaction read before it was fenced, and cannot see the claim: begin it \
                 again, fence first",
            )),
            None => Err(lost(self)),
        }
    }
}

/// Whether the transaction sees what was there when it first read, instead of what is there now.
async fn is_older(tx: &mut Transaction<'_, Db>) -> Result<bool, sqlx::Error> {
    let level =
        "SELECT (current_setting('transaction_isolation') <> 'read committed')::int::bigint";
    let rows = statement::plain(tx, level, &[]).await?;
    Ok(rows.first().and_then(|row| row.int(0)) == Some(1))
}

#[async_trait]
impl FencedWrite for Transaction<'_, Db> {
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced> {
        let statement = "INSERT INTO lockkit_tokens AS t (resource, highest) VALUES ($1, $2) \
             ON CONFLICT (resource) DO UPDATE SET highest = excluded.highest \
             WHERE t.highest <= excluded.highest RETURNING t.highest";
        let args = [Arg::Bytes(resource.as_bytes()), Arg::Int(token.as_i64())];
        let admitted = statement::plain(self, statement, &args).await.map_err(refused)?;
        Ok(Fenced::admitted(!admitted.is_empty()))
    }
}

fn refused(error: sqlx::Error) -> Error {
    judge(&error).into_error(BACKEND, error)
}
