//! What claims' nodes and records of breaks contain: JSON, for whoever looks at them with
//! ZooKeeper's own tools as well. No I/O.

use std::time::Duration;

use lockkit_core::state::ClaimState;
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Mode, Token};
use serde::{Deserialize, Serialize};

/// The data of a claim's node: for people. What the rule needs stands in its name.
#[derive(Serialize, Deserialize)]
pub(crate) struct Label {
    #[serde(flatten)]
    identity: ClientIdentity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    ttl_ms: u64,
    /// Says to those who wait on this node and look only now what the marker says in a list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    downgraded: bool,
}

impl Label {
    /// That of a claim with this lease.
    pub(crate) fn of(claim: &Claim, ttl: Duration) -> Vec<u8> {
        Self::bytes(claim, ttl, false)
    }

    pub(crate) fn of_downgraded(claim: &Claim, ttl: Duration) -> Vec<u8> {
        Self::bytes(claim, ttl, true)
    }

    pub(crate) fn says_downgraded(data: &[u8]) -> bool {
        serde_json::from_slice::<Self>(data).is_ok_and(|label| label.downgraded)
    }

    fn bytes(claim: &Claim, ttl: Duration, downgraded: bool) -> Vec<u8> {
        let label = Self {
            identity: (*claim.identity).clone(),
            note: claim.note.as_deref().map(str::to_owned),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            downgraded,
        };
        serde_json::to_vec(&label).unwrap_or_default()
    }

    /// What people may see of the claim with this data; of one whose data is not ours, little.
    pub(crate) fn standing(data: &[u8], token: Token, mode: Mode) -> ClaimState {
        match serde_json::from_slice::<Self>(data) {
            Ok(label) => {
                let mut standing = ClaimState::new(token, mode, label.identity);
                standing.note = label.note;
                standing.ttl = Duration::from_millis(label.ttl_ms);
                standing.expires_in = standing.ttl;
                standing
            }
            Err(_) => {
                let unknown = || "unknown".to_owned();
                ClaimState::new(
                    token,
                    mode,
                    ClientIdentity { host: unknown(), pid: 0, program: unknown() },
                )
            }
        }
    }
}

/// The data of a record of a break.
pub(crate) fn record_bytes(record: &BreakRecord) -> Vec<u8> {
    serde_json::to_vec(record).unwrap_or_default()
}

/// Reads what [`record_bytes`] wrote.
pub(crate) fn read_record(data: &[u8]) -> Option<BreakRecord> {
    serde_json::from_slice(data).ok()
}
