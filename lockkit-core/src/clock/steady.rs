//! The clock of deadlines: it counts system suspends and is not slewed.
//!
//! No clock of the kernel does both. `CLOCK_BOOTTIME` counts suspends, but a daemon that sets the
//! time makes it faster or slower (chrony by up to 8.33 %, by default), together with
//! `CLOCK_MONOTONIC`. `CLOCK_MONOTONIC_RAW` is never slewed, but stops during suspend. So the time
//! here is a sum: of each interval between two *anchors* it counts what the faster of the two
//! counted. It is not the greater of the two readings: they drift apart, and a suspend that is
//! shorter than their distance would vanish.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Clock, Moment};

/// A clock that counts system suspends and is not slewed, one for the process: the default clock
/// of drivers, on which core reads all deadlines.
///
/// On Linux and Android it counts, of each interval of 100 ms or more, what the faster of
/// `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW` counted. Elsewhere it is
/// [`BootClock`](super::BootClock). Moments of different processes mean nothing to each other:
/// [`ClockPair`] is what one process can hand to another.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::{Clock, SteadyClock};
///
/// let before = SteadyClock.now();
/// assert!(SteadyClock.now().since(before) < Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyClock;

impl SteadyClock {
    /// This clock, shared.
    pub fn shared() -> Arc<dyn Clock> {
        static SHARED: OnceLock<Arc<dyn Clock>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(Self)).clone()
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Moment {
        static SUM: Sum = Sum {
            version: AtomicU64::new(0),
            anchors: [const { [const { AtomicU64::new(0) }; 3] }; 2],
        };
        SUM.now(&System)
    }
}

/// One moment on both clocks that a [`SteadyClock`] is made of: a deadline for another process of
/// this machine. It has passed when either clock says so.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::clock::ClockPair;
///
/// let now = ClockPair::now();
/// let deadline = now.after(Duration::from_secs(30));
/// assert_eq!(deadline.since(now), Duration::from_secs(30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    /// On the boot clock.
    pub boot: Moment,
    /// On the clock that is not slewed; the boot clock again where the system has no such clock.
    pub raw: Moment,
}

impl ClockPair {
    /// Now.
    pub fn now() -> Self {
        Self { boot: Moment(System.boot()), raw: Moment(System.raw()) }
    }

    /// The pair `d` later.
    pub fn after(self, d: Duration) -> Self {
        Self { boot: self.boot.after(d), raw: self.raw.after(d) }
    }

    /// The pair `d` earlier.
    pub fn before(self, d: Duration) -> Self {
        Self { boot: self.boot.before(d), raw: self.raw.before(d) }
    }

    /// On each clock, the earlier of the two.
    pub fn min(self, other: Self) -> Self {
        Self { boot: self.boot.min(other.boot), raw: self.raw.min(other.raw) }
    }

    /// How long after `earlier` this is, on the clock that comes to it first; zero when it is not
    /// after it on one of them.
    pub fn since(self, earlier: Self) -> Duration {
        self.boot.since(earlier.boot).min(self.raw.since(earlier.raw))
    }
}

/// What the time is read from, in nanoseconds.
trait Clocks {
    /// Counts suspends, and may be slewed.
    fn boot(&self) -> u64;
    /// Is not slewed, and may stop during suspend.
    fn raw(&self) -> u64;
}

struct System;

impl Clocks for System {
    fn boot(&self) -> u64 {
        super::BootClock.now().0
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn raw(&self) -> u64 {
        super::read(rustix::time::ClockId::MonotonicRaw).0
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn raw(&self) -> u64 {
        self.boot()
    }
}

/// The sum up to the last anchor, and both clocks at that anchor.
///
/// Without a lock, since a fork may happen at any moment: in the child, a lock that another thread had
/// would be held for ever. A fork in the nanoseconds in which an anchor is written leaves a child that
/// sets no more of them: then its clock counts as much as its boot clock, at least.
#[cfg_attr(test, derive(Default))]
struct Sum {
    /// Twice the number of anchors that were set; odd while the next one is being written.
    version: AtomicU64,
    /// Those with an even and with an odd number. The last one is read while the next is written.
    anchors: [[AtomicU64; 3]; 2],
}

#[derive(Clone, Copy)]
struct Anchor {
    boot: u64,
    raw: u64,
    sum: u64,
}

/// The least distance of two anchors, in nanoseconds. What setting one adds to the sum (some tens of
/// nanoseconds) is nothing compared with it.
const ANCHOR_DISTANCE: u64 = 100_000_000;

impl Sum {
    fn now(&self, clocks: &impl Clocks) -> Moment {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let anchor = self.anchor(version / 2);
            let passed = anchor.passed(clocks.boot(), clocks.raw());
            fence(Ordering::Acquire);
            // Others were set meanwhile: it may be half of one and half of another.
            if self.version.load(Ordering::Relaxed) / 2 != version / 2 {
                continue;
            }
            if passed < ANCHOR_DISTANCE || !self.begins_to_write(version) {
                return Moment(anchor.sum + passed);
            }
            let bracket = Bracket::narrow(clocks);
            // From before the raw reading until after the next one: never less than the boot clock
            // counted between the two.
            let sum = anchor.sum + anchor.passed(bracket.after, bracket.raw);
            let next = [bracket.before, bracket.raw, sum];
            for (slot, value) in self.slots(version / 2 + 1).iter().zip(next) {
                slot.store(value, Ordering::Relaxed);
            }
            self.version.store(version + 2, Ordering::Release);
            return Moment(sum);
        }
    }

    fn slots(&self, number: u64) -> &[AtomicU64; 3] {
        &self.anchors[usize::from(number % 2 == 1)]
    }

    fn anchor(&self, number: u64) -> Anchor {
        let [boot, raw, sum] = self.slots(number).each_ref().map(|it| it.load(Ordering::Relaxed));
        Anchor { boot, raw, sum }
    }

    /// Whether this thread writes the anchor behind this version, and no other.
    fn begins_to_write(&self, version: u64) -> bool {
        let exchange = |from| {
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            self.version.compare_exchange(from, from + 1, success, failure).is_ok()
        };
        let begins = version.is_multiple_of(2) && exchange(version);
        fence(Ordering::Release); // a reader of what is written next finds the version changed
        begins
    }
}

impl Anchor {
    fn passed(&self, boot: u64, raw: u64) -> u64 {
        boot.saturating_sub(self.boot).max(raw.saturating_sub(self.raw))
    }
}

/// Both clocks at one moment: the raw reading lies between two of the boot clock.
struct Bracket {
    before: u64,
    raw: u64,
    after: u64,
}

impl Bracket {
    /// The narrowest of a few. A preemption between the readings of an anchor would be counted as
    /// time that only one of the clocks counted, and stay in the sum.
    fn narrow(clocks: &impl Clocks) -> Self {
        const NARROW: u64 = 10_000;
        const TRIES: u32 = 8;
        let mut narrowest = Self::read(clocks);
        for _ in 1..TRIES {
            if narrowest.width() <= NARROW {
                break;
            }
            let bracket = Self::read(clocks);
            if bracket.width() < narrowest.width() {
                narrowest = bracket;
            }
        }
        narrowest
    }

    fn read(clocks: &impl Clocks) -> Self {
        Self { before: clocks.boot(), raw: clocks.raw(), after: clocks.boot() }
    }

    fn width(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }
}

#[cfg(test)]
mod tests;
