//! One transaction: loads lists, applies steps to them, and writes what changed. The rule is
//! [`lockkit_core::line`]'s; here are rows in and rows out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::ClaimId;
use lockkit_core::line::{self, Answer, Applied, Stop, Tokens, What};
use lockkit_core::{Error, Key, Space};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};

use super::BACKEND;
use super::registers::GRACE;
use super::tokens::{Given, used_up, wall_clock};
use super::wait::tag;
use super::worker::{Failure, Site};
use crate::rows::{self, columns, duration, mode_of, nanos, token_of};
use crate::wake::Tag;

/// How much of a list is loaded at first.
const FRONT: usize = 8;
/// How many lists are known from one transaction to the next at most.
const KNOWN: usize = 1024;
/// How much news is kept.
const NEWS: i64 = 1024;

/// Whose a claim is: its identity as JSON, and its note.
type Who = Arc<(String, Option<String>)>;
pub(super) type Verb<'a> = line::Verb<'a, Who>;
pub(super) type Line = line::Line<Who>;
type Entry = line::Entry<Who>;

/// A transaction on its way.
pub(crate) struct Flight<'c> {
    connection: &'c Connection,
    now: i64,
    /// The wall clock's microseconds, which new numbers are not less than.
    pub(super) wall: i64,
    pub(super) given: &'c Given,
    pub(super) writes: bool,
    pub(super) durable: bool,
    pub(super) known: &'c mut Known,
    /// Lists of which only a window is known.
    partly: Vec<Key>,
    woken: Vec<Tag>,
    pub(super) steps: u64,
}

/// What the writing connection knows of the file: what it read and wrote, for as long as no other
/// connection writes.
#[derive(Default)]
pub(crate) struct Known {
    version: Option<i64>,
    /// Of `lockkit_meta`.
    pub(super) floor: i64,
    pub(super) ceiling: i64,
    lists: HashMap<Key, List>,
}

struct List {
    line: Line,
    /// The limit that the semaphore was given.
    given: Option<u32>,
    /// The greatest place that has a row.
    last_row: u64,
    /// The place of the row that has ended and only remembers it.
    remembered: Option<u64>,
    /// How much to load next.
    bite: usize,
    /// The places of all live claims, if they were asked for and the window does not show them.
    places: Vec<u64>,
}

/// What a claim waits for.
#[derive(Default)]
pub(crate) struct Wait {
    pub(super) ahead: u32,
    pub(super) lease: Option<Duration>,
}

