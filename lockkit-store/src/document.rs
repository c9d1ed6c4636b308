//! The documents as they are stored: JSON, with a new random write id in every write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{ClaimId, RegisterKey, WriteId};
use lockkit_core::{BreakRecord, ClientIdentity, Error, Key, Mode, Name, Namespace, Space, Token};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The id of a session: 128 random bits in hexadecimal.
pub(crate) type SessionId = String;

/// The document about the layout.
pub(crate) const META: &str = "meta";
/// What the keys of sessions begin with.
pub(crate) const SESSIONS: &str = "s/";
/// What the keys of registers begin with.
pub(crate) const REGISTERS: &str = "r/";
/// The version of this layout.
pub(crate) const FORMAT: u32 = 1;

/// The layout: written once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MetaDocument {
    pub(crate) format: u32,
    pub(crate) shards: u32,
    /// A random id of this store.
    pub(crate) id: String,
}

/// What keeps the claims of one driver and TTL alive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionDocument {
    pub(crate) write: String,
    /// The id of its owner's last beat.
    pub(crate) beat: String,
    pub(crate) ttl_us: u64,
    pub(crate) dead: bool,
    /// Claims that were broken gracefully.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) broken: Vec<Mark>,
}

impl SessionDocument {
    pub(crate) fn new(write: String, beat: String, ttl: Duration) -> Self {
        Self { write, beat, ttl_us: micros(ttl), dead: false, broken: Vec::new() }
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_micros(self.ttl_us)
    }

    pub(crate) fn mark(&self, claim: &str) -> Option<&BreakRecord> {
        self.broken.iter().find(|mark| mark.claim == claim).map(|mark| &mark.record)
    }
}

/// A claim that was broken gracefully.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) claim: String,
    pub(crate) record: BreakRecord,
}

/// The queues of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardDocument {
    pub(crate) write: String,
    /// The last token that was given or skipped.
    pub(crate) last: u64,
    pub(crate) queues: BTreeMap<Key, StoredQueue>,
}

/// One queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredQueue {
    /// The fixed limit of a semaphore.
    pub(crate) limit: Option<u32>,
    pub(crate) breaks: Vec<StoredBreak>,
    pub(crate) entries: Vec<StoredEntry>,
}

impl StoredQueue {
    /// Whether nothing in it is worth storing.
    pub(crate) fn is_empty(&self) -> bool {
        self.limit.is_none() && self.breaks.is_empty() && self.entries.is_empty()
    }

    /// How this claim was broken, if it was.
    pub(crate) fn break_of(&self, claim: &ClaimId) -> Option<&BreakRecord> {
        let claim = claim.to_hex();
        self.breaks.iter().rev().find(|it| it.claim == claim).map(|it| &it.record)
    }
}

/// How a claim was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredBreak {
    pub(crate) claim: String,
    /// How long its owner may need to learn of it.
    pub(crate) ttl_us: u64,
    pub(crate) record: BreakRecord,
}

/// One claim of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredEntry {
    pub(crate) id: ClaimId,
    pub(crate) sequence: u64,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) hold_ttl: Duration,
    pub(crate) wait_ttl: Duration,
    pub(crate) holding: bool,
    pub(crate) broken: bool,
    pub(crate) details: Arc<EntryDetails>,
}

/// What the rule does not look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryDetails {
    pub(crate) session: SessionId,
    /// In milliseconds since 1970, for people.
    pub(crate) queued_ms: u64,
    pub(crate) held_ms: u64,
    pub(crate) owner: ClientIdentity,
    pub(crate) note: Option<String>,
}

/// The value of a register, or what is remembered of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RegisterDocument {
    pub(crate) write: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Base64.
    pub(crate) value: Option<String>,
    pub(crate) version: u64,
    pub(crate) token: Option<u64>,
    pub(crate) last_write: String,
    pub(crate) ttl_us: Option<u64>,
    /// By the wall clock of its writer, in microseconds since 1970.
    pub(crate) written_us: u64,
}

/// The token offset of a namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OffsetDocument {
    pub(crate) write: String,
    pub(crate) namespace: String,
    pub(crate) offset: u64,
}

#[derive(Serialize, Deserialize)]
struct WireShard {
    write: String,
    last: u64,
    owners: Vec<ClientIdentity>,
    queues: Vec<WireQueue>,
}

#[derive(Serialize, Deserialize)]
struct WireQueue {
    namespace: String,
    semaphore: bool,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    breaks: Vec<StoredBreak>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<WireEntry>,
}

#[derive(Serialize, Deserialize)]
struct WireEntry {
    id: String,
    session: String,
    sequence: u64,
    /// Where it is not the sequence number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// `x`, `s`, or permits and limit.
    mode: WireMode,
    hold_us: u64,
    wait_us: u64,
    holding: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    broken: bool,
    queued_ms: u64,
    held_ms: u64,
    owner: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize, Deserialize)]
enum WireMode {
    #[serde(rename = "x")]
    Exclusive,
    #[serde(rename = "s")]
    Shared,
    #[serde(rename = "p")]
    Permits(u32, u32),
}

