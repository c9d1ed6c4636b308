//! A thread with a connection to the file, which carries out one job after the other, each in a
//! transaction. A busy file is waited out here, and errors of SQLite become sentences.
//!
//! A transaction begins, runs and ends without a pause on this thread, so a task that stands still
//! stops nobody, and dropping a future leaves no transaction open: its job runs, or does not.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use lockkit_core::Error;
use lockkit_core::clock::Clock;
use rand::Rng;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::BACKEND;
use super::flight::{Flight, Known};
use super::mark::{FileMark, LogMark};
use super::sweep::Sweep;
use super::tokens::Given;
use crate::wake::Wakes;

/// For how long a busy file is waited out.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest pause between two tries. A transaction takes some ten microseconds.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// What all connections of a driver have to know about its file.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) file: FileMark,
    pub(crate) epoch: i64,
    pub(super) given: Given,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether everything waits for the disk.
    pub(crate) durable: bool,
}

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
    ) -> Result<T, Error> {
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
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        let job = move |desk: &mut Desk| {
            if !tell.is_closed() {
                let _ = tell.send(job(desk));
            }
        };
        let ended = || Error::permanent(BACKEND, "the thread that serves the file has ended");
        self.queue.send(Box::new(job)).map_err(|_| ended())?;
        told.await.map_err(|_| ended())
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
    ) -> Result<T, Error> {
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
            now("COMMIT")?;
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

/// A connection to a file that exists. It has read something: from then on the log is there, and
/// stays while this connection is.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Busy is waited out here, with a fresh reading of the clock for every try.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch("PRAGMA foreign_keys = OFF; SELECT count(*) FROM sqlite_schema")?;
    Ok(connection)
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Busy, in any of its kinds, or locked by a neighbour in a shared cache.
    Busy,
    /// It has to wait for the disk, and did not.
    NotDurable,
    /// What a caller should know.
    Told(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match primary_code(&error) {
            Some(5 | 6) => Self::Busy,
            _ => Self::Told(explain(error)),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

/// Runs `work` until the file is not busy.
pub(crate) fn patiently<T>(mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, Error> {
    let (begun, mut pause) = (Instant::now(), Duration::from_micros(100));
    loop {
        match work() {
            Ok(done) => return Ok(done),
            Err(Failure::Told(error)) => return Err(error),
            Err(_) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(rand::rng().random_range(pause / 4..=pause));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(_) => {
                return Err(Error::retryable(
                    BACKEND,
                    "another process has kept the file locked for 5 s; find who writes to it (lockkit \
                 itself needs some microseconds at a time)",
                ));
            }
        }
    }
}

/// SQLite's result code without its details: 5 for all kinds of busy.
pub(crate) fn primary_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code & 0xff)
}

/// The error of a caller, with advice where there is any.
pub(crate) fn explain(error: rusqlite::Error) -> Error {
    let advice = match primary_code(&error) {
        Some(8) => "the file or its folder is read-only: make both writable for this user",
        Some(11 | 26) => {
            "the file is damaged, or is not SQLite's: stop all who use it, move it away, and \
             lockkit makes a new one"
        }
        Some(13) => "the disk is full: make room",
        Some(14) => "the file cannot be opened: check its folder, its rights and free inodes",
        Some(10) => {
            "the disk failed, or the log beside the file was deleted while in use: check the \
             system's log; stop all who use the file and start them again"
        }
        _ => return Error::permanent(BACKEND, error),
    };
    Error::permanent(BACKEND, format!("{advice} ({error})"))
}
