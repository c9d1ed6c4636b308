//! What a register's node contains, and the rule by which a write changes it. No I/O.

use std::time::Duration;

use lockkit_core::Token;
use lockkit_core::driver::{FoundRegister, RegisterEntry, Version, Write, WriteId, WriteResult};

/// What a register's node contains.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegisterRecord {
    pub(crate) version: u64,
    /// 0 for none.
    pub(crate) highest: u64,
    pub(crate) write_id: [u8; 16],
    /// By the server's clock, in milliseconds since 1970 from the node's last change; 0 for never.
    pub(crate) ttl_ms: u64,
    pub(crate) value: Option<Vec<u8>>,
}

const MARK: u8 = 1;
const HEAD: usize = 1 + 8 + 8 + 16 + 8 + 1;

impl RegisterRecord {
    pub(crate) fn empty() -> Self {
        Self { version: 0, highest: 0, write_id: [0; 16], ttl_ms: 0, value: None }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let value = self.value.as_deref();
        let mut bytes = Vec::with_capacity(HEAD + value.map_or(0, <[u8]>::len));
        bytes.push(MARK);
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(&self.highest.to_be_bytes());
        bytes.extend_from_slice(&self.write_id);
        bytes.extend_from_slice(&self.ttl_ms.to_be_bytes());
        bytes.push(u8::from(value.is_some()));
        bytes.extend_from_slice(value.unwrap_or_default());
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        (*bytes.first()? == MARK).then_some(())?;
        Some(Self {
            version: number(1)?,
            highest: number(9)?,
            write_id: bytes.get(17..33)?.try_into().ok()?,
            ttl_ms: number(33)?,
            value: match bytes.get(41)? {
                0 => None,
                _ => Some(bytes[HEAD..].to_vec()),
            },
        })
    }

    /// The same with an empty value in the place of one.
    pub(crate) fn without_value(self) -> Self {
        Self { value: self.value.map(|_| Vec::new()), ..self }
    }

    /// Whether its value goes by itself.
    pub(crate) fn ends(&self) -> bool {
        self.ttl_ms > 0 && self.value.is_some()
    }

    /// What is left of its value's time, so many milliseconds after the write. At the end of it
    /// there is no value.
    pub(crate) fn lapse(&mut self, age_ms: i64) -> Duration {
        let left = self.ttl_ms.saturating_sub(u64::try_from(age_ms).unwrap_or(0));
        if left == 0 {
            self.value = None;
        }
        Duration::from_millis(left)
    }

    fn found(&self) -> FoundRegister {
        FoundRegister {
            version: (self.version > 0).then_some(Version(self.version)),
            present: self.value.is_some(),
            token: Token::new(self.highest),
            last_write: Some(WriteId(self.write_id)),
        }
    }

    /// What the cell becomes by a write, or why it does not.
    pub(crate) fn after(&self, write: &Write) -> Result<RegisterRecord, WriteResult> {
        if let Some(outcome) = WriteResult::decide(&self.found(), write) {
            return Err(outcome);
        }
        Ok(RegisterRecord {
            version: self.version + 1,
            highest: write.token.map_or(self.highest, Token::get),
            write_id: write.write_id.0,
            ttl_ms: write.ttl.map_or(0, whole_ms),
            value: write.value.clone(),
        })
    }

    pub(crate) fn entry(self) -> Option<RegisterEntry> {
        let token = Token::new(self.highest);
        self.value.map(|value| RegisterEntry::new(value, Version(self.version), token))
    }
}

fn whole_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_survives_writing_and_reading() {
        let full = RegisterRecord {
            version: 7,
            highest: u64::MAX,
            write_id: [9; 16],
            ttl_ms: 5,
            value: Some(vec![0, 255]),
        };
        for record in [
            RegisterRecord::empty(),
            full.clone(),
            RegisterRecord { value: Some(Vec::new()), ..full },
        ] {
            assert_eq!(RegisterRecord::read(&record.write()), Some(record));
        }
        assert_eq!(RegisterRecord::read(b""), None);
        assert_eq!(
            RegisterRecord::read(b"somebody's data, long enough to be a record of ours...."),
            None
        );
    }
}
