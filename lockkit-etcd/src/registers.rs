//! Registers: a value under one key, and under another what must outlive it: the highest token and
//! the last write's id. Both are written in one transaction, so they have the same modification
//! revision, which is the version: it grows across deletion, because it is etcd's own.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use lockkit_core::driver::{
    Delete, Entry, Expect, MAX_REGISTER_BYTES, RegisterKey, Store, StoreOutcome, Version, WriteId,
};
use lockkit_core::{Error, Token};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::calls::{Answered, BACKEND, Failure, ranges, revision};
use crate::inner::{Inner, delete, pair};
use crate::leases::{Lease, seconds};
use crate::watches::Sight;

/// How long the id of a deletion is remembered where no token is.
const REMEMBERED: u64 = 3_600;
/// How often a write begins anew because another came in between.
const ATTEMPTS: usize = 256;

/// What is remembered about the writes of a register.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Meta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// The last write's id, in hexadecimal.
    write: String,
}

/// A register as it was.
struct Seen {
    value: Option<KeyValue>,
    meta: Meta,
    /// The revision of the last write; 0 when none is remembered.
    written: i64,
    /// That at which it was looked at.
    revision: i64,
}

/// What is to be written.
struct Write<'a> {
    /// `None` deletes.
    value: Option<&'a [u8]>,
    expect: Expect,
    token: Option<Token>,
    id: WriteId,
    ttl: Option<Duration>,
}

impl Inner {
    pub(crate) async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        Ok(self.seen(at).await?.entry())
    }

    pub(crate) async fn store(
        &self,
        at: &RegisterKey,
        store: &Store,
    ) -> Result<StoreOutcome, Error> {
        if store.value.len() > MAX_REGISTER_BYTES {
            let message = format!("a register holds at most {MAX_REGISTER_BYTES} bytes");
            return Err(Error::config(message));
        }
        let Store { expect, token, write_id: id, ttl, .. } = *store;
        self.write(at, &Write { value: Some(&store.value), expect, token, id, ttl }).await
    }

    pub(crate) async fn delete(
        &self,
        at: &RegisterKey,
        delete: &Delete,
    ) -> Result<StoreOutcome, Error> {
        let Delete { expect, token, write_id: id, .. } = *delete;
        self.write(at, &Write { value: None, expect, token, id, ttl: None }).await
    }

    pub(crate) async fn register_changed(
        self: &Arc<Self>,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        loop {
            let seen = self.seen(at).await?;
            let entry = seen.entry();
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            let (key, _) = self.root.register(at);
            let (to, mut news) = mpsc::unbounded_channel();
            let sight = Sight { key, end: Vec::new(), from: seen.revision + 1, changes: true };
            let _watching = self.watches.watch(sight, to);
            news.recv().await;
        }
    }

    async fn seen(&self, at: &RegisterKey) -> Result<Seen, Failure> {
        let (value, meta) = self.root.register(at);
        let txn = Txn::new().and_then([
            TxnOp::get(value, None::<GetOptions>),
            TxnOp::get(meta, None::<GetOptions>),
        ]);
        let answer = self.calls.txn(txn).await?.answer;
        let [mut value, mut meta] = pair(ranges(&answer))?;
        let meta = meta.take_kvs().pop();
        let parsed = meta.as_ref().and_then(|kv| serde_json::from_slice(kv.value()).ok());
        Ok(Seen {
            value: value.take_kvs().pop(),
            meta: parsed.unwrap_or_default(),
            written: meta.map_or(0, |kv| kv.mod_revision()),
            revision: revision(&answer),
        })
    }

    async fn write(&self, at: &RegisterKey, write: &Write<'_>) -> Result<StoreOutcome, Error> {
        let lease = match (write.ttl, write.value) {
            (Some(ttl), _) => Some(self.leases.grant(seconds(ttl)).await?),
            (None, _) => None,
        };
        for _ in 0..ATTEMPTS {
            let seen = self.seen(at).await?;
            if let Some(outcome) = seen.judge(write) {
                lease.inspect(|lease| lease.end());
                return Ok(outcome);
            }
            if let Some(version) = self.attempt(at, write, &seen, lease.as_ref()).await? {
                return Ok(StoreOutcome::Stored(version));
            }
        }
        Err(Error::retryable(BACKEND, "others keep writing this register"))
    }

    /// Writes, unless somebody did since.
    async fn attempt(
        &self,
        at: &RegisterKey,
        write: &Write<'_>,
        seen: &Seen,
        lease: Option<&Arc<Lease>>,
    ) -> Result<Option<Version>, Failure> {
        let (value, meta) = self.root.register(at);
        let token = write.token.map(Token::get).max(seen.meta.token);
        let remembered = Meta { token, write: hex(write.id) };
        let bytes = serde_json::to_vec(&remembered).unwrap_or_default();
        // Without a token nothing need be remembered for good of a value that is gone.
        let brief = match (token, write.value) {
            (None, None) => Some(self.leases.grant(REMEMBERED).await?),
            (None, Some(_)) => lease.cloned(),
            _ => None,
        };
        let on = |lease: Option<&Arc<Lease>>| {
            let put = PutOptions::new();
            Some(lease.map_or(put.clone(), |lease| put.with_lease(lease.id)))
        };
        let mut steps = vec![TxnOp::put(&*meta, bytes, on(brief.as_ref()))];
        steps.push(match write.value {
            Some(bytes) => TxnOp::put(&*value, bytes, on(lease)),
            None => delete(&value),
        });
        let still = |key: &[u8], revision| Compare::mod_revision(key, CompareOp::Equal, revision);
        let stood = seen.value.as_ref().map_or(0, KeyValue::mod_revision);
        let txn = Txn::new().when([still(&meta, seen.written), still(&value, stood)]);
        let Answered { answer, repeated } = self.calls.txn(txn.and_then(steps)).await?;
        if let (false, false, None, Some(brief)) = (answer.succeeded(), repeated, lease, brief) {
            brief.end(); // nothing stands on it
        }
        Ok(answer.succeeded().then(|| version(revision(&answer))))
    }
}

impl Seen {
    fn entry(&self) -> Option<Entry> {
        let kv = self.value.as_ref()?;
        let token = self.meta.token.and_then(Token::new);
        Some(Entry { value: kv.value().to_vec(), version: version(kv.mod_revision()), token })
    }

    /// The outcome, if nothing is to be written.
    fn judge(&self, write: &Write<'_>) -> Option<StoreOutcome> {
        if self.written > 0 && self.meta.write == hex(write.id) {
            return Some(StoreOutcome::Stored(version(self.written)));
        }
        let highest = self.meta.token.and_then(Token::new);
        if let (Some(token), Some(highest)) = (write.token, highest)
            && token < highest
        {
            return Some(StoreOutcome::Stale { highest });
        }
        let now = self.value.as_ref().map(|kv| version(kv.mod_revision()));
        let expected = match write.expect {
            Expect::Anything => true,
            Expect::Absent => now.is_none(),
            Expect::Version(version) => now == Some(version),
        };
        (!expected).then_some(StoreOutcome::Conflict)
    }
}

fn version(revision: i64) -> Version {
    Version(u64::try_from(revision).unwrap_or(0))
}

fn hex(id: WriteId) -> String {
    lockkit_core::ClaimId::from_bytes(id.0).to_hex()
}
