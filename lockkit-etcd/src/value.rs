//! What stands under the key of a claim: who, why, how, as JSON that people can read with etcdctl.
//! Never the claim's id. And what stands under that of a limit.

use std::time::Duration;

use etcd_client::KeyValue;
use lockkit_core::driver::unix_ms;
use lockkit_core::queue::GivenLimit;
use lockkit_core::{Claim, ClientIdentity, Mode};
use serde::{Deserialize, Serialize};

use crate::keys::given_limit;

/// The value of a claim's key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Value {
    mode: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    pub(crate) identity: ClientIdentity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    ttl_ms: u64,
    /// When it was put in line, by its client's clock: for people, not for decisions.
    queued_at_ms: u64,
    /// When it was seen to hold and given the lease of a holder, by its client's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_at_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Exclusive,
    Shared,
    Permits,
}

impl Value {
    /// The value of a claim that is put in line now.
    pub(crate) fn of(claim: &Claim) -> Self {
        let (mode, permits, limit) = match claim.mode {
            Mode::Exclusive => (Kind::Exclusive, None, None),
            Mode::Shared => (Kind::Shared, None, None),
            Mode::Permits { permits, limit } => (Kind::Permits, Some(permits), Some(limit)),
        };
        Self {
            mode,
            permits,
            limit,
            identity: (*claim.identity).clone(),
            note: claim.note.as_deref().map(str::to_owned),
            ttl_ms: u64::try_from(claim.hold_ttl.as_millis()).unwrap_or(u64::MAX),
            queued_at_ms: unix_ms(),
            held_at_ms: None,
        }
    }

    /// The same for one that holds from now on.
    pub(crate) fn holding(mut self) -> Self {
        self.held_at_ms = Some(self.held_at_ms.unwrap_or_else(unix_ms));
        self
    }

    /// The same for one that was downgraded.
    pub(crate) fn shared(mut self) -> Self {
        self.mode = Kind::Shared;
        self
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn mode(&self) -> Mode {
        match (self.mode, self.permits, self.limit) {
            (Kind::Shared, ..) => Mode::Shared,
            (Kind::Permits, Some(permits), Some(limit)) => Mode::Permits { permits, limit },
            _ => Mode::Exclusive,
        }
    }

    /// Whether it has the lease of a holder.
    pub(crate) fn is_holding(&self) -> bool {
        self.held_at_ms.is_some()
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(crate) fn queued_for(&self) -> Duration {
        Duration::from_millis(unix_ms().saturating_sub(self.queued_at_ms))
    }

    pub(crate) fn held_for(&self) -> Option<Duration> {
        Some(Duration::from_millis(unix_ms().saturating_sub(self.held_at_ms?)))
    }
}

/// What stands under the key of a limit; the limit is in the key itself.
#[derive(Default, Serialize, Deserialize)]
struct Until {
    until: u64,
}

/// The limit that a list was given, if that is what this key says.
pub(crate) fn given_by(kv: &KeyValue) -> Option<GivenLimit> {
    let limit = given_limit(kv.key())?;
    let Until { until } = serde_json::from_slice(kv.value()).unwrap_or_default();
    Some(GivenLimit { limit, until })
}

/// The value for the key of a limit below which the claims up to this token hold on.
pub(crate) fn until_bytes(until: u64) -> Vec<u8> {
    serde_json::to_vec(&Until { until }).unwrap_or_default()
}
