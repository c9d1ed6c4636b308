//! Fenced transactions on PostgreSQL. See [`Fence`] for what they promise.
//!
//! The claim's row is locked in a way that lets it be renewed. One that stands in the row of its name,
//! which a transaction must not lock, is moved to a row of its own first, by [`Lease::anchor`] on
//! lockkit's own connection.

use async_trait::async_trait;
use lockkit_core::{Error, Lease, LossReason, Token};
use sqlx::{Postgres as Db, Transaction};

use super::{BACKEND, Postgres, statement};
use crate::server::dialect::{Arg, Dialect};
use crate::server::fence::{Fence, Fenced, FencedWrite};
use crate::server::{ServerDurability, Tables};

/// Makes the table for [`FencedWrite`].
pub const TOKENS_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockkit_tokens (\
    resource bytea PRIMARY KEY, highest bigint NOT NULL)";

#[async_trait]
impl<'t> Fence<Transaction<'t, Db>> for Lease {
    async fn fence(&self, tx: &mut Transaction<'t, Db>) -> Result<(), Error> {
        self.fence_in(tx, Postgres::TABLES).await
    }

    /// One round trip more, on lockkit's own connection.
    async fn fence_in(&self, tx: &mut Transaction<'t, Db>, tables: &str) -> Result<(), Error> {
        // What this process knows to be lost needs no question.
        self.token()?;
        let tables = Tables(tables.to_owned());
        Postgres::check(&tables)?;
        let dialect = Postgres::new(&tables, ServerDurability::Full);
        self.anchor().await?;
        // As text, so that nothing is prepared where the program's own connections go to a pooler.
        let statement = format!("SELECT {}fence($1)", dialect.place);
        let claim = self.claim();
        let id = Arg::Bytes(claim.id.as_bytes());
        let rows = statement::plain(tx, &statement, &[id]).await;
        let rows = rows.map_err(|error| refused(&dialect, error))?;
        let left = rows.first().and_then(|row| row.int(0));
        match left {
            Some(_) => Ok(()),
            None if is_older(tx).await.map_err(|error| refused(&dialect, error))? => {
                Err(Error::retryable(
                    BACKEND,
                    "the transaction read before it was fenced, and cannot see the claim: begin it \
                     anew, fence first",
                ))
            }
            None => Err(Error::Lost { reason: self.loss().unwrap_or(LossReason::Expired) }),
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
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced, Error> {
        let statement = "INSERT INTO lockkit_tokens AS t (resource, highest) VALUES ($1, $2) \
             ON CONFLICT (resource) DO UPDATE SET highest = excluded.highest \
             WHERE t.highest <= excluded.highest RETURNING t.highest";
        let args = [Arg::Bytes(resource.as_bytes()), Arg::Int(token.as_i64())];
        let admitted = statement::plain(self, statement, &args).await.map_err(|error| {
            let dialect = Postgres::new(&Tables(Postgres::TABLES.into()), ServerDurability::Full);
            refused(&dialect, error)
        })?;
        Ok(match admitted.len() {
            0 => Fenced::Stale,
            _ => Fenced::Admitted,
        })
    }
}

fn refused(dialect: &Postgres, error: sqlx::Error) -> Error {
    match dialect.verdict(&error).may_pass() {
        true => Error::retryable(BACKEND, error),
        false => Error::permanent(BACKEND, error),
    }
}
