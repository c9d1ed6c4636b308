//! What stands in the list of a lock: the claim, its id, its mode, its token. Plain data: no I/O,
//! no time.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rand::RngCore;
use serde::{Deserialize, Serialize};

use crate::{Error, Key, Space};

/// The secret name of a claim: 128 random bits, made by the client.
///
/// Whoever knows it can renew and release the claim, so it is shown to nobody: `Debug` hides it,
/// and no error, log or metric contains it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// A new id from the thread's cryptographic generator.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        rand::rng().fill_bytes(&mut bytes);
        Self(bytes)
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

/// A fencing token: the place of a claim in the order of its lock.
///
/// For one name, a later conflicting holder has a greater token. A resource that remembers the
/// greatest token it has seen, and refuses lower ones, is safe from a holder that lost its lock
/// without noticing. Fits into a signed 64-bit column. Tokens of different names, and of different
/// backends, do not compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(NonZeroU64);

impl Token {
    /// The token of this number; `None` for 0 and for what does not fit into an `i64`.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(n) if number <= i64::MAX as u64 => Some(Self(n)),
            _ => None,
        }
    }

    /// The number, from 1 to `i64::MAX`.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as databases keep it.
    pub const fn as_i64(self) -> i64 {
        self.0.get() as i64
    }
}

impl TryFrom<u64> for Token {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self, Error> {
        let range = i64::MAX;
        let error = || Error::Config(format!("{number} is no token: they go from 1 to {range}"));
        Self::new(number).ok_or_else(error)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

/// Reads the decimal number that [`Display`](fmt::Display) shows.
impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = |_| Error::Config(format!("{text:?} is no token: it is a decimal number"));
        text.parse().map_err(error).and_then(|number: u64| Self::try_from(number))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

/// How a claim shares the lock with others. [`queue`](crate::queue) has the rule.
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
}

/// What is to become of a claim when nobody renews it, and whether somebody will.
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

/// Who stands behind a claim, as shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Identity {
    pub host: String,
    pub pid: u32,
    pub program: String,
}

impl Identity {
    /// This process: the host's name, the process id, the program's file name.
    pub fn of_this_process() -> Self {
        let program = std::env::args_os()
            .next()
            .and_then(|path| {
                Some(std::path::Path::new(&path).file_name()?.to_string_lossy().into_owned())
            })
            .unwrap_or_else(|| "unknown".to_owned());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, pid: std::process::id(), program }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]@{}", self.program, self.pid, self.host)
    }
}

/// What a client asks a driver to put into the list of a lock.
///
/// Two claims with the same [`id`](Self::id) are the same claim: a driver that is asked twice does
/// it once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The secret that renews and releases.
    pub id: ClaimId,
    /// The list that it stands in. Its space is that of the mode.
    pub key: Key,
    /// How it shares.
    pub mode: Mode,
    /// How long it lives without being renewed while it holds.
    pub hold_ttl: Duration,
    /// How long it lives without being renewed while it waits. Short, so that a dead waiter blocks
    /// nobody for long.
    pub wait_ttl: Duration,
    /// Whether it is renewed, and whether it outlives its process.
    pub lifetime: Lifetime,
    /// Who is asking, for people.
    pub identity: Arc<Identity>,
    /// Why, for people.
    pub note: Option<Arc<str>>,
}

impl Claim {
    /// A renewed claim without a note, with a new random id.
    ///
    /// # Panics
    /// When `key` is not in the space of `mode`.
    pub fn new(
        key: Key,
        mode: Mode,
        hold_ttl: Duration,
        wait_ttl: Duration,
        identity: Arc<Identity>,
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
        }
    }

    /// About how many bytes a request carries for this claim: its key, its identity and its note in
    /// the worst encoding, and 256 for the rest.
    pub fn weight(&self) -> usize {
        let Identity { host, program, .. } = &*self.identity;
        let note = self.note.as_ref().map_or(0, |note| note.len());
        let key = self.key.namespace.as_str().len() + self.key.name.as_str().len();
        256 + 2 * (key + host.len() + program.len() + note)
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

    #[test]
    fn a_token_is_positive_and_fits_a_signed_column() {
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(i64::MAX as u64).unwrap().as_i64(), i64::MAX);
        assert_eq!(Token::new(i64::MAX as u64 + 1), None);
    }

    #[test]
    fn the_identity_of_this_process_names_it() {
        let identity = Identity::of_this_process();
        assert_eq!(identity.pid, std::process::id());
        assert!(!identity.host.is_empty() && !identity.program.is_empty());
    }
}
