//! Where a file of locks may be, and whose it may be: on a disk of this machine, under one name,
//! writable, and lockkit's. Everything is found out before SQLite has touched anything.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkit_core::{Error, Result};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rusqlite::{Connection, OpenFlags};

use super::BACKEND;
use super::connection::{explain, primary_code};
use super::context::beside;
use crate::rows::other_version;

/// `lkit`, in the header of every file that lockkit made.
pub(crate) const APPLICATION_ID: i64 = 0x6c6b_6974;
/// The version of the tables that this driver makes and uses.
pub(crate) const SCHEMA_VERSION: i64 = 3;
/// How many links are followed from one to the next, as by the kernel.
const LINKS: usize = 40;

/// The folder without links, and the file's name in it. The folder is not made: a path that was
/// mistyped would be a world of locks of its own. A link is followed also where it leads to no file yet,
/// which is then made there.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    let given = std::path::absolute(path)
        .map_err(|e| Error::config(format!("{path:?} is not a path: {e}")))?;
    if let Ok(real) = fs::canonicalize(&given) {
        refuse_network(&real)?;
        return Ok(real);
    }
    let mut place = given.clone();
    for _ in 0..=LINKS {
        let Ok(target) = fs::read_link(&place) else { return in_its_folder(&place, &given) };
        // One that is not absolute counts from the folder of the link itself.
        place.pop();
        place.push(target);
    }
    Err(Error::config(format!(
        "{} is a link that leads in a circle, by way of {}: remove it, or correct where it leads",
        given.display(),
        place.display()
    )))
}

/// A path whose last part is no link, as `given` led to it.
fn in_its_folder(path: &Path, given: &Path) -> Result<PathBuf> {
    refuse_network(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::config(format!("{} names no file", path.display())));
    };
    let by_link = match path == given {
        true => String::new(),
        false => format!(", where the link {} leads", given.display()),
    };
    match fs::canonicalize(folder) {
        Ok(folder) => Ok(folder.join(name)),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(Error::config(format!(
            "there is no folder {}{by_link}: make it, or correct the path",
            folder.display()
        ))),
        Err(e) => Err(io_error("find the folder of", path, &e)),
    }
}

pub(crate) fn io_error(verb: &str, path: &Path, error: &std::io::Error) -> Error {
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

/// Without the right to write into the folder SQLite cannot keep its log.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    use rustix::fs::{Access, access};
    let folder = path.parent().unwrap_or(Path::new("/"));
    let file = (path, Access::READ_OK | Access::WRITE_OK);
    for (what, mode) in [file, (folder, Access::WRITE_OK | Access::EXEC_OK)] {
        access(what, mode).map_err(|e| io_error("write to", what, &e.into()))?;
    }
    Ok(())
}

/// Looks whose file it is, without a trace: `immutable` takes no lock and makes no file beside it.
/// (Reading the header by hand would do harm: closing any handle of a file drops all locks that
/// this process has on it, those of other connections included. SQLite's own handles know that.)
pub(crate) fn check_header(path: &Path, length: u64) -> Result<()> {
    let shown = path.display();
    let not_sqlite = || {
        Error::config(format!(
            "{shown} is not a SQLite database: lockkit leaves it alone; choose another path"
        ))
    };
    let give_up = Instant::now() + Duration::from_secs(1);
    loop {
        return match header(path) {
            // SQLite takes what is shorter than its least page for an empty database.
            Ok(_) if length < 512 => Err(not_sqlite()),
            Ok((APPLICATION_ID, version)) => check_version(path, version),
            Ok(_) => Err(Error::config(format!(
                "{shown} is a SQLite database of another program: lockkit leaves it alone; choose \
                 another path (or hand over a pool on it, to have lockkit's tables beside others)"
            ))),
            Err(error) => match primary_code(&error) {
                Some(26) => Err(not_sqlite()),
                // What looks damaged here may be whole with its log, which `immutable` does not
                // read; or the last of its users may just be moving the log into the file.
                Some(11) if beside(path, "-wal").exists() => Ok(()),
                Some(11) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                _ => Err(explain(error)),
            },
        };
    }
}

/// Refuses tables of another version.
pub(crate) fn check_version(path: &Path, found: i64) -> Result<()> {
    match found == SCHEMA_VERSION {
        true => Ok(()),
        false => {
            let place = path.display().to_string();
            Err(Error::config(other_version(&place, found, SCHEMA_VERSION)))
        }
    }
}

/// The application id and the version of the schema.
fn header(path: &Path) -> rusqlite::Result<(i64, i64)> {
    const SPECIAL: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');
    // A path that is not UTF-8 cannot be in a URL; SQLite takes no other paths.
    let path = path.to_string_lossy();
    let url = format!("file://{}?immutable=1", utf8_percent_encode(&path, SPECIAL));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(url, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?.query_row(
        "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
}

/// SQLite's locks, and the shared memory of its log, do not work between the machines of a network
/// file system.
pub(crate) fn refuse_network(path: &Path) -> Result<()> {
    // The nearest folder that exists says where the file would be made.
    let on_disk = path.ancestors().find(|p| p.exists());
    match on_disk.and_then(network_kind) {
        None => Ok(()),
        Some(kind) => Err(Error::config(format!(
            "{} is on {kind}, where locks of files are not reliable between machines: choose a \
             local disk, or a server (postgres, redis …) for several machines",
            path.display()
        ))),
    }
}

/// The network file systems among Linux's magic numbers.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_kind(path: &Path) -> Option<&'static str> {
    let magic = rustix::fs::statfs(path).ok()?.f_type as u64;
    Some(match magic & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE (sshfs, virtiofs and their kin)",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x00c3_6400 => "Ceph",
        0x0161_1970 | 0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x0bd0_0bd0 => "Lustre",
        0x564c => "NCP",
        0xaad7_aaea => "PanFS",
        0x4750_4653 => "GPFS",
        0x786f_4256 => "VirtualBox's inner folders",
        0xbacb_acbc => "VMware's inner folders",
        _ => return None,
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn network_kind(_: &Path) -> Option<&'static str> {
    None
}

/// Refuses a file that has another name: a hard link, or a mount of the file alone. SQLite finds the
/// log and its index by the path of the file, so one file under two names is two sets of locks.
///
/// A file that is just being made may have two names for a moment, so a second name is refused
/// only when it stays.
pub(crate) fn refuse_second_name(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    if is_mount_point(path) {
        return Err(Error::config(format!(
            "{} is a mount point (as of `docker run -v FILE:FILE`), so it has other names \
             elsewhere, each with a log of its own: mount its folder instead",
            path.display()
        )));
    }
    // Where it is gone, others find out.
    let names = || fs::metadata(path).map_or(1, |metadata| metadata.nlink());
    for _ in 0..50 {
        if names() <= 1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::config(format!(
        "{} has {} names (hard links), and SQLite keeps a log for each name, so its users would not \
         see each other: remove the others (`find . -samefile`), or copy the file while nobody \
         uses it",
        path.display(),
        names()
    )))
}

/// Whether something is mounted at the file itself. Kernels before Linux 5.8 do not tell.
#[cfg(target_os = "linux")]
fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
        .is_ok_and(|file| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(target_os = "linux"))]
fn is_mount_point(_: &Path) -> bool {
    false
}
