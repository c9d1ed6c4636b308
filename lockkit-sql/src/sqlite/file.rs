//! Finding, checking and making the file: every way in which it can be wrong is told in one
//! sentence, before SQLite has touched anything.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkit_core::Error;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rand::Rng;
use rusqlite::{Connection, OpenFlags, params};
use sqlx::sqlite::SqlitePool;

use super::BACKEND;
use super::place::{refuse_network, refuse_second_name};
use super::worker::{connect, explain, patiently, primary_code};

/// `lkit`, in the header of every file that lockkit made.
pub(crate) const APPLICATION_ID: u32 = 0x6c6b_6974;
/// Of the schema that this version of the driver makes and knows.
pub(crate) const SCHEMA_VERSION: i64 = 1;

const SCHEMA: &str = concat!(include_str!("sql/schema.sql"), include_str!("sql/limits.sql"));
const FIRST_ROW: &str = include_str!("sql/first_row.sql");

/// Makes sure that there is a usable file at `path` and returns its absolute path without links.
pub(crate) fn prepare(path: &Path, boot: &str) -> Result<PathBuf, Error> {
    let path = resolve(path)?;
    refuse_network(&path)?;
    match fs::metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => make(&path, boot)?,
        Err(e) => return Err(io_error("look at", &path, &e)),
        Ok(m) if m.is_dir() => {
            return Err(Error::config(format!(
                "{} is a folder: name a file in it",
                path.display()
            )));
        }
        Ok(m) if !m.is_file() => {
            return Err(Error::config(format!("{} is not a regular file", path.display())));
        }
        Ok(m) if m.len() == 0 => {
            refuse_second_name(&path)?;
            check_writable(&path)?;
            initialise(&path, boot)?;
        }
        Ok(m) => {
            refuse_second_name(&path)?;
            check_header(&path, m.len())?;
            check_writable(&path)?;
        }
    }
    Ok(path)
}

/// The oldest SQLite that the client library supports.
const LEAST_SQLITE: (u32, u32) = (3, 34);

/// Which SQLite a program has, its other dependencies decide as well, or the system.
pub(crate) fn refuse_old_library() -> Result<(), Error> {
    refuse_old(rusqlite::version())
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

/// The folder without links, and the file's name in it. The folder is not made: a path that was
/// mistyped would be a world of locks of its own.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::config(format!("{:?} is not a path: {e}", path)))?;
    if let Ok(real) = fs::canonicalize(&absolute) {
        return Ok(real);
    }
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::config(format!("{} names no file", absolute.display())));
    };
    // Before anything is made: the nearest folder that exists says where it would be made.
    if let Some(existing) = folder.ancestors().find(|f| f.exists()) {
        refuse_network(existing)?;
    }
    let folder = fs::canonicalize(folder).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::config(format!(
            "there is no folder {}: make it, or correct the path",
            folder.display()
        )),
        _ => io_error("find the folder of", &absolute, &e),
    })?;
    Ok(folder.join(name))
}

fn io_error(verb: &str, path: &Path, error: &std::io::Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::PermissionDenied => ": choose a place that this user may write to",
        ErrorKind::ReadOnlyFilesystem => ": choose a place that is not read-only",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ": make room on the disk",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            ": a part of the path is a file, not a folder"
        }
        _ => "",
    };
    let message = format!("cannot {verb} {}: {error}{advice}", path.display());
    Error::permanent(BACKEND, message)
}

/// Looks whose file it is, without a trace: `immutable` takes no lock and makes no file beside it.
/// (Reading the header by hand would do harm: closing any handle of a file drops all locks that
/// this process has on it, those of other connections included. SQLite's own handles know that.)
fn check_header(path: &Path, length: u64) -> Result<(), Error> {
    let shown = path.display();
    let not_sqlite = || {
        Error::config(format!(
            "{shown} is not a SQLite database: lockkit leaves it alone; choose another path"
        ))
    };
    match settled_header(path) {
        // SQLite takes what is shorter than its least page for an empty database.
        Ok(_) if length < 512 => Err(not_sqlite()),
        Ok((application, version)) if application == i64::from(APPLICATION_ID) => {
            check_version(path, version)
        }
        Ok(_) => Err(Error::config(format!(
            "{shown} is a SQLite database of another program: lockkit leaves it alone; choose \
             another path (or hand over a pool on it, to have lockkit's tables beside others)"
        ))),
        Err(error) if primary_code(&error) == Some(26) => Err(not_sqlite()),
        // What looks damaged here may be whole with its log, which `immutable` does not read.
        Err(error) if looks_damaged(&error) && log_of(path).exists() => Ok(()),
        Err(error) => Err(explain(error)),
    }
}