impl ShardDocument {
    /// The entry of a claim.
    pub(crate) fn entry(&self, key: &Key, id: &ClaimId) -> Option<&StoredEntry> {
        self.queues.get(key)?.entries.iter().find(|entry| entry.id == *id)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut owners = Vec::new();
        let queues = self.queues.iter().map(|(key, queue)| WireQueue {
            namespace: key.namespace.as_str().to_owned(),
            semaphore: key.space == Space::Semaphore,
            name: key.name.as_str().to_owned(),
            limit: queue.limit,
            breaks: queue.breaks.clone(),
            entries: queue.entries.iter().map(|entry| WireEntry::of(entry, &mut owners)).collect(),
        });
        let queues = queues.collect();
        encode(&WireShard { write: self.write.clone(), last: self.last, owners, queues })
    }

    pub(crate) fn decode(backend: &'static str, bytes: &[u8]) -> Result<Self, Error> {
        let wire: WireShard = decode(backend, "a shard", bytes)?;
        let damaged = |_| damaged(backend, "a shard");
        let mut queues = BTreeMap::new();
        for WireQueue { namespace, semaphore, name, limit, breaks, entries } in wire.queues {
            let space = if semaphore { Space::Semaphore } else { Space::Lock };
            let namespace = Namespace::new(namespace).map_err(damaged)?;
            let key = Key::new(namespace, space, Name::new(name).map_err(damaged)?);
            let entries = entries.into_iter().map(|entry| entry.read(&wire.owners));
            let entries =
                entries.collect::<Option<_>>().ok_or_else(|| self::damaged(backend, "a shard"))?;
            queues.insert(key, StoredQueue { limit, breaks, entries });
        }
        Ok(Self { write: wire.write, last: wire.last, queues })
    }
}

impl WireEntry {
    fn of(entry: &StoredEntry, owners: &mut Vec<ClientIdentity>) -> Self {
        let details = &*entry.details;
        let owner = owners.iter().position(|owner| *owner == details.owner);
        let owner = owner.unwrap_or_else(|| {
            owners.push(details.owner.clone());
            owners.len() - 1
        });
        Self {
            id: entry.id.to_hex(),
            session: details.session.clone(),
            sequence: entry.sequence,
            token: Some(entry.token.get()).filter(|token| *token != entry.sequence),
            mode: match entry.mode {
                Mode::Exclusive => WireMode::Exclusive,
                Mode::Shared => WireMode::Shared,
                Mode::Permits { permits, limit } => WireMode::Permits(permits, limit),
            },
            hold_us: micros(entry.hold_ttl),
            wait_us: micros(entry.wait_ttl),
            holding: entry.holding,
            broken: entry.broken,
            queued_ms: details.queued_ms,
            held_ms: details.held_ms,
            owner,
            note: details.note.clone(),
        }
    }

    fn read(self, owners: &[ClientIdentity]) -> Option<StoredEntry> {
        Some(StoredEntry {
            id: ClaimId::from_hex(&self.id)?,
            sequence: self.sequence,
            token: Token::new(self.token.unwrap_or(self.sequence))?,
            mode: match self.mode {
                WireMode::Exclusive => Mode::Exclusive,
                WireMode::Shared => Mode::Shared,
                WireMode::Permits(permits, limit) => Mode::Permits { permits, limit },
            },
            hold_ttl: Duration::from_micros(self.hold_us),
            wait_ttl: Duration::from_micros(self.wait_us),
            holding: self.holding,
            broken: self.broken,
            details: Arc::new(EntryDetails {
                session: self.session,
                queued_ms: self.queued_ms,
                held_ms: self.held_ms,
                owner: owners.get(self.owner)?.clone(),
                note: self.note,
            }),
        })
    }
}

/// As JSON.
pub(crate) fn encode(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("plain data becomes JSON")
}

/// From JSON; `what` names the document in the error.
pub(crate) fn decode<T: DeserializeOwned>(
    backend: &'static str,
    what: &str,
    bytes: &[u8],
) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|_| damaged(backend, what))
}

fn damaged(backend: &'static str, what: &str) -> Error {
    let message = format!("the document of {what} is not one of lockkit's: restore or remove it");
    Error::permanent(backend, message)
}

/// In whole microseconds; the longest that fit are 584,000 years.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The key of a session.
pub(crate) fn session_key(session: &str) -> String {
    format!("{SESSIONS}{session}")
}

/// The key of a shard.
pub(crate) fn shard_key(shard: u32) -> String {
    format!("l/{shard}")
}

/// The shard of a queue.
pub(crate) fn shard_of(key: &Key, shards: u32) -> u32 {
    let parts = [key.namespace.as_str(), key.space.as_str(), key.name.as_str()];
    let digest = hash(&parts);
    let first = digest[..8].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    (first % u64::from(shards.max(1))) as u32
}

/// The key of a register. Hashed, since two names of 512 bytes exceed the keys of most stores.
pub(crate) fn register_key(at: &RegisterKey) -> String {
    format!("{}{}", registers_of(&at.namespace), hex(&hash(&[at.name.as_str()])))
}

/// What the keys of the registers of a namespace begin with.
pub(crate) fn registers_of(namespace: &Namespace) -> String {
    format!("{REGISTERS}{}/", hex(&hash(&[namespace.as_str()])))
}

/// The key of a token offset.
pub(crate) fn offset_key(namespace: &Namespace) -> String {
    format!("b/{}", hex(&hash(&[namespace.as_str()])))
}

/// The id of a write, as it is stored.
pub(crate) fn write_text(id: &WriteId) -> String {
    hex(&id.0)
}

fn hash(parts: &[&str]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