impl<'c> Flight<'c> {
    /// In a transaction that has begun, and that has the file's write lock if it `writes`.
    pub(super) fn begin(
        connection: &'c Connection,
        site: &'c Site,
        writes: bool,
        durable: bool,
        known: &'c mut Known,
    ) -> Result<Self, Failure> {
        // Read with the lock in hand: no transaction that wrote before this one had a later clock.
        let now = site.clock.now().as_nanos() as i64;
        let flight = Self {
            connection,
            now,
            wall: wall_clock(),
            given: &site.given,
            writes,
            durable,
            known,
            partly: Vec::new(),
            woken: Vec::new(),
            steps: 0,
        };
        if writes {
            let version = flight.any("PRAGMA data_version", [], |row| row.get(0))?;
            if flight.known.version != version {
                let meta = "SELECT token, ceiling FROM lockkit_meta WHERE epoch = ?1";
                let meta = flight.any(meta, [site.epoch], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let (floor, ceiling) = meta.ok_or_else(taken_over)?;
                *flight.known = Known { version, floor, ceiling, lists: HashMap::new() };
            }
        }
        Ok(flight)
    }

    /// Forgets what is too much to be known beyond the transaction, and says whom to wake.
    pub(super) fn end(self) -> Vec<Tag> {
        self.partly.iter().for_each(|key| drop(self.known.lists.remove(key)));
        if self.known.lists.len() > KNOWN {
            self.known.lists.clear();
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

    /// Applies a step to a list, and writes what changed. Of a claim that waits it says as well how
    /// many live claims stand before it, and when the lease ends on which its turn depends.
    pub(crate) fn step(&mut self, key: &Key, step: &Verb<'_>) -> Result<(Answer, Wait), Failure> {
        self.steps += 1;
        // Out of the map while it is worked on: a failure ends the transaction, and what is known.
        let (key, mut list) = match self.known.lists.remove_entry(key) {
            Some(known) => known,
            None => (key.clone(), self.load(key)?),
        };
        self.load_named(&key, step, &mut list)?;
        let mut applied = self.apply(&key, step, &mut list)?;
        while applied.more {
            let Applied { changes, more, .. } = self.apply(&key, &Verb::Look, &mut list)?;
            applied.changes.extend(changes);
            applied.more = more;
        }
        self.write(&key, &applied, &mut list)?;
        let is_news = |what| matches!(what, What::Began | What::Broken | What::Left);
        let news = applied.changes.iter().any(|change| is_news(change.what));
        if !list.line.is_empty() && (news || matches!(step, Verb::Shorten(..))) {
            self.tell_others(&key)?;
        }
        let wait = match applied.answer {
            Answer::Waits(place) => self.wait(&key, &mut list, place)?,
            _ => Wait::default(),
        };
        self.known.lists.insert(key, list);
        Ok((applied.answer, wait))
    }

    fn wait(&self, key: &Key, list: &mut List, place: u64) -> rusqlite::Result<Wait> {
        let line = &list.line;
        if line.known_to().is_some() && list.places.is_empty() {
            let (namespace, space, name) = columns(key);
            let text = "SELECT place FROM lockkit_claims
                WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND expires > ?4 ORDER BY place";
            let values = params![namespace, space, name, self.now];
            list.places = self.all(text, values, |row| row.get(0).map(unsigned))?;
        }
        let ahead = match line.known_to() {
            None => line.ahead(place),
            Some(_) => list.places.partition_point(|other| *other < place) as u32,
        };
        // For the first to wait it is any of the list, for others that of the claim right before it.
        let before = line.entries().take_while(|entry| entry.place < place).last();
        let end = match before.filter(|before| !before.holds()) {
            Some(before) => Some(before.expires),
            None => line.first_end(),
        };
        Ok(Wait { ahead, lease: end.map(|end| end.since(moment(self.now))) })
    }

    /// The limit that a semaphore was given.
    pub(crate) fn given(&self, key: &Key) -> rusqlite::Result<Option<u32>> {
        match (key.space, self.known.lists.get(key)) {
            (Space::Lock, _) => Ok(None),
            (_, Some(list)) => Ok(list.given),
            (Space::Semaphore, None) => self.any(
                "SELECT capacity FROM lockkit_limits WHERE namespace = ?1 AND name = ?2",
                params![key.namespace.as_str(), key.name.as_str()],
                |row| row.get(0),
            ),
        }
    }

    /// The limit of a semaphore was changed.
    pub(crate) fn forget_list(&mut self, key: &Key) {
        self.known.lists.remove(key);
    }

    /// Removes the row that remembers the place of a list; the floor does from then on.
    pub(crate) fn forget_place(&mut self, key: &Key) -> rusqlite::Result<()> {
        if let Some(place) = self.known.lists.remove(key).and_then(|list| list.remembered) {
            self.raise_floor(place as i64)?;
            self.delete(key, place)?;
        }
        Ok(())
    }

    /// Applies one step, loading as much of the list as it takes.
    fn apply(&mut self, key: &Key, step: &Verb<'_>, list: &mut List) -> Result<Applied, Failure> {
        let last = unsigned(self.last_number()).max(list.last_row);
        loop {
            let mut tokens = Tokens::above(last);
            match list.line.apply(step, moment(self.now), &mut tokens) {
                Ok(applied) => {
                    if applied.more {
                        self.load_more(key, list)?;
                    }
                    if tokens.last() > last {
                        let given = i64::try_from(tokens.last()).unwrap_or(i64::MAX);
                        self.give_numbers(given, matches!(step, Verb::Raise(..)))?;
                    }
                    return Ok(applied);
                }
                Err(Stop::NeedMore) => self.load_more(key, list)?,
                Err(Stop::TokensUsedUp) => return Err(used_up().into()),
            }
        }
    }

    fn load(&mut self, key: &Key) -> rusqlite::Result<List> {
        let given = self.given(key)?;
        let (mut entries, known_to) = self.load_after(key, -1, FRONT)?;
        let mut last_row = entries.last().map_or(0, |entry| entry.place);
        if known_to.is_some() {
            self.partly.push(key.clone());
            let text = "SELECT max(place) FROM lockkit_claims
                WHERE namespace = ?1 AND space = ?2 AND name = ?3";
            last_row = self.any(text, columns(key), |row| row.get(0).map(unsigned))?.unwrap_or(0);
        }
        let remembered = entries.pop_if(|entry| entry.expires == moment(0)).map(|last| last.place);
        let line = Line::window(entries, known_to, given);
        Ok(List { line, given, last_row, remembered, bite: FRONT * 4, places: Vec::new() })
    }

    fn load_more(&self, key: &Key, list: &mut List) -> rusqlite::Result<()> {
        if let Some(place) = list.line.known_to() {
            let (entries, known_to) = self.load_after(key, place as i64, list.bite)?;
            list.bite *= 4;
            list.line.extend(entries, known_to);
        }
        Ok(())
    }

    /// So many claims behind a place, and how far they go where there are more.
    pub(super) fn load_after(
        &self,
        key: &Key,
        after: i64,
        count: usize,
    ) -> rusqlite::Result<(Vec<Entry>, Option<u64>)> {
        let (namespace, space, name) = columns(key);
        let text =
            concat!(include_str!("sql/entries.sql"), "AND place > ?4 ORDER BY place LIMIT ?5");
        let values = params![namespace, space, name, after, count as i64 + 1];
        let mut entries =
            self.adopted(key, self.all(text, values, |row| entry(row, key.space))?)?;
        let more = entries.len() > count;
        entries.truncate(count);
        let known_to = entries.last().filter(|_| more).map(|last| last.place);
        Ok((entries, known_to))
    }

    /// What a step is about, if it is not in the window: a waiter, or whoever has a token.
    fn load_named(&self, key: &Key, step: &Verb<'_>, list: &mut List) -> rusqlite::Result<()> {
        while matches!(step, Verb::Break(..)) && list.line.known_to().is_some() {
            self.load_more(key, list)?;
        }
        if let (Some(known_to), Some(claim)) = (list.line.known_to(), step.claim())
            && list.line.find(&claim.id).is_none()
        {
            let (namespace, space, name) = columns(key);
            let text = concat!(include_str!("sql/entries.sql"), "AND id = ?4 AND held IS NULL");
            let values = params![namespace, space, name, claim.id.as_bytes()];
            let waiter = self.all(text, values, |row| entry(row, key.space))?;
            let waiter = self.adopted(key, waiter)?;
            list.line.extend(waiter, Some(known_to));
        }
        Ok(())
    }

    /// Writes what changed: a row for each claim that did.
    fn write(&mut self, key: &Key, applied: &Applied, list: &mut List) -> rusqlite::Result<()> {
        let changes = &applied.changes;
        let came = changes.iter().any(|change| change.what == What::Came);
        for (at, change) in changes.iter().enumerate() {
            if change.wakes() {
                self.woken.push(tag(&change.id));
            }
            if changes[at + 1..].iter().any(|later| later.place == change.place) {
                continue;
            }
            if matches!(change.what, What::Came | What::Left) {
                list.places.clear();
            }
            match list.line.get(change.place) {
                Some(entry) => {
                    list.last_row = list.last_row.max(entry.place);
                    if let Some(place) = list.remembered.take() {
                        self.delete(key, place)?;
                    }
                    self.put(key, entry, list.given)?;
                }
                None if came || change.place != list.last_row => self.delete(key, change.place)?,
                None if list.line.is_empty() => {
                    self.remember(key, change.place)?;
                    list.remembered = Some(change.place);
                }
                None => {
                    self.delete(key, change.place)?;
                    self.raise_floor(change.place as i64)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a claim's row, new or not.
    fn put(&self, key: &Key, entry: &Entry, given: Option<u32>) -> rusqlite::Result<()> {
        let (namespace, space, name) = columns(key);
        let values = params![
            namespace,
            space,
            name,
            entry.place as i64,
            entry.token.as_i64(),
            entry.id.as_bytes(),
            entry.mode.weight(),
            given.unwrap_or(entry.mode.capacity()),
            nanos(entry.hold_ttl),
            nanos(entry.wait_ttl),
            stored(entry.queued_at),
            stored(entry.asked_at),
            stored(entry.expires),
            entry.held_since.map(stored),
            entry.broken,
            entry.with.0,
            entry.with.1,
        ];
        self.run(include_str!("sql/put.sql"), values)
    }

    fn delete(&self, key: &Key, place: u64) -> rusqlite::Result<()> {
        let (namespace, space, name) = columns(key);
        let text = "DELETE FROM lockkit_claims
            WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place = ?4";
        self.run(text, params![namespace, space, name, place as i64])
    }

    /// Guarantee a row as one that has ended, and remembers its place.
    fn remember(&self, key: &Key, place: u64) -> rusqlite::Result<()> {
        let (namespace, space, name) = columns(key);
        let text = "UPDATE lockkit_claims SET expires = 0, held = coalesce(held, ?5)
            WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND place = ?4";
        self.run(text, params![namespace, space, name, place as i64, self.now])
    }

    /// News for the pollers of other processes.
    fn tell_others(&self, key: &Key) -> rusqlite::Result<()> {
        let text = "INSERT INTO lockkit_news (namespace, space, name) VALUES (?1, ?2, ?3)";
        self.run(text, columns(key))?;
        let newest = self.connection.last_insert_rowid();
        self.run("DELETE FROM lockkit_news WHERE n <= ?1", [newest - NEWS])
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

/// Runs statements with `:now`, and `:grace` for how long what nobody needs is remembered.
pub(crate) fn batch(connection: &Connection, sql: &str, now: i64) -> rusqlite::Result<()> {
    let sql = sql.replace(":now", &now.to_string()).replace(":grace", &GRACE.to_string());
    connection.execute_batch(&sql)
}

/// The list of these columns, the first of a row; `None` where they are damaged.
pub(crate) fn key_of(row: &Row<'_>) -> rusqlite::Result<Option<Key>> {
    let (namespace, space, name): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(rows::key_of(&namespace, space, &name))
}

/// The columns of `entries.sql`.
fn entry(row: &Row<'_>, space: Space) -> rusqlite::Result<Entry> {
    let time = |index: usize| row.get(index).map(moment);
    let ttl = |index: usize| row.get(index).map(duration);
    // A damaged id is nobody's.
    let id = row.get_ref(2)?.as_blob()?.try_into().unwrap_or([0; 16]);
    Ok(Entry {
        place: row.get(0).map(unsigned)?,
        token: token_of(row.get(1)?),
        id: ClaimId::from_bytes(id),
        mode: mode_of(space, row.get(3)?, row.get(4)?),
        hold_ttl: ttl(5)?,
        wait_ttl: ttl(6)?,
        queued_at: time(7)?,
        asked_at: time(8)?,
        expires: time(9)?,
        held_since: row.get::<_, Option<i64>>(10)?.map(moment),
        broken: row.get(11)?,
        with: Arc::new((row.get(12)?, row.get(13)?)),
    })
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
