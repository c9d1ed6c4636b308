//! Where a file of locks may be: on a disk of this machine, and under one name. SQLite finds the log
//! and its index by the path of the file, so one file under two names is two sets of locks.

use std::path::Path;
use std::time::Duration;

use lockkit_core::Error;

/// SQLite's locks, and the shared memory of its log, do not work between the machines of a network
/// file system.
pub(crate) fn refuse_network(path: &Path) -> Result<(), Error> {
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

#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_kind(path: &Path) -> Option<&'static str> {
    network_name(rustix::fs::statfs(path).ok()?.f_type as u64)
}

/// The network file systems among Linux's magic numbers.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_name(magic: u64) -> Option<&'static str> {
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
        0x786f_4256 => "VirtualBox's shared folders",
        0xbacb_acbc => "VMware's shared folders",
        _ => return None,
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn network_kind(_: &Path) -> Option<&'static str> {
    None
}

/// Refuses a file that has another name: a hard link, or a mount of the file alone.
///
/// A file that is just being made may have two names for a moment, so a second name is refused
/// only when it stays.
pub(crate) fn refuse_second_name(path: &Path) -> Result<(), Error> {
    const TRIES: u32 = 50;
    if is_mount_point(path) {
        return Err(Error::config(format!(
            "{} is a mount point (as of `docker run -v FILE:FILE`), so it has other names \
             elsewhere, each with a log of its own: mount its folder instead",
            path.display()
        )));
    }
    for _ in 0..TRIES {
        if names(path) <= 1 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::config(format!(
        "{} has {} names (hard links), and SQLite keeps a log for each name, so its users would not \
         see each other: remove the others (`find . -samefile`), or copy the file while nobody \
         uses it",
        path.display(),
        names(path)
    )))
}

/// How many names the file has; 1 where it is gone, which others find out.
fn names(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(1, |metadata| metadata.nlink())
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
