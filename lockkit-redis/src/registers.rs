//! Registers: a hash each, written under the rules that `store.lua` states.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::driver::{
    Attempted, Precondition, RegisterEntry, RegisterKey, Registers, Version, Write, WriteResult,
};
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use redis::Value;

use crate::driver::RedisDriver;
use crate::script::{self, Call};
use crate::{decode, keys};

/// For how long the server remembers which clients wait for a change, and how often a waiter polls.
const WATCH: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_secs(10);

/// What `store.lua` gets about a write that may have been applied before.
const REPEATED: &[u8] = b"repeated";

#[async_trait]
impl Registers for RedisDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        let (entry, _) = self.load_or_watch(&keys::register(at), b"").await?;
        Ok(entry)
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        let (operation, value): (&[u8], &[u8]) = match &write.value {
            Some(value) => (b"store", value),
            None => (b"delete", b""),
        };
        let ttl = write.ttl.map(|ttl| keys::millis(ttl).to_string()).unwrap_or_default();
        let expect = match write.expect {
            Precondition::Anything => "any".to_owned(),
            Precondition::Absent => "absent".to_owned(),
            Precondition::Version(version) => version.0.to_string(),
        };
        let token = write.token.map(|token| token.to_string()).unwrap_or_default();
        let mut args: Vec<&[u8]> = vec![operation, expect.as_bytes(), token.as_bytes()];
        args.extend([&write.write_id.0, ttl.as_bytes(), value]);
        if write.repeated {
            args.push(REPEATED);
        }
        let key = keys::register(at);
        let keys = [key];
        let call = Call::new(&keys, &args).with_again(REPEATED);
        let sent = self.inner.call(&script::STORE, &call).await;
        let writes = &self.inner.writes;
        let sent = sent.map_err(|error| writes.judge(error.error))?;
        writes.done();
        let items = decode::array(sent.value)?;
        let outcome = match (items.first().and_then(decode::text), items.get(1)) {
            (Some("stored"), Some(version)) => decode::number(version)
                .and_then(|n| u64::try_from(n).ok())
                .map(|n| WriteResult::Stored(Version(n))),
            (Some("conflict"), None) => Some(WriteResult::Conflict),
            (Some("stale"), Some(highest)) => {
                decode::token(highest).map(|highest| WriteResult::Stale { highest })
            }
            _ => None,
        };
        let outcome = outcome.ok_or_else(|| decode::unexpected(&Value::Array(items)))?;
        Ok(Attempted::after(sent.ambiguous, outcome))
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        self.ensure_listening();
        let key = keys::register(at);
        let known = after.map_or(0, |version| version.0).to_string();
        let load = async || {
            let (entry, ends) = self.load_or_watch(&key, known.as_bytes()).await?;
            // No message tells of a value that ends by itself, and messages get lost.
            Ok((entry, ends.unwrap_or(POLL_EVERY).min(POLL_EVERY)))
        };
        self.inner.waiters.registers.changed(&key, after, load).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        self.inner.page_of_registers(request).await
    }
}

impl RedisDriver {
    /// The entry, and after how long it ends by itself.
    async fn load_or_watch(
        &self,
        key: &str,
        known: &[u8],
    ) -> Result<(Option<RegisterEntry>, Option<Duration>), Error> {
        let watch = WATCH.as_millis().to_string();
        let args = [known, self.inner.publisher.client.as_bytes(), watch.as_bytes()];
        let answer = self.inner.run(&script::LOAD, &[key], &args).await?;
        if answer == Value::Int(0) {
            return Ok((None, None));
        }
        let items = decode::array(answer)?;
        match items.as_slice() {
            [Value::BulkString(value), version, token, left] => {
                let version = decode::number(version).and_then(|n| u64::try_from(n).ok());
                let version = Version(version.ok_or_else(|| decode::unexpected(&items[1]))?);
                let left = decode::number(left).and_then(|ms| u64::try_from(ms).ok());
                let entry = RegisterEntry::new(value.clone(), version, decode::token(token));
                Ok((Some(entry), left.map(Duration::from_millis)))
            }
            _ => Err(decode::unexpected(&Value::Array(items))),
        }
    }
}
