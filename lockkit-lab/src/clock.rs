//! A wall clock of a server that can be moved while it runs. May only move that
//! server's: neither the machine's nor any clock that counts from its start.
//!
//! One small C library, compiled on the spot and preloaded into the server, reads
//! the shift from a mapped file. It works for Redis, PostgreSQL, MariaDB and
//! ZooKeeper; etcd is a static Go program that asks the kernel itself.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::error::{Doing, LabError, Result};
use super::program;

/// How far a server's wall clock is away from the machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// It shows a later time.
    Ahead(Duration),
    /// It shows an earlier time.
    Behind(Duration),
}

impl Shift {
    /// The machine's own time again.
    pub const NONE: Self = Self::Ahead(Duration::ZERO);

    fn nanos(self) -> i64 {
        let (sign, by) = match self {
            Self::Ahead(by) => (1, by),
            Self::Behind(by) => (-1, by),
        };
        sign * i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)
    }
}

#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    file: PathBuf,
    shift: File,
}

impl Clock {
    /// Compiles the library and sets the shift to nothing, both in `folder`.
    pub(crate) async fn create(folder: &Path) -> Result<Self> {
        let (source, library) = (folder.join("clock_shift.c"), folder.join("clock_shift.so"));
        fs::write(&source, include_str!("clock_shift.c")).doing("writing the clock's source")?;
        let compiled = Command::new(program::find("cc")?)
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&library, &source])
            .output()
            .await
            .doing("compiling the clock")?;
        if !compiled.status.success() {
            let said = String::from_utf8_lossy(&compiled.stderr);
            return Err(LabError::Answer(format!("the clock does not compile: {said}")));
        }
        let file = folder.join("clock_shift");
        fs::write(&file, 0_i64.to_ne_bytes()).doing("writing the clock's shift")?;
        let shift = File::options().write(true).open(&file).doing("opening the clock's shift")?;
        Ok(Self { library, file, shift })
    }

    /// What the server's environment needs.
    pub(crate) fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("LOCKKIT_LAB_CLOCK", &self.file)]
    }

    pub(crate) fn set(&self, shift: Shift) -> Result<()> {
        // In place: the server has mapped this very file.
        self.shift.write_all_at(&shift.nanos().to_ne_bytes(), 0).doing("moving a clock")
    }
}
