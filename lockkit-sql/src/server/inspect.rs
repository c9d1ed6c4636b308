//! What can be seen of the locks: one queue, pages of queues, the server's health. Reads only.
//!
//! The columns of a line, in the answers of `Inspect` and `List`: `b` namespace, `n` space, `b`
//! name, `n?` token (none: the queue is empty), `n` weight, `n` capacity, `n` hold ttl, `n` for
//! how long it is in its queue, `n` what is left of its lease, `n?` for how long it holds, `n` 1 when
//! broken, `b` identity, `b?` note, `b?` record of the last break of this queue.

use lockkit_core::capabilities::Fault;
use lockkit_core::driver::Version;
use lockkit_core::promises::Promises;
use lockkit_core::state::{
    ClaimState, Cursor, Finding, Health, ListPage, ListRequest, LockState, Page, RegisterRequest,
    RegisterState, Severity,
};
use lockkit_core::{ClientIdentity, Key, Name, Namespace, Result};

use super::SqlServerInner;
use super::dialect::{Arg, Dialect, Row, StatementId, key_args};
use super::driver::unexpected;
use super::options::ServerDurability;
use crate::rows::{
    self, behind, break_record, from_micros, mode_of, space_number, space_of, token_of,
};

impl<D: Dialect> SqlServerInner<D> {
    pub(super) async fn inspect(&self, at: &Key) -> Result<LockState> {
        let answer = self.call(StatementId::Inspect, &key_args(at)).await?;
        let last = answer.rows.first().and_then(|row| row.bytes(13));
        let line: Result<Vec<ClaimState>> =
            answer.rows.iter().filter(|row| row.int(3).is_some()).map(claim_state::<D>).collect();
        Ok(LockState::new(at.clone(), line?, break_record(last)))
    }

    pub(super) async fn page(&self, request: &ListRequest) -> Result<Page> {
        let limit = request.limit.clamp(1, 10_000);
        let (space, name) = match &request.after {
            None => (-1, String::new()),
            Some(cursor) => {
                let (space, name) = cursor.decode()?;
                (space_number(space), name.as_str().to_owned())
            }
        };
        let args = [
            Arg::Bytes(request.namespace.as_str().as_bytes()),
            Arg::Int(request.space.map_or(-1, space_number)),
            Arg::Bytes(request.prefix.as_bytes()),
            Arg::Int(space),
            Arg::Bytes(name.as_bytes()),
            Arg::Int(limit as i64),
        ];
        let rows = self.call(StatementId::List, &args).await?.rows;
        let mut states: Vec<LockState> = Vec::new();
        for row in &rows {
            let claim = claim_state::<D>(row)?;
            let Some(key) = key_of(row) else { continue };
            if states.last().is_none_or(|last| last.key != key) {
                states.push(LockState::new(key, Vec::new(), break_record(row.bytes(13))));
            }
            if let Some(state) = states.last_mut() {
                state.queue.push(claim);
            }
        }
        let next =
            states.last().filter(|_| states.len() == limit).map(|last| Cursor::behind(&last.key));
        Ok(Page { states, next })
    }

    pub(super) async fn registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<ListPage<RegisterState>> {
        let limit = request.limit.clamp(1, 10_000);
        let from = behind(request.after.as_ref().map(Name::as_str), &request.prefix);
        // Names have 512 bytes at most, so none that has the prefix is greater.
        let end = [request.prefix.as_bytes(), [0xff; 512].as_slice()].concat();
        let args = [
            Arg::Bytes(request.namespace.as_str().as_bytes()),
            Arg::Bytes(from.as_bytes()),
            Arg::Bytes(&end),
            Arg::Int(limit as i64),
        ];
        let rows = self.call(StatementId::Registers, &args).await?.rows;
        let register = |row: &Row| {
            Some(RegisterState::new(
                Name::new(text(row, 0)?).ok()?,
                Version(u64::try_from(row.int(1)?).ok()?),
                row.int(2).map(token_of),
                usize::try_from(row.int(3)?).ok()?,
            ))
        };
        let items = rows.iter().map(|row| register(row).ok_or_else(unexpected::<D>));
        Ok(ListPage { items: items.collect::<Result<_, _>>()?, more: rows.len() == limit })
    }

    pub(super) async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        let limit = limit.clamp(1, 10_000);
        let from = behind(after.map(Namespace::as_str), "");
        let args = [Arg::Bytes(from.as_bytes()), Arg::Int(limit as i64)];
        let rows = self.call(StatementId::Namespaces, &args).await?.rows;
        let namespace = |row: &Row| Namespace::new(text(row, 0)?).ok();
        let items = rows.iter().map(|row| namespace(row).ok_or_else(unexpected::<D>));
        Ok(ListPage { items: items.collect::<Result<_, _>>()?, more: rows.len() == limit })
    }

    /// By the settings as they are now, or as the options of this driver say where that is worse.
    pub(super) async fn promises(&self) -> Result<Promises> {
        let stated = Promises::of(&self.capabilities);
        let mut now = stated.clone();
        match self.call(StatementId::Settings, &[]).await {
            Ok(answer) => {
                let setting = |row: &Row| Some((text(row, 0)?, text(row, 1)?));
                D::judge(&answer.rows.iter().filter_map(setting).collect::<Vec<_>>(), &mut now);
            }
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                let why = format!("the settings that decide cannot be read: {error}");
                now.set(Fault::ServerRestarts, None, &*why);
                now.set(Fault::WritesLost, None, why);
            }
        }
        Ok(now.worse(stated))
    }

    pub(super) async fn health(&self) -> Result<Health> {
        let answer = self.call(StatementId::Health, &[]).await?;
        let row = answer.row::<D>()?;
        let mut health = Health::well(text(row, 1).unwrap_or_default());
        if row.int(2) != Some(1) {
            health = health.with(Finding::new(
                Severity::Problem,
                "the server takes no writes: it is read-only or in recovery",
                "connect to the primary",
            ));
        }
        if row.int(3) != Some(1) && self.durability == ServerDurability::Full {
            health = health.with(Finding::new(
                Severity::Warning,
                "the server's settings let a commit return before it is on disk",
                "a crash of its machine may forget held locks; tokens grow all the same",
            ));
        }
        if row.int(0) != Some(D::VERSION) {
            health = health.with(Finding::new(
                Severity::Problem,
                "the tables are of another version of lockkit",
                "upgrade the older of the two",
            ));
        }
        Ok(health)
    }
}

fn text(row: &Row, column: usize) -> Option<String> {
    row.bytes(column).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// The queue in which a row of a claim stands; `None` when the row is damaged.
fn key_of(row: &Row) -> Option<Key> {
    rows::key_of(&text(row, 0)?, row.int(1)?, &text(row, 2)?)
}

/// A claim as its row shows it.
fn claim_state<D: Dialect>(row: &Row) -> Result<ClaimState> {
    let read = || {
        let mode = mode_of(space_of(row.int(1)?), row.int(4)?, row.int(5)?);
        let mut state =
            ClaimState::new(token_of(row.int(3)?), mode, ClientIdentity::from_json(row.bytes(11)?));
        state.ttl = from_micros(row.int(6)?);
        state.queued_for = from_micros(row.int(7)?);
        state.expires_in = from_micros(row.int(8)?);
        state.held_for = row.int(9).map(from_micros);
        state.broken = row.int(10)? != 0;
        state.note = text(row, 12);
        Some(state)
    };
    read().ok_or_else(unexpected::<D>)
}
