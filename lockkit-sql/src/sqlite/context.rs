//! The file of a driver: which files its path led to when it was opened. If one of them is deleted or
//! replaced later, connections keep writing to what no other process can see, so every operation checks
//! first.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkit_core::clock::Clock;
use lockkit_core::{Error, Result};

use super::BACKEND;
use super::tokens::IssuedNumbers;

/// What all connections of a driver have to know about its file.
#[derive(Debug)]
pub(crate) struct FileContext {
    pub(crate) file: FileMark,
    pub(crate) epoch: i64,
    pub(super) issued: IssuedNumbers,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether everything waits for the disk.
    pub(crate) durable: bool,
}

/// The device and the inode of a file.
type FileId = (u64, u64);

/// The file itself, for as long as a driver is.
#[derive(Debug)]
pub(crate) struct FileMark {
    path: PathBuf,
    /// The log and its index.
    beside: [PathBuf; 2],
    id: FileId,
}

/// The log beside it and the log's index, for as long as a connection is: they go when the last
/// connection of any process closes. Neither is there in other journal modes than WAL.
pub(crate) type LogMark = [Option<FileId>; 2];

impl FileMark {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let beside = ["-wal", "-shm"].map(|suffix| beside(path, suffix));
        let id = id_of(path).ok_or_else(|| file_removed(path, path))?;
        Ok(Self { path: path.to_owned(), beside, id })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The log and its index as they are now.
    pub(crate) fn log(&self) -> LogMark {
        [id_of(&self.beside[0]), id_of(&self.beside[1])]
    }

    /// Fails when the path leads somewhere else now.
    pub(crate) fn check(&self) -> Result<()> {
        match id_of(&self.path) == Some(self.id) {
            true => Ok(()),
            false => Err(file_removed(&self.path, &self.path)),
        }
    }

    /// Fails when the log or its index is another one than a connection found.
    pub(crate) fn check_log(&self, seen: &LogMark) -> Result<()> {
        let files = self.beside.iter().zip(seen).zip(self.log());
        let mut other = files.filter(|((_, seen), now)| seen.is_some() && now != *seen);
        other.next().map_or(Ok(()), |((file, _), _)| Err(file_removed(file, &self.path)))
    }
}

fn file_removed(file: &Path, path: &Path) -> Error {
    let message = format!(
        "{} was deleted or replaced while it was in use: the locks of {} are void; stop all who \
         use it and start them again",
        file.display(),
        path.display()
    );
    Error::permanent(BACKEND, message)
}

/// The file that SQLite keeps beside another.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn id_of(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
