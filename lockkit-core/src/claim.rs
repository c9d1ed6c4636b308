//! The claim, its id, its mode, its lifetime. Plain data: no I/O, no time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::ClientIdentity;
use crate::{Error, Key, Space, unique};

/// The secret name of a claim: 128 random bits, made by the client.
///
/// It renews and releases the claim, so it is a secret: `Debug` hides it,
/// and no error, log or metric contains it.
///
/// ```
/// use lockkit_core::driver::ClaimId;
///
/// let id = ClaimId::random();
/// assert_eq!(ClaimId::from_hex(&id.to_hex()), Some(id));
/// assert_eq!(ClaimId::from_bytes(*id.as_bytes()), id);
/// assert_eq!(format!("{id:?}"), "ClaimId(…)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// A new id, from the kernel's generator: a process that was forked, or a machine that was copied,
    /// makes others.
    pub fn random() -> Self {
        Self(unique::id())
    }

    /// The id with these bytes, for a driver that reads its own storage.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes, for a driver that writes them to its backend.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 32 lower-case hexadecimal digits, for backends that keep text.
    pub fn to_hex(self) -> String {
        // On the way of every request: by hand, since formatting takes ten times as long.
        let digit = |n: u8| char::from(b"0123456789abcdef"[usize::from(n)]);
        let mut hex = String::with_capacity(32);
        for byte in self.0 {
            hex.push(digit(byte >> 4));
            hex.push(digit(byte & 15));
        }
        hex
    }

    /// Reads what [`to_hex`](Self::to_hex) wrote.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let ok = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let bits = ok.then(|| u128::from_str_radix(hex, 16).ok())??;
        Some(Self(bits.to_be_bytes()))
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimId(…)")
    }
}

/// How a claim shares the lock with others. [`queue`](crate::queue) has the rule.
///
/// ```
/// use lockkit_core::{Mode, Space};
///
/// let permits = Mode::Permits { permits: 2, limit: 8 };
/// assert_eq!(permits.space(), Space::Semaphore);
/// assert_eq!(permits.limit(), Some(8));
/// assert_eq!(Mode::Shared.space(), Space::Lock);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone: a mutex, or the writer of a read-write lock.
    Exclusive,
    /// Beside other shared claims: a reader.
    Shared,
    /// Some of a semaphore's permits. The limit belongs to the semaphore while it has claims.
    Permits {
        /// How many this claim takes; 1 to `limit`.
        permits: u32,
        /// How many there are.
        limit: u32,
    },
}

impl Mode {
    /// The space in which claims of this mode live.
    pub const fn space(self) -> Space {
        match self {
            Self::Exclusive | Self::Shared => Space::Lock,
            Self::Permits { .. } => Space::Semaphore,
        }
    }

    /// `exclusive`, `shared` or `permits`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits { .. } => "permits",
        }
    }

    /// The semaphore's limit; `None` in the lock space.
    pub const fn limit(self) -> Option<u32> {
        match self {
            Self::Permits { limit, .. } => Some(limit),
            _ => None,
        }
    }

    /// Refuses permits that can never be had: none, or more than the limit, unless that may be
    /// raised.
    pub(crate) fn check(self, resizable: bool) -> Result<(), Error> {
        let Self::Permits { permits, limit } = self else {
            return Ok(());
        };
        if permits == 0 || (limit == 0 && !resizable) {
            return Err(Error::config("a semaphore has, and gives, one permit at least"));
        }
        if permits > limit && !resizable {
            let message = format!("{permits} permits of a semaphore of {limit} can never be had");
            return Err(Error::Config(message));
        }
        Ok(())
    }
}

/// Whether a claim is renewed, and what happens to it when it is not.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::Lifetime;
///
/// let claim = (*claim("nightly", Mode::Exclusive)?).clone();
/// assert_eq!(claim.lifetime, Lifetime::Renewed);
/// let detached = claim.with_lifetime(Lifetime::Detached);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lifetime {
    /// Renewed for as long as its process lives. Backends may let such claims share one lease.
    Renewed,
    /// Never renewed in the background: ends on its own after its ttl.
    Fixed,
    /// Outlives the process that made it, until its ttl is over or a ticket renews it. Where the
    /// backend's lease is that of a session, this is unsupported.
    Detached,
}

/// Ends what a user wrote in a note, which has no control characters. What stands behind it is a
/// composed driver's own, and shown by no manager.
pub const MARK: char = '\u{1f}';

