use std::cell::{Cell, RefCell};

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Two clocks that go where a test moves them, and what happens between two readings.
#[derive(Default)]
struct Staged {
    boot: Cell<u64>,
    raw: Cell<u64>,
    readings: Cell<u32>,
    /// Before the reading of this number, so much time passes.
    preempted: RefCell<Vec<(u32, u64)>>,
}

impl Staged {
    /// Long after the boot, with a distance of an hour between the two clocks: suspends of the past.
    fn new() -> (Sum, Self, Moment) {
        let staged = Self::default();
        staged.boot.set(10_000 * SECOND);
        staged.raw.set(6_400 * SECOND);
        let sum = Sum::default();
        let start = sum.now(&staged);
        staged.readings.set(0);
        (sum, staged, start)
    }

    fn pass(&self, boot: u64, raw: u64) {
        self.boot.set(self.boot.get() + boot);
        self.raw.set(self.raw.get() + raw);
    }

    /// A second at a time, read `times` a second.
    fn seconds(&self, sum: &Sum, seconds: u64, times: u64, boot: u64, raw: u64) -> Moment {
        for _ in 0..seconds * times {
            self.pass(boot / times, raw / times);
            sum.now(self);
        }
        sum.now(self)
    }

    fn read(&self) {
        let number = self.readings.get() + 1;
        self.readings.set(number);
        for (before, by) in self.preempted.borrow().iter() {
            if *before == number {
                self.pass(*by, *by);
            }
        }
    }
}

impl Clocks for Staged {
    fn boot(&self) -> u64 {
        self.read();
        self.boot.get()
    }

    fn raw(&self) -> u64 {
        self.read();
        self.raw.get()
    }
}

#[test]
fn a_clock_that_is_slewed_slow_does_not_slow_the_sum() {
    let (sum, clocks, start) = Staged::new();
    // 8.33 % slow for a minute, read every 20 ms.
    let now = clocks.seconds(&sum, 60, 50, SECOND / 10_000 * 9_167, SECOND);
    assert_eq!(now.since(start), Duration::from_secs(60));
    // And 8.33 % fast: ends come earlier, never later.
    let now = clocks.seconds(&sum, 60, 50, SECOND / 10_000 * 10_833, SECOND);
    assert_eq!(now.since(start), Duration::from_millis(60_000 + 64_998));
}

#[test]
fn a_suspend_counts_although_the_raw_clock_is_far_ahead_by_then() {
    let (sum, clocks, start) = Staged::new();
    // The raw clock gains 5 s in a minute: the greater of both distances would swallow a suspend of 4 s.
    clocks.seconds(&sum, 60, 50, SECOND - SECOND / 12, SECOND);
    let before = sum.now(&clocks);
    clocks.pass(4 * SECOND, 0);
    assert_eq!(sum.now(&clocks).since(before), Duration::from_secs(4));
    let now = clocks.seconds(&sum, 10, 50, SECOND, SECOND);
    assert_eq!(now.since(before), Duration::from_secs(14));
    assert!(now.since(start) >= Duration::from_millis(74_000 - 1));
}

#[test]
fn a_process_that_was_stopped_finds_all_of_it_counted() {
    let (sum, clocks, start) = Staged::new();
    clocks.pass(3_600 * SECOND, 3_600 * SECOND);
    assert_eq!(sum.now(&clocks).since(start), Duration::from_secs(3_600));
}

#[test]
fn each_interval_counts_what_the_faster_clock_counted() {
    let (sum, clocks, start) = Staged::new();
    let mut least = 0;
    for (boot, raw) in [(100, 90), (120, 130), (5_000, 100), (101, 101), (99, 250)] {
        clocks.pass(boot * MS, raw * MS);
        least += boot.max(raw) * MS;
        assert_eq!(sum.now(&clocks).since(start), Duration::from_nanos(least));
    }
}

#[test]
fn between_anchors_readings_add_nothing_up() {
    let (sum, clocks, start) = Staged::new();
    // Where each reading were an anchor, 10 + 10 ms would be counted here.
    clocks.pass(10 * MS, 0);
    assert_eq!(sum.now(&clocks).since(start), Duration::from_millis(10));
    clocks.pass(0, 10 * MS);
    assert_eq!(sum.now(&clocks).since(start), Duration::from_millis(10));
}

