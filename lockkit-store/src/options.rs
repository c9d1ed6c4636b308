//! How a driver over a store is set up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Clock;
use lockkit_core::driver::UrlOption;
use lockkit_core::{Error, Result};

use crate::rules::Rules;

/// A shorter pause between polls would keep a store busy with nothing else.
const SHORTEST_PACE: Duration = Duration::from_millis(10);

/// How a [`StoreDriver`](crate::StoreDriver) works.
///
/// ```
/// use std::time::Duration;
/// use lockkit_store::StoreOptions;
///
/// // Hand-overs within 50 ms, for twenty times as many requests.
/// let options = StoreOptions::default().pace(Duration::from_millis(50));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    pub(crate) pace: Option<Duration>,
    pub(crate) swap_pace: Option<Duration>,
    pub(crate) min_ttl: Option<Duration>,
    pub(crate) state: Option<PathBuf>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) raw_clock: Option<Arc<dyn Clock>>,
    pub(crate) seed: Option<u64>,
    pub(crate) skips_probe: bool,
    pub(crate) rules: Rules,
}

impl StoreOptions {
    /// The options of a URL that all stores have.
    pub(crate) const NAMES: &str = "pace, min_ttl, state";

    /// Takes an option of a URL, if it is one that all stores have. Says whether it is.
    pub(crate) fn take(&mut self, option: &UrlOption<'_>) -> Result<bool> {
        match option.name {
            "pace" => self.pace = Some(option.duration()?.max(SHORTEST_PACE)),
            "min_ttl" => self.min_ttl = Some(option.duration()?),
            "state" => {
                let folder = option.decoded()?;
                if !Path::new(&*folder).is_absolute() {
                    return Err(Error::config("state= names a folder by its absolute path"));
                }
                self.state = Some(PathBuf::from(folder.into_owned()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Another pause between two polls of a queue than the store's.
    #[must_use]
    pub fn pace(mut self, pace: Duration) -> Self {
        self.pace = Some(pace);
        self
    }

    /// Another least time between two swaps of one document than the store's. What is asked for meanwhile
    /// shares the next swap.
    #[must_use]
    pub fn swap_pace(mut self, pace: Duration) -> Self {
        self.swap_pace = Some(pace);
        self
    }

    /// Another shortest TTL than the store's.
    #[must_use]
    pub fn min_ttl(mut self, ttl: Duration) -> Self {
        self.min_ttl = Some(ttl);
        self
    }

    /// Keeps, in a file of this folder, when the sessions of others were first seen, for the next process of this
    /// user on this host: so that programs which each try once and end get the lock of a dead holder one TTL
    /// after the first of them tried. The folder is made when the driver is closed, which is also when the
    /// file is written.
    ///
    /// A wrong entry ends a living lock. So a file that another user owns, or that others can read or write,
    /// is ignored with a warning, and so are entries of another boot or of the future. Only for a folder that
    /// no other host or container writes to. Nothing is kept where the system has no boot id (outside of
    /// Linux).
    #[must_use]
    pub fn state(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state = Some(folder.into());
        self
    }

    /// Another clock than the system's, from which wall times are taken too: for tests on paused time.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Another second clock for observers, of which the slower one counts, than that of
    /// [`clock`](Self::clock): for tests of machines that are suspended or slewed.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn raw_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.raw_clock = Some(clock);
        self
    }

    /// Uses an empty store without probing it first. Never outside of tests: a store that does not compare and
    /// swap then lets two hold one lock.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn skip_probe(mut self) -> Self {
        self.skips_probe = true;
        self
    }

    /// Takes jitter and the ids of sessions from this seed, so that a schedule of a test can be repeated.
    /// Never outside of tests: two drivers of one seed have the same sessions.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}
