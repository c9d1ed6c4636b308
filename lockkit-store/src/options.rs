//! How a driver over a store is set up.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Result;
use lockkit_core::clock::Clock;
use lockkit_core::driver::UrlOption;

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
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) seed: Option<u64>,
    pub(crate) skips_probe: bool,
    pub(crate) rules: Rules,
}

impl StoreOptions {
    /// The options of a URL that all stores have.
    pub(crate) const NAMES: &str = "pace, min_ttl";

    /// Takes an option of a URL, if it is one that all stores have. Says whether it is.
    pub(crate) fn take(&mut self, option: &UrlOption<'_>) -> Result<bool> {
        match option.name {
            "pace" => self.pace = Some(option.duration()?.max(SHORTEST_PACE)),
            "min_ttl" => self.min_ttl = Some(option.duration()?),
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

    /// Another clock than the system's, from which wall times are taken too: for tests on paused time.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
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
