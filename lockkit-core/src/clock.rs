//! The clock on which deadlines are read, behind a trait so that tests can move it. Which deadline
//! follows from which answer is in `deadline.rs`.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

mod steady;

pub use steady::{ClockPair, SteadyClock};

/// A point of a [`Clock`]'s time. Moments of different clocks, or machines, mean nothing to each
/// other.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::Moment;
///
/// let sent = Moment::from_nanos(1_000);
/// let end = sent.after(Duration::from_secs(30));
/// assert_eq!(end.since(sent), Duration::from_secs(30));
/// assert_eq!(sent.since(end), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A moment that lies this many nanoseconds after the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this moment is; zero when it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `d` later, at most the end of time.
    pub const fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(nanos(d)))
    }

    /// The moment `d` earlier, at least the clock's zero.
    pub const fn before(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(d)))
    }
}

const fn nanos(d: Duration) -> u64 {
    let nanos = d.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// A clock that never goes back and that also counts while the machine sleeps.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::clock::{Clock, Moment};
///
/// /// Goes where a test moves it.
/// #[derive(Debug, Default)]
/// struct Moved(AtomicU64);
///
/// impl Clock for Moved {
///     fn now(&self) -> Moment {
///         Moment::from_nanos(self.0.load(Ordering::SeqCst))
///     }
/// }
///
/// let clock = Arc::new(Moved::default());
/// let driver = MemoryDriver::with_clock(clock.clone());
/// clock.0.fetch_add(5_000_000_000, Ordering::SeqCst);
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;
}

/// The operating system's clock since boot, system suspend included (`CLOCK_BOOTTIME` on Linux and
/// Android; elsewhere the monotonic clock, which on Apple's systems counts sleep as well).
///
/// It is for moments that processes of one machine share, such as those in SQLite's files. Daemons
/// that set the time make it faster or slower; [`SteadyClock`] is the clock for deadlines.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::{BootClock, Clock};
///
/// let before = BootClock.now();
/// assert!(BootClock.now().since(before) < Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl BootClock {
    /// This clock, shared.
    pub fn shared() -> Arc<dyn Clock> {
        static SHARED: OnceLock<Arc<dyn Clock>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(Self)).clone()
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        read(id)
    }
}

fn read(id: rustix::time::ClockId) -> Moment {
    let now = rustix::time::clock_gettime(id);
    Moment(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Tokio's clock, which tests can pause and advance.
///
/// It does not count while the machine sleeps, so it suits only what sleeps along with its clients:
/// the memory driver, whose default it is.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::{Clock, TokioClock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
/// #     .block_on(async {
/// // Under `#[tokio::test(start_paused = true)]`:
/// let before = TokioClock.now();
/// tokio::time::sleep(Duration::from_secs(3_600)).await; // passes at once
/// assert!(TokioClock.now().since(before) >= Duration::from_secs(3_600));
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl TokioClock {
    /// This clock, shared.
    pub fn shared() -> Arc<dyn Clock> {
        static SHARED: OnceLock<Arc<dyn Clock>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(Self)).clone()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        static ZERO: OnceLock<tokio::time::Instant> = OnceLock::new();
        // A day of head start, so that subtracting a ttl from an early moment stays meaningful.
        let zero = *ZERO.get_or_init(tokio::time::Instant::now);
        let day = Duration::from_secs(86_400);
        Moment(0).after(day + tokio::time::Instant::now().saturating_duration_since(zero))
    }
}

/// How long to sleep by a timer of another clock when a deadline is `left` away, before looking
/// again: nine tenths, since the timer's clock may be slewed slow by 8.33 %. The last 10 ms are
/// slept through, which is less than a millisecond too late at that rate.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::nap;
///
/// assert_eq!(nap(Duration::from_secs(30)), Duration::from_secs(27));
/// assert_eq!(nap(Duration::from_millis(10)), Duration::from_millis(10));
/// ```
pub fn nap(remaining: Duration) -> Duration {
    const LAST: Duration = Duration::from_millis(10);
    if remaining <= LAST { remaining } else { remaining - remaining / 10 }
}

/// Returns when `clock` has reached `moment`.
///
/// Tokio's timers may be slower than `clock`, and stand still during system suspend: this looks
/// again after a [`nap`] of at most a second, which bounds how late after waking it returns. At the
/// end of time it never returns.
///
/// # Cancel safety
/// Dropping it does nothing.
pub async fn sleep_until(clock: &dyn Clock, moment: Moment) {
    const LONGEST_NAP: Duration = Duration::from_secs(1);
    if moment == Moment(u64::MAX) {
        return std::future::pending().await;
    }
    loop {
        let remaining = moment.since(clock.now());
        if remaining.is_zero() {
            return;
        }
        tokio::time::sleep(nap(remaining).min(LONGEST_NAP)).await;
    }
}

/// Now, in milliseconds since 1970: for people, not for decisions.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_at_both_ends() {
        let m = Moment::from_nanos(5);
        assert_eq!(m.before(Duration::from_secs(1)), Moment::from_nanos(0));
        assert_eq!(m.after(Duration::MAX), Moment::from_nanos(u64::MAX));
        assert_eq!(m.since(Moment::from_nanos(9)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_follows_a_paused_runtime() {
        let clock = TokioClock;
        let start = clock.now();
        sleep_until(&clock, start.after(Duration::from_secs(3600))).await;
        let passed = clock.now().since(start);
        assert!(passed >= Duration::from_secs(3600) && passed < Duration::from_secs(3601));
    }

    #[test]
    fn the_boot_clock_goes_forward() {
        let a = BootClock.now();
        let b = BootClock.now();
        assert!(b >= a && a.as_nanos() > 0);
    }
}
