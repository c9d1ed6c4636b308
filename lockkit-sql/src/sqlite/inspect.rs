//! What can be seen of the locks: one queue, pages of queues, the file's health. Reads only.

use lockkit_core::driver::Version;
use lockkit_core::state::{
    Cursor, Finding, Health, ListPage, ListRequest, LockState, Page, RegisterRequest,
    RegisterState, Severity,
};
use lockkit_core::{ClientIdentity, Key, Name, Namespace};
use rusqlite::params;

use super::connection::TransactionError;
use super::transaction::{ClaimList, Transaction, key_of, moment, unsigned};
use crate::rows::{behind, break_record, columns, space_number, token_of};

impl Transaction<'_> {
    /// A queue as it is.
    pub(super) fn inspect(&self, key: &Key) -> rusqlite::Result<LockState> {
        let (entries, _) = self.load_after(key, -1, i32::MAX as usize)?;
        let line = ClaimList::window(entries, None, self.given(key)?);
        let standings = line
            .states(moment(self.now()), |who| (ClientIdentity::from_json(&who.0), who.1.clone()));
        let text = "SELECT record FROM lockkit_breaks
            WHERE namespace = ?1 AND space = ?2 AND name = ?3 ORDER BY n DESC LIMIT 1";
        let last: Option<String> = self.any(text, columns(key), |row| row.get(0))?;
        Ok(LockState::new(key.clone(), standings, break_record(last)))
    }

    pub(super) fn list(&self, request: &ListRequest) -> Result<Page, TransactionError> {
        let limit = request.limit.clamp(1, 10_000);
        let after = request.after.as_ref().map(Cursor::decode).transpose()?;
        let keys = self.all(
            include_str!("sql/keys.sql"),
            params![
                request.namespace.as_str(),
                request.space.map(space_number),
                request.prefix,
                beyond(&request.prefix),
                after.as_ref().map_or(-1, |(space, _)| space_number(*space)),
                after.as_ref().map_or("", |(_, name)| name.as_str()),
                limit as i64,
                self.now()
            ],
            key_of,
        )?;
        let whole = keys.len() == limit;
        let next = keys.last().filter(|_| whole).and_then(Option::as_ref).map(Cursor::behind);
        let states = keys.iter().flatten().map(|key| self.inspect(key));
        Ok(Page { states: states.collect::<Result<_, _>>()?, next })
    }

    pub(super) fn registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<ListPage<RegisterState>, TransactionError> {
        let limit = request.limit.clamp(1, 10_000);
        let from = behind(request.after.as_ref().map(Name::as_str), &request.prefix);
        let end = beyond(&request.prefix);
        let values = params![request.namespace.as_str(), from, end, limit as i64, self.now()];
        let rows = self.all(include_str!("sql/page_of_registers.sql"), values, |row| {
            let (name, version): (String, i64) = (row.get(0)?, row.get(1)?);
            let (token, bytes): (Option<i64>, i64) = (row.get(2)?, row.get(3)?);
            Ok(Name::new(name).ok().map(|name| {
                RegisterState::new(
                    name,
                    Version(unsigned(version)),
                    token.map(token_of),
                    usize::try_from(bytes).unwrap_or_default(),
                )
            }))
        })?;
        let more = rows.len() == limit;
        Ok(ListPage { items: rows.into_iter().flatten().collect(), more })
    }

    pub(super) fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, TransactionError> {
        let limit = limit.clamp(1, 10_000);
        let from = behind(after.map(Namespace::as_str), "");
        let values = params![from, limit as i64, self.now()];
        let rows: Vec<String> =
            self.all(include_str!("sql/namespaces.sql"), values, |row| row.get(0))?;
        let items = rows.iter().filter_map(|namespace| Namespace::new(namespace).ok());
        Ok(ListPage { items: items.collect(), more: rows.len() == limit })
    }

    /// The file's, for who opened it in this epoch.
    pub(super) fn health(&self, ours: i64) -> Result<Health, TransactionError> {
        let text = "SELECT epoch, (SELECT journal_mode FROM pragma_journal_mode) FROM lockkit_meta";
        let meta = self.any(text, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (epoch, journal): (i64, String) = meta.unwrap_or_default();
        let mut health = Health::well(format!("SQLite {}", rusqlite::version()));
        if epoch != ours {
            health = health.with(Finding::new(
                Severity::Problem,
                "the file was taken over by another boot or machine",
                "open it anew; use a server for several machines",
            ));
        }
        if journal != "wal" {
            health = health.with(Finding::new(
                Severity::Note,
                format!("the journal mode is {journal}"),
                "PRAGMA journal_mode = WAL makes locks faster",
            ));
        }
        Ok(health)
    }
}

/// Names have 512 bytes at most, so none that has the prefix is greater.
fn beyond(prefix: &str) -> String {
    format!("{prefix}{}", "\u{10ffff}".repeat(128))
}
