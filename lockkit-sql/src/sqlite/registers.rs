//! Named values with versions and tokens. A write waits for the disk: what was acknowledged
//! outlives a power failure.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Answered, Delete, Entry, Expect, RegisterKey, Registers, Store, StoreOutcome, Version,
};
use lockkit_core::{Error, Token};
use sqlx::Row;

use super::link::explain;
use super::{BACKEND, Inner, SqliteDriver, wants_tokens};
use crate::rows::{nanos, token_of};

/// For how long (in nanoseconds) the last write of a register that is empty is remembered, so that
/// its lost answer can be asked for again.
pub(crate) const GRACE: i64 = 600_000_000_000;
/// How often a change that another process made is looked for.
const TICK: Duration = Duration::from_millis(25);

#[async_trait]
impl Registers for SqliteDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        self.inner.load(at).await
    }

    async fn store(
        &self,
        at: &RegisterKey,
        store: &Store,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let write = Write {
            value: Some(&store.value),
            expect: store.expect,
            token: store.token,
            write_id: &store.write_id.0,
            ttl: store.ttl,
        };
        self.inner.write(at, &write).await.map(Answered::from)
    }

    async fn delete(
        &self,
        at: &RegisterKey,
        delete: &Delete,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let write = Write {
            value: None,
            expect: delete.expect,
            token: delete.token,
            write_id: &delete.write_id.0,
            ttl: None,
        };
        self.inner.write(at, &write).await.map(Answered::from)
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        loop {
            // Listening begins before looking, so that nothing falls in between.
            let mut written = std::pin::pin!(self.inner.hub.registers.notified());
            written.as_mut().enable();
            let entry = self.inner.load(at).await?;
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            tokio::select! {
                () = written => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }
}

/// A store or a deletion.
struct Write<'a> {
    value: Option<&'a [u8]>,
    expect: Expect,
    token: Option<Token>,
    write_id: &'a [u8; 16],
    ttl: Option<Duration>,
}

impl Inner {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        let row = self
            .reader
            .row(&*self.clock, |now| {
                sqlx::query(include_str!("sql/register.sql"))
                    .bind(at.namespace.as_str())
                    .bind(at.name.as_str())
                    .bind(now)
            })
            .await?;
        let Some(row) = row else {
            return Ok(None);
        };
        let highest: Option<i64> = row.try_get(2).map_err(explain)?;
        Ok(Some(Entry {
            value: row.try_get(0).map_err(explain)?,
            version: version(row.try_get(1).map_err(explain)?),
            token: highest.map(token_of),
        }))
    }

    async fn write(&self, at: &RegisterKey, write: &Write<'_>) -> Result<StoreOutcome, Error> {
        let outcome = match self.try_write(at, write).await {
            Err(error) if wants_tokens(&error) => {
                self.reserve_tokens().await?;
                self.try_write(at, write).await
            }
            other => other,
        }?;
        if matches!(outcome, StoreOutcome::Stored(_)) {
            self.hub.registers.notify_waiters();
        }
        Ok(outcome)
    }

    async fn try_write(&self, at: &RegisterKey, write: &Write<'_>) -> Result<StoreOutcome, Error> {
        let (expect, expected) = match write.expect {
            Expect::Anything => (0, None),
            Expect::Absent => (1, None),
            // What no version can be is simply not there.
            Expect::Version(Version(v)) => (2, Some(i64::try_from(v).unwrap_or(-1))),
        };
        let row = self
            .durable
            .row(&*self.clock, |now| {
                sqlx::query(concat!(
                    "INSERT INTO lockkit_store VALUES ",
                    "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11); ",
                    include_str!("sql/answer.sql")
                ))
                .bind(at.namespace.as_str())
                .bind(at.name.as_str())
                .bind(write.value)
                .bind(expect)
                .bind(expected)
                .bind(write.token.map(Token::as_i64))
                .bind(write.write_id.as_slice())
                .bind(write.ttl.map(nanos))
                .bind(GRACE)
                .bind(now)
                .bind(self.epoch)
            })
            .await?
            .ok_or_else(|| Error::permanent(BACKEND, "SQLite gave no answer to a statement"))?;
        let outcome: Option<i64> = row.try_get(0).map_err(explain)?;
        let number: Option<i64> = row.try_get(1).map_err(explain)?;
        Ok(match (outcome, number) {
            (Some(1), Some(number)) => StoreOutcome::Stored(version(number)),
            (Some(2), Some(number)) => StoreOutcome::Stale { highest: token_of(number) },
            _ => StoreOutcome::Conflict,
        })
    }
}

fn version(number: i64) -> Version {
    Version(number.max(0) as u64)
}
