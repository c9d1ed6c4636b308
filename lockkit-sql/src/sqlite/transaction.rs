//! One transaction, and what the writing connection knows from one to the next.

use std::collections::HashMap;
use std::sync::Arc;

use lockkit_core::claim_list;
use lockkit_core::clock::Moment;
use lockkit_core::driver::ClaimId;
use lockkit_core::{Error, Key};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row};

use super::BACKEND;
use super::connection::TransactionError;
use super::context::FileContext;
use super::tokens::{IssuedNumbers, TOKEN_BLOCK, used_up, wall_clock};
use crate::rows;
use crate::waiters::ClaimTag;

/// For how long (in nanoseconds) the last write of a register that is empty is remembered, so that
/// its lost answer can be asked for again.
pub(crate) const GRACE: i64 = 600_000_000_000;
/// How many queues are known from one transaction to the next at most.
const KNOWN: usize = 1024;
/// Whose a claim is: its identity as JSON, and its note.
type ClientText = Arc<(String, Option<String>)>;
pub(super) type Operation<'a> = claim_list::ListOperation<'a, ClientText>;
pub(super) type ClaimList = claim_list::ClaimList<ClientText>;
pub(super) type QueuedClaim = claim_list::QueuedClaim<ClientText>;

/// A transaction on its way.
pub(crate) struct Transaction<'c> {
    pub(super) connection: &'c Connection,
    pub(super) now: i64,
    /// The wall clock's microseconds, which new numbers are not less than.
    pub(super) wall: i64,
    pub(super) issued: &'c IssuedNumbers,
    pub(super) writes: bool,
    pub(super) durable: bool,
    pub(super) cache: &'c mut WriterCache,
    /// Lists of which only a window is known.
    pub(super) partly: Vec<Key>,
    pub(super) woken: Vec<ClaimTag>,
    pub(super) steps: u64,
}

/// What the writing connection knows of the file: what it read and wrote, for as long as no other
/// connection writes.
#[derive(Default)]
pub(crate) struct WriterCache {
    version: Option<i64>,
    /// Of `lockkit_meta`.
    pub(super) floor: i64,
    pub(super) ceiling: i64,
    pub(super) lists: HashMap<Key, CachedQueue>,
}

pub(super) struct CachedQueue {
    pub(super) queue: ClaimList,
    /// The limit that the semaphore was given.
    pub(super) given: Option<u32>,
    /// The greatest place that has a row.
    pub(super) last_row: u64,
    /// The place of the row that has ended and only remembers it.
    pub(super) remembered: Option<u64>,
    /// How much to load next.
    pub(super) bite: usize,
    /// The sequences of all live claims, if they were asked for and the window does not show them.
    pub(super) sequences: Vec<u64>,
}

impl<'c> Transaction<'c> {
    /// In a transaction that has begun, and that has the file's write lock if it `writes`.
    pub(super) fn begin(
        connection: &'c Connection,
        context: &'c FileContext,
        writes: bool,
        durable: bool,
        cache: &'c mut WriterCache,
    ) -> Result<Self, TransactionError> {
        // Read with the lock in hand: no transaction that wrote before this one had a later clock.
        let now = context.clock.now().as_nanos() as i64;
        let transaction = Self {
            connection,
            now,
            wall: wall_clock(),
            issued: &context.issued,
            writes,
            durable,
            cache,
            partly: Vec::new(),
            woken: Vec::new(),
            steps: 0,
        };
        if writes {
            let version = transaction.any("PRAGMA data_version", [], |row| row.get(0))?;
            if transaction.cache.version != version {
                let meta = "SELECT token, ceiling FROM lockkit_meta WHERE epoch = ?1";
                let meta =
                    transaction.any(meta, [context.epoch], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let (floor, ceiling) = meta.ok_or_else(taken_over)?;
                *transaction.cache = WriterCache { version, floor, ceiling, lists: HashMap::new() };
            }
        }
        Ok(transaction)
    }

    /// Forgets what is too much to be known beyond the transaction, and says whom to wake.
    pub(super) fn end(self) -> Vec<ClaimTag> {
        self.partly.iter().for_each(|key| drop(self.cache.lists.remove(key)));
        if self.cache.lists.len() > KNOWN {
            self.cache.lists.clear();
        }
        self.woken
    }

    /// The time of this transaction, in nanoseconds on the boot clock.
    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.connection.prepare_cached(sql)
    }

