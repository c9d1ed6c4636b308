//! One connection to the file, and how it is used: busy is waited out, a dead connection is
//! rebuilt, errors of SQLite become sentences. Knows no verb.
//!
//! # Dropped futures
//! sqlx runs every execute on the connection's own thread. A dropped future lets go of the answer,
//! not of the work: the thread finishes the statement that it runs, and starts no further one of
//! the same string. So everything that changes data here is **one statement**, which SQLite makes
//! a transaction by itself; whatever is dropped, none is left open for the next user.

use std::time::Duration;

use futures_util::TryStreamExt;
use lockkit_core::Error;
use lockkit_core::clock::Clock;
use rand::Rng;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteQueryResult, SqliteRow,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Either, Executor, Sqlite, SqlitePool};
use tokio::sync::{Mutex, MutexGuard};

use super::BACKEND;
use super::mark::{FileMark, LogMark};

/// For how long a busy file is waited out.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest pause between two tries. A write takes some ten microseconds.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// A statement with its parameters.
pub(crate) type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Where connections come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Our own.
    Options(Box<SqliteConnectOptions>),
    /// The user's pool; what is taken out of it is not given back, so the pool is not shortened.
    Pool(SqlitePool),
}

/// A connection that is made when it is first needed.
#[derive(Debug)]
pub(crate) struct Link {
    source: Source,
    /// What is run on a new connection.
    set_up: String,
    file: FileMark,
    connection: Mutex<Option<Connected>>,
}

/// A connection, and the log that it writes to.
#[derive(Debug)]
struct Connected {
    connection: SqliteConnection,
    log: LogMark,
}

impl Link {
    pub(crate) fn new(source: Source, set_up: String, file: FileMark) -> Self {
        Self { source, set_up, file, connection: Mutex::new(None) }
    }

    /// Runs a statement and returns the first row that it, or what follows it in the same string,
    /// gives. `make` is called for every try with the clock's time just before it, in nanoseconds.
    pub(crate) async fn row<'q>(
        &self,
        clock: &dyn Clock,
        make: impl Fn(i64) -> Statement<'q>,
    ) -> Result<Option<SqliteRow>, Error> {
        let mut tries = Tries::new();
        loop {
            let mut held = self.ready().await?;
            let connection = &mut held.as_mut().expect("ready means connected").connection;
            let now = clock.now().as_nanos() as i64;
            match make(now).fetch_optional(connection).await {
                Ok(row) => return Ok(row),
                Err(error) => tries.after(error, &mut held).await?,
            }
        }
    }

    /// Runs one statement that changes something, and says what it changed. This waits for one
    /// message of the connection's thread, where a row would be a second one.
    pub(crate) async fn change<'q>(
        &self,
        clock: &dyn Clock,
        make: impl Fn(i64) -> Statement<'q>,
    ) -> Result<SqliteQueryResult, Error> {
        let mut tries = Tries::new();
        loop {
            let mut held = self.ready().await?;
            let connection = &mut held.as_mut().expect("ready means connected").connection;
            let now = clock.now().as_nanos() as i64;
            // The end of the statement is told after its commit. What follows is only the end of
            // the string.
            let ended = connection.fetch_many(make(now)).try_next().await;
            match ended {
                Ok(Some(Either::Left(result))) => return Ok(result),
                Ok(_) => return Err(Error::permanent(BACKEND, "SQLite did not end a statement")),
                Err(error) => tries.after(error, &mut held).await?,
            }
        }
    }

    /// The same, with all rows.
    pub(crate) async fn rows<'q>(
        &self,
        clock: &dyn Clock,
        make: impl Fn(i64) -> Statement<'q>,
    ) -> Result<Vec<SqliteRow>, Error> {
        let mut tries = Tries::new();
        loop {
            let mut held = self.ready().await?;
            let connection = &mut held.as_mut().expect("ready means connected").connection;
            let now = clock.now().as_nanos() as i64;
            match make(now).fetch(connection).try_collect().await {
                Ok(rows) => return Ok(rows),
                Err(error) => tries.after(error, &mut held).await?,
            }
        }
    }

    /// Closes the connection, if there is one.
    pub(crate) async fn close(&self) {
        if let Some(connected) = self.connection.lock().await.take() {
            let _ = connected.connection.close().await;
        }
    }

    /// The connection, made if there is none, once the file is known to be the one that was opened.
    async fn ready(&self) -> Result<MutexGuard<'_, Option<Connected>>, Error> {
        let mut held = self.connection.lock().await;
        self.file.check()?;
        match held.as_ref() {
            Some(connected) => self.file.check_log(&connected.log)?,
            None => {
                // Only a connection that is set up to the end is kept.
                let connection = connect(&self.source, &self.set_up).await?;
                *held = Some(Connected { connection, log: self.file.log() });
            }
        }
        Ok(held)
    }
}

