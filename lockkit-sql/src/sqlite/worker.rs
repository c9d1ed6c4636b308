//! A thread with a connection to the file. Jobs come in by a queue; what has queued up departs
//! together, in one transaction. Busy is waited out here, and errors of SQLite become sentences.
//!
//! A transaction begins, runs and ends without a pause on this thread, so a task that stands still
//! stops nobody, and dropping a future leaves no transaction open: its job runs, or does not.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lockkit_core::Error;
use lockkit_core::clock::Clock;
use rand::Rng;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::BACKEND;
use super::flight::Flight;
use super::hub::Hub;
use super::mark::{FileMark, LogMark};

/// For how long a busy file is waited out.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest pause between two tries. A transaction takes some ten microseconds.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);
/// How many jobs share a transaction at most.
const TOGETHER: usize = 64;

/// What happens in a transaction. It may run several times before it is answered, each time in a
/// transaction that starts from what was committed.
trait Job: Send {
    /// Whether somebody still waits for the answer.
    fn is_wanted(&self) -> bool;
    fn must_be_durable(&self) -> bool;
    fn run(&mut self, flight: &mut Flight<'_>) -> Result<(), Failure>;
    /// Tells the answer; or why there is none.
    fn answer(self: Box<Self>, end: Result<(), Error>);
}

struct Call<T, F> {
    work: F,
    durable: bool,
    answer: Option<Result<T, Error>>,
    tell: oneshot::Sender<Result<T, Error>>,
}

impl<T: Send, F> Job for Call<T, F>
where
    F: FnMut(&mut Flight<'_>) -> Result<Result<T, Error>, Failure> + Send,
{
    fn is_wanted(&self) -> bool {
        !self.tell.is_closed()
    }

    fn must_be_durable(&self) -> bool {
        self.durable
    }

    fn run(&mut self, flight: &mut Flight<'_>) -> Result<(), Failure> {
        self.answer = Some((self.work)(flight)?);
        Ok(())
    }

    fn answer(self: Box<Self>, end: Result<(), Error>) {
        let Self { answer, tell, .. } = *self;
        let answer = end.and_then(|()| answer.unwrap_or_else(|| Err(thread_ended())));
        // Nobody may be waiting any more.
        let _ = tell.send(answer);
    }
}

/// Why a transaction was not committed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It has to wait for the disk, and did not.
    NotDurable,
    /// SQLite refused something.
    Sqlite(rusqlite::Error),
    /// What a caller should know.
    Told(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

enum Message {
    Job(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

/// What a worker's transactions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads a snapshot.
    Reads,
    /// Writes; waits for the disk where a job asks for it.
    Writes,
    /// Writes, and always waits for the disk.
    WritesDurably,
}

/// A handle to the thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Sender<Message>,
}

/// What a worker has to know about its file.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) file: FileMark,
    pub(crate) epoch: i64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hub: Arc<Hub>,
}

impl Worker {
    pub(crate) fn start(site: Arc<Site>, kind: Kind) -> Result<Self, Error> {
        let (queue, jobs) = channel();
        let desk = Desk { site, kind, connected: None };
        std::thread::Builder::new()
            .name("lockkit-sqlite".to_owned())
            .spawn(move || desk.serve(&jobs))
            .map_err(|error| Error::retryable(BACKEND, error))?;
        Ok(Self { queue })
    }

    /// Does `work` in a transaction, alone or with others.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        durable: bool,
        work: impl FnMut(&mut Flight<'_>) -> Result<Result<T, Error>, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        let job = Box::new(Call { work, durable, answer: None, tell });
        self.queue.send(Message::Job(job)).map_err(|_| thread_ended())?;
        told.await.unwrap_or_else(|_| Err(thread_ended()))
    }

    /// Closes the connection. A later job opens another one.
    pub(crate) async fn close(&self) {
        let (tell, told) = oneshot::channel();
        if self.queue.send(Message::Close(tell)).is_ok() {
            let _ = told.await;
        }
    }
}

fn thread_ended() -> Error {
    Error::permanent(BACKEND, "the thread that serves the file has ended")
}

struct Desk {
    site: Arc<Site>,
    kind: Kind,
    connected: Option<Connected>,
}

/// A connection, the log that it writes to, and whether it waits for the disk.
struct Connected {
    connection: Connection,
    log: LogMark,
    durable: Option<bool>,
}

impl Desk {
    fn serve(mut self, queue: &Receiver<Message>) {
        while let Ok(first) = queue.recv() {
            let (mut group, mut closing) = (Vec::new(), None);
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Job(job) => group.push(job),
                    Message::Close(tell) => closing = Some(tell),
                }
                let full = group.len() >= TOGETHER || closing.is_some();
                next = if full { None } else { queue.try_recv().ok() };
            }
            group.retain(|job| job.is_wanted());
            if !group.is_empty() {
                self.carry(group);
            }
            if let Some(tell) = closing {
                self.connected = None;
                let _ = tell.send(());
            }
        }
    }

