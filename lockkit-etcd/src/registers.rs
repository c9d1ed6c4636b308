//! Registers: a value under one key, and under another what must outlive it: the highest token and
//! the last write's id. Both are written in one transaction, so they have the same modification
//! revision, which is the version: it grows across deletion, because it is etcd's own.
//!
//! # What a write costs
//! A write says on what it relies: the revisions at which both keys were written last. A driver
//! remembers them of the registers that it used last, and takes one of which it remembers nothing
//! for one that was never written; so a write takes one round trip, and a second one only when
//! somebody else has written since, which the first one shows. What refuses a write is always what
//! etcd said. A value with a ttl has a lease of its own: to get that is a round trip before. It goes
//! with the value: when another one is written it is revoked, in the background.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp};
use lockkit_core::driver::{
    Answered, Delete, Entry, Found, MAX_REGISTER_BYTES, RegisterKey, Store, StoreOutcome, Version,
    Write, WriteId,
};
use lockkit_core::{Error, Token};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::calls::{BACKEND, Failure, Reply, ranges, revision};
use crate::inner::{Inner, delete, pair, written};
use crate::leases::{Lease, seconds};
use crate::watches::WatchRange;

/// How long the id of a deletion is remembered at least where no token is.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// How often a write begins anew because another came in between.
const ATTEMPTS: usize = 256;
/// Of how many registers a driver remembers how they were.
const KNOWN: usize = 4_096;

/// How registers were when they were used last, by the keys of their values.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashMap<Vec<u8>, State>>);

impl Known {
    fn of(&self, key: &[u8]) -> State {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).cloned().unwrap_or_default()
    }

    fn note(&self, key: Vec<u8>, state: &State) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN && !known.contains_key(&key) {
            known.clear(); // each costs its next write a round trip
        }
        known.insert(key, state.clone());
    }
}

/// What is remembered about the writes of a register.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Meta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// The last write's id, in hexadecimal.
    write: String,
}

/// How a register is, but for its value. By default as one that was never written.
#[derive(Clone, Debug, Default)]
struct State {
    /// The revision of the value; 0 when there is none.
    stood: i64,
    /// The lease of the value, which nothing else stands on; 0 for a value that stays.
    lease: i64,
    meta: Meta,
    /// The revision of the last write; 0 when none is remembered.
    written: i64,
}

/// A register as it was.
struct ReadRegister {
    value: Option<KeyValue>,
    state: State,
    /// The revision at which it was looked at.
    revision: i64,
}

/// What is to be written, and under which rule.
struct Writing<'a> {
    /// `None` deletes.
    value: Option<&'a [u8]>,
    ttl: Option<Duration>,
    rule: Write,
}

