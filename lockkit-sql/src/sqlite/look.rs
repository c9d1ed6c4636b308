//! What can be seen of the locks: one list, pages of lists, the file's health. Reads only.

use lockkit_core::state::{Cursor, Finding, Health, ListRequest, LockState, Page, Severity};
use lockkit_core::{Error, Key};
use rusqlite::{Row, params};

use super::Inner;
use super::flight::{Flight, place_of};
use crate::rows::{ClaimRow, break_record, space_number};

impl Inner {
    pub(super) async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let key = key.clone();
        let inspect = move |flight: &mut Flight<'_>| {
            let (list, now) = (place_of(&key), flight.now());
            let rows = flight.all(
                include_str!("sql/line.sql"),
                params![list.0, list.1, list.2, now],
                claim_row,
            )?;
            let last: Option<String> = flight.any(
                include_str!("sql/last_break.sql"),
                params![list.0, list.1, list.2],
                |row| row.get(0),
            )?;
            let line = rows.into_iter().map(|row| row.standing(now)).collect();
            Ok(Ok(LockState::new(key.clone(), line, break_record(last))))
        };
        self.reader.call(false, inspect).await
    }

    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let limit = request.limit.clamp(1, 10_000);
        // Names have 512 bytes at most, so none that has the prefix is greater.
        let end = format!("{}{}", request.prefix, "\u{10ffff}".repeat(128));
        let (space, name) = match &request.after {
            None => (-1, String::new()),
            Some(cursor) => read_cursor(cursor)?,
        };
        let request = request.clone();
        let page = move |flight: &mut Flight<'_>| {
            let now = flight.now();
            let rows = flight.all(
                include_str!("sql/page.sql"),
                params![
                    request.namespace.as_str(),
                    request.space.map(space_number),
                    request.prefix,
                    end,
                    space,
                    name,
                    limit as i64,
                    now
                ],
                |row| Ok((claim_row(row)?, row.get("record")?)),
            )?;
            Ok(Ok(states(rows, now)))
        };
        let states = self.reader.call(false, page).await?;
        let next =
            states.last().filter(|_| states.len() == limit).map(|last| write_cursor(&last.key));
        Ok(Page { states, next })
    }

    pub(super) async fn health(&self) -> Result<Health, Error> {
        let look = |flight: &mut Flight<'_>| {
            let text = "SELECT epoch, (SELECT journal_mode FROM pragma_journal_mode) \
                FROM lockkit_meta";
            let found: (i64, String) =
                flight.one(text, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(Ok(found))
        };
        let (epoch, journal) = self.reader.call(false, look).await?;
        let version = rusqlite::version();
        let mut health = Health::well(format!("SQLite {version}"));
        if epoch != self.site.epoch {
            health = health.with(Finding {
                severity: Severity::Problem,
                what: "the file was taken over by another boot or machine".to_owned(),
                advice: "open it anew; use a server for several machines".to_owned(),
            });
        }
        if journal != "wal" {
            health = health.with(Finding {
                severity: Severity::Note,
                what: format!("the journal mode is {journal}"),
                advice: "PRAGMA journal_mode = WAL makes locks faster".to_owned(),
            });
        }
        Ok(health)
    }
}

fn claim_row(row: &Row<'_>) -> rusqlite::Result<ClaimRow> {
    Ok(ClaimRow {
        namespace: row.get("namespace")?,
        space: row.get("space")?,
        name: row.get("name")?,
        token: row.get("token")?,
        weight: row.get("weight")?,
        capacity: row.get("capacity")?,
        hold_ttl: row.get("hold_ttl")?,
        queued: row.get("queued")?,
        expires: row.get("expires")?,
        held: row.get("held")?,
        broken: row.get("broken")?,
        identity: row.get("identity")?,
        note: row.get("note")?,
    })
}

/// Gathers the rows of `page.sql`, which come list by list.
fn states(rows: Vec<(ClaimRow, Option<String>)>, now: i64) -> Vec<LockState> {
    let mut states: Vec<LockState> = Vec::new();
    for (claim, record) in rows {
        let Some(key) = claim.key() else {
            continue;
        };
        if states.last().is_none_or(|last| last.key != key) {
            states.push(LockState::new(key, Vec::new(), break_record(record)));
        }
        if let Some(last) = states.last_mut() {
            last.line.push(claim.standing(now));
        }
    }
    states
}

fn write_cursor(key: &Key) -> Cursor {
    let mut bytes = vec![space_number(key.space) as u8];
    bytes.extend_from_slice(key.name.as_str().as_bytes());
    Cursor(bytes)
}

fn read_cursor(cursor: &Cursor) -> Result<(i64, String), Error> {
    let (space, name) = cursor
        .0
        .split_first()
        .ok_or_else(|| Error::config("this cursor is not one of the sqlite driver"))?;
    let name = String::from_utf8(name.to_vec())
        .map_err(|_| Error::config("this cursor is not one of the sqlite driver"))?;
    Ok((i64::from(*space), name))
}
