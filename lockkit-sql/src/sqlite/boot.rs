//! Which run of this machine it is: an id that changes with every boot, since times on the boot
//! clock mean nothing to another boot; and how a file passes from one boot to the next.

use lockkit_core::Error;
use lockkit_core::clock::Clock;
use rusqlite::{Connection, params};

use super::BACKEND;
use super::file::{check_version, first_token};
use super::flight::TOKEN_BLOCK;
use super::mark::{FileMark, LogMark};
use super::registers::GRACE;
use super::worker::{Failure, connect, patiently};

/// Finds out how the file counts this boot; takes the file over from an earlier one.
pub(crate) fn enter(file: &FileMark, boot: &str, clock: &dyn Clock) -> Result<i64, Error> {
    let before = file.log();
    patiently(|| {
        let mut connection = connect(file.path())?;
        connection.execute_batch("PRAGMA synchronous = FULL; BEGIN IMMEDIATE")?;
        let epoch = enter_on(&mut connection, file, before, boot, clock)?;
        connection.execute_batch("COMMIT")?;
        Ok(epoch)
    })
}

/// The connection is closed after it: a failure leaves nothing open.
fn enter_on(
    connection: &mut Connection,
    file: &FileMark,
    before: LogMark,
    boot: &str,
    clock: &dyn Clock,
) -> Result<i64, Failure> {
    let meta = "SELECT version, boot = ?1 FROM main.lockkit_meta";
    let (version, known): (i64, bool) =
        connection.query_row(meta, [boot], |row| Ok((row.get(0)?, row.get(1)?)))?;
    check_version(file.path(), version).map_err(Failure::Told)?;
    // What the first files of this version lack.
    connection.execute_batch(include_str!("sql/limits.sql"))?;
    if !known {
        let now = clock.now().as_nanos() as i64;
        take_over(connection, boot, now)?;
    }
    // Where a log begins, the tokens of an earlier one may be lost, if somebody deleted it in use:
    // they go on above the wall clock, as in a new file.
    if !before.is_there() || file.log() != before {
        connection.execute(
            "UPDATE lockkit_meta SET token = max(token, ?1), ceiling = max(ceiling, ?1 + ?2)",
            params![first_token(), TOKEN_BLOCK],
        )?;
    }
    Ok(connection.query_row("SELECT epoch FROM lockkit_meta", [], |row| row.get(0))?)
}

fn take_over(connection: &Connection, boot: &str, now: i64) -> rusqlite::Result<()> {
    for statement in include_str!("sql/takeover.sql").split_inclusive(';') {
        if !statement.trim().is_empty() {
            let mut statement = connection.prepare(statement)?;
            let given: [&dyn rusqlite::ToSql; 3] = [&boot, &now, &GRACE];
            let wanted = statement.parameter_count();
            for (index, value) in given.iter().enumerate().take(wanted) {
                statement.raw_bind_parameter(index + 1, value)?;
            }
            statement.raw_execute()?;
        }
    }
    Ok(())
}

/// The id of the running system's boot clock.
///
/// On Linux the kernel's boot id. A process in a time namespace of its own reads another boot
/// clock than its neighbours under the same id, so the offset of the namespace is part of it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot_id() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).map_err(|e| {
        Error::permanent(
            BACKEND,
            format!("cannot tell which boot of this machine it is: {path}: {e}; mount /proc"),
        )
    })?;
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Ok(with_offset(id.trim(), &offsets))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn with_offset(id: &str, offsets: &str) -> String {
    let boottime = offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "boottime").then(|| (words.next(), words.next()))
    });
    match boottime {
        Some((Some(secs), Some(nanos))) if (secs, nanos) != ("0", "0") => {
            format!("{id}+{secs}.{nanos}")
        }
        _ => id.to_owned(),
    }
}

/// The id of the running system's boot clock: the session id of Apple's kernels, the moment of the
/// boot of the BSDs.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn boot_id() -> Result<String, Error> {
    for name in ["kern.bootsessionuuid", "kern.boottime"] {
        let answer = std::process::Command::new("/usr/sbin/sysctl")
            .args(["-n", name])
            .output()
            .or_else(|_| std::process::Command::new("/sbin/sysctl").args(["-n", name]).output());
        if let Ok(output) = answer {
            let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if output.status.success() && !id.is_empty() {
                return Ok(id);
            }
        }
    }
    Err(Error::permanent(
        BACKEND,
        "cannot tell which boot of this machine it is: sysctl does not say",
    ))
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn another_time_namespace_is_another_clock() {
        assert_eq!(with_offset("id", ""), "id");
        assert_eq!(with_offset("id", "monotonic 0 0\nboottime 0 0\n"), "id");
        assert_eq!(with_offset("id", "monotonic 0 0\nboottime 60 5\n"), "id+60.5");
    }

    #[test]
    fn the_boot_has_an_id_that_stays() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }
}
