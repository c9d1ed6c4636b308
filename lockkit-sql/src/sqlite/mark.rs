//! Which files a path led to when it was opened. If one of them is deleted or replaced later,
//! connections keep writing to what nobody else can see, so every operation looks first.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lockkit_core::Error;

use super::BACKEND;

/// The device and the inode of a file.
type FileId = (u64, u64);

/// The file itself, for as long as a driver is.
#[derive(Clone, Debug)]
pub(crate) struct FileMark {
    path: PathBuf,
    log: PathBuf,
    index: PathBuf,
    id: FileId,
}

/// The log beside it and the log's index, for as long as a connection is: they go when the last
/// connection of any process closes. Neither is there in other journal modes than WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogMark {
    log: Option<FileId>,
    index: Option<FileId>,
}

impl LogMark {
    /// Whether there was a log.
    pub(crate) fn is_there(&self) -> bool {
        self.log.is_some()
    }
}

impl FileMark {
    pub(crate) fn of(path: &Path) -> std::io::Result<Self> {
        let beside = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let (log, index) = (beside("-wal"), beside("-shm"));
        Ok(Self { path: path.to_owned(), log, index, id: id_of(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The log and its index as they are now.
    pub(crate) fn log(&self) -> LogMark {
        LogMark { log: id_of(&self.log).ok(), index: id_of(&self.index).ok() }
    }

    /// Fails when the path leads somewhere else now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match id_of(&self.path) {
            Ok(now) if now == self.id => Ok(()),
            _ => Err(self.gone(&self.path)),
        }
    }

    /// Fails when the log or its index is another one than a connection found.
    pub(crate) fn check_log(&self, seen: &LogMark) -> Result<(), Error> {
        let now = self.log();
        if seen.log.is_some() && now.log != seen.log {
            return Err(self.gone(&self.log));
        }
        if seen.index.is_some() && now.index != seen.index {
            return Err(self.gone(&self.index));
        }
        Ok(())
    }

    fn gone(&self, file: &Path) -> Error {
        let message = format!(
            "{} was deleted or replaced while it was in use: the locks of {} are void; stop all \
             who use it and start them again",
            file.display(),
            self.path.display()
        );
        Error::permanent(BACKEND, message)
    }
}

fn id_of(path: &Path) -> std::io::Result<FileId> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