    /// Carries out jobs and answers them. What fails together is tried one by one.
    fn carry(&mut self, mut group: Vec<Box<dyn Job>>) {
        match self.attempt(&mut group) {
            Ok(()) => group.into_iter().for_each(|job| job.answer(Ok(()))),
            Err(Failure::Sqlite(error)) if is_busy(&error) => {
                group.into_iter().for_each(|job| job.answer(Err(kept_busy())));
            }
            Err(_) if group.len() > 1 => group.into_iter().for_each(|job| self.carry(vec![job])),
            Err(failure) => {
                let mut told = Some(told(failure));
                for job in group {
                    job.answer(Err(told.take().unwrap_or_else(thread_ended)));
                }
            }
        }
    }

    fn attempt(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let mut durable = match self.kind {
            Kind::WritesDurably => true,
            Kind::Writes | Kind::Reads => group.iter().any(|job| job.must_be_durable()),
        };
        let mut tries = Tries::new();
        loop {
            match self.transact(group, durable) {
                Err(Failure::NotDurable) if !durable => durable = true,
                Err(Failure::Sqlite(error)) if is_busy(&error) => tries.after(error)?,
                other => return other,
            }
        }
    }

    /// One transaction: all of it, or nothing.
    fn transact(&mut self, group: &mut [Box<dyn Job>], durable: bool) -> Result<(), Failure> {
        let (site, kind) = (self.site.clone(), self.kind);
        let connected = self.ready()?;
        if kind != Kind::Reads {
            connected.wait_for_disk(durable)?;
        }
        let connection = &connected.connection;
        let begin = if kind == Kind::Reads { "BEGIN" } else { "BEGIN IMMEDIATE" };
        let begun = connection.execute_batch(begin);
        let done = site.file.check_log(&connected.log).map_err(Failure::Told).and_then(|()| {
            begun?;
            let mut flight = Flight::begin(connection, &site, kind != Kind::Reads, durable)?;
            for job in group {
                job.run(&mut flight)?;
            }
            connection.execute_batch("COMMIT")?;
            Ok(flight.into_woken())
        });
        match done {
            Ok(woken) => {
                site.hub.wake(woken);
                Ok(())
            }
            Err(failure) => {
                // It may be over already. A connection that cannot even end it is of no use.
                if !connection.is_autocommit() && connection.execute_batch("ROLLBACK").is_err() {
                    self.connected = None;
                }
                Err(failure)
            }
        }
    }

    /// The connection, made if there is none, once the file is known to be the one that was opened.
    fn ready(&mut self) -> Result<&mut Connected, Failure> {
        self.site.file.check().map_err(Failure::Told)?;
        let connected = match self.connected.take() {
            Some(connected) => connected,
            None => {
                let connection = connect(self.site.file.path())?;
                Connected { connection, log: self.site.file.log(), durable: None }
            }
        };
        Ok(self.connected.insert(connected))
    }
}

impl Connected {
    fn wait_for_disk(&mut self, durable: bool) -> rusqlite::Result<()> {
        if self.durable != Some(durable) {
            let level = if durable { "FULL" } else { "NORMAL" };
            self.connection.execute_batch(&format!("PRAGMA synchronous = {level}"))?;
            self.durable = Some(durable);
        }
        Ok(())
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

/// How often something was tried, and whether to try again.
pub(crate) struct Tries {
    begun: Instant,
    pause: Duration,
}

impl Tries {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), pause: Duration::from_micros(100) }
    }

    /// Sleeps after an error that passes; returns one that does not, or has not passed for long.
    pub(crate) fn after(&mut self, error: rusqlite::Error) -> rusqlite::Result<()> {
        if !is_busy(&error) || self.begun.elapsed() >= PATIENCE {
            return Err(error);
        }
        std::thread::sleep(rand::rng().random_range(self.pause / 4..=self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Runs `work` until the file is not busy.
pub(crate) fn patiently<T>(mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, Error> {
    let mut tries = Tries::new();
    loop {
        match work() {
            Ok(done) => return Ok(done),
            Err(Failure::Sqlite(error)) => tries.after(error).map_err(explain)?,
            Err(other) => return Err(told(other)),
        }
    }
}

/// SQLite's result code without its details: 5 for all kinds of busy.
pub(crate) fn primary_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code & 0xff)
}

/// Busy, in any of its kinds, or locked by a neighbour in a shared cache.
fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(primary_code(error), Some(5 | 6))
}

fn kept_busy() -> Error {
    Error::retryable(
        BACKEND,
        "another process has kept the file locked for 5 s; find who writes to it (lockkit itself \
         needs some microseconds at a time)",
    )
}

fn told(failure: Failure) -> Error {
    match failure {
        Failure::Sqlite(error) => explain(error),
        Failure::Told(error) => error,
        Failure::NotDurable => Error::permanent(BACKEND, "a transaction did not wait for the disk"),
    }
}

/// The error of a caller, with advice where there is any.
pub(crate) fn explain(error: rusqlite::Error) -> Error {
    let advice = match primary_code(&error) {
        Some(5 | 6) => return kept_busy(),
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