    pub(crate) fn run(&self, sql: &str, params: impl Params) -> rusqlite::Result<()> {
        self.prepare(sql)?.execute(params).map(drop)
    }

    pub(crate) fn any<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.prepare(sql)?.query_row(params, read).optional()
    }

    pub(crate) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.prepare(sql)?.query_map(params, read)?.collect()
    }

    /// Runs statements that have no parameters but the time.
    pub(crate) fn batch(&self, sql: &str) -> rusqlite::Result<()> {
        batch(self.connection, sql, self.now)
    }

    /// What every new number exceeds, whatever it is for.
    pub(super) fn last_number(&self) -> i64 {
        self.cache.floor.max(self.issued.last()).max(self.wall - 1)
    }

    /// The next version of a register that has this one; the queues' tokens go on above it.
    pub(super) fn next_version(&mut self, own: i64) -> Result<i64, TransactionError> {
        let next = self.last_number().max(own).checked_add(1).ok_or_else(used_up)?;
        self.give_numbers(next, true)?;
        Ok(next)
    }

    /// Makes sure that numbers up to `last` may be given. They lie below a ceiling that is on disk
    /// before: after a power failure tokens go on above it.
    pub(super) fn give_numbers(&mut self, last: i64, raised: bool) -> Result<(), TransactionError> {
        if last > self.cache.ceiling {
            if !self.durable {
                return Err(TransactionError::NotDurable);
            }
            self.cache.ceiling = last.saturating_add(TOKEN_BLOCK);
            self.run("UPDATE lockkit_meta SET ceiling = ?1", [self.cache.ceiling])?;
        }
        self.issued.reached(last);
        if raised {
            self.raise_floor(last)?;
        }
        Ok(())
    }

    /// Lists without a row go on above this.
    pub(super) fn raise_floor(&mut self, place: i64) -> rusqlite::Result<()> {
        if place > self.cache.floor {
            self.cache.floor = place;
            self.run("UPDATE lockkit_meta SET token = ?1", [place])?;
        }
        Ok(())
    }
}

fn taken_over() -> Error {
    Error::permanent(
        BACKEND,
        "the file was taken over by another boot of this machine, or by another machine; a lock \
         file of SQLite serves one machine at a time: open it anew, and use a server (postgres, \
         redis …) for several machines",
    )
}

/// Runs statements with `:now`, and `:grace` for how long what is not needed is remembered.
pub(crate) fn batch(connection: &Connection, sql: &str, now: i64) -> rusqlite::Result<()> {
    let sql = sql.replace(":now", &now.to_string()).replace(":grace", &GRACE.to_string());
    connection.execute_batch(&sql)
}

/// The queue of these columns, the first of a row; `None` where they are damaged.
pub(crate) fn key_of(row: &Row<'_>) -> rusqlite::Result<Option<Key>> {
    let (namespace, space, name): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(rows::key_of(&namespace, space, &name))
}

pub(crate) fn unsigned(number: i64) -> u64 {
    number.max(0).unsigned_abs()
}

pub(crate) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(unsigned(nanos))
}

/// A moment as a column has it.
pub(super) fn stored(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

/// What this process calls a claim. Nothing of it leaves the process.
pub(super) fn tag(id: &ClaimId) -> ClaimTag {
    let [tag @ .., _, _, _, _, _, _, _, _] = id.as_bytes();
    *tag
}