/// A reading that sets an anchor reads boot and raw, then boot, raw and boot once more.
#[test]
fn a_preemption_between_the_readings_of_an_anchor_adds_nothing() {
    for before in 1..=5 {
        let (sum, clocks, start) = Staged::new();
        clocks.pass(SECOND, SECOND);
        clocks.preempted.borrow_mut().push((before, 50 * MS));
        let now = sum.now(&clocks);
        assert_eq!(now.since(start), Duration::from_millis(1_050), "before reading {before}");
        // Neither does it stay in the sum, nor is it missing.
        let now = clocks.seconds(&sum, 10, 50, SECOND, SECOND);
        assert_eq!(now.since(start), Duration::from_millis(11_050), "before reading {before}");
    }
}

#[test]
fn where_no_bracket_is_narrow_nothing_is_missing_and_the_clock_goes_on() {
    let (sum, clocks, start) = Staged::new();
    clocks.pass(SECOND, SECOND);
    // A millisecond before each reading: 2 for the first two, 3 for each of eight brackets.
    *clocks.preempted.borrow_mut() = (1..=26).map(|number| (number, MS)).collect();
    let first = sum.now(&clocks);
    assert_eq!(clocks.readings.get(), 26);
    assert!(first >= start.after(Duration::from_millis(1_005)), "the first bracket's end");
    let passed = clocks.raw.get() - 6_400 * SECOND;
    let now = sum.now(&clocks);
    assert!(now >= first && now.since(start) >= Duration::from_nanos(passed));
    assert!(now.since(start) <= Duration::from_nanos(passed + 2 * MS), "one bracket's width");
}

#[test]
fn a_suspend_between_the_readings_of_an_anchor_counts() {
    for before in 1..=5 {
        let (sum, clocks, start) = Staged::new();
        clocks.pass(SECOND, SECOND);
        let suspends = Suspended { clocks: &clocks, before };
        sum.now(&suspends);
        let now = sum.now(&clocks);
        assert_eq!(now.since(start), Duration::from_secs(61), "before reading {before}");
    }
}

struct Suspended<'a> {
    clocks: &'a Staged,
    before: u32,
}

impl Suspended<'_> {
    fn read(&self) {
        if self.clocks.readings.get() + 1 == self.before {
            self.clocks.pass(60 * SECOND, 0);
        }
    }
}

impl Clocks for Suspended<'_> {
    fn boot(&self) -> u64 {
        self.read();
        self.clocks.boot()
    }

    fn raw(&self) -> u64 {
        self.read();
        self.clocks.raw()
    }
}

/// Both clocks go on by 30 ms with each reading of the boot clock, so that anchors are set all the time.
#[derive(Default)]
struct Racing(AtomicU64);

impl Clocks for Racing {
    fn boot(&self) -> u64 {
        self.0.fetch_add(30 * MS, Ordering::SeqCst)
    }

    fn raw(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn no_thread_finds_the_clock_behind_what_another_one_has_read() {
    let (sum, clocks, latest) = (Sum::default(), Racing::default(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let (before, time) = (latest.load(Ordering::SeqCst), clocks.raw());
                    let now = sum.now(&clocks).as_nanos();
                    assert!(now >= before && now >= time, "{now} {before} {time}");
                    latest.fetch_max(now, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(sum.version.load(Ordering::SeqCst) > 1_000, "anchors were set");
}

#[test]
fn a_pair_passes_with_whichever_clock_comes_first() {
    let now = ClockPair { boot: Moment(100 * SECOND), raw: Moment(50 * SECOND) };
    let end = now.after(Duration::from_secs(10));
    let later = |boot, raw| ClockPair {
        boot: now.boot.after(Duration::from_secs(boot)),
        raw: now.raw.after(Duration::from_secs(raw)),
    };
    assert_eq!(end.since(later(3, 4)), Duration::from_secs(6), "slewed slow");
    assert_eq!(end.since(later(9, 1)), Duration::from_secs(1), "suspended");
    assert_eq!(end.since(later(10, 1)), Duration::ZERO);
    assert_eq!(end.before(Duration::from_secs(2)).since(now), Duration::from_secs(8));
    let earliest = later(3, 4).min(later(4, 3));
    assert_eq!(earliest, later(3, 3));
}
