//! Locks as they are, and what is done to those of others.

use std::time::Duration;

use lockkit_core::driver::SetLimit;
use lockkit_core::state::{self, Cursor, LockState};
use lockkit_core::{BreakRecord, ClientIdentity, Error, Mode, Name, Namespace, Space, Token};
use serde::{Deserialize, Serialize};

use super::claims::ModeKind;
use super::{ms_down, text};

/// Which lock or semaphore.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Key;
///
/// let it: Key = serde_json::from_str(r#"{"name": "imports", "space": "semaphore"}"#)?;
/// assert!(it.for_driver().is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// As in [`Claim`](super::Claim).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Locks and semaphores of one name are two things.
    #[serde(default)]
    pub space: SpaceName,
}

/// The two spaces of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceName {
    /// Exclusive and shared claims.
    #[default]
    Lock,
    /// Permits.
    Semaphore,
}

impl From<Space> for SpaceName {
    fn from(space: Space) -> Self {
        match space {
            Space::Lock => Self::Lock,
            Space::Semaphore => Self::Semaphore,
        }
    }
}

impl From<SpaceName> for Space {
    fn from(space: SpaceName) -> Self {
        match space {
            SpaceName::Lock => Self::Lock,
            SpaceName::Semaphore => Self::Semaphore,
        }
    }
}

impl Key {
    /// What is sent for a key.
    pub fn of(key: &lockkit_core::Key) -> Self {
        Self {
            namespace: key.namespace.as_str().to_owned(),
            name: key.name.as_str().to_owned(),
            space: key.space.into(),
        }
    }

    /// The key for a driver, checked.
    pub fn for_driver(&self) -> Result<lockkit_core::Key, Error> {
        let (namespace, name) = (Namespace::new(&self.namespace)?, Name::new(&self.name)?);
        Ok(lockkit_core::Key::new(namespace, self.space.into(), name))
    }
}

/// A lock as it was when the service looked: the answer to `POST /v1/inspect` and `/v1/changed`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Lock;
///
/// let it: Lock = serde_json::from_str(r#"{"name": "invoice/42", "space": "lock", "queue": []}"#)?;
/// assert!(it.queue.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// Which one.
    #[serde(flatten)]
    pub key: Key,
    /// The live claims in their order; those that hold come first.
    pub queue: Vec<ClaimState>,
    /// The last time that a claim of it was broken, if the backend still knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_break: Option<BreakRecord>,
    /// In a listing: why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged: Option<String>,
}

/// One claim of a queue, without its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimState {
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
    /// Who.
    pub holder: ClientIdentity,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The ttl that it asked for.
    pub ttl_ms: u64,
    /// What is left of its lease.
    pub expires_in_ms: u64,
    /// How long ago it was put into the queue.
    pub queued_for_ms: u64,
    /// How long it has been holding; absent while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_for_ms: Option<u64>,
    /// Whether it was broken gracefully, and goes when its lease ends.
    pub broken: bool,
}

impl ClaimState {
    fn of(claim: state::ClaimState) -> Self {
        let (mode, permits, limit) = ModeKind::of(claim.mode);
        Self {
            token: claim.token,
            mode,
            permits,
            limit,
            holder: claim.identity,
            note: claim.note,
            ttl_ms: ms_down(claim.ttl),
            expires_in_ms: ms_down(claim.expires_in),
            queued_for_ms: ms_down(claim.queued_for),
            held_for_ms: claim.held_for.map(ms_down),
            broken: claim.broken,
        }
    }

    fn for_driver(self) -> state::ClaimState {
        let mode = match (self.mode, self.permits, self.limit) {
            (ModeKind::Exclusive, ..) => Mode::Exclusive,
            (ModeKind::Shared, ..) => Mode::Shared,
            (ModeKind::Permits, permits, limit) => {
                Mode::Permits { permits: permits.unwrap_or(1), limit: limit.unwrap_or(1) }
            }
        };
        let mut claim = state::ClaimState::new(self.token, mode, self.holder);
        claim.note = self.note;
        claim.ttl = Duration::from_millis(self.ttl_ms);
        claim.expires_in = Duration::from_millis(self.expires_in_ms);
        claim.queued_for = Duration::from_millis(self.queued_for_ms);
        claim.held_for = self.held_for_ms.map(Duration::from_millis);
        claim.broken = self.broken;
        claim
    }
}

impl Lock {
    /// What is answered for a state.
    pub fn of(state: LockState) -> Self {
        Self {
            key: Key::of(&state.key),
            queue: state.queue.into_iter().map(ClaimState::of).collect(),
            last_break: state.last_break,
            damaged: state.damaged,
        }
    }

    /// The state for a driver.
    pub fn for_driver(self) -> Result<LockState, Error> {
        let queue = self.queue.into_iter().map(ClaimState::for_driver).collect();
        let mut state = LockState::new(self.key.for_driver()?, queue, self.last_break);
        state.damaged = self.damaged;
        Ok(state)
    }
}

/// `POST /v1/changed`: answers with the lock once its queue is not this one any more.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Changed;
///
/// let json = r#"
///     {"key": {"name": "invoice/42"}, "wait_ms": 25000,
///      "known": [{"token": "42", "mode": "exclusive", "holds": true}]}
/// "#;
/// let it: Changed = serde_json::from_str(json)?;
/// assert!(it.known[0].holds);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// Which lock.
    pub key: Key,
    /// The queue that the client has seen.
    pub known: Vec<KnownClaim>,
    /// How long the answer may wait: 25 s at most. It then has the queue that was seen.
    #[serde(default)]
    pub wait_ms: u64,
}

