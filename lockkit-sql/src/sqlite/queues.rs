//! The queues of a transaction: loads them, applies operations to them, and writes what changed. The rule
//! is [`lockkit_core::claim_list`]'s; here are rows in and rows out.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::claim_list::{
    AppliedOperation, ApplyError, ChangeKind, OperationResult, TokenSequence,
};
use lockkit_core::driver::ClaimId;
use lockkit_core::{Key, Space};
use rusqlite::{Row, params};

use super::connection::TransactionError;
use super::tokens::used_up;
use super::transaction::{
    CachedQueue, ClaimList, Operation, QueuedClaim, Transaction, moment, stored, tag, unsigned,
};
use crate::rows::{columns, duration, mode_of, nanos, token_of};

/// How much of a queue is loaded at first.
const FRONT: usize = 8;
/// How much news is kept.
const NEWS: i64 = 1024;

/// What a claim waits for.
#[derive(Default)]
pub(crate) struct NextPoll {
    pub(super) ahead: u32,
    pub(super) lease: Option<Duration>,
}

impl Transaction<'_> {
    /// Applies an operation to a queue, and writes what changed. Of a claim that waits it says as well how
    /// many live claims stand before it, and when the lease ends on which its turn depends.
    pub(crate) fn step(
        &mut self,
        key: &Key,
        step: &Operation<'_>,
    ) -> Result<(OperationResult, NextPoll), TransactionError> {
        self.steps += 1;
        // Out of the map while it is worked on: a failure ends the transaction, and what is known.
        let (key, mut queue) = match self.cache.lists.remove_entry(key) {
            Some(cache) => cache,
            None => (key.clone(), self.load(key)?),
        };
        self.load_named(&key, step, &mut queue)?;
        let mut applied = self.apply(&key, step, &mut queue)?;
        while applied.more {
            let AppliedOperation { changes, more, .. } =
                self.apply(&key, &Operation::Advance, &mut queue)?;
            applied.changes.extend(changes);
            applied.more = more;
        }
        self.write(&key, &applied, &mut queue)?;
        let is_news =
            |what| matches!(what, ChangeKind::Promoted | ChangeKind::Broken | ChangeKind::Removed);
        let changes = applied.changes.iter().any(|change| is_news(change.kind));
        if !queue.queue.is_empty() && (changes || matches!(step, Operation::Shorten(..))) {
            self.notify_others(&key)?;
        }
        let wait = match applied.answer {
            OperationResult::Waits(sequence) => self.wait(&key, &mut queue, sequence)?,
            _ => NextPoll::default(),
        };
        self.cache.lists.insert(key, queue);
        Ok((applied.answer, wait))
    }

    fn wait(
        &self,
        key: &Key,
        queue: &mut CachedQueue,
        sequence: u64,
    ) -> rusqlite::Result<NextPoll> {
        let line = &queue.queue;
        if line.known_to().is_some() && queue.sequences.is_empty() {
            let (namespace, space, name) = columns(key);
            let text = "SELECT sequence FROM lockkit_claims
                WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND expires > ?4 ORDER BY sequence";
            let values = params![namespace, space, name, self.now];
            queue.sequences = self.all(text, values, |row| row.get(0).map(unsigned))?;
        }
        let ahead = match line.known_to() {
            None => line.ahead(sequence),
            Some(_) => queue.sequences.partition_point(|other| *other < sequence) as u32,
        };
        // For the first to wait it is any of the queue, for others that of the claim right before it.
        let before = line.entries().take_while(|entry| entry.sequence < sequence).last();
        let end = match before.filter(|before| !before.holds()) {
            Some(before) => Some(before.expires),
            None => line.first_end(),
        };
        Ok(NextPoll { ahead, lease: end.map(|end| end.since(moment(self.now))) })
    }

    /// The limit that a semaphore was given.
    pub(crate) fn given(&self, key: &Key) -> rusqlite::Result<Option<u32>> {
        match (key.space, self.cache.lists.get(key)) {
            (Space::Lock, _) => Ok(None),
            (_, Some(queue)) => Ok(queue.given),
            (Space::Semaphore, None) => self.any(
                "SELECT capacity FROM lockkit_limits WHERE namespace = ?1 AND name = ?2",
                params![key.namespace.as_str(), key.name.as_str()],
                |row| row.get(0),
            ),
        }
    }

    /// The limit of a semaphore was changed.
    pub(crate) fn forget_list(&mut self, key: &Key) {
        self.cache.lists.remove(key);
    }

    /// Removes the row that remembers the place of a queue; the floor does from then on.
    pub(crate) fn forget_place(&mut self, key: &Key) -> rusqlite::Result<()> {
        if let Some(sequence) = self.cache.lists.remove(key).and_then(|queue| queue.remembered) {
            self.raise_floor(sequence as i64)?;
            self.delete(key, sequence)?;
        }
        Ok(())
    }

    /// Applies one operation, loading as much of the queue as it takes.
    fn apply(
        &mut self,
        key: &Key,
        step: &Operation<'_>,
        queue: &mut CachedQueue,
    ) -> Result<AppliedOperation, TransactionError> {
        let last = unsigned(self.last_number()).max(queue.last_row);
        loop {
            let mut tokens = TokenSequence::above(last);
            match queue.queue.apply(step, moment(self.now), &mut tokens) {
                Ok(applied) => {
                    if applied.more {
                        self.load_more(key, queue)?;
                    }
                    if tokens.last() > last {
                        let given = i64::try_from(tokens.last()).unwrap_or(i64::MAX);
                        self.give_numbers(given, matches!(step, Operation::Raise(..)))?;
                    }
                    return Ok(applied);
                }
                Err(ApplyError::NeedMore) => self.load_more(key, queue)?,
                Err(ApplyError::TokensUsedUp) => return Err(used_up().into()),
            }
        }
    }

    fn load(&mut self, key: &Key) -> rusqlite::Result<CachedQueue> {
        let given = self.given(key)?;
        let (mut entries, known_to) = self.load_after(key, -1, FRONT)?;
        let mut last_row = entries.last().map_or(0, |entry| entry.sequence);
        if known_to.is_some() {
            self.partly.push(key.clone());
            let text = "SELECT max(sequence) FROM lockkit_claims
                WHERE namespace = ?1 AND space = ?2 AND name = ?3";
            last_row = self.any(text, columns(key), |row| row.get(0).map(unsigned))?.unwrap_or(0);
        }
        let remembered =
            entries.pop_if(|entry| entry.expires == moment(0)).map(|last| last.sequence);
        let line = ClaimList::window(entries, known_to, given);
        Ok(CachedQueue {
            queue: line,
            given,
            last_row,
            remembered,
            bite: FRONT * 4,
            sequences: Vec::new(),
        })
    }

    fn load_more(&self, key: &Key, queue: &mut CachedQueue) -> rusqlite::Result<()> {
        if let Some(sequence) = queue.queue.known_to() {
            let (entries, known_to) = self.load_after(key, sequence as i64, queue.bite)?;
            queue.bite *= 4;
            queue.queue.extend(entries, known_to);
        }
        Ok(())
    }

    /// So many claims behind a place, and how far they go where there are more.
    pub(super) fn load_after(
        &self,
        key: &Key,
        after: i64,
        count: usize,
    ) -> rusqlite::Result<(Vec<QueuedClaim>, Option<u64>)> {
        let (namespace, space, name) = columns(key);
        let text = concat!(
            include_str!("sql/entries.sql"),
            "AND sequence > ?4 ORDER BY sequence LIMIT ?5"
        );
        let values = params![namespace, space, name, after, count as i64 + 1];
        let mut entries =
            self.adopted(key, self.all(text, values, |row| entry(row, key.space))?)?;
        let more = entries.len() > count;
        entries.truncate(count);
        let known_to = entries.last().filter(|_| more).map(|last| last.sequence);
        Ok((entries, known_to))
    }

    /// What an operation is about, if it is not in the window: a waiter, or the claim that has a token.
    fn load_named(
        &self,
        key: &Key,
        step: &Operation<'_>,
        queue: &mut CachedQueue,
    ) -> rusqlite::Result<()> {
        while matches!(step, Operation::Break(..)) && queue.queue.known_to().is_some() {
            self.load_more(key, queue)?;
        }
        if let (Some(known_to), Some(claim)) = (queue.queue.known_to(), step.claim())
            && queue.queue.find(&claim.id).is_none()
        {
            let (namespace, space, name) = columns(key);
            let text = concat!(include_str!("sql/entries.sql"), "AND id = ?4 AND held IS NULL");
            let values = params![namespace, space, name, claim.id.as_bytes()];
            let waiter = self.all(text, values, |row| entry(row, key.space))?;
            let waiter = self.adopted(key, waiter)?;
            queue.queue.extend(waiter, Some(known_to));
        }
        Ok(())
    }

    /// Writes what changed: a row for each claim that did.
    fn write(
        &mut self,
        key: &Key,
        applied: &AppliedOperation,
        queue: &mut CachedQueue,
    ) -> rusqlite::Result<()> {
        let changes = &applied.changes;
        let came = changes.iter().any(|change| change.kind == ChangeKind::Queued);
        for (at, change) in changes.iter().enumerate() {
            if change.wakes() {
                self.woken.push(tag(&change.id));
            }
            if changes[at + 1..].iter().any(|later| later.sequence == change.sequence) {
                continue;
            }
            if matches!(change.kind, ChangeKind::Queued | ChangeKind::Removed) {
                queue.sequences.clear();
            }
            match queue.queue.get(change.sequence) {
                Some(entry) => {
                    queue.last_row = queue.last_row.max(entry.sequence);
                    if let Some(sequence) = queue.remembered.take() {
                        self.delete(key, sequence)?;
                    }
                    self.put(key, entry, queue.given)?;
                }
                None if came || change.sequence != queue.last_row => {
                    self.delete(key, change.sequence)?
                }
                None if queue.queue.is_empty() => {
                    self.remember(key, change.sequence)?;
                    queue.remembered = Some(change.sequence);
                }
                None => {
                    self.delete(key, change.sequence)?;
                    self.raise_floor(change.sequence as i64)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a claim's row, new or not.
    fn put(&self, key: &Key, entry: &QueuedClaim, given: Option<u32>) -> rusqlite::Result<()> {
        let (namespace, space, name) = columns(key);
        let values = params![
            namespace,
            space,
            name,
            entry.sequence as i64,
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

    fn delete(&self, key: &Key, sequence: u64) -> rusqlite::Result<()> {
        let (namespace, space, name) = columns(key);
        let text = "DELETE FROM lockkit_claims
            WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND sequence = ?4";
        self.run(text, params![namespace, space, name, sequence as i64])
    }

    /// Keeps a row as one that has ended, and remembers its place.
    fn remember(&self, key: &Key, sequence: u64) -> rusqlite::Result<()> {
        let (namespace, space, name) = columns(key);
        let text = "UPDATE lockkit_claims SET expires = 0, held = coalesce(held, ?5)
            WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND sequence = ?4";
        self.run(text, params![namespace, space, name, sequence as i64, self.now])
    }

    /// Changes for the pollers of other processes.
    fn notify_others(&self, key: &Key) -> rusqlite::Result<()> {
        let text = "INSERT INTO lockkit_changes (namespace, space, name) VALUES (?1, ?2, ?3)";
        self.run(text, columns(key))?;
        let newest = self.connection.last_insert_rowid();
        self.run("DELETE FROM lockkit_changes WHERE n <= ?1", [newest - NEWS])
    }
}

/// The columns of `entries.sql`.
fn entry(row: &Row<'_>, space: Space) -> rusqlite::Result<QueuedClaim> {
    let time = |index: usize| row.get(index).map(moment);
    let ttl = |index: usize| row.get(index).map(duration);
    // A damaged id is none of a write.
    let id = row.get_ref(2)?.as_blob()?.try_into().unwrap_or([0; 16]);
    Ok(QueuedClaim {
        sequence: row.get(0).map(unsigned)?,
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
