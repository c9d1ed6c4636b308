//! Removes what nobody visits any more: a bite at a time, in passing.

use lockkit_core::Key;
use rusqlite::params;

use super::flight::{Flight, Verb, key_of};
use super::foreign::STALE;
use super::worker::{Desk, Failure};
use crate::rows::columns;

/// How many steps there are for each bite.
const EVERY: u64 = 1024;
/// How many rows a bite looks at.
const BITE: usize = 2048;

/// Where the sweep has come to, and how many steps were taken since.
#[derive(Default)]
pub(super) struct Sweep {
    after: Option<Key>,
    pub(super) steps: u64,
}

impl Desk {
    /// Every so many steps, a bite.
    pub(super) fn sweep_in_passing(&mut self) {
        if self.sweep.steps >= EVERY {
            self.sweep.steps = 0;
            let after = self.sweep.after.take();
            match self.carry(false, |flight| sweep(flight, after.as_ref())) {
                Ok(next) => self.sweep.after = next,
                Err(error) => tracing::debug!(%error, "a sweep failed; the next one goes on"),
            }
        }
    }
}

/// Returns where to go on.
fn sweep(flight: &mut Flight<'_>, after: Option<&Key>) -> Result<Option<Key>, Failure> {
    let (namespace, space, name) = after.map_or(("", 0, ""), columns);
    let mut rows = flight.all(
        "SELECT namespace, space, name, expires <= ?5 OR (asked > ?5 + ?6
           AND expires > ?5 + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END)
         FROM lockkit_claims WHERE (namespace, space, name) > (?1, ?2, ?3)
         ORDER BY namespace, space, name, place LIMIT ?4",
        params![namespace, space, name, BITE as i64, flight.now(), STALE],
        // It has ended, or is of another boot.
        |row| Ok((key_of(row)?, row.get::<_, bool>(3)?)),
    )?;
    let whole = rows.len() == BITE;
    let next = rows.last().filter(|_| whole).and_then(|row| row.0.clone());
    rows.retain(|row| row.1);
    rows.dedup_by(|a, b| a.0 == b.0);
    for key in rows.iter().filter_map(|row| row.0.as_ref()) {
        flight.step(key, &Verb::Look)?;
        flight.forget_place(key)?;
    }
    flight.batch(include_str!("sql/sweep.sql"))?;
    Ok(next)
}
