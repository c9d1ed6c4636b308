//! The JSON that drivers store with a claim: readable with the backend's own tools.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::unix_ms;
use crate::state::ClaimState;
use crate::{Claim, ClientIdentity, Mode, Token};

/// What a driver stores about a claim for people, and for what its backend does not keep otherwise.
/// Never the claim's id.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # let key = Key::new(Namespace::default(), Space::Lock, Name::new("nightly")?);
/// # let (ttl, me) = (Duration::from_secs(30), Arc::new(ClientIdentity::of_this_process()));
/// # let claim = Claim::new(key, Mode::Exclusive, ttl, ttl, me);
/// use lockkit_core::driver::ClaimData;
///
/// let stored = ClaimData::of(&claim).downgraded().to_json();
/// let read = ClaimData::from_json(&stored).expect("it is JSON");
/// assert_eq!((read.mode(), read.ttl()), (Mode::Shared, ttl));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimData {
    mode: ModeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    identity: ClientIdentity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    ttl_ms: u64,
    /// By its client's clock: for people, not for decisions. So are the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queued_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_at_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeKind {
    Exclusive,
    Shared,
    Permits,
}

impl ClaimData {
    /// The data of a claim: its mode, client, note and holding TTL.
    pub fn of(claim: &Claim) -> Self {
        let (mode, permits, limit) = match claim.mode {
            Mode::Exclusive => (ModeKind::Exclusive, None, None),
            Mode::Shared => (ModeKind::Shared, None, None),
            Mode::Permits { permits, limit } => (ModeKind::Permits, Some(permits), Some(limit)),
        };
        Self {
            mode,
            permits,
            limit,
            identity: (*claim.identity).clone(),
            note: claim.note.as_deref().map(str::to_owned),
            ttl_ms: millis(claim.hold_ttl),
            queued_at_ms: None,
            held_at_ms: None,
        }
    }

    /// The same with another TTL, for a backend whose leases have lengths of their own.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = millis(ttl);
        self
    }

    /// The same for a claim that enters its queue now, for a backend that does not keep when.
    #[must_use]
    pub fn queued_now(mut self) -> Self {
        self.queued_at_ms = Some(unix_ms());
        self
    }

    /// The same for a claim that holds from now on, unless it holds already.
    #[must_use]
    pub fn holding(mut self) -> Self {
        self.held_at_ms = Some(self.held_at_ms.unwrap_or_else(unix_ms));
        self
    }

    /// The same for a claim that was downgraded.
    #[must_use]
    pub fn downgraded(mut self) -> Self {
        self.mode = ModeKind::Shared;
        self
    }

    /// Its JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data becomes JSON")
    }

    /// Reads what [`to_json`](Self::to_json) wrote; `None` for what is not such a text.
    pub fn from_json(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The mode: that of the claim, or `Shared` after a downgrade.
    pub fn mode(&self) -> Mode {
        match (self.mode, self.permits, self.limit) {
            (ModeKind::Shared, ..) => Mode::Shared,
            (ModeKind::Permits, Some(permits), Some(limit)) => Mode::Permits { permits, limit },
            _ => Mode::Exclusive,
        }
    }

    /// Whether it says since when the claim holds.
    pub fn is_holding(&self) -> bool {
        self.held_at_ms.is_some()
    }

    /// The TTL.
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// A claim as users see it, by its stored data; of one whose data cannot be read, only what is
    /// given here. `held_for` is `None` unless the claim holds; a driver that knows the times from its
    /// backend sets them afterwards.
    pub fn state(data: Option<&Self>, token: Token, mode: Mode, holds: bool) -> ClaimState {
        let identity = data.map_or_else(ClientIdentity::unknown, |data| data.identity.clone());
        let mut state = ClaimState::new(token, mode, identity);
        let since = |ms: Option<u64>| {
            ms.map_or(Duration::ZERO, |ms| Duration::from_millis(unix_ms().saturating_sub(ms)))
        };
        if let Some(data) = data {
            state.note = data.note.clone();
            state.ttl = data.ttl();
            state.queued_for = since(data.queued_at_ms);
        }
        state.held_for = holds.then(|| since(data.and_then(|data| data.held_at_ms)));
        state
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Key, Name, Namespace};

    fn claim(mode: Mode) -> Claim {
        let key = Key::new(Namespace::default(), mode.space(), Name::new("x").unwrap());
        let me = Arc::new(ClientIdentity::of_this_process());
        let ttl = Duration::from_secs(30);
        Claim::new(key, mode, ttl, ttl, me).with_note(Some("why".into()))
    }

    #[test]
    fn what_is_stored_is_shown_and_never_the_id() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { permits: 2, limit: 3 }] {
            let claim = claim(mode);
            let json = ClaimData::of(&claim).queued_now().to_json();
            let text = String::from_utf8(json.clone()).unwrap();
            assert!(!text.contains(&claim.id.to_hex()), "{text}");
            let read = ClaimData::from_json(&json).unwrap();
            assert_eq!(read.mode(), mode);
            assert!(!read.is_holding() && read.clone().holding().is_holding());
            let token = Token::new(7).unwrap();
            let state = ClaimData::state(Some(&read), token, mode, false);
            assert_eq!((&state.identity, state.ttl), (&*claim.identity, claim.hold_ttl));
            assert_eq!((state.note.as_deref(), state.held_for), (Some("why"), None));
        }
    }

    #[test]
    fn a_claim_whose_data_cannot_be_read_is_of_an_unknown_client() {
        assert!(ClaimData::from_json(b"nonsense").is_none());
        let state = ClaimData::state(None, Token::new(7).unwrap(), Mode::Shared, true);
        assert_eq!(state.identity, ClientIdentity::unknown());
        assert_eq!(state.held_for, Some(Duration::ZERO));
    }
}
