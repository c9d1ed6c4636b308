//! Making the file, its tables, and its first row; and how it passes from one boot to the next.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lockkit_core::clock::Clock;
use lockkit_core::{Error, Result};
use rand::Rng;
use rusqlite::{Connection, params};
use sqlx::sqlite::SqlitePool;

use super::BACKEND;
use super::connection::{connect, patiently};
use super::context::{FileMark, beside};
use super::location::{
    APPLICATION_ID, SCHEMA_VERSION, check_header, check_version, check_writable, io_error,
    refuse_network, refuse_second_name, resolve,
};
use super::tokens::{TOKEN_BLOCK, wall_clock};
use super::transaction::batch;

/// Makes sure that there is a usable file at `path` and returns its absolute path without links.
pub(crate) fn prepare(path: &Path, boot: &str) -> Result<PathBuf> {
    let path = resolve(path)?;
    let refuse = |why: &str| Err(Error::config(format!("{} is {why}", path.display())));
    match fs::metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => make(&path, boot)?,
        Err(e) => return Err(io_error("look at", &path, &e)),
        Ok(m) if m.is_dir() => return refuse("a folder: name a file in it"),
        Ok(m) if !m.is_file() => return refuse("not a regular file"),
        Ok(m) => {
            refuse_second_name(&path)?;
            if m.len() > 0 {
                check_header(&path, m.len())?;
            }
            check_writable(&path)?;
            if m.len() == 0 {
                initialise(&path, boot)?;
            }
        }
    }
    Ok(path)
}

/// Puts the tables into a database that has others too: the file behind a pool.
pub(crate) fn prepare_beside(path: PathBuf, boot: &str) -> Result<PathBuf> {
    refuse_network(&path)?;
    refuse_second_name(&path)?;
    patiently(|| {
        let connection = connect(&path)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        create_tables(&connection, boot)?;
        Ok(connection.execute_batch("COMMIT")?)
    })
    .map_err(|failed| failed.error)?;
    Ok(path)
}

/// The path of the file behind a pool.
pub(crate) async fn path_of(pool: &SqlitePool) -> Result<PathBuf> {
    let path: String =
        sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(pool)
            .await
            .map_err(|error| Error::retryable(BACKEND, error))?;
    match path.is_empty() {
        false => Ok(PathBuf::from(path)),
        true => Err(Error::config(
            "this pool is on a database in memory, of which every connection has its own: use \
             `memory:` for locks within one process",
        )),
    }
}

/// Which SQLite a program has, its other dependencies decide as well, or the system. The client
/// library supports 3.34 and newer.
pub(crate) fn refuse_old_library(number: i32) -> Result<()> {
    if number >= 3_034_000 {
        return Ok(());
    }
    let (major, minor) = (number / 1_000_000, number / 1_000 % 1_000);
    Err(Error::config(format!(
        "this program was built with SQLite {major}.{minor}, and locks need 3.34 or newer: update \
         `libsqlite3-sys` (`cargo update`), or the system's SQLite where that is used"
    )))
}

/// Makes the file beside its place and then moves it there, so that no process ever sees half a file:
/// of many processes that start at once the first one's stays.
fn make(path: &Path, boot: &str) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mark = rand::rng().random::<u64>();
    let name = format!(".{name}.{}-{mark:016x}.new", std::process::id());
    let fresh = TemporaryFile(path.with_file_name(name));
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(&fresh.0);
    opened.map_err(|e| io_error("make a file beside", path, &e))?;
    initialise(&fresh.0, boot)?;
    match move_into_place(&fresh.0, path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(io_error("make", path, &e)),
        _ => Ok(()),
    }
}

/// Gives a file its name unless there is one of that name. A file system that cannot do so by
/// moving can by a link, with two names for a moment.
fn move_into_place(from: &Path, to: &Path) -> std::io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            other => return Ok(other?),
        }
    }
    fs::hard_link(from, to)
}