impl Inner {
    pub(crate) async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        Ok(self.seen(at).await?.entry())
    }

    pub(crate) async fn store(
        &self,
        at: &RegisterKey,
        store: &Store,
    ) -> Result<Answered<StoreOutcome>, Error> {
        if store.value.len() > MAX_REGISTER_BYTES {
            let message = format!("a register holds at most {MAX_REGISTER_BYTES} bytes");
            return Err(Error::config(message));
        }
        let (value, rule) = (Some(&*store.value), Write::from(store));
        self.write(at, Writing { value, ttl: store.ttl, rule }).await
    }

    pub(crate) async fn delete(
        &self,
        at: &RegisterKey,
        delete: &Delete,
    ) -> Result<Answered<StoreOutcome>, Error> {
        self.write(at, Writing { value: None, ttl: None, rule: Write::from(delete) }).await
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
            let sight = WatchRange { key, end: Vec::new(), from: seen.revision + 1, changes: true };
            let _watching = self.watches.watch(sight, to);
            news.recv().await;
        }
    }

    async fn seen(&self, at: &RegisterKey) -> Result<ReadRegister, Failure> {
        let (value, meta) = self.root.register(at);
        let txn = Txn::new().and_then(show(&value, &meta));
        let answer = self.calls.txn(txn).await?.answer;
        let seen = ReadRegister::of(pair(ranges(&answer))?, revision(&answer));
        self.registers.note(value, &seen.state);
        Ok(seen)
    }

    async fn write(
        &self,
        at: &RegisterKey,
        mut write: Writing<'_>,
    ) -> Result<Answered<StoreOutcome>, Error> {
        let mut state = self.registers.of(&self.root.register(at).0);
        let mut is_told = false; // by etcd, to this write
        let (mut lease, mut unanswered) = (None, 0);
        for _ in 0..ATTEMPTS {
            match StoreOutcome::decide(&state.found(), &write.rule) {
                Some(outcome) if is_told => {
                    lease.inspect(|lease: &Arc<Lease>| lease.end());
                    return Ok(Answered::after(unanswered, outcome));
                }
                Some(_) => state = self.seen(at).await?.state,
                None => {
                    if let (Some(ttl), None) = (write.ttl, &lease) {
                        lease = Some(self.leases.grant(seconds(ttl)).await?);
                    }
                    let reply = self.attempt(at, &write, &state, lease.as_ref()).await?;
                    unanswered += reply.unanswered;
                    match reply.answer {
                        Ok(version) => {
                            let stored = StoreOutcome::Stored(version);
                            return Ok(Answered::after(unanswered, stored));
                        }
                        Err(now) => {
                            // Where nobody has written since, no attempt was applied.
                            write.rule.repeated |= unanswered > 0 && now.written != state.written;
                            state = now;
                        }
                    }
                }
            }
            is_told = true;
        }
        Err(Error::retryable(BACKEND, "others keep writing this register"))
    }

    /// Writes, unless somebody did since it was like this; otherwise says how it is now.
    async fn attempt(
        &self,
        at: &RegisterKey,
        write: &Writing<'_>,
        before: &State,
        lease: Option<&Arc<Lease>>,
    ) -> Result<Reply<Result<Version, State>>, Failure> {
        let (value, meta) = self.root.register(at);
        let token = write.rule.token.map(Token::get).max(before.meta.token);
        let remembered = Meta { token, write: hex(write.rule.id) };
        let bytes = serde_json::to_vec(&remembered).unwrap_or_default();
        // Without a token nothing need be remembered for good of a value that is gone.
        let brief = match (token, write.value) {
            (None, None) => Some(self.leases.lasting(REMEMBERED).await?),
            (None, Some(_)) => lease.cloned(),
            _ => None,
        };
        let on = |lease: Option<&Arc<Lease>>| {
            let put = PutOptions::new();
            Some(lease.map_or(put.clone(), |lease| put.with_lease(lease.id)))
        };
        let put = match write.value {
            Some(bytes) => TxnOp::put(&*value, bytes, on(lease)),
            None => delete(&value),
        };
        let txn = Txn::new()
            .when([written(&meta, before.written), written(&value, before.stood)])
            .and_then([TxnOp::put(&*meta, bytes, on(brief.as_ref())), put])
            .or_else(show(&value, &meta));
        let reply = self.calls.txn(txn).await?;
        let revision = revision(&reply.answer);
        if !reply.answer.succeeded() {
            let now = ReadRegister::of(pair(ranges(&reply.answer))?, revision).state;
            self.registers.note(value, &now);
            return Ok(reply.with(Err(now)));
        }
        if before.lease != 0 {
            self.leases.known_or(before.lease).end(); // nothing stands on it any more
        }
        let stood = write.value.map_or(0, |_| revision);
        let lease = lease.map_or(0, |lease| lease.id);
        let now = State { stood, lease, meta: remembered, written: revision };
        self.registers.note(value, &now);
        Ok(reply.with(Ok(version(revision))))
    }
}

fn show(value: &[u8], meta: &[u8]) -> [TxnOp; 2] {
    [value, meta].map(|key| TxnOp::get(key, None::<GetOptions>))
}

impl ReadRegister {
    fn of([mut value, mut meta]: [GetResponse; 2], revision: i64) -> Self {
        let (value, meta) = (value.take_kvs().pop(), meta.take_kvs().pop());
        let parsed = meta.as_ref().and_then(|kv| serde_json::from_slice(kv.value()).ok());
        let state = State {
            stood: value.as_ref().map_or(0, KeyValue::mod_revision),
            lease: value.as_ref().map_or(0, KeyValue::lease),
            meta: parsed.unwrap_or_default(),
            written: meta.map_or(0, |kv| kv.mod_revision()),
        };
        Self { value, state, revision }
    }

    fn entry(&self) -> Option<Entry> {
        let kv = self.value.as_ref()?;
        let token = self.state.meta.token.and_then(Token::new);
        Some(Entry { value: kv.value().to_vec(), version: version(kv.mod_revision()), token })
    }
}

impl State {
    /// The same as the rule knows it.
    fn found(&self) -> Found {
        let is_known = self.written > 0;
        let last = lockkit_core::driver::ClaimId::from_hex(&self.meta.write);
        Found {
            version: is_known.then(|| version(self.written)),
            present: self.stood > 0,
            token: self.meta.token.and_then(Token::new),
            last_write: last.filter(|_| is_known).map(|id| WriteId(*id.as_bytes())),
        }
    }
}

/// The highest token that the writes of a register bore, as its key for what is remembered says.
pub(crate) fn token_in(meta: &[u8]) -> Option<Token> {
    let meta: Meta = serde_json::from_slice(meta).ok()?;
    meta.token.and_then(Token::new)
}

fn version(revision: i64) -> Version {
    Version(u64::try_from(revision).unwrap_or(0))
}

fn hex(id: WriteId) -> String {
    lockkit_core::driver::ClaimId::from_bytes(id.0).to_hex()
}
