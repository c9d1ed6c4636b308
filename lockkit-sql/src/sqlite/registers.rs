//! Named values with versions and tokens. A write waits for the disk: what was acknowledged
//! outlives a power failure.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Delete, Entry, Expect, RegisterKey, Registers, Store, StoreOutcome, Version,
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

    async fn store(&self, at: &RegisterKey, store: &Store) -> Result<StoreOutcome, Error> {
        let write = Write {
            value: Some(store.value.clone()),
            expect: store.expect,
            token: store.token,
            write_id: store.write_id.0,
            ttl: store.ttl,
        };
        self.inner.write(at, write).await
    }

    async fn delete(&self, at: &RegisterKey, delete: &Delete) -> Result<StoreOutcome, Error> {
        let write = Write {
            value: None,
            expect: delete.expect,
            token: delete.token,
            write_id: delete.write_id.0,
            ttl: None,
        };
        self.inner.write(at, write).await
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
struct Write {
    value: Option<Vec<u8>>,
    expect: Expect,
    token: Option<Token>,
    write_id: [u8; 16],
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

    async fn write(&self, at: &RegisterKey, write: Write) -> Result<StoreOutcome, Error> {
        let at = at.clone();
        let job = move |flight: &mut Flight<'_>| apply(flight, &at, &write).map(Ok);
        let outcome = self.writer.call(true, job).await?;
        if matches!(outcome, StoreOutcome::Stored(_)) {
            self.site.hub.registers.notify_waiters();
        }
        Ok(outcome)
    }
}

/// What a register was last written with.
struct Last {
    /// Of the value, while there is one.
    version: Option<Version>,
    /// Of the last write, which may have been a deletion.
    written: Version,
    highest: Option<Token>,
    write_id: Vec<u8>,
}

fn apply(
    flight: &mut Flight<'_>,
    at: &RegisterKey,
    write: &Write,
) -> Result<StoreOutcome, Failure> {
    let (namespace, name) = (at.namespace.as_str(), at.name.as_str());
    let last = flight.any(
        "SELECT version, highest, write_id,
                value IS NOT NULL AND (expires IS NULL OR expires > ?3)
         FROM lockkit_registers WHERE namespace = ?1 AND name = ?2",
        params![namespace, name, flight.now()],
        |row| {
            let written = version(row.get(0)?);
            Ok(Last {
                version: row.get::<_, bool>(3)?.then_some(written),
                written,
                highest: row.get::<_, Option<i64>>(1)?.map(token_of),
                write_id: row.get(2)?,
            })
        },
    )?;
    if let Some(last) = last.as_ref().filter(|last| last.write_id == write.write_id) {
        return Ok(StoreOutcome::Stored(last.written));
    }
    let highest = last.as_ref().and_then(|last| last.highest);
    if let (Some(highest), Some(token)) = (highest, write.token)
        && token < highest
    {
        return Ok(StoreOutcome::Stale { highest });
    }
    let there = last.and_then(|last| last.version);
    let as_expected = match write.expect {
        Expect::Anything => true,
        Expect::Absent => there.is_none(),
        Expect::Version(version) => there == Some(version),
    };
    if !as_expected {
        return Ok(StoreOutcome::Conflict);
    }
    let number = flight.next_version()?;
    let (token, now) = (write.token.or(highest), flight.now());
    let ends = write.ttl.map(|ttl| now + nanos(ttl));
    let purge_at = match &write.value {
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
            write.value,
            number,
            token.map(Token::as_i64),
            write.write_id,
            write.ttl.map(nanos),
            ends,
            purge_at
        ],
    )?;
    Ok(StoreOutcome::Stored(version(number)))
}

fn version(number: i64) -> Version {
    Version(number.max(0).unsigned_abs())
}
