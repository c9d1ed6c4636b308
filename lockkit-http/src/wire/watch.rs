//! States of a lock or register, one after the other.

use lockkit_core::state::{self, LockState};
use lockkit_core::{BreakRecord, ClientIdentity, Token};
use serde::{Deserialize, Serialize};

use super::claims::ModeKind;
use super::inspect::Key;
use super::registers::Register;
use super::text;

/// `POST /v1/watch`: answered with a [`QueueState`] or a [`Loaded`](super::Loaded) for the present state,
/// and one for each state that the service sees later, each in a line of its own. An empty line says
/// that the stream goes on; a [`Problem`](super::Problem) is the last one.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Watch;
///
/// let it: Watch = serde_json::from_str(r#"{"lock": {"name": "invoice/42"}}"#)?;
/// assert!(matches!(it, Watch::Lock(_)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Watch {
    /// A lock or semaphore.
    Lock(Key),
    /// A register.
    Register(Register),
}

/// Who holds a lock and who waits for it. Nothing here says for how long: that would be over by the
/// time that it is read.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::QueueState;
///
/// let json = r#"
///     {"queue": [{"token": "42", "mode": "exclusive", "holds": true, "broken": false,
///       "holder": {"host": "web-1", "pid": 4711, "program": "billing"}}]}
/// "#;
/// let it: QueueState = serde_json::from_str(json)?;
/// assert!(it.queue[0].holds);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueState {
    /// The live claims in their order; those that hold come first.
    pub queue: Vec<QueuedClaim>,
    /// As in [`Lock`](super::Lock).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_break: Option<BreakRecord>,
}

/// One claim of a [`QueueState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuedClaim {
    /// Its token.
    #[serde(with = "text")]
    pub token: Token,
    /// Its mode.
    pub mode: ModeKind,
    /// Of a semaphore: how many it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Of a semaphore: how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Whether it holds.
    pub holds: bool,
    /// Whether it was broken gracefully, and goes when its lease ends.
    pub broken: bool,
    /// Who.
    pub holder: ClientIdentity,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl QueueState {
    /// What is sent for a state.
    pub fn of(state: &LockState) -> Self {
        let queue = state.queue.iter().map(QueuedClaim::of).collect();
        Self { queue, last_break: state.last_break.clone() }
    }
}

impl QueuedClaim {
    fn of(claim: &state::ClaimState) -> Self {
        let (mode, permits, limit) = ModeKind::of(claim.mode);
        Self {
            token: claim.token,
            mode,
            permits,
            limit,
            holds: claim.held_for.is_some(),
            broken: claim.broken,
            holder: claim.identity.clone(),
            note: claim.note.clone(),
        }
    }
}
