//! Named values with versions and tokens. A write waits for the disk: what was acknowledged
//! outlives a power failure.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{
    Attempted, FoundRegister, RegisterEntry, RegisterKey, Registers, Version, Write, WriteId,
    WriteResult,
};
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use lockkit_core::{Result, Token};
use rusqlite::params;

use super::SqliteDriver;
use super::connection::TransactionError;
use super::transaction::{GRACE, Transaction, unsigned};
use crate::rows::{nanos, token_of};
use crate::waiters::WaiterRegistry;

/// How often a change that another process made is looked for.
const TICK: Duration = Duration::from_millis(25);

#[async_trait]
impl Registers for SqliteDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        let (at, adopted) = (at.clone(), at.clone());
        let load = move |transaction: &mut Transaction<'_>| {
            let text = "SELECT value, version, highest, expires > ?3 + ttl FROM lockkit_registers
                WHERE namespace = ?1 AND name = ?2 AND value IS NOT NULL
                  AND (expires IS NULL OR expires > ?3)";
            let values = params![at.namespace.as_str(), at.name.as_str(), transaction.now()];
            Ok(transaction.any(text, values, |row| {
                let token = row.get::<_, Option<i64>>(2)?.map(token_of);
                let version = Version(unsigned(row.get(1)?));
                let is_foreign = row.get::<_, Option<bool>>(3)? == Some(true);
                Ok((RegisterEntry::new(row.get(0)?, version, token), is_foreign))
            })?)
        };
        let found = self.inner.reader.call(false, load).await?;
        if let Some((_, true)) = found {
            let adopt =
                move |transaction: &mut Transaction<'_>| Ok(transaction.adopt_value(&adopted)?);
            self.inner.writer.call(false, adopt).await?;
        }
        Ok(found.map(|(entry, _)| entry))
    }

    async fn write(&self, at: &RegisterKey, write: &Write) -> Result<Attempted<WriteResult>> {
        let (at, write) = (at.clone(), write.clone());
        let apply = move |transaction: &mut Transaction<'_>| apply(transaction, &at, &write);
        let outcome = self.inner.writer.call(true, apply).await?;
        if matches!(outcome, WriteResult::Stored(_)) {
            WaiterRegistry::wake_registers();
        }
        Ok(outcome.into())
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>> {
        let load = async || Ok((self.load(at).await?, TICK));
        self.inner.waiters.registers.changed(at.name.as_str(), after, load).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>> {
        let request = request.clone();
        self.inner.reader.call(false, move |transaction| transaction.registers(&request)).await
    }
}

fn apply(
    transaction: &mut Transaction<'_>,
    at: &RegisterKey,
    write: &Write,
) -> Result<WriteResult, TransactionError> {
    let (namespace, name, now) = (at.namespace.as_str(), at.name.as_str(), transaction.now());
    let found = transaction.any(
        "SELECT version, value IS NOT NULL AND (expires IS NULL OR expires > ?3), highest, write_id,
           expires > ?3 + ttl
         FROM lockkit_registers WHERE namespace = ?1 AND name = ?2",
        params![namespace, name, now],
        |row| {
            let found = FoundRegister {
                version: Some(Version(unsigned(row.get(0)?))),
                present: row.get(1)?,
                token: row.get::<_, Option<i64>>(2)?.map(token_of),
                last_write: row.get_ref(3)?.as_blob()?.try_into().ok().map(WriteId),
            };
            Ok((found, row.get::<_, Option<bool>>(4)? == Some(true)))
        },
    )?;
    let never = FoundRegister { version: None, present: false, token: None, last_write: None };
    let (found, is_foreign) = found.unwrap_or((never, false));
    if is_foreign {
        transaction.adopt_value(at)?;
    }
    if let Some(outcome) = WriteResult::decide(&found, write) {
        return Ok(outcome);
    }
    let own = found.version.map_or(0, |version| version.0 as i64);
    let version = transaction.next_version(own)?;
    let (token, ends) = (write.token.or(found.token), write.ttl.map(|ttl| now + nanos(ttl)));
    let purge_at = match write.value {
        Some(_) => ends,
        None => token.is_none().then_some(now + GRACE),
    };
    let (token, ttl) = (token.map(Token::as_i64), write.ttl.map(nanos));
    transaction.run(
        "INSERT OR REPLACE INTO lockkit_registers
           (namespace, name, value, version, highest, write_id, ttl, expires, purge_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            namespace,
            name,
            write.value,
            version,
            token,
            write.write_id.0,
            ttl,
            ends,
            purge_at
        ],
    )?;
    Ok(WriteResult::Stored(Version(unsigned(version))))
}
