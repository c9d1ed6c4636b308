//! Numbers: the tokens of claims and the versions of registers. A new one is never less than the wall
//! clock's microseconds, and never repeats what this process has given. So numbers grow although older
//! data are put back under an open file: what the file remembers then is not what was given last.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use lockkit_core::Error;
use lockkit_core::driver::locked;

use super::BACKEND;

/// How many numbers are put on disk in advance: as many as the clock counts in a minute, so that a file
/// waits for the disk once a minute for them.
pub(super) const TOKEN_BLOCK: i64 = 60_000_000;

/// Where numbers begin: at the wall clock's microseconds, which are faster than any use.
pub(super) fn wall_clock() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as i64)
}

/// The greatest number that this process has given in one file, through whichever driver.
#[derive(Clone, Debug)]
pub(super) struct IssuedNumbers(Arc<AtomicI64>);

impl IssuedNumbers {
    /// Of the file at this path. It outlives its drivers: the file may be older when it is opened again.
    pub(super) fn of(path: &Path) -> Self {
        static FILES: OnceLock<Mutex<HashMap<PathBuf, IssuedNumbers>>> = OnceLock::new();
        let mut files = locked(FILES.get_or_init(Mutex::default));
        files.entry(path.to_owned()).or_insert_with(|| Self(Arc::default())).clone()
    }

    pub(super) fn last(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    // By the transaction that has the file's write lock.
    pub(super) fn reached(&self, number: i64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}

/// All numbers were given or skipped.
pub(super) fn used_up() -> Error {
    Error::permanent(BACKEND, "all tokens up to 2^63 - 1 were given or skipped")
}