/// A file that is only on its way: gone with this value, whatever happened.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let _ = fs::remove_file(beside(&self.0, suffix));
        }
    }
}

/// Puts the schema into an empty file. Everything but the last step is one transaction in a
/// rollback journal, so that the header is in the file itself, not only in a log, and that an
/// empty file stays empty if this fails.
fn initialise(path: &Path, boot: &str) -> Result<()> {
    patiently(|| {
        // The connection is closed after it: a failure leaves nothing open.
        let connection = connect(path)?;
        connection.execute_batch("PRAGMA synchronous = FULL; BEGIN EXCLUSIVE")?;
        create_tables(&connection, boot)?;
        connection.execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};
             COMMIT"
        ))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        Ok(())
    })
    .map_err(|failed| failed.error)
}

/// Unless they are there.
fn create_tables(connection: &Connection, boot: &str) -> rusqlite::Result<()> {
    let ours = "SELECT count(*) FROM sqlite_schema WHERE name = 'lockkit_meta'";
    let there: i64 = connection.query_row(ours, [], |row| row.get(0))?;
    if there == 0 {
        connection.execute_batch(include_str!("sql/schema.sql"))?;
        let first = "INSERT INTO lockkit_meta (one, version, boot, epoch, token, ceiling)
            VALUES (1, ?1, ?2, 1, ?3, ?3)";
        connection.execute(first, params![SCHEMA_VERSION, boot, wall_clock()])?;
    }
    Ok(())
}

/// Finds out how the file counts this boot; takes the file over from an earlier one.
pub(crate) fn enter(file: &FileMark, boot: &str, clock: &dyn Clock) -> Result<i64> {
    let before = file.log();
    patiently(|| {
        // The connection is closed after it: a failure leaves nothing open.
        let connection = connect(file.path())?;
        connection.execute_batch("PRAGMA synchronous = FULL; BEGIN IMMEDIATE")?;
        let meta = "SELECT version, boot = ?1 FROM main.lockkit_meta";
        let (version, known): (i64, bool) =
            connection.query_row(meta, [boot], |row| Ok((row.get(0)?, row.get(1)?)))?;
        check_version(file.path(), version)?;
        if !known {
            // Tokens go on above the ceiling: what was given below it may be lost from the file, if
            // the power failed, but the ceiling was on disk before. And above the wall clock: the file
            // may be an older copy.
            let next = "UPDATE lockkit_meta
                SET boot = ?1, epoch = epoch + 1, token = max(ceiling, ?2)";
            connection.execute(next, params![boot, wall_clock()])?;
            let now = clock.now().as_nanos() as i64;
            batch(&connection, include_str!("sql/takeover.sql"), now)?;
        }
        // Where a log begins, the tokens of an earlier one may be lost, if it was deleted in
        // use: they go on above the wall clock, as in a new file.
        if before[0].is_none() || file.log() != before {
            connection.execute(
                "UPDATE lockkit_meta SET token = max(token, ?1), ceiling = max(ceiling, ?1 + ?2)",
                params![wall_clock(), TOKEN_BLOCK],
            )?;
        }
        let epoch = "SELECT epoch FROM lockkit_meta";
        let epoch = connection.query_row(epoch, [], |row| row.get(0))?;
        connection.execute_batch("COMMIT")?;
        Ok(epoch)
    })
    .map_err(|failed| failed.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_sqlite_is_refused_in_a_sentence() {
        for fine in [3_034_001, 3_046_000, 3_100_001, 4_000_000] {
            refuse_old_library(fine).unwrap();
        }
        for (old, shown) in [(3_033_000, "3.33"), (3_009_002, "3.9"), (2_099_000, "2.99")] {
            let told = refuse_old_library(old).unwrap_err().to_string();
            assert!(told.contains(shown) && told.contains("3.34 or newer"), "{told}");
        }
    }
}
