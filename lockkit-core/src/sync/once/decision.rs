//! What was decided, by whom and when, and how a register keeps that: one byte for the encoding,
//! two for the length of a JSON head, the head, the value.

use serde::{Deserialize, Serialize};

use crate::driver::Entry;
use crate::{ClientIdentity, Error, MAX_REGISTER_BYTES, Token};

/// What was decided for a key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let report = locks.once("2026-11-21/report");
/// let first = report.run(async |_lock| Ok::<_, lockkit_core::Error>("42 pages")).await?;
/// let again = report.run(async |_lock| Ok::<_, lockkit_core::Error>("done twice")).await?;
/// assert_eq!(again.value, b"42 pages");
/// assert_eq!(again.token, first.token);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// What the work returned: at most 60,000 bytes.
    pub value: Vec<u8>,
    /// Who did it.
    pub by: ClientIdentity,
    /// When, in milliseconds since 1970 by the clock of who did it: for people, not for decisions.
    pub at_unix_ms: u64,
    /// Under which token.
    pub token: Token,
}

#[derive(Serialize, Deserialize)]
struct Head {
    by: ClientIdentity,
    at: u64,
    token: u64,
}

const ENCODING: u8 = 1;
const MAX_VALUE_BYTES: usize = 60_000;

impl Decision {
    /// Refuses what does not fit, before any I/O.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.value.len() > MAX_VALUE_BYTES || self.to_bytes().len() > MAX_REGISTER_BYTES {
            let bytes = self.value.len();
            let message = format!("a decision has {MAX_VALUE_BYTES} bytes at most, not {bytes}");
            return Err(Error::Config(message));
        }
        Ok(())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let head = Head { by: self.by.clone(), at: self.at_unix_ms, token: self.token.get() };
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let mut bytes = vec![ENCODING];
        bytes.extend((head.len() as u16).to_be_bytes());
        bytes.extend(head);
        bytes.extend(&self.value);
        bytes
    }

    /// `None` when this version cannot read it.
    pub(super) fn from_entry(entry: &Entry) -> Option<Self> {
        let rest = entry.value.strip_prefix(&[ENCODING])?;
        let (length, rest) = rest.split_first_chunk()?;
        let (head, value) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        let Head { by, at, token } = serde_json::from_slice(head).ok()?;
        Some(Self { value: value.to_vec(), by, at_unix_ms: at, token: Token::new(token)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    #[test]
    fn a_decision_survives_its_bytes_and_what_is_none_is_not_read_as_one() {
        let decision = Decision {
            value: b"\0\xff".to_vec(),
            by: ClientIdentity::of_this_process(),
            at_unix_ms: 7,
            token: Token::new(9).unwrap(),
        };
        let entry = |value: Vec<u8>| Entry { value, version: Version(1), token: None };
        let good = decision.to_bytes();
        assert_eq!(Decision::from_entry(&entry(good.clone())), Some(decision));
        let mut newer = good.clone();
        newer[0] = 2;
        for bad in [vec![], vec![1], good[..9].to_vec(), newer] {
            assert_eq!(Decision::from_entry(&entry(bad)), None);
        }
    }
}
