//! The limit that a semaphore was given, as it stands in etcd, and what it means for the claims in
//! its list. No I/O.

use etcd_client::KeyValue;
use lockkit_core::Mode;
use serde::{Deserialize, Serialize};

use crate::keys::given_limit;

/// A limit that stays, and who holds whatever it is.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) key: Vec<u8>,
    pub(crate) limit: u32,
    /// Claims that were created up to here held when the limit was lowered, and hold on. (Holders
    /// are the front of the line, so one place tells them all.)
    pub(crate) until: i64,
    /// The revision of its last change.
    pub(crate) modified: i64,
}

/// What stands under the key; the limit is in the key itself.
#[derive(Default, Serialize, Deserialize)]
struct Value {
    until: i64,
}

impl Given {
    pub(crate) fn of(kv: &KeyValue) -> Option<Self> {
        let limit = given_limit(kv.key())?;
        let Value { until } = serde_json::from_slice(kv.value()).unwrap_or_default();
        Some(Self { key: kv.key().to_vec(), limit, until, modified: kv.mod_revision() })
    }

    /// What stands under the key of a limit below which those up to here hold on.
    pub(crate) fn value(until: i64) -> Vec<u8> {
        serde_json::to_vec(&Value { until }).unwrap_or_default()
    }

    /// How a claim counts here, whatever limit it came with.
    pub(crate) fn counted(&self, mode: Mode) -> Mode {
        match mode {
            Mode::Permits { permits, .. } => Mode::Permits { permits, limit: self.limit },
            other => other,
        }
    }
}
