//! What a register's node contains, and the rule by which a write changes it. No I/O.

use std::time::Duration;

use lockkit_core::Token;
use lockkit_core::driver::{Entry, Expect, StoreOutcome, Version, WriteId};

/// What a register's node contains.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
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

impl Cell {
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

    pub(crate) fn entry(self) -> Option<Entry> {
        let token = Token::new(self.highest);
        self.value.map(|value| Entry { value, version: Version(self.version), token })
    }
}

/// A change of a register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) expect: Expect,
    pub(crate) token: Option<Token>,
    pub(crate) write_id: WriteId,
    pub(crate) ttl: Option<Duration>,
    /// Whether an earlier attempt of it may have been applied.
    pub(crate) repeated: bool,
}

impl Change<'_> {
    /// What the cell becomes, or why it does not.
    pub(crate) fn judge(&self, cell: &Cell) -> Result<Cell, StoreOutcome> {
        if cell.version > 0 && cell.write_id == self.write_id.0 {
            return Err(StoreOutcome::Stored(Version(cell.version)));
        }
        let highest = Token::new(cell.highest);
        if let (Some(token), Some(highest)) = (self.token, highest)
            && token < highest
        {
            return Err(StoreOutcome::Stale { highest });
        }
        let as_expected = match self.expect {
            Expect::Anything => true,
            Expect::Absent => cell.value.is_none(),
            Expect::Version(Version(version)) => cell.value.is_some() && cell.version == version,
        };
        if !as_expected || (self.repeated && self.may_be_overwritten(cell)) {
            return Err(StoreOutcome::Conflict);
        }
        Ok(Cell {
            version: cell.version + 1,
            highest: self.token.map_or(cell.highest, Token::get),
            write_id: self.write_id.0,
            ttl_ms: self.ttl.map_or(0, whole_ms),
            value: self.value.map(<[u8]>::to_vec),
        })
    }

    /// Whether an earlier attempt may have been applied and then overwritten by somebody, so that
    /// to apply it again would undo what came after it. A write that neither compares nor is fenced
    /// promises nothing about that.
    fn may_be_overwritten(&self, cell: &Cell) -> bool {
        let first_of_its_token = self.token.is_some_and(|token| token.get() > cell.highest);
        let compares = matches!(self.expect, Expect::Absent);
        let fenced = self.token.is_some() && !matches!(self.expect, Expect::Version(_));
        cell.version > 0 && !first_of_its_token && (compares || fenced)
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
        let full = Cell {
            version: 7,
            highest: u64::MAX,
            write_id: [9; 16],
            ttl_ms: 5,
            value: Some(vec![0, 255]),
        };
        for cell in [Cell::empty(), full.clone(), Cell { value: Some(Vec::new()), ..full }] {
            assert_eq!(Cell::read(&cell.write()), Some(cell));
        }
        assert_eq!(Cell::read(b""), None);
        assert_eq!(Cell::read(b"somebody's data, long enough to be a cell of ours...."), None);
    }

    fn change(expect: Expect, token: Option<u64>, write: u8) -> Change<'static> {
        let token = token.and_then(Token::new);
        let write_id = WriteId([write; 16]);
        Change { value: Some(b"new"), expect, token, write_id, ttl: None, repeated: false }
    }

    fn cell(version: u64, highest: u64, value: Option<&[u8]>) -> Cell {
        let value = value.map(<[u8]>::to_vec);
        Cell { version, highest, write_id: [1; 16], ttl_ms: 0, value }
    }

    /// Each row of the rule in turn: the first that says something counts.
    #[test]
    fn a_write_is_judged_by_its_id_its_token_what_it_expects_and_what_may_have_come_between() {
        let seen = cell(7, 50, Some(b"old"));
        let mine = change(Expect::Absent, Some(1), 1);
        assert_eq!(mine.judge(&seen), Err(StoreOutcome::Stored(Version(7))));
        let highest = Token::new(50).unwrap();
        let stale = change(Expect::Absent, Some(49), 2);
        assert_eq!(stale.judge(&seen), Err(StoreOutcome::Stale { highest }));
        for expect in [Expect::Absent, Expect::Version(Version(6))] {
            let other = change(expect, Some(50), 2);
            assert_eq!(other.judge(&seen), Err(StoreOutcome::Conflict));
        }
        for expect in [Expect::Anything, Expect::Version(Version(7))] {
            let next = change(expect, None, 2).judge(&seen).unwrap();
            assert_eq!((next.version, next.highest), (8, 50));
            let next = change(expect, Some(60), 2).judge(&seen).unwrap();
            assert_eq!((next.version, next.highest, next.write_id), (8, 60, [2; 16]));
        }
        let gone = cell(8, 50, None);
        let version = change(Expect::Version(Version(8)), None, 2);
        assert_eq!(version.judge(&gone), Err(StoreOutcome::Conflict), "there is no value");
    }

    #[test]
    fn a_repeated_write_never_undoes_what_came_after_its_first_attempt() {
        let gone = cell(8, 50, None);
        let there = cell(8, 50, Some(b"theirs"));
        let repeated = |expect, token| Change { repeated: true, ..change(expect, token, 2) };
        let conflict = Err(StoreOutcome::Conflict);
        assert_eq!(repeated(Expect::Absent, None).judge(&gone), conflict);
        assert_eq!(repeated(Expect::Absent, Some(50)).judge(&gone), conflict);
        assert_eq!(repeated(Expect::Anything, Some(50)).judge(&there), conflict);
        // Nobody can have come between: not with this token, not at this version, not at all.
        assert!(repeated(Expect::Absent, Some(51)).judge(&gone).is_ok());
        assert!(repeated(Expect::Anything, Some(51)).judge(&there).is_ok());
        assert!(repeated(Expect::Version(Version(8)), Some(50)).judge(&there).is_ok());
        assert!(repeated(Expect::Absent, None).judge(&Cell::empty()).is_ok());
        // It promises nothing.
        assert!(repeated(Expect::Anything, None).judge(&there).is_ok());
    }
}
