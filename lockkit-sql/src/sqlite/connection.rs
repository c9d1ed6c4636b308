//! Connections to the file. A busy file is waited out here, and errors of SQLite become sentences.

use std::path::Path;
use std::time::{Duration, Instant};

use lockkit_core::Error;
use lockkit_core::driver::BatchError;
use rand::Rng;
use rusqlite::{Connection, OpenFlags};

use super::BACKEND;

/// For how long a busy file is waited out.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest pause between two tries. A transaction takes some ten microseconds.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

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
pub(crate) enum TransactionError {
    /// Busy, in any of its kinds, or locked by a neighbour in a shared cache.
    Busy,
    /// It has to wait for the disk, and did not.
    NotDurable,
    /// It failed, and did nothing.
    Refused(Error),
    /// It failed when it was committed, and may be.
    Unknown(Error),
}

impl From<rusqlite::Error> for TransactionError {
    fn from(error: rusqlite::Error) -> Self {
        match primary_code(&error) {
            Some(5 | 6) => Self::Busy,
            _ => Self::Refused(explain(error)),
        }
    }
}

impl From<Error> for TransactionError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Runs `work` until the file is not busy.
pub(crate) fn patiently<T>(
    mut work: impl FnMut() -> Result<T, TransactionError>,
) -> Result<T, BatchError> {
    let (begun, mut pause) = (Instant::now(), Duration::from_micros(100));
    loop {
        match work() {
            Ok(done) => return Ok(done),
            Err(TransactionError::Refused(error)) => return Err(BatchError::refused(error)),
            Err(TransactionError::Unknown(error)) => return Err(BatchError::unknown(error)),
            Err(_) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(rand::rng().random_range(pause / 4..=pause));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(_) => {
                return Err(BatchError::refused(Error::retryable(
                    BACKEND,
                    "another process has kept the file locked for 5 s; find who writes to it (lockkit \
                     itself needs some microseconds at a time)",
                )));
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