/// What tells two lines apart, of each claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownClaim {
    /// Its token.
    #[serde(with = "text")]
    pub token: Token,
    /// Its mode.
    pub mode: ModeKind,
    /// Of a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Of a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Whether it holds.
    pub holds: bool,
    /// Whether it was broken gracefully.
    #[serde(default)]
    pub broken: bool,
}

impl Changed {
    /// What is sent for a state that was seen.
    pub fn of(key: &lockkit_core::Key, seen: &LockState, wait_ms: u64) -> Self {
        let seen = seen.queue.iter().cloned().map(ClaimState::of).map(|it| KnownClaim {
            token: it.token,
            mode: it.mode,
            permits: it.permits,
            limit: it.limit,
            holds: it.held_for_ms.is_some(),
            broken: it.broken,
        });
        Self { key: Key::of(key), known: seen.collect(), wait_ms }
    }
}

/// The state that was seen, as far as it tells lines apart.
pub fn claim_states(seen: Vec<KnownClaim>) -> Vec<state::ClaimState> {
    let nobody = || ClientIdentity::new(String::new(), 0, String::new());
    seen.into_iter()
        .map(|it| ClaimState {
            token: it.token,
            mode: it.mode,
            permits: it.permits,
            limit: it.limit,
            holder: nobody(),
            note: None,
            ttl_ms: 0,
            expires_in_ms: 0,
            queued_for_ms: 0,
            held_for_ms: it.holds.then_some(0),
            broken: it.broken,
        })
        .map(ClaimState::for_driver)
        .collect()
}

/// `POST /v1/list`: the locks in use, a page at a time.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ListBody;
///
/// let it: ListBody = serde_json::from_str(r#"{"namespace": "shop", "names": "invoice/"}"#)?;
/// assert_eq!(it.limit, ListBody::most());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListBody {
    /// As in [`Claim`](super::Claim).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// One space; both when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceName>,
    /// Names that begin with this, byte for byte.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub names: String,
    /// Where the last page ended: its `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most this many: 1,000 at most, and by default.
    #[serde(default = "ListBody::most")]
    pub limit: usize,
}

impl ListBody {
    /// The longest page.
    pub fn most() -> usize {
        1_000
    }
}

/// Some of the locks in use.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Page;
///
/// let it: Page = serde_json::from_str(r#"{"locks": [], "next": "bGludm9pY2UvNDI"}"#)?;
/// assert!(it.next.is_some(), "there is another page");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page {
    /// The locks.
    pub locks: Vec<Lock>,
    /// Where the next page begins; absent when this was the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A cursor as text.
pub(crate) fn cursor_text(cursor: &Cursor) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&cursor.0)
}

/// The cursor that [`cursor_text`] made a text of.
pub(crate) fn cursor(text: &str) -> Result<Cursor, Error> {
    use base64::Engine;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text);
    bytes
        .map(Cursor)
        .map_err(|_| Error::config("this cursor is not of a listing: give `next` of the last page"))
}

impl Page {
    /// What is answered for a page.
    pub fn of(page: state::Page) -> Self {
        Self {
            locks: page.states.into_iter().map(Lock::of).collect(),
            next: page.next.as_ref().map(cursor_text),
        }
    }

    /// The page for a driver.
    pub fn for_driver(self) -> Result<state::Page, Error> {
        let states = self.locks.into_iter().map(Lock::for_driver).collect::<Result<_, _>>()?;
        Ok(state::Page { states, next: self.next.as_deref().map(cursor).transpose()? })
    }
}

impl ListBody {
    /// What is sent for a request.
    pub fn of(request: &state::ListRequest) -> Self {
        Self {
            namespace: request.namespace.as_str().to_owned(),
            space: request.space.map(SpaceName::from),
            names: request.prefix.clone(),
            after: request.after.as_ref().map(cursor_text),
            limit: request.limit.clamp(1, Self::most()),
        }
    }

    /// The request for a driver, checked.
    pub fn for_driver(self) -> Result<state::ListRequest, Error> {
        Ok(state::ListRequest {
            namespace: Namespace::new(&self.namespace)?,
            space: self.space.map(Space::from),
            prefix: self.names,
            after: self.after.as_deref().map(cursor).transpose()?,
            limit: self.limit.clamp(1, Self::most()),
        })
    }
}

/// `POST /v1/resize`: gives a semaphore a limit that stays.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::ResizeBody;
///
/// let it: ResizeBody = serde_json::from_str(r#"{"key": {"name": "imports", "space": "semaphore"}, "limit": 8}"#)?;
/// assert!(!it.if_unset);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeBody {
    /// Which semaphore; its space is `semaphore`.
    pub key: Key,
    /// The limit.
    pub limit: u32,
    /// Only if it has none.
    #[serde(default)]
    pub if_unset: bool,
}

impl ResizeBody {
    /// For a driver.
    pub fn limit(&self) -> SetLimit {
        match self.if_unset {
            true => SetLimit::IfUnset(self.limit),
            false => SetLimit::To(self.limit),
        }
    }
}

/// The limit that a semaphore has now.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The limit.
    pub limit: u32,
}

/// `POST /v1/break`: breaks the claim that has this token.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::BreakBody;
///
/// let json = r#"
///     {"key": {"name": "invoice/42"}, "token": "42", "reason": "the host is gone"}
/// "#;
/// let it: BreakBody = serde_json::from_str(json)?;
/// assert!(!it.force, "gracefully");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakBody {
    /// Which lock.
    pub key: Key,
    /// The token of the claim, so that no other claim is broken by mistake.
    #[serde(with = "text")]
    pub token: Token,
    /// At once, instead of gracefully: from there on only tokens protect.
    #[serde(default)]
    pub force: bool,
    /// Who does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ClientIdentity>,
    /// When, by the breaker's clock; the service's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_unix_ms: Option<u64>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to a [`BreakBody`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BreakResult {
    /// Whether there was such a claim.
    pub found: bool,
}
