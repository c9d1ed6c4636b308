//! Registers: a hash each, written under the rules that `store.lua` states.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::driver::{
    Answered, Delete, Entry, Expect, RegisterKey, Registers, Store, StoreOutcome, Version, WriteId,
};
use redis::Value;

use crate::driver::RedisDriver;
use crate::{keys, reply, script};

/// For how long the server remembers who waits for a change, and how often a waiter therefore asks.
const WATCH: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(10);

#[async_trait]
impl Registers for RedisDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        self.load_or_watch(&keys::register(at), b"").await
    }

    async fn store(
        &self,
        at: &RegisterKey,
        store: &Store,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let ttl = store.ttl.map(|ttl| keys::millis(ttl).to_string()).unwrap_or_default();
        let what = Write {
            verb: b"store",
            expect: store.expect,
            token: store.token,
            id: store.write_id,
            ttl: ttl.as_bytes(),
            value: &store.value,
        };
        self.write(at, what).await.map(Answered::from)
    }

    async fn delete(
        &self,
        at: &RegisterKey,
        delete: &Delete,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let what = Write {
            verb: b"delete",
            expect: delete.expect,
            token: delete.token,
            id: delete.write_id,
            ttl: b"",
            value: b"",
        };
        self.write(at, what).await.map(Answered::from)
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        let key = keys::register(at);
        let known = after.map_or(0, |version| version.0).to_string();
        let bell = self.shared.wakes.register(&key);
        loop {
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            let entry = self.load_or_watch(&key, known.as_bytes()).await?;
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            // A value that ends by itself rings no bell, and messages get lost.
            let _ = tokio::time::timeout(ASK_EVERY, rung).await;
        }
    }
}

struct Write<'a> {
    verb: &'static [u8],
    expect: Expect,
    token: Option<lockkit_core::Token>,
    id: WriteId,
    ttl: &'a [u8],
    value: &'a [u8],
}

impl RedisDriver {
    async fn load_or_watch(&self, key: &str, known: &[u8]) -> Result<Option<Entry>, Error> {
        let watch = WATCH.as_millis().to_string();
        let args = [known, self.shared.wakes.client.as_bytes(), watch.as_bytes()];
        let answer = self.shared.run(&script::LOAD, &[key], &args).await?;
        if answer == Value::Int(0) {
            return Ok(None);
        }
        let items = reply::array(answer)?;
        match items.as_slice() {
            [Value::BulkString(value), version, token] => {
                let version = reply::number(version).and_then(|n| u64::try_from(n).ok());
                let version = Version(version.ok_or_else(|| reply::unexpected(&items[1]))?);
                Ok(Some(Entry { value: value.clone(), version, token: reply::token(token) }))
            }
            _ => Err(reply::unexpected(&Value::Array(items))),
        }
    }

    async fn write(&self, at: &RegisterKey, write: Write<'_>) -> Result<StoreOutcome, Error> {
        let expect = match write.expect {
            Expect::Anything => "any".to_owned(),
            Expect::Absent => "absent".to_owned(),
            Expect::Version(version) => version.0.to_string(),
        };
        let token = write.token.map(|token| token.to_string()).unwrap_or_default();
        let args: [&[u8]; 6] =
            [write.verb, expect.as_bytes(), token.as_bytes(), &write.id.0, write.ttl, write.value];
        let answer = self.shared.run(&script::STORE, &[&keys::register(at)], &args).await?;
        let items = reply::array(answer)?;
        let outcome = match (items.first().and_then(reply::text), items.get(1)) {
            (Some("stored"), Some(version)) => reply::number(version)
                .and_then(|n| u64::try_from(n).ok())
                .map(|n| StoreOutcome::Stored(Version(n))),
            (Some("conflict"), None) => Some(StoreOutcome::Conflict),
            (Some("stale"), Some(highest)) => {
                reply::token(highest).map(|highest| StoreOutcome::Stale { highest })
            }
            _ => None,
        };
        outcome.ok_or_else(|| reply::unexpected(&Value::Array(items)))
    }
}
