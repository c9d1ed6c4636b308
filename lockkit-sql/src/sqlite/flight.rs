//! One transaction: loads lists, applies steps to them, and writes what changed. The rule is
//! [`lockkit_core::line`]'s; here are rows in and rows out.

use std::collections::HashMap;

use lockkit_core::driver::ClaimId;
use lockkit_core::line::{Answer, Applied, Line, Step, Stop, Tokens, What};
use lockkit_core::{Claim, Error, Key, Space};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};

use super::BACKEND;
use super::claims::{entry, moment, place_of};
use super::worker::{Failure, Site};

/// How many tokens are put on disk in advance; see the guide.
pub(crate) const TOKEN_BLOCK: i64 = 1 << 20;
/// How much of a list is loaded at first.
const FRONT: usize = 8;

/// A transaction on its way.
pub(crate) struct Flight<'c> {
    pub(super) connection: &'c Connection,
    now: i64,
    durable: bool,
    meta: Meta,
    lists: HashMap<Key, List>,
    woken: Vec<ClaimId>,
}

/// The row of `lockkit_meta`.
#[derive(Clone, Copy, Default)]
struct Meta {
    floor: i64,
    ceiling: i64,
}

/// A list as this transaction has it.
struct List {
    line: Line,
    /// The greatest place that has a row.
    last_row: u64,
    /// The place of the row that has ended and only remembers it.
    remembered: Option<u64>,
    /// How much to load next.
    bite: usize,
}

/// What becomes of the last row of a list that falls empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastRow {
    /// It stays and remembers its place, so that `lockkit_meta` need not be written.
    Remembers,
    /// It goes, and the floor remembers.
    Goes,
}

