//! The rows of `lockkit_claims`: how they are read and written. Knows no rule.

use lockkit_core::clock::Moment;
use lockkit_core::driver::ClaimId;
use lockkit_core::line::Entry;
use lockkit_core::{Claim, Key, Token};
use rusqlite::{Row, named_params, params};

use super::flight::Flight;
use super::worker::Failure;
use crate::rows::{duration, mode_of, nanos, space_number, space_of, to_json, token_of};

/// How much news is kept.
const NEWS: i64 = 1024;

impl Flight<'_> {
    /// So many rows behind a place; the place of the row that only remembers, which is alone; and
    /// whether these are all.
    pub(super) fn load_after(
        &self,
        key: &Key,
        after: i64,
        count: usize,
    ) -> Result<(Vec<Entry>, Option<u64>, bool), Failure> {
        let place = place_of(key);
        let mut entries: Vec<Entry> = self.all(
            include_str!("sql/entries.sql"),
            params![place.0, place.1, place.2, after, count as i64 + 1],
            entry,
        )?;
        let complete = entries.len() <= count;
        entries.truncate(count);
        let ended = |entry: &Entry| entry.expires == Moment::from_nanos(0);
        let remembered = entries.iter().find(|e| ended(e)).map(|entry| entry.place);
        entries.retain(|entry| !ended(entry));
        Ok((entries, remembered, complete))
    }

    pub(super) fn last_row(&self, key: &Key) -> Result<u64, Failure> {
        let place = place_of(key);
        let last: Option<i64> = self.any(
            "SELECT place FROM lockkit_claims WHERE namespace = ?1 AND space = ?2 AND name = ?3
             ORDER BY place DESC LIMIT 1",
            params![place.0, place.1, place.2],
            |row| row.get(0),
        )?;
        Ok(last.unwrap_or(0).max(0).unsigned_abs())
    }

    pub(super) fn insert(&self, key: &Key, entry: &Entry, claim: &Claim) -> Result<(), Failure> {
        self.run(
            include_str!("sql/insert.sql"),
            named_params! {
                ":namespace": key.namespace.as_str(),
                ":space": space_number(key.space),
                ":name": key.name.as_str(),
                ":place": entry.place as i64,
                ":id": entry.id.as_bytes(),
                ":weight": entry.mode.weight(),
                ":capacity": entry.mode.capacity(),
                ":hold_ttl": nanos(entry.hold_ttl),
                ":wait_ttl": nanos(entry.wait_ttl),
                ":now": self.now(),
                ":expires": stored(entry.expires),
                ":held": entry.held_since.map(stored),
                ":identity": to_json(&*claim.identity),
                ":note": claim.note.as_deref(),
            },
        )?;
        Ok(())
    }

    pub(super) fn update(&self, key: &Key, entry: Option<&Entry>) -> Result<(), Failure> {
        let Some(entry) = entry else {
            return Ok(());
        };
        self.run(
            include_str!("sql/update.sql"),
            named_params! {
                ":namespace": key.namespace.as_str(),
                ":space": space_number(key.space),
                ":name": key.name.as_str(),
                ":place": entry.place as i64,
                ":token": entry.token.as_i64(),
                ":weight": entry.mode.weight(),
                ":hold_ttl": nanos(entry.hold_ttl),
                ":wait_ttl": nanos(entry.wait_ttl),
                ":asked": stored(entry.asked_at),
                ":expires": stored(entry.expires),
                ":held": entry.held_since.map(stored),
                ":broken": entry.broken,
            },
        )?;
        Ok(())
    }

    pub(super) fn delete(&self, key: &Key, place: u64) -> Result<(), Failure> {
        let list = place_of(key);
        self.run(
            "DELETE FROM lockkit_claims
             WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place = ?4",
            params![list.0, list.1, list.2, place as i64],
        )?;
        Ok(())
    }

    /// Keeps a row as one that has ended, and remembers its place.
    pub(super) fn end(&self, key: &Key, place: u64) -> Result<(), Failure> {
        let list = place_of(key);
        self.run(
            "UPDATE lockkit_claims SET expires = 0, held = coalesce(held, ?5)
             WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place = ?4",
            params![list.0, list.1, list.2, place as i64, self.now()],
        )?;
        Ok(())
    }

    /// News for the pollers of other processes.
    pub(super) fn tell_others(&self, key: &Key) -> Result<(), Failure> {
        let place = place_of(key);
        self.run(
            "INSERT INTO lockkit_news (namespace, space, name) VALUES (?1, ?2, ?3)",
            params![place.0, place.1, place.2],
        )?;
        let newest = self.connection.last_insert_rowid();
        self.run("DELETE FROM lockkit_news WHERE n <= ?1", [newest - NEWS])?;
        Ok(())
    }

    /// How many live claims stand before a place.
    pub(super) fn ahead(&self, key: &Key, place: u64) -> Result<u32, Failure> {
        let list = place_of(key);
        Ok(self.one(
            "SELECT count(*) FROM lockkit_claims
             WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place < ?4 AND expires > ?5",
            params![list.0, list.1, list.2, place as i64, self.now()],
            |row| row.get(0),
        )?)
    }

    /// The places of all live claims of a list, in order.
    pub(super) fn live_places(&self, key: &Key) -> Result<Vec<u64>, Failure> {
        let list = place_of(key);
        Ok(self.all(
            "SELECT place FROM lockkit_claims
             WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND expires > ?4 ORDER BY place",
            params![list.0, list.1, list.2, self.now()],
            |row| row.get::<_, i64>(0).map(i64::unsigned_abs),
        )?)
    }
}

/// The columns by which a list is known.
pub(super) fn place_of(key: &Key) -> (&str, i64, &str) {
    (key.namespace.as_str(), space_number(key.space), key.name.as_str())
}

pub(super) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(nanos.max(0).unsigned_abs())
}

/// A moment as a column has it.
fn stored(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

/// An id of a row; a damaged one is nobody's.
pub(super) fn id_of(bytes: &[u8]) -> ClaimId {
    ClaimId::from_bytes(bytes.try_into().unwrap_or([0; 16]))
}

/// The columns of `entries.sql`.
pub(super) fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let time = |index: usize| row.get::<_, i64>(index).map(moment);
    let ttl = |index: usize| row.get::<_, i64>(index).map(duration);
    let space = space_of(row.get(0)?);
    let token: Token = token_of(row.get(2)?);
    Ok(Entry {
        place: row.get::<_, i64>(1)?.max(0).unsigned_abs(),
        token,
        id: id_of(row.get_ref(3)?.as_blob()?),
        mode: mode_of(space, row.get(4)?, row.get(5)?),
        hold_ttl: ttl(6)?,
        wait_ttl: ttl(7)?,
        queued_at: time(8)?,
        asked_at: time(9)?,
        expires: time(10)?,
        held_since: row.get::<_, Option<i64>>(11)?.map(moment),
        broken: row.get(12)?,
        with: (),
    })
}
