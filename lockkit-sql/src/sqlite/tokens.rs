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
use super::flight::Flight;
use super::worker::Failure;

/// How many numbers are put on disk in advance: as many as the clock counts in a minute, so that a file
/// waits for the disk once a minute for them.
pub(super) const TOKEN_BLOCK: i64 = 60_000_000;

/// Where numbers begin: at the wall clock's microseconds, which are faster than any use.
pub(super) fn wall_clock() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as i64)
}

/// The greatest number that this process has given in one file, through whichever driver.
#[derive(Clone, Debug)]
pub(super) struct Given(Arc<AtomicI64>);

impl Given {
    /// Of the file at this path. It outlives its drivers: the file may be older when it is opened again.
    pub(super) fn of(path: &Path) -> Self {
        static FILES: OnceLock<Mutex<HashMap<PathBuf, Given>>> = OnceLock::new();
        let mut files = locked(FILES.get_or_init(Mutex::default));
        files.entry(path.to_owned()).or_insert_with(|| Self(Arc::default())).clone()
    }

    fn last(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    // By whoever has the file's write lock.
    fn reached(&self, number: i64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}

/// All numbers were given or skipped.
pub(super) fn used_up() -> Error {
    Error::permanent(BACKEND, "all tokens up to 2^63 - 1 were given or skipped")
}

impl Flight<'_> {
    /// What every new number exceeds, whatever it is for.
    pub(super) fn last_number(&self) -> i64 {
        self.known.floor.max(self.given.last()).max(self.wall - 1)
    }

    /// The next version of a register that has this one; the lists' tokens go on above it.
    pub(super) fn next_version(&mut self, own: i64) -> Result<i64, Failure> {
        let next = self.last_number().max(own).checked_add(1).ok_or_else(used_up)?;
        self.give_numbers(next, true)?;
        Ok(next)
    }

    /// Makes sure that numbers up to `last` may be given. They lie below a ceiling that is on disk
    /// before: after a power failure tokens go on above it.
    pub(super) fn give_numbers(&mut self, last: i64, raised: bool) -> Result<(), Failure> {
        if last > self.known.ceiling {
            if !self.durable {
                return Err(Failure::NotDurable);
            }
            self.known.ceiling = last.saturating_add(TOKEN_BLOCK);
            self.run("UPDATE lockkit_meta SET ceiling = ?1", [self.known.ceiling])?;
        }
        self.given.reached(last);
        if raised {
            self.raise_floor(last)?;
        }
        Ok(())
    }

    /// Lists without a row go on above this.
    pub(super) fn raise_floor(&mut self, place: i64) -> rusqlite::Result<()> {
        if place > self.known.floor {
            self.known.floor = place;
            self.run("UPDATE lockkit_meta SET token = ?1", [place])?;
        }
        Ok(())
    }
}