/// The header, read again for a moment where it looks damaged and there is no log: the last of its
/// users may just be moving the log into the file, which `immutable` sees half done.
fn settled_header(path: &Path) -> rusqlite::Result<(i64, i64)> {
    let give_up = Instant::now() + Duration::from_secs(1);
    loop {
        let header = header(path);
        let unsettled = header.as_ref().is_err_and(looks_damaged) && !log_of(path).exists();
        if !unsettled || Instant::now() >= give_up {
            return header;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The application id and the version of the schema.
fn header(path: &Path) -> rusqlite::Result<(i64, i64)> {
    const SPECIAL: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');
    // A path that is not UTF-8 cannot be in a URL; SQLite takes no other paths.
    let path = path.to_string_lossy();
    let url = format!("file://{}?immutable=1", utf8_percent_encode(&path, SPECIAL));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(url, flags)?.query_row(
        "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
}

fn looks_damaged(error: &rusqlite::Error) -> bool {
    primary_code(error) == Some(11)
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Refuses what a newer lockkit made.
pub(crate) fn check_version(path: &Path, version: i64) -> Result<(), Error> {
    if version > SCHEMA_VERSION {
        return Err(Error::config(format!(
            "{} has schema version {version}, this lockkit knows {SCHEMA_VERSION}: update lockkit \
             here, or choose another path",
            path.display()
        )));
    }
    Ok(())
}

/// Without the right to write into the folder SQLite cannot keep its log.
fn check_writable(path: &Path) -> Result<(), Error> {
    use rustix::fs::{Access, access};
    let folder = path.parent().unwrap_or(Path::new("/"));
    for (what, mode) in
        [(path, Access::READ_OK | Access::WRITE_OK), (folder, Access::WRITE_OK | Access::EXEC_OK)]
    {
        access(what, mode).map_err(|e| io_error("write to", what, &e.into()))?;
    }
    Ok(())
}

/// Makes the file beside its place and then moves it there, so that nobody ever sees half a file:
/// of many processes that start at once the first one's stays.
fn make(path: &Path, boot: &str) -> Result<(), Error> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let mark = rand::rng().random::<u64>();
    name.push(format!(".{}-{mark:016x}.new", std::process::id()));
    let fresh = Fresh(path.with_file_name(name));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh.0)
        .map_err(|e| io_error("make a file beside", path, &e))?;
    initialise(&fresh.0, boot)?;
    match move_into_place(&fresh.0, path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(io_error("make", path, &e)),
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
struct Fresh(PathBuf);

impl Drop for Fresh {
    fn drop(&mut self) {
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let mut name = self.0.as_os_str().to_owned();
            name.push(suffix);
            let _ = fs::remove_file(name);
        }
    }
}

/// Puts the schema into an empty file. Everything but the last step is one transaction in a
/// rollback journal, so that the header is in the file itself, not only in a log, and that an
/// empty file stays empty if this fails.
fn initialise(path: &Path, boot: &str) -> Result<(), Error> {
    patiently(|| {
        // The connection is closed after it: a failure leaves nothing open.
        let connection = connect(path)?;
        connection.execute_batch("PRAGMA synchronous = FULL; BEGIN EXCLUSIVE")?;
        let count = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = connection.query_row(count, [], |row| row.get(0))?;
        if tables == 0 {
            create_tables(&connection, boot)?;
            connection.execute_batch(&format!(
                "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}"
            ))?;
        }
        connection.execute_batch("COMMIT")?;
        let wal = "PRAGMA journal_mode = WAL";
        connection.query_row(wal, [], |_| Ok(()))?;
        Ok(())
    })
}

fn create_tables(connection: &Connection, boot: &str) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)?;
    let first = first_token();
    connection.execute(FIRST_ROW, params![SCHEMA_VERSION, boot, first])?;
    Ok(())
}

/// Tokens begin at the wall clock's microseconds, so that they grow even where somebody deletes
/// the file: the clock is faster than any use.
pub(crate) fn first_token() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as i64)
}

/// Puts the tables into a database that has others too.
pub(crate) fn prepare_beside(path: &Path, boot: &str) -> Result<(), Error> {
    refuse_network(path)?;
    refuse_second_name(path)?;
    patiently(|| {
        let connection = connect(path)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let ours = "SELECT count(*) FROM sqlite_schema WHERE name = 'lockkit_meta'";
        let there: i64 = connection.query_row(ours, [], |row| row.get(0))?;
        if there == 0 {
            create_tables(&connection, boot)?;
        }
        connection.execute_batch("COMMIT")?;
        Ok(())
    })
}

/// The path of the file behind a pool.
pub(crate) async fn path_of(pool: &SqlitePool) -> Result<PathBuf, Error> {
    let path: String =
        sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(pool)
            .await
            .map_err(|error| Error::retryable(BACKEND, error))?;
    if path.is_empty() {
        return Err(Error::config(
            "this pool is on a database in memory, of which every connection has its own: use \
             `memory:` for locks within one process",
        ));
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_sqlite_is_refused_in_a_sentence() {
        for fine in ["3.34.1", "3.46.0", "3.100.1", "4.0"] {
            refuse_old(fine).unwrap();
        }
        for old in ["3.33.0", "3.9", "2.99.0", "unknown"] {
            let told = refuse_old(old).unwrap_err().to_string();
            assert!(told.contains(old) && told.contains("3.34 or newer"), "{told}");
        }
    }
}
