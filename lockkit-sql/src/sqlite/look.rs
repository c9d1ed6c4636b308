//! What can be seen of the locks: one list, pages of lists, the file's health. Reads only.

use std::collections::HashMap;

use lockkit_core::state::{
    Cursor, Finding, Health, ListRequest, LockState, Page, Severity, Standing,
};
use lockkit_core::{Error, Key};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::Inner;
use super::link::explain;
use super::verbs::answered;
use crate::rows::{ClaimRow, break_record, space_number};

impl Inner {
    pub(super) async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let space = space_number(key.space);
        let rows = self
            .reader
            .rows(&*self.clock, |now| {
                sqlx::query(include_str!("sql/line.sql"))
                    .bind(key.namespace.as_str())
                    .bind(space)
                    .bind(key.name.as_str())
                    .bind(now)
            })
            .await?;
        let last = self
            .reader
            .row(&*self.clock, |_| {
                sqlx::query(include_str!("sql/last_break.sql"))
                    .bind(key.namespace.as_str())
                    .bind(space)
                    .bind(key.name.as_str())
            })
            .await?;
        let now = self.now();
        let line: Result<Vec<Standing>, Error> =
            rows.iter().map(|row| Ok(claim_row(row)?.standing(now))).collect();
        let last = match last {
            Some(row) => break_record(row.try_get(0).map_err(explain)?),
            None => None,
        };
        Ok(LockState::new(key.clone(), line?, last))
    }

    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let limit = request.limit.clamp(1, 10_000);
        // Names have 512 bytes at most, so none that has the prefix is greater.
        let end = format!("{}{}", request.prefix, "\u{10ffff}".repeat(128));
        let (space, name) = match &request.after {
            None => (-1, String::new()),
            Some(cursor) => read_cursor(cursor)?,
        };
        let rows = self
            .reader
            .rows(&*self.clock, |now| {
                sqlx::query(include_str!("sql/page.sql"))
                    .bind(request.namespace.as_str())
                    .bind(request.space.map(space_number))
                    .bind(request.prefix.as_str())
                    .bind(end.as_str())
                    .bind(space)
                    .bind(name.as_str())
                    .bind(limit as i64)
                    .bind(now)
            })
            .await?;
        let states = states(rows, self.now())?;
        let next =
            states.last().filter(|_| states.len() == limit).map(|last| write_cursor(&last.key));
        Ok(Page { states, next })
    }

    pub(super) async fn health(&self) -> Result<Health, Error> {
        let row = self
            .reader
            .row(&*self.clock, |_| {
                sqlx::query(
                    "SELECT sqlite_version(), epoch, \
                     (SELECT journal_mode FROM pragma_journal_mode) FROM lockkit_meta",
                )
            })
            .await?;
        let row = answered(row)?;
        let version: String = row.try_get(0).map_err(explain)?;
        let epoch: i64 = row.try_get(1).map_err(explain)?;
        let journal: String = row.try_get(2).map_err(explain)?;
        let mut health = Health::well(format!("SQLite {version}"));
        if epoch != self.epoch {
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

fn claim_row(row: &SqliteRow) -> Result<ClaimRow, Error> {
    let read = || -> Result<ClaimRow, sqlx::Error> {
        Ok(ClaimRow {
            namespace: row.try_get("namespace")?,
            space: row.try_get("space")?,
            name: row.try_get("name")?,
            token: row.try_get("token")?,
            weight: row.try_get("weight")?,
            capacity: row.try_get("capacity")?,
            hold_ttl: row.try_get("hold_ttl")?,
            queued: row.try_get("queued")?,
            expires: row.try_get("expires")?,
            held: row.try_get("held")?,
            broken: row.try_get("broken")?,
            identity: row.try_get("identity")?,
            note: row.try_get("note")?,
        })
    };
    read().map_err(explain)
}

/// Gathers the rows of `page.sql`, which come list by list.
fn states(rows: Vec<SqliteRow>, now: i64) -> Result<Vec<LockState>, Error> {
    let mut states: Vec<LockState> = Vec::new();
    let mut index: HashMap<Key, usize> = HashMap::new();
    for row in rows {
        let record: Option<String> = row.try_get("record").map_err(explain)?;
        let claim = claim_row(&row)?;
        let Some(key) = claim.key() else {
            continue;
        };
        let at = *index.entry(key.clone()).or_insert_with(|| {
            states.push(LockState::new(key, Vec::new(), break_record(record)));
            states.len() - 1
        });
        states[at].line.push(claim.standing(now));
    }
    Ok(states)
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