impl<'c> Flight<'c> {
    /// In a transaction that has begun, and that has the file's write lock if it `writes`.
    pub(super) fn begin(
        connection: &'c Connection,
        site: &Site,
        writes: bool,
        durable: bool,
    ) -> Result<Self, Failure> {
        // Read with the lock in hand: no transaction that wrote before this one had a later clock.
        let now = site.clock.now().as_nanos() as i64;
        let mut flight = Self {
            connection,
            now,
            durable,
            meta: Meta::default(),
            lists: HashMap::new(),
            woken: Vec::new(),
        };
        if writes {
            let (epoch, floor, ceiling) =
                flight.one("SELECT epoch, token, ceiling FROM lockkit_meta", [], |row| {
                    Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?))
                })?;
            if epoch != site.epoch {
                return Err(Failure::Told(taken_over()));
            }
            flight.meta = Meta { floor, ceiling };
        }
        Ok(flight)
    }

    pub(super) fn into_woken(self) -> Vec<ClaimId> {
        self.woken
    }

    /// The time of this transaction, in nanoseconds on the boot clock.
    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    pub(crate) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.connection.prepare_cached(sql)
    }

    pub(crate) fn run(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.prepare(sql)?.execute(params)
    }

    pub(crate) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.prepare(sql)?.query_row(params, read)
    }

    pub(crate) fn any<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.one(sql, params, read).optional()
    }

    pub(crate) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.prepare(sql)?.query_map(params, read)?.collect()
    }

    /// Applies a step to a list, and writes what changed. `claim` is the one that the step is
    /// about.
    pub(crate) fn step(
        &mut self,
        key: &Key,
        step: &Step<'_>,
        claim: Option<&Claim>,
    ) -> Result<Answer, Failure> {
        self.step_and(key, step, claim, LastRow::Remembers)
    }

    pub(crate) fn step_and(
        &mut self,
        key: &Key,
        step: &Step<'_>,
        claim: Option<&Claim>,
        last_row: LastRow,
    ) -> Result<Answer, Failure> {
        let mut list = match self.lists.remove(key) {
            Some(list) => list,
            None => self.load(key)?,
        };
        self.load_named(key, step, claim, &mut list)?;
        let mut applied = self.apply(key, step, &mut list)?;
        while applied.more {
            let Applied { changes, more, .. } = self.apply(key, &Step::Look, &mut list)?;
            applied.changes.extend(changes);
            applied.more = more;
        }
        self.write(key, &applied, claim, &mut list, last_row)?;
        if matches!(step, Step::Shorten(..)) && !list.line.is_empty() {
            self.tell_others(key)?;
        }
        self.lists.insert(key.clone(), list);
        Ok(applied.answer)
    }

    /// Applies one step, loading as much of the list as it takes.
    fn apply(&mut self, key: &Key, step: &Step<'_>, list: &mut List) -> Result<Applied, Failure> {
        loop {
            let last = self.meta.floor.max(0).unsigned_abs().max(list.last_row);
            let mut tokens = Tokens::above(last);
            match list.line.apply(step, moment(self.now), &mut tokens) {
                Ok(applied) => {
                    if applied.more {
                        self.load_more(key, list)?;
                    }
                    if tokens.last() > last {
                        self.give_tokens(tokens.last(), matches!(step, Step::Raise(..)))?;
                    }
                    return Ok(applied);
                }
                Err(Stop::NeedMore) => self.load_more(key, list)?,
                Err(Stop::TokensUsedUp) => {
                    let message = "all tokens up to 2^63 - 1 were given or skipped";
                    return Err(Failure::Told(Error::permanent(BACKEND, message)));
                }
            }
        }
    }

    /// Makes sure that numbers up to `last` may be given. They lie below a ceiling that is on disk
    /// before: after a power failure tokens go on above it.
    pub(crate) fn give_tokens(&mut self, last: u64, raised: bool) -> Result<(), Failure> {
        let last = i64::try_from(last).unwrap_or(i64::MAX);
        if last > self.meta.ceiling {
            if !self.durable {
                return Err(Failure::NotDurable);
            }
            self.meta.ceiling = last.saturating_add(TOKEN_BLOCK);
            self.run("UPDATE lockkit_meta SET ceiling = ?1", [self.meta.ceiling])?;
        }
        if raised {
            self.raise_floor(last)?;
        }
        Ok(())
    }

    /// Lists without a row go on above this.
    pub(crate) fn raise_floor(&mut self, place: i64) -> Result<(), Failure> {
        if place > self.meta.floor {
            self.meta.floor = place;
            self.run("UPDATE lockkit_meta SET token = ?1", [place])?;
        }
        Ok(())
    }

    /// The next number of the counter that registers take their versions from.
    pub(crate) fn next_version(&mut self) -> Result<i64, Failure> {
        let next = self.meta.floor + 1;
        self.give_tokens(next.unsigned_abs(), true)?;
        Ok(next)
    }

    /// Loads lists again, since rows were changed beside them.
    pub(super) fn forget_lists(&mut self) {
        self.lists.clear();
    }

    /// The limit that a semaphore was given.
    pub(crate) fn given(&self, key: &Key) -> rusqlite::Result<Option<u32>> {
        match key.space {
            Space::Lock => Ok(None),
            Space::Semaphore => self.any(
                "SELECT capacity FROM lockkit_limits WHERE namespace = ?1 AND name = ?2",
                params![key.namespace.as_str(), key.name.as_str()],
                |row| row.get(0),
            ),
        }
    }

    fn load(&self, key: &Key) -> Result<List, Failure> {
        let given = self.given(key)?;
        let (mut entries, remembered, complete) = self.load_after(key, -1, FRONT)?;
        let known_to = (!complete).then(|| entries.last().map_or(0, |entry| entry.place));
        let last_row = match complete {
            true => entries.last().map(|entry| entry.place).max(remembered).unwrap_or(0),
            false => self.last_row(key)?,
        };
        let line = Line::window(entries.drain(..), known_to, given);
        Ok(List { line, last_row, remembered, bite: FRONT * 4 })
    }

    fn load_more(&self, key: &Key, list: &mut List) -> Result<(), Failure> {
        let after = list.line.known_to().map_or(i64::MAX, |place| place as i64);
        let (entries, _, complete) = self.load_after(key, after, list.bite)?;
        list.bite *= 4;
        let known_to = match complete {
            true => None,
            false => entries.last().map(|entry| entry.place),
        };
        list.line.extend(entries, known_to);
        Ok(())
    }

    /// What a step is about, if it is not in the window: a waiter, or the claims of a token.
    fn load_named(
        &self,
        key: &Key,
        step: &Step<'_>,
        claim: Option<&Claim>,
        list: &mut List,
    ) -> Result<(), Failure> {
        if list.line.known_to().is_none() {
            return Ok(());
        }
        let place = place_of(key);
        let named = match (step, claim) {
            (Step::Break(token, _), _) => self.all(
                include_str!("sql/entries_with_token.sql"),
                params![place.0, place.1, place.2, token.as_i64()],
                entry,
            )?,
            (_, Some(claim)) if list.line.find(&claim.id).is_none() => self.all(
                include_str!("sql/waiter.sql"),
                params![place.0, place.1, place.2, claim.id.as_bytes()],
                entry,
            )?,
            _ => Vec::new(),
        };
        if !named.is_empty() {
            list.line.extend(named, list.line.known_to());
        }
        Ok(())
    }

    /// Writes what changed: a row for each claim that did.
    fn write(
        &mut self,
        key: &Key,
        applied: &Applied,
        claim: Option<&Claim>,
        list: &mut List,
        last_row: LastRow,
    ) -> Result<(), Failure> {
        let changes = &applied.changes;
        let (mut came, mut left_last) = (None, false);
        for (at, change) in changes.iter().enumerate() {
            if change.wakes() {
                self.woken.push(change.id);
            }
            let again = changes[at + 1..].iter().any(|later| later.place == change.place);
            match change.what {
                What::Came => came = list.line.get(change.place).cloned(),
                _ if again => {}
                What::Left if change.place == list.last_row => left_last = true,
                What::Left => self.delete(key, change.place)?,
                _ => self.update(key, list.line.get(change.place))?,
            }
        }
        if left_last {
            let stays = list.line.is_empty() && came.is_none() && last_row == LastRow::Remembers;
            match stays {
                true => {
                    self.end(key, list.last_row)?;
                    list.remembered = Some(list.last_row);
                }
                false => self.delete(key, list.last_row)?,
            }
            if !stays && came.is_none() {
                self.raise_floor(list.last_row as i64)?;
            }
        }
        if let (Some(entry), Some(claim)) = (came, claim) {
            if let Some(place) = list.remembered.take() {
                self.delete(key, place)?;
            }
            list.last_row = entry.place;
            self.insert(key, &entry, claim)?;
        }
        let news = |what: What| matches!(what, What::Began | What::Broken | What::Left);
        if !list.line.is_empty() && changes.iter().any(|change| news(change.what)) {
            self.tell_others(key)?;
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
