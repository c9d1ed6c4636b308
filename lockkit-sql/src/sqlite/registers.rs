//! Named values with versions and tokens. A write waits for the disk: what was acknowledged
//! outlives a power failure.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Answered, Delete, Entry, Found, RegisterKey, Registers, Store, StoreOutcome, Version, Write,
    WriteId,
};
use lockkit_core::{Error, Token};
use rusqlite::params;

use super::flight::Flight;
use super::worker::Failure;
use super::{Inner, SqliteDriver};
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
        let change =
            Change { value: Some(store.value.clone()), rule: store.into(), ttl: store.ttl };
        self.inner.write(at, change).await.map(Answered::from)
    }

    async fn delete(
        &self,
        at: &RegisterKey,
        delete: &Delete,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let change = Change { value: None, rule: delete.into(), ttl: None };
        self.inner.write(at, change).await.map(Answered::from)
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        loop {
            // Listening begins before looking, so that nothing falls in between.
            let mut written = std::pin::pin!(self.inner.site.hub.registers.notified());
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
struct Change {
    /// `None` for a deletion.
    value: Option<Vec<u8>>,
    rule: Write,
    ttl: Option<Duration>,
}

impl Inner {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        let at = at.clone();
        let load = move |flight: &mut Flight<'_>| {
            let entry = flight.any(
                include_str!("sql/register.sql"),
                params![at.namespace.as_str(), at.name.as_str(), flight.now()],
                |row| {
                    Ok(Entry {
                        value: row.get(0)?,
                        version: version(row.get(1)?),
                        token: row.get::<_, Option<i64>>(2)?.map(token_of),
                    })
                },
            )?;
            Ok(Ok(entry))
        };
        self.reader.call(false, load).await
    }

    async fn write(&self, at: &RegisterKey, change: Change) -> Result<StoreOutcome, Error> {
        let at = at.clone();
        let job = move |flight: &mut Flight<'_>| apply(flight, &at, &change).map(Ok);
        let outcome = self.writer.call(true, job).await?;
        if matches!(outcome, StoreOutcome::Stored(_)) {
            self.site.hub.registers.notify_waiters();
        }
        Ok(outcome)
    }
}

fn apply(
    flight: &mut Flight<'_>,
    at: &RegisterKey,
    change: &Change,
) -> Result<StoreOutcome, Failure> {
    let (namespace, name) = (at.namespace.as_str(), at.name.as_str());
    let found = flight.any(
        "SELECT version, value IS NOT NULL AND (expires IS NULL OR expires > ?3), highest, write_id
         FROM lockkit_registers WHERE namespace = ?1 AND name = ?2",
        params![namespace, name, flight.now()],
        |row| {
            Ok(Found {
                version: Some(version(row.get(0)?)),
                present: row.get(1)?,
                token: row.get::<_, Option<i64>>(2)?.map(token_of),
                last_write: row.get_ref(3)?.as_blob()?.try_into().ok().map(WriteId),
            })
        },
    )?;
    let never = Found { version: None, present: false, token: None, last_write: None };
    let found = found.unwrap_or(never);
    if let Some(outcome) = StoreOutcome::decide(&found, &change.rule) {
        return Ok(outcome);
    }
    let number = flight.next_version()?;
    let (token, now) = (change.rule.token.or(found.token), flight.now());
    let ends = change.ttl.map(|ttl| now + nanos(ttl));
    let purge_at = match &change.value {
        Some(_) => ends,
        None => token.is_none().then_some(now + GRACE),
    };
    flight.run(
        "INSERT OR REPLACE INTO lockkit_registers
           (namespace, name, value, version, highest, write_id, ttl, expires, purge_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            namespace,
            name,
            change.value,
            number,
            token.map(Token::as_i64),
            change.rule.id.0,
            change.ttl.map(nanos),
            ends,
            purge_at
        ],
    )?;
    Ok(StoreOutcome::Stored(version(number)))
}

fn version(number: i64) -> Version {
    Version(number.max(0).unsigned_abs())
}
