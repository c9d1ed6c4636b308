//! How claims stand in rows: what the columns of every dialect mean, and back. No SQL and no I/O.

use std::fmt::Display;
use std::time::Duration;

use lockkit_core::{BreakRecord, Error, Key, Mode, Name, Namespace, Result, Space, Token};

/// A stretch of time in the nanoseconds of a column. What is longer than a hundred years is a
/// hundred years, so that sums stay far from the end of an `i64`.
pub(crate) fn nanos(d: Duration) -> i64 {
    const CENTURY: u64 = 100 * 366 * 86_400;
    Duration::min(d, Duration::from_secs(CENTURY)).as_nanos() as i64
}

/// A stretch of time in the microseconds of a server's column, rounded up; bounded as `nanos`.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn micros(d: Duration) -> i64 {
    (nanos(d) + 999) / 1_000
}

/// What `micros` wrote; what is negative is zero.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn from_micros(micros: i64) -> Duration {
    duration(micros.saturating_mul(1_000))
}

/// What `nanos` wrote; what is negative is zero.
pub(crate) fn duration(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// The least text behind `after`, or that of the beginning.
pub(crate) fn behind(after: Option<&str>, beginning: &str) -> String {
    after.map_or_else(|| beginning.to_owned(), |after| format!("{after}\0"))
}

/// The number of a space.
pub(crate) const fn space_number(space: Space) -> i64 {
    match space {
        Space::Lock => 0,
        Space::Semaphore => 1,
    }
}

/// The space of a number.
pub(crate) const fn space_of(number: i64) -> Space {
    if number == 0 { Space::Lock } else { Space::Semaphore }
}

/// The columns by which a queue is known, in the order in which queues are locked.
pub(crate) fn columns(key: &Key) -> (&str, i64, &str) {
    (key.namespace.as_str(), space_number(key.space), key.name.as_str())
}

/// The queue of these columns; `None` where they are damaged.
pub(crate) fn key_of(namespace: &str, space: i64, name: &str) -> Option<Key> {
    let namespace = Namespace::new(namespace).ok()?;
    Some(Key::new(namespace, space_of(space), Name::new(name).ok()?))
}

/// The mode of a row; weight and capacity are what [`lockkit_core::queue`] says.
pub(crate) fn mode_of(space: Space, weight: i64, capacity: i64) -> Mode {
    match space {
        Space::Semaphore => Mode::Permits {
            permits: u32::try_from(weight).unwrap_or(u32::MAX),
            limit: u32::try_from(capacity).unwrap_or(u32::MAX),
        },
        Space::Lock if weight == capacity => Mode::Exclusive,
        Space::Lock => Mode::Shared,
    }
}

/// A token of a row. A row cannot hold 0, so a damaged one reads as the least token.
pub(crate) fn token_of(number: i64) -> Token {
    Token::new(number.max(1) as u64).expect("a positive i64 is a token")
}

/// A break record of a row.
pub(crate) fn break_record(json: Option<impl AsRef<[u8]>>) -> Option<BreakRecord> {
    BreakRecord::from_json(json?)
}

/// The refusal of tables that another version of lockkit made.
pub(crate) fn other_version(place: &str, found: impl Display, needed: i64) -> String {
    format!(
        "the lockkit tables at {place} have version {found}, and this lockkit needs version \
         {needed}: use the lockkit that made them, or drop them, which ends all locks in them"
    )
}

/// Whether a token, or a base of tokens, may be raised to this: half of the range is left.
pub(crate) fn check_raise(token: u64) -> Result<()> {
    match token <= i64::MAX as u64 / 2 {
        true => Ok(()),
        false => Err(Error::config("this is beyond half of all tokens: too few would be left")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_survives_its_columns() {
        let permits = Mode::Permits { permits: 3, limit: 3 };
        for mode in [Mode::Exclusive, Mode::Shared, permits] {
            let back = mode_of(
                space_of(space_number(mode.space())),
                mode.weight().into(),
                mode.capacity().into(),
            );
            assert_eq!(back, mode);
        }
    }

    #[test]
    fn a_huge_ttl_stays_far_from_the_end_of_the_column() {
        assert!(nanos(Duration::MAX) < i64::MAX / 2);
        assert_eq!(duration(nanos(Duration::from_secs(30))).as_secs(), 30);
        assert_eq!(duration(-5), Duration::ZERO);
    }
}
