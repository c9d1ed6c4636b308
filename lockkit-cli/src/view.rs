//! The JSON shape of a lock's state. Stable: programs read it. Never contains an id.

use std::time::Duration;

use lockkit::state::{ClaimState, LockState};
use lockkit::{ClientIdentity, Mode, Space, Token};
use serde::Serialize;

use crate::exit::{ExitError, code};
use crate::run::leftovers::Leftovers;

/// A lock, or a semaphore.
#[derive(Clone, Serialize)]
pub(crate) struct StateView<'a> {
    /// Where locks of several namespaces are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    name: &'a str,
    space: Space,
    /// Of a semaphore in use.
    limit: Option<u32>,
    holders: Vec<ClaimView<'a>>,
    /// The next first.
    waiters: Vec<ClaimView<'a>>,
    /// Why it cannot be read, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<&'a str>,
}

/// Who holds or waits.
#[derive(Clone, Serialize)]
struct ClaimView<'a> {
    token: Token,
    mode: &'static str,
    /// How many of a semaphore's permits.
    permits: Option<u32>,
    identity: &'a ClientIdentity,
    note: Option<&'a str>,
    ttl_ms: u64,
    expires_in_ms: u64,
    /// How long the name stays closed when its holder loses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_delay_ms: Option<u64>,
    /// Of holders.
    held_for_ms: Option<u64>,
    /// Of waiters.
    waiting_for_ms: Option<u64>,
    /// The place in the whole line, from 1; holders stand first.
    position: usize,
    /// Of a holder whose command ended: the processes that it left behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    leftovers: Option<&'a str>,
}

impl<'a> StateView<'a> {
    pub(crate) fn of(state: &'a LockState) -> Self {
        let claims = |holding: bool| {
            let line = state.queue.iter().enumerate();
            line.filter(move |(_, s)| s.holds() == holding)
                .map(|(ahead, s)| ClaimView::of(s, ahead + 1))
                .collect()
        };
        Self {
            namespace: None,
            name: state.name().as_str(),
            space: state.space(),
            limit: state.limit(),
            holders: claims(true),
            waiters: claims(false),
            damaged: state.damaged.as_deref(),
        }
    }

    /// A lock of which nothing is known.
    pub(crate) fn unknown(name: &'a str, space: Space) -> Self {
        let (holders, waiters) = (Vec::new(), Vec::new());
        Self { namespace: None, name, space, limit: None, holders, waiters, damaged: None }
    }

    /// The same with what was left behind.
    pub(crate) fn with(mut self, leftovers: &'a Leftovers) -> Self {
        for holder in &mut self.holders {
            holder.leftovers = leftovers.get(&holder.token).map(String::as_str);
        }
        self
    }

    /// The same with its namespace, if that is to be shown.
    pub(crate) fn under(self, namespace: Option<&'a str>) -> Self {
        Self { namespace, ..self }
    }
}

impl<'a> ClaimView<'a> {
    fn of(standing: &'a ClaimState, position: usize) -> Self {
        let permits = match standing.mode {
            Mode::Permits { permits, .. } => Some(permits),
            _ => None,
        };
        Self {
            token: standing.token,
            mode: standing.mode.as_str(),
            permits,
            identity: &standing.identity,
            note: standing.note.as_deref(),
            ttl_ms: ms(standing.ttl),
            expires_in_ms: ms(standing.expires_in),
            lock_delay_ms: (!standing.lock_delay.is_zero()).then(|| ms(standing.lock_delay)),
            held_for_ms: standing.held_for.map(ms),
            waiting_for_ms: (!standing.holds()).then(|| ms(standing.queued_for)),
            position,
            leftovers: None,
        }
    }
}

/// As one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String, ExitError> {
    serde_json::to_string(value)
        .map_err(|e| ExitError::new(code::SOFTWARE, format!("cannot write JSON: {e}")))
}

fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
