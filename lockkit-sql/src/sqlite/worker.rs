//! A thread with a connection to the file, which carries out one job after the other, each in a
//! transaction. A busy file is waited out here, and errors of SQLite become sentences.
//!
//! A transaction begins, runs and ends without a pause on this thread, so a task that stands still
//! stops no other, and dropping a future leaves no transaction open: its job runs, or does not.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use lockkit_core::driver::BatchError;
use lockkit_core::{Error, Key, Result};
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::BACKEND;
use super::connection::{TransactionError, connect, patiently};
use super::context::{FileContext, LogMark};
use super::foreign::STALE;
use super::transaction::{Operation, Transaction, WriterCache, key_of};
use crate::rows::columns;
use crate::waiters::WaiterRegistry;

type Job = Box<dyn FnOnce(&mut JobContext) + Send>;

/// A handle to the thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Sender<Job>,
}

impl Worker {
    pub(crate) fn start(context: Arc<FileContext>, writes: bool) -> Result<Self> {
        let (queue, jobs) = channel::<Job>();
        let mut context = JobContext { context, writes, connected: None, prune: Pruner::default() };
        let serve = move || {
            for job in jobs {
                job(&mut context);
                context.prune_in_passing();
            }
        };
        let thread = std::thread::Builder::new().name("lockkit-sqlite".to_owned());
        thread.spawn(serve).map_err(|error| Error::retryable(BACKEND, error))?;
        Ok(Self { queue })
    }

    /// Does `work` in a transaction, unless its future was dropped when its turn comes. It may run
    /// several times before it is answered, each time in a transaction of its own.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnMut(&mut Transaction<'_>) -> Result<T, TransactionError> + Send + 'static,
    ) -> Result<T, Error> {
        self.submit(durable, work).await.map_err(|failed| failed.error)
    }

    /// The same; an error says whether the work may have been done.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnMut(&mut Transaction<'_>) -> Result<T, TransactionError> + Send + 'static,
    ) -> Result<T, BatchError> {
        self.ask(move |context| context.run(durable, work)).await?
    }

    /// Closes the connection. A later job opens another one.
    pub(crate) async fn close(&self) {
        // The thread may have ended.
        let _ = self.ask(|context| context.connected = None).await;
    }

    async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut JobContext) -> T + Send + 'static,
    ) -> Result<T, BatchError> {
        let (tell, told) = oneshot::channel();
        let job = move |context: &mut JobContext| {
            if !tell.is_closed() {
                let _ = tell.send(job(context));
            }
        };
        let ended = || Error::permanent(BACKEND, "the thread that serves the file has ended");
        self.queue.send(Box::new(job)).map_err(|_| BatchError::refused(ended()))?;
        told.await.map_err(|_| BatchError::unknown(ended()))
    }
}

pub(super) struct JobContext {
    context: Arc<FileContext>,
    writes: bool,
    connected: Option<Connected>,
    pub(super) prune: Pruner,
}

/// A connection, the log that it writes to, whether it waits for the disk, what it knows.
struct Connected {
    connection: Connection,
    log: LogMark,
    durable: Option<bool>,
    cache: WriterCache,
}

impl JobContext {
    pub(super) fn run<T>(
        &mut self,
        durable: bool,
        mut work: impl FnMut(&mut Transaction<'_>) -> Result<T, TransactionError>,
    ) -> Result<T, BatchError> {
        let mut durable = durable || self.context.durable;
        patiently(|| {
            let done = self.transact(durable, &mut work);
            durable |= matches!(done, Err(TransactionError::NotDurable));
            done
        })
    }

    /// One transaction: all of it, or nothing.
    fn transact<T>(
        &mut self,
        durable: bool,
        work: &mut impl FnMut(&mut Transaction<'_>) -> Result<T, TransactionError>,
    ) -> Result<T, TransactionError> {
        let context = &self.context;
        // Before there is a connection as well: the path may lead to another file by now.
        context.file.check()?;
        let connected = match self.connected.take() {
            Some(connected) => connected,
            None => Connected {
                connection: connect(context.file.path())?,
                log: context.file.log(),
                durable: None,
                cache: WriterCache::default(),
            },
        };
        let Connected { connection, log, durable: waits, cache } = self.connected.insert(connected);
        if self.writes && *waits != Some(durable) {
            let level = if durable { "FULL" } else { "NORMAL" };
            connection.execute_batch(&format!("PRAGMA synchronous = {level}"))?;
            *waits = Some(durable);
        }
        let now = |text: &str| connection.prepare_cached(text)?.execute([]);
        let begun = now(if self.writes { "BEGIN IMMEDIATE" } else { "BEGIN" });
        let done = context.file.check_log(log).map_err(TransactionError::from).and_then(|()| {
            begun?;
            let mut transaction =
                Transaction::begin(connection, context, self.writes, durable, cache)?;
            let answer = work(&mut transaction)?;
            now("COMMIT").map_err(|error| match TransactionError::from(error) {
                TransactionError::Refused(error) => TransactionError::Unknown(error),
                busy => busy,
            })?;
            self.prune.steps += transaction.steps;
            WaiterRegistry::wake(&transaction.end(), None);
            Ok(answer)
        });
        if done.is_err() {
            *cache = WriterCache::default();
            // It may be over already. A connection that cannot even end it is of no use.
            if !connection.is_autocommit() && connection.execute_batch("ROLLBACK").is_err() {
                self.connected = None;
            }
        }
        done
    }
}

/// How many operations there are for each bite.
const EVERY: u64 = 1024;
/// How many rows a bite looks at.
const BITE: usize = 2048;

/// Where the sweep has come to, and how many operations were taken since.
#[derive(Default)]
pub(super) struct Pruner {
    after: Option<Key>,
    pub(super) steps: u64,
}

impl JobContext {
    /// Every so many operations, a bite.
    pub(super) fn prune_in_passing(&mut self) {
        if self.prune.steps >= EVERY {
            self.prune.steps = 0;
            let after = self.prune.after.take();
            match self.run(false, |transaction| prune(transaction, after.as_ref())) {
                Ok(next) => self.prune.after = next,
                Err(error) => tracing::debug!(%error, "a prune failed; the next one goes on"),
            }
        }
    }
}

/// Returns where to go on.
fn prune(
    transaction: &mut Transaction<'_>,
    after: Option<&Key>,
) -> Result<Option<Key>, TransactionError> {
    let (namespace, space, name) = after.map_or(("", 0, ""), columns);
    let mut rows = transaction.all(
        "SELECT namespace, space, name, expires <= ?5 OR (asked > ?5 + ?6
           AND expires > ?5 + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END)
         FROM lockkit_claims WHERE (namespace, space, name) > (?1, ?2, ?3)
         ORDER BY namespace, space, name, sequence LIMIT ?4",
        params![namespace, space, name, BITE as i64, transaction.now(), STALE],
        // It has ended, or is of another boot.
        |row| Ok((key_of(row)?, row.get::<_, bool>(3)?)),
    )?;
    let whole = rows.len() == BITE;
    let next = rows.last().filter(|_| whole).and_then(|row| row.0.clone());
    rows.retain(|row| row.1);
    rows.dedup_by(|a, b| a.0 == b.0);
    for key in rows.iter().filter_map(|row| row.0.as_ref()) {
        transaction.step(key, &Operation::Advance)?;
        transaction.forget_place(key)?;
    }
    transaction.batch(include_str!("sql/sweep.sql"))?;
    Ok(next)
}
