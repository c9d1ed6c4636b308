//! A thread with a connection to the file, which carries out one job after the other, each in a
//! transaction. A busy file is waited out here, and errors of SQLite become sentences.
//!
//! A transaction begins, runs and ends without a pause on this thread, so a task that stands still
//! stops nobody, and dropping a future leaves no transaction open: its job runs, or does not.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use lockkit_core::driver::BatchError;
use lockkit_core::{Error, Key};
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::BACKEND;
use super::connection::{Failure, connect, patiently};
use super::context::{LogMark, Site};
use super::foreign::STALE;
use super::transaction::{Flight, Known, Verb, key_of};
use crate::rows::columns;
use crate::wake::Wakes;

type Job = Box<dyn FnOnce(&mut Desk) + Send>;

/// A handle to the thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Sender<Job>,
}

impl Worker {
    pub(crate) fn start(site: Arc<Site>, writes: bool) -> Result<Self, Error> {
        let (queue, jobs) = channel::<Job>();
        let mut desk = Desk { site, writes, connected: None, sweep: Sweep::default() };
        let serve = move || {
            for job in jobs {
                job(&mut desk);
                desk.sweep_in_passing();
            }
        };
        let thread = std::thread::Builder::new().name("lockkit-sqlite".to_owned());
        thread.spawn(serve).map_err(|error| Error::retryable(BACKEND, error))?;
        Ok(Self { queue })
    }

    /// Does `work` in a transaction, unless nobody waits for it when its turn comes. It may run
    /// several times before it is answered, each time in a transaction of its own.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnMut(&mut Flight<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, BatchError> {
        self.ask(move |desk| desk.carry(durable, work)).await?
    }

    /// Closes the connection. A later job opens another one.
    pub(crate) async fn close(&self) {
        // The thread may have ended.
        let _ = self.ask(|desk| desk.connected = None).await;
    }

    async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Desk) -> T + Send + 'static,
    ) -> Result<T, BatchError> {
        let (tell, told) = oneshot::channel();
        let job = move |desk: &mut Desk| {
            if !tell.is_closed() {
                let _ = tell.send(job(desk));
            }
        };
        let ended = || Error::permanent(BACKEND, "the thread that serves the file has ended");
        self.queue.send(Box::new(job)).map_err(|_| BatchError::refused(ended()))?;
        told.await.map_err(|_| BatchError::unknown(ended()))
    }
}

pub(super) struct Desk {
    site: Arc<Site>,
    writes: bool,
    connected: Option<Connected>,
    pub(super) sweep: Sweep,
}

/// A connection, the log that it writes to, whether it waits for the disk, what it knows.
struct Connected {
    connection: Connection,
    log: LogMark,
    durable: Option<bool>,
    known: Known,
}

impl Desk {
    pub(super) fn carry<T>(
        &mut self,
        durable: bool,
        mut work: impl FnMut(&mut Flight<'_>) -> Result<T, Failure>,
    ) -> Result<T, BatchError> {
        let mut durable = durable || self.site.durable;
        patiently(|| {
            let done = self.transact(durable, &mut work);
            durable |= matches!(done, Err(Failure::NotDurable));
            done
        })
    }

    /// One transaction: all of it, or nothing.
    fn transact<T>(
        &mut self,
        durable: bool,
        work: &mut impl FnMut(&mut Flight<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let site = &self.site;
        // Before there is a connection as well: the path may lead to another file by now.
        site.file.check()?;
        let connected = match self.connected.take() {
            Some(connected) => connected,
            None => Connected {
                connection: connect(site.file.path())?,
                log: site.file.log(),
                durable: None,
                known: Known::default(),
            },
        };
        let Connected { connection, log, durable: waits, known } = self.connected.insert(connected);
        if self.writes && *waits != Some(durable) {
            let level = if durable { "FULL" } else { "NORMAL" };
            connection.execute_batch(&format!("PRAGMA synchronous = {level}"))?;
            *waits = Some(durable);
        }
        let now = |text: &str| connection.prepare_cached(text)?.execute([]);
        let begun = now(if self.writes { "BEGIN IMMEDIATE" } else { "BEGIN" });
        let done = site.file.check_log(log).map_err(Failure::from).and_then(|()| {
            begun?;
            let mut flight = Flight::begin(connection, site, self.writes, durable, known)?;
            let answer = work(&mut flight)?;
            now("COMMIT").map_err(|error| match Failure::from(error) {
                Failure::Refused(error) => Failure::Unknown(error),
                busy => busy,
            })?;
            self.sweep.steps += flight.steps;
            Wakes::ring(&flight.end());
            Ok(answer)
        });
        if done.is_err() {
            *known = Known::default();
            // It may be over already. A connection that cannot even end it is of no use.
            if !connection.is_autocommit() && connection.execute_batch("ROLLBACK").is_err() {
                self.connected = None;
            }
        }
        done
    }
}

/// How many steps there are for each bite.
const EVERY: u64 = 1024;
/// How many rows a bite looks at.
const BITE: usize = 2048;

/// Where the sweep has come to, and how many steps were taken since.
#[derive(Default)]
pub(super) struct Sweep {
    after: Option<Key>,
    pub(super) steps: u64,
}

impl Desk {
    /// Every so many steps, a bite.
    pub(super) fn sweep_in_passing(&mut self) {
        if self.sweep.steps >= EVERY {
            self.sweep.steps = 0;
            let after = self.sweep.after.take();
            match self.carry(false, |flight| sweep(flight, after.as_ref())) {
                Ok(next) => self.sweep.after = next,
                Err(error) => tracing::debug!(%error, "a sweep failed; the next one goes on"),
            }
        }
    }
}

/// Returns where to go on.
fn sweep(flight: &mut Flight<'_>, after: Option<&Key>) -> Result<Option<Key>, Failure> {
    let (namespace, space, name) = after.map_or(("", 0, ""), columns);
    let mut rows = flight.all(
        "SELECT namespace, space, name, expires <= ?5 OR (asked > ?5 + ?6
           AND expires > ?5 + CASE WHEN held IS NULL THEN wait_ttl ELSE hold_ttl END)
         FROM lockkit_claims WHERE (namespace, space, name) > (?1, ?2, ?3)
         ORDER BY namespace, space, name, place LIMIT ?4",
        params![namespace, space, name, BITE as i64, flight.now(), STALE],
        // It has ended, or is of another boot.
        |row| Ok((key_of(row)?, row.get::<_, bool>(3)?)),
    )?;
    let whole = rows.len() == BITE;
    let next = rows.last().filter(|_| whole).and_then(|row| row.0.clone());
    rows.retain(|row| row.1);
    rows.dedup_by(|a, b| a.0 == b.0);
    for key in rows.iter().filter_map(|row| row.0.as_ref()) {
        flight.step(key, &Verb::Look)?;
        flight.forget_place(key)?;
    }
    flight.batch(include_str!("sql/sweep.sql"))?;
    Ok(next)
}