/// What a client asks a driver to put into the queue of a lock.
///
/// Two claims with the same [`id`](Self::id) are the same claim: a driver that is asked twice does
/// it once.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use std::{sync::Arc, time::Duration};
/// use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
///
/// let key = Key::new(Namespace::new("shop")?, Space::Lock, Name::new("invoice/42")?);
/// let (hold_ttl, wait_ttl) = (Duration::from_secs(30), Duration::from_secs(10));
/// let me = Arc::new(ClientIdentity::of_this_process());
/// let claim = Claim::new(key, Mode::Exclusive, hold_ttl, wait_ttl, me)
///     .with_note(Some("paying".into()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The secret that renews and releases.
    pub id: ClaimId,
    /// The lock whose queue it is in. Its space is that of the mode.
    pub key: Key,
    /// How it shares.
    pub mode: Mode,
    /// How long it lives without being renewed while it holds.
    pub hold_ttl: Duration,
    /// How long it lives without being renewed while it waits. Short, so that a dead waiter blocks
    /// no other for long.
    pub wait_ttl: Duration,
    /// Whether it is renewed, and whether it outlives its process.
    pub lifetime: Lifetime,
    /// The client, for people.
    pub identity: Arc<ClientIdentity>,
    /// Why, for people.
    pub note: Option<Arc<str>>,
    /// Whether the semaphore's limit may be [changed](crate::driver::LockDriver::resize), so that
    /// a claim for more permits than the limit waits and is no mistake.
    pub resizable: bool,
}

impl Claim {
    /// The error for a claim to a semaphore that is in use with another limit.
    pub fn other_limit(&self, in_use: u32) -> Error {
        let asked = self.mode.limit().unwrap_or_default();
        Error::LimitMismatch { name: self.key.name.as_str().to_owned(), in_use, asked }
    }

    /// A renewed claim without a note, with a new random id.
    ///
    /// # Panics
    /// When `key` is not in the space of `mode`.
    pub fn new(
        key: Key,
        mode: Mode,
        hold_ttl: Duration,
        wait_ttl: Duration,
        identity: Arc<ClientIdentity>,
    ) -> Self {
        assert_eq!(key.space, mode.space(), "a claim lives in the space of its mode");
        let id = ClaimId::random();
        Self {
            id,
            key,
            mode,
            hold_ttl,
            wait_ttl,
            lifetime: Lifetime::Renewed,
            identity,
            note: None,
            resizable: false,
        }
    }

    /// About how many bytes a request carries for this claim: its key, its identity and its note in
    /// the worst encoding, and 256 for the rest.
    pub fn weight(&self) -> usize {
        let ClientIdentity { host, program, .. } = &*self.identity;
        let note = self.note.as_ref().map_or(0, |note| note.len());
        let key = self.key.namespace.as_str().len() + self.key.name.as_str().len();
        256 + 2 * (key + host.len() + program.len() + note)
    }

    /// Refuses a claim that could never hold, and would keep those behind it waiting: one for more
    /// permits than the limit of a semaphore that is not [`resizable`](Self::resizable). For an
    /// acquire only: a claim that is in the queue is known by its id, and the limit may have changed.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkit_core::Error> {
    /// # use std::{sync::Arc, time::Duration};
    /// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
    /// let key = Key::new(Namespace::default(), Space::Semaphore, Name::new("pool")?);
    /// let (ttl, me) = (Duration::from_secs(30), Arc::new(ClientIdentity::of_this_process()));
    /// let claim = Claim::new(key, Mode::Permits { permits: 9, limit: 3 }, ttl, ttl, me);
    /// assert!(claim.check_acquire().is_err());
    /// assert!(claim.with_resizable(true).check_acquire().is_ok());
    /// # Ok(()) }
    /// ```
    pub fn check_acquire(&self) -> Result<(), Error> {
        self.mode.check(self.resizable)
    }

    /// Refuses a claim that could never hold in a queue with this given limit, if it was given one: for
    /// drivers that apply the rule themselves, to an acquire.
    pub fn check_permits(&self, given: Option<u32>) -> Result<(), Error> {
        let (permits, limit) = (self.mode.weight(), self.mode.capacity());
        if permits == 0 || (permits > limit && given.is_none()) {
            return Err(Error::Config(format!(
                "{permits} permits of {limit}: ask for 1 to {limit}"
            )));
        }
        Ok(())
    }

    /// The same claim, of a semaphore whose limit may be changed.
    pub fn with_resizable(mut self, resizable: bool) -> Self {
        self.resizable = resizable;
        self
    }

    /// The same claim with another lifetime.
    pub fn with_lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// The same claim with a note.
    pub fn with_note(mut self, note: Option<Arc<str>>) -> Self {
        self.note = note;
        self
    }

    /// The same claim in another mode of the same space, as after a downgrade.
    pub fn with_mode(mut self, mode: Mode) -> Self {
        assert_eq!(self.key.space, mode.space(), "a claim lives in the space of its mode");
        self.mode = mode;
        self
    }

    /// The same claim with another id, as from a ticket.
    pub fn with_id(mut self, id: ClaimId) -> Self {
        self.id = id;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_hex_and_is_hidden_from_debug() {
        let id = ClaimId::random();
        assert_eq!(ClaimId::from_hex(&id.to_hex()), Some(id));
        assert!(!format!("{id:?}").contains(&id.to_hex()[..6]));
        for bad in ["", "00", &"g".repeat(32), &"A".repeat(32), &"é".repeat(16)] {
            assert_eq!(ClaimId::from_hex(bad), None, "{bad:?}");
        }
    }
}