/// Connects and sets up, waiting out a busy file. On failure the connection is closed to the end,
/// so that SQLite removes what it put beside the file.
pub(crate) async fn connect(source: &Source, set_up: &str) -> Result<SqliteConnection, Error> {
    let mut tries = Tries::new();
    loop {
        let made = match source {
            Source::Options(options) => options.connect().await,
            Source::Pool(pool) => pool.acquire().await.map(|c| c.detach()),
        };
        let error = match made {
            Ok(mut connection) => {
                if let Err(error) = check_library(&mut connection).await {
                    let _ = connection.close().await;
                    return Err(error);
                }
                match prepare(&mut connection, set_up).await {
                    Ok(()) => return Ok(connection),
                    Err(error) => {
                        let _ = connection.close().await;
                        error
                    }
                }
            }
            Err(error) => error,
        };
        tries.after(error, &mut None::<()>).await?;
    }
}

/// The oldest SQLite that has everything the statements use (the last is `unhex`).
const LEAST_SQLITE: (u32, u32) = (3, 41);

/// Which SQLite a program has, its other dependencies decide as well, or the system.
async fn check_library(connection: &mut SqliteConnection) -> Result<(), Error> {
    let version: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(connection)
        .await
        .map_err(explain)?;
    refuse_old(&version)
}

fn refuse_old(version: &str) -> Result<(), Error> {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= LEAST_SQLITE {
        return Ok(());
    }
    let (major, minor) = LEAST_SQLITE;
    Err(Error::config(format!(
        "this program was built with SQLite {version}, and locks need {major}.{minor} or newer: \
         update `libsqlite3-sys` (`cargo update`), or the system's SQLite where that is used"
    )))
}

/// Sets up, and reads something: from then on the log is there, and stays while this connection is.
async fn prepare(connection: &mut SqliteConnection, set_up: &str) -> Result<(), sqlx::Error> {
    connection.execute(AssertSqlSafe(set_up.to_owned())).await?;
    connection.execute("SELECT count(*) FROM sqlite_schema").await?;
    Ok(())
}

/// How often something was tried, and whether to try again.
pub(crate) struct Tries {
    begun: tokio::time::Instant,
    pause: Duration,
}

impl Tries {
    pub(crate) fn new() -> Self {
        Self { begun: tokio::time::Instant::now(), pause: Duration::from_micros(250) }
    }

    /// Sleeps after an error that passes; returns one that does not.
    pub(crate) async fn after<C>(
        &mut self,
        error: sqlx::Error,
        connection: &mut Option<C>,
    ) -> Result<(), Error> {
        if matches!(error, sqlx::Error::WorkerCrashed) {
            *connection = None;
        }
        if !is_busy(&error) {
            return Err(explain(error));
        }
        if self.begun.elapsed() >= PATIENCE {
            return Err(Error::retryable(
                BACKEND,
                "another process has kept the file locked for 5 s; find who writes to it (lockkit \
                 itself needs some microseconds at a time)",
            ));
        }
        let pause = rand::rng().random_range(self.pause / 4..=self.pause);
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// SQLite's result code without its details: 5 for all kinds of busy.
pub(crate) fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
}

/// Busy, in any of its kinds, or locked by a neighbour in a shared cache.
fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(5 | 6))
}

/// What this driver's own triggers refuse, told by its message.
pub(crate) fn refusal(error: &Error) -> Option<&str> {
    let Error::Backend { source, .. } = error else {
        return None;
    };
    let refused = source.downcast_ref::<Refused>()?;
    Some(&refused.0)
}

/// A trigger said no.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_str() {
            "epoch" => f.write_str(
                "the file was taken over by another boot of this machine, or by another machine; a \
                 lock file of SQLite serves one machine at a time: open it anew, and use a server \
                 (postgres, redis …) for several machines",
            ),
            other => f.write_str(other),
        }
    }
}

impl std::error::Error for Refused {}

/// The error of a caller, with advice where there is any.
pub(crate) fn explain(error: sqlx::Error) -> Error {
    if let Some(database) = error.as_database_error()
        && let Some(refused) = database.message().strip_prefix("lockkit: ")
    {
        return Error::permanent(BACKEND, Refused(refused.to_owned()));
    }
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
        _ if matches!(error, sqlx::Error::WorkerCrashed | sqlx::Error::PoolTimedOut) => {
            return Error::retryable(BACKEND, error);
        }
        _ => return Error::permanent(BACKEND, error),
    };
    Error::permanent(BACKEND, format!("{advice} ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_sqlite_is_refused_in_a_sentence() {
        for fine in ["3.41.0", "3.46.0", "3.100.1", "4.0"] {
            refuse_old(fine).unwrap();
        }
        for old in ["3.40.1", "3.9", "2.99.0", "unknown"] {
            let told = refuse_old(old).unwrap_err().to_string();
            assert!(told.contains(old) && told.contains("3.41 or newer"), "{told}");
        }
    }
}
