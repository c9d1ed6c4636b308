//! Registers: a value under one key, and under another what must outlive it: the highest token and
//! the last write's id. Both are written in one transaction, so they have the same modification
//! revision, which is the version: it grows across deletion, because it is etcd's own.
//!
//! # What a write costs
//! A write says on what it relies: the revisions at which both keys were written last. A driver
//! remembers them of the registers that it used last, and takes one of which it remembers nothing
//! for one that was never written; so a write takes one round trip, and a second one only when
//! another client has written since, which the first one shows. What refuses a write is always what
//! etcd said. A value with a ttl has a lease of its own: to get that is a round trip before. It goes
//! with the value: when another one is written it is revoked, in the background.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp};
use lockkit_core::driver::{Attempted, RegisterEntry, RegisterKey, Version, Write, WriteResult};
use lockkit_core::{Error, Result, Token};
use tokio::sync::mpsc;

use crate::client::{BACKEND, EtcdError, EtcdResult, Response, ranges, revision};
use crate::leases::{EtcdLease, seconds};
use crate::locks::EtcdLocks;
use crate::requests::{delete, pair, written};
use crate::value::{KnownRegister, RegisterMeta, hex, version};
use crate::watchers::{WatchRange, digest};

/// How long the id of a deletion is remembered at least where no token is.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// How often a write begins again because another came in between.
const ATTEMPTS: usize = 256;

/// A register as it was.
struct ReadRegister {
    value: Option<KeyValue>,
    state: KnownRegister,
    /// The revision at which it was looked at.
    revision: i64,
}

impl EtcdLocks {
    pub(crate) async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        Ok(self.read_register(at).await?.entry())
    }

    /// Returns the register once its version is another one than this.
    pub(crate) async fn register_changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>> {
        loop {
            let read = self.read_register(at).await?;
            let entry = read.entry();
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            let (key, _) = self.root.register(at);
            let (to, mut changes) = mpsc::unbounded_channel();
            let content = Some(digest(read.value.as_slice()));
            let from = read.revision + 1;
            let range = WatchRange { key, end: Vec::new(), from, changes: true, content };
            let _watch = self.watches.watch(range, to);
            changes.recv().await;
        }
    }

    async fn read_register(&self, at: &RegisterKey) -> EtcdResult<ReadRegister> {
        let (value, meta) = self.root.register(at);
        let txn = Txn::new().and_then(read_register_keys(&value, &meta));
        let answer = self.client.txn(txn).await?.answer;
        let seen = ReadRegister::of(pair(ranges(&answer))?, revision(&answer));
        self.registers.saw(value, seen.state.clone());
        Ok(seen)
    }

    pub(crate) async fn write(
        &self,
        at: &RegisterKey,
        mut write: Write,
    ) -> Result<Attempted<WriteResult>> {
        let mut state = self.registers.last(&self.root.register(at).0).unwrap_or_default();
        let mut is_told = false; // by etcd, to this write
        let (mut lease, mut ambiguous, mut is_lease_gone) = (None, 0, false);
        for _ in 0..ATTEMPTS {
            match WriteResult::decide(&state.found(), &write) {
                Some(outcome) if is_told => {
                    lease.inspect(|lease: &Arc<EtcdLease>| lease.end());
                    return Ok(Attempted::after(ambiguous, outcome));
                }
                Some(_) => state = self.read_register(at).await?.state,
                None => {
                    if let (Some(ttl), None) = (write.ttl, &lease) {
                        lease = Some(self.leases.grant(seconds(ttl)).await?);
                    }
                    let reply = match self.attempt(at, &write, &state, lease.as_ref()).await {
                        // That of the value, or the lasting one. Nothing was done.
                        Err(EtcdError::LeaseGone) if !is_lease_gone => {
                            (lease, is_lease_gone) = (None, true);
                            self.leases.forget_lasting().await;
                            continue;
                        }
                        reply => reply?,
                    };
                    ambiguous += reply.ambiguous;
                    match reply.answer {
                        Ok(version) => {
                            let stored = WriteResult::Stored(version);
                            return Ok(Attempted::after(ambiguous, stored));
                        }
                        Err(now) => {
                            // Where no client has written since, no attempt was applied.
                            write.repeated |= ambiguous > 0 && now.written != state.written;
                            state = now;
                        }
                    }
                }
            }
            is_told = true;
        }
        Err(Error::retryable(BACKEND, "others keep writing this register"))
    }

    /// Writes, unless a client did since it was like this; otherwise says how it is now.
    async fn attempt(
        &self,
        at: &RegisterKey,
        write: &Write,
        before: &KnownRegister,
        lease: Option<&Arc<EtcdLease>>,
    ) -> EtcdResult<Response<Result<Version, KnownRegister>>> {
        let (value, meta) = self.root.register(at);
        let token = write.token.map(Token::get).max(before.meta.token);
        let remembered = RegisterMeta { token, write: hex(write.write_id) };
        let bytes = serde_json::to_vec(&remembered).unwrap_or_default();
        // Without a token nothing need be remembered for good of a value that is gone.
        let brief = match (token, &write.value) {
            (None, None) => Some(self.leases.lasting(REMEMBERED).await?),
            (None, Some(_)) => lease.cloned(),
            _ => None,
        };
        let on = |lease: Option<&Arc<EtcdLease>>| {
            let put = PutOptions::new();
            Some(lease.map_or(put.clone(), |lease| put.with_lease(lease.id)))
        };
        let put = match &write.value {
            Some(bytes) => TxnOp::put(&*value, bytes.as_slice(), on(lease)),
            None => delete(&value),
        };
        let txn = Txn::new()
            .when([written(&meta, before.written), written(&value, before.value_revision)])
            .and_then([TxnOp::put(&*meta, bytes, on(brief.as_ref())), put])
            .or_else(read_register_keys(&value, &meta));
        let reply = self.client.txn(txn).await?;
        let revision = revision(&reply.answer);
        if !reply.answer.succeeded() {
            let now = ReadRegister::of(pair(ranges(&reply.answer))?, revision).state;
            self.registers.saw(value, now.clone());
            return Ok(reply.with(Err(now)));
        }
        if before.lease != 0 {
            self.leases.known_or(before.lease).end(); // nothing is on it any more
        }
        let value_revision = write.value.as_ref().map_or(0, |_| revision);
        let lease = lease.map_or(0, |lease| lease.id);
        let now = KnownRegister { value_revision, lease, meta: remembered, written: revision };
        self.registers.saw(value, now);
        Ok(reply.with(Ok(version(revision))))
    }
}

fn read_register_keys(value: &[u8], meta: &[u8]) -> [TxnOp; 2] {
    [value, meta].map(|key| TxnOp::get(key, None::<GetOptions>))
}

impl ReadRegister {
    fn of([mut value, mut meta]: [GetResponse; 2], revision: i64) -> Self {
        let (value, meta) = (value.take_kvs().pop(), meta.take_kvs().pop());
        let parsed = meta.as_ref().and_then(|kv| serde_json::from_slice(kv.value()).ok());
        let state = KnownRegister {
            value_revision: value.as_ref().map_or(0, KeyValue::mod_revision),
            lease: value.as_ref().map_or(0, KeyValue::lease),
            meta: parsed.unwrap_or_default(),
            written: meta.map_or(0, |kv| kv.mod_revision()),
        };
        Self { value, state, revision }
    }

    fn entry(&self) -> Option<RegisterEntry> {
        let kv = self.value.as_ref()?;
        let token = self.state.meta.token.and_then(Token::new);
        Some(RegisterEntry::new(kv.value().to_vec(), version(kv.mod_revision()), token))
    }
}
