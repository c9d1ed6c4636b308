//! What is stored under the keys of limits and of registers, as JSON that people can read with
//! etcdctl. (Under the key of a claim it is core's [`ClaimData`](lockkit_core::driver::ClaimData).)

use etcd_client::KeyValue;
use lockkit_core::Token;
use lockkit_core::driver::{ClaimId, FoundRegister, Version, WriteId};
use lockkit_core::queue::GivenLimit;
use serde::{Deserialize, Serialize};

use crate::keys::fixed_limit_of;

/// What is stored under the key of a limit; the limit is in the key itself.
#[derive(Default, Serialize, Deserialize)]
struct Until {
    until: u64,
}

/// The fixed limit of a queue, if this is its key.
pub(crate) fn stored_limit(kv: &KeyValue) -> Option<GivenLimit> {
    let limit = fixed_limit_of(kv.key())?;
    let Until { until } = serde_json::from_slice(kv.value()).unwrap_or_default();
    Some(GivenLimit { limit, until })
}

/// The value for the key of a limit below which the claims up to this token hold on.
pub(crate) fn until_bytes(until: u64) -> Vec<u8> {
    serde_json::to_vec(&Until { until }).unwrap_or_default()
}

/// What is remembered about the writes of a register.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RegisterMeta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    /// The last write's id, in hexadecimal.
    pub(crate) write: String,
}

/// How a register is, but for its value. By default as one that was never written.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownRegister {
    /// The revision of the value; 0 when there is none.
    pub(crate) value_revision: i64,
    /// The lease of the value, which has no other key; 0 for a value that stays.
    pub(crate) lease: i64,
    pub(crate) meta: RegisterMeta,
    /// The revision of the last write; 0 when none is remembered.
    pub(crate) written: i64,
}

impl KnownRegister {
    /// The same as the rule knows it.
    pub(crate) fn found(&self) -> FoundRegister {
        let is_known = self.written > 0;
        let last = ClaimId::from_hex(&self.meta.write);
        FoundRegister {
            version: is_known.then(|| version(self.written)),
            present: self.value_revision > 0,
            token: self.meta.token.and_then(Token::new),
            last_write: last.filter(|_| is_known).map(|id| WriteId(*id.as_bytes())),
        }
    }
}

/// The highest token of the writes of a register, from what its key `meta` stores.
pub(crate) fn token_in(meta: &[u8]) -> Option<Token> {
    let meta: RegisterMeta = serde_json::from_slice(meta).ok()?;
    meta.token.and_then(Token::new)
}

pub(crate) fn version(revision: i64) -> Version {
    Version(u64::try_from(revision).unwrap_or(0))
}

pub(crate) fn hex(id: WriteId) -> String {
    ClaimId::from_bytes(id.0).to_hex()
}
