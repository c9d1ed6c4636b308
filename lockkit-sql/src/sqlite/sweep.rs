//! Removes what nobody visits any more: a bite at a time, in passing.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkit_core::line::Step;
use lockkit_core::{Error, Key, Name, Namespace};
use rusqlite::params;

use super::Inner;
use super::flight::{Flight, LastRow};
use super::hub::lock;
use super::registers::GRACE;
use super::worker::Failure;
use crate::rows::space_of;

/// How many operations there are for each bite.
const EVERY: u64 = 512;
/// How many rows a bite looks at.
const BITE: i64 = 2048;

/// Where the last bite ended: namespace, space, name.
type At = (String, i64, String);

/// Where the sweep has come to.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    operations: AtomicU64,
    at: Mutex<At>,
}

impl Inner {
    /// Every so many operations, a bite.
    pub(super) async fn sweep_in_passing(&self) {
        let count = self.sweeper.operations.fetch_add(1, Ordering::Relaxed);
        if count % EVERY == EVERY - 1
            && let Err(error) = self.sweep().await
        {
            tracing::debug!(%error, "a sweep failed; the next one goes on");
        }
    }

    pub(super) async fn sweep(&self) -> Result<(), Error> {
        let at = lock(&self.sweeper.at).clone();
        let next = self.writer.call(false, move |flight| sweep(flight, &at).map(Ok)).await?;
        *lock(&self.sweeper.at) = next;
        Ok(())
    }
}

/// Returns where to go on.
fn sweep(flight: &mut Flight<'_>, at: &At) -> Result<At, Failure> {
    let rows = flight.all(
        "SELECT namespace, space, name, place, expires FROM lockkit_claims
         WHERE (namespace, space, name) > (?1, ?2, ?3)
         ORDER BY namespace, space, name, place LIMIT ?4",
        params![at.0, at.1, at.2, BITE],
        |row| {
            let list: At = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((list, row.get::<_, i64>(3)?, row.get::<_, i64>(4)?))
        },
    )?;
    let ended: BTreeSet<&At> =
        rows.iter().filter(|row| row.2 <= flight.now()).map(|row| &row.0).collect();
    for list in ended {
        let (Ok(namespace), Ok(name)) = (Namespace::new(&list.0), Name::new(&list.2)) else {
            continue;
        };
        let key = Key::new(namespace, space_of(list.1), name);
        flight.step_and(&key, &Step::Look, None, LastRow::Goes)?;
    }
    flight.forget_lists();
    for (list, place, _) in rows.iter().filter(|row| row.2 == 0) {
        flight.raise_floor(*place)?;
        flight.run(
            "DELETE FROM lockkit_claims
             WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place = ?4 AND expires = 0",
            params![list.0, list.1, list.2, place],
        )?;
    }
    let now = flight.now();
    flight.run(include_str!("sql/sweep_breaks.sql"), params![now, BITE])?;
    flight.run(include_str!("sql/sweep_values.sql"), params![now, BITE, GRACE])?;
    flight.run(include_str!("sql/sweep_registers.sql"), params![now, BITE])?;
    let whole = i64::try_from(rows.len()) == Ok(BITE);
    Ok(rows.into_iter().next_back().filter(|_| whole).map(|row| row.0).unwrap_or_default())
}
