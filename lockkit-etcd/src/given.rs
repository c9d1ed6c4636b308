//! The limit that a semaphore was given, as it stands in etcd. No I/O.

use etcd_client::KeyValue;
use lockkit_core::queue::GivenLimit;
use serde::{Deserialize, Serialize};

use crate::keys::given_limit;

/// A limit that stays, and its key.
#[derive(Clone, Debug)]
pub(crate) struct LimitKey {
    pub(crate) key: Vec<u8>,
    pub(crate) limit: GivenLimit,
    /// The revision of its last change.
    pub(crate) modified: i64,
}

/// What stands under the key; the limit is in the key itself.
#[derive(Default, Serialize, Deserialize)]
struct Value {
    until: u64,
}

impl LimitKey {
    pub(crate) fn of(kv: &KeyValue) -> Option<Self> {
        let limit = given_limit(kv.key())?;
        let Value { until } = serde_json::from_slice(kv.value()).unwrap_or_default();
        let limit = GivenLimit { limit, until };
        Some(Self { key: kv.key().to_vec(), limit, modified: kv.mod_revision() })
    }

    /// What stands under the key of a limit below which those up to here hold on.
    pub(crate) fn value(until: u64) -> Vec<u8> {
        serde_json::to_vec(&Value { until }).unwrap_or_default()
    }
}
