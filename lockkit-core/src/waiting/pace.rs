//! How often a claim is asked about where no message comes, and how many requests a driver makes for that. No
//! I/O, no clock.

use std::time::Duration;

use crate::Key;
use crate::clock::Moment;
use crate::recent::Recent;

/// The first waiter is asked about once in a quarter of the time that the last hand-over of its lock took, within
/// these bounds; in the middle of them where none was seen.
const QUICKEST: Duration = Duration::from_millis(1);
const QUICK: Duration = Duration::from_millis(10);
const UNKNOWN: Duration = Duration::from_millis(5);
/// While its queue stands still, once in a sixteenth of the time that it has stood still, where that is longer.
const STILL_PART: u32 = 16;
/// But no more seldom than this.
const SELDOM_FIRST: Duration = Duration::from_millis(100);
/// The k-th waiter is asked about once in k of these at first.
const TICK: Duration = Duration::from_millis(10);
/// No waiter is asked about more seldom than this.
pub(super) const SELDOM: Duration = Duration::from_secs(1);

/// In any second a driver makes at most 200 requests: so many at once, and one in each of these.
const AT_ONCE: u32 = 8;
const SPACING: Duration = Duration::from_nanos(1_000_000_000 / (200 - AT_ONCE as u64));

/// How long hand-overs take, as the waiters of this driver see it.
#[derive(Debug)]
pub(super) struct HandOverTimes(Recent<Key, Duration>);

/// Where a waiter was when it was last asked about, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) ahead: u32,
    since: Moment,
    /// How often it was asked about in vain since.
    asked: u32,
}

impl Default for HandOverTimes {
    fn default() -> Self {
        Self(Recent::new(256))
    }
}

impl HandOverTimes {
    /// A waiter got from where it was to behind so many, 0 where it holds.
    pub(super) fn saw(&self, key: &Key, from: Progress, ahead: u32, now: Moment) {
        if let Some(moved) = from.ahead.checked_sub(ahead).filter(|moved| *moved > 0) {
            self.0.saw(key.clone(), now.since(from.since) / moved);
        }
    }

    pub(super) fn last(&self, key: &Key) -> Option<Duration> {
        self.0.last(key)
    }
}

impl Progress {
    /// After one more answer, that so many are ahead.
    pub(super) fn next(last: Option<Self>, ahead: u32, now: Moment) -> Self {
        match last {
            Some(last) if last.ahead <= ahead => {
                Self { ahead, asked: last.asked.saturating_add(1), ..last }
            }
            _ => Self { ahead, since: now, asked: u32::from(last.is_none()) },
        }
    }

    /// After how long it is asked about again.
    pub(super) fn pause(self, now: Moment, hand_over: Option<Duration>) -> Duration {
        if self.ahead <= 1 {
            let quick = hand_over.map_or(UNKNOWN, |time| (time / 4).clamp(QUICKEST, QUICK));
            let still = now.since(self.since) / STILL_PART;
            return quick.max(still.min(SELDOM_FIRST));
        }
        let slower = (1 + self.asked / 16).min(100);
        (TICK * self.ahead.min(1_000) * slower).min(SELDOM)
    }
}

/// What is left of a driver's requests.
#[derive(Debug, Default)]
pub(super) struct RequestBudget {
    /// When all of it is there again.
    full_at: Option<Moment>,
}

impl RequestBudget {
    /// After how long a request may be sent.
    pub(super) fn wait(&self, now: Moment) -> Duration {
        let used = self.full_at.map_or(Duration::ZERO, |full| full.since(now));
        used.saturating_sub(SPACING * (AT_ONCE - 1))
    }

    /// A request is sent.
    pub(super) fn spend(&mut self, now: Moment) {
        let full = self.full_at.map_or(now, |full| full.max(now));
        self.full_at = Some(full.after(SPACING));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(time: Duration) -> Moment {
        Moment::from_nanos(1).after(time)
    }

    /// The pause of a claim that was asked about so often, the queue standing still for so long.
    fn pause(ahead: u32, asked: u32, still: Duration, hand_over: Option<Duration>) -> Duration {
        let progress = Progress { ahead, since: at(Duration::ZERO), asked };
        progress.pause(at(still), hand_over)
    }

    #[test]
    fn the_first_waiter_is_asked_about_four_times_in_a_hand_over() {
        let quick = |hand_over| pause(1, 1, Duration::ZERO, hand_over);
        assert_eq!(quick(Some(20 * MS)), 5 * MS);
        assert_eq!(quick(Some(MS)), MS, "no more often than each millisecond");
        assert_eq!(quick(Some(Duration::from_secs(60))), 10 * MS, "no more seldom than each ten");
        assert_eq!(quick(None), 5 * MS);
        // A hand-over that takes its usual time is not asked about more seldom before its end.
        assert_eq!(pause(1, 4, 4 * MS, Some(4 * MS)), MS);
    }

    #[test]
    fn the_first_waiter_of_a_queue_that_stands_still_is_asked_about_ten_times_a_second() {
        for hand_over in [None, Some(MS), Some(Duration::from_secs(60))] {
            let later = |still| pause(1, 1, still, hand_over);
            assert_eq!(later(Duration::from_millis(800)), 50 * MS);
            assert_eq!(later(Duration::from_secs(2)), 100 * MS);
            assert_eq!(later(Duration::MAX), 100 * MS);
        }
    }

    /// What the documentation of drivers promises, however long a claim has been waiting.
    #[test]
    fn every_waiter_is_asked_about_once_a_second() {
        for asked in [0, 1, 15, 16, 160, 1_600, 16_000, u32::MAX] {
            for ahead in [2, 10, 100, 1_000, u32::MAX] {
                let pause = pause(ahead, asked, Duration::MAX, Some(MS));
                assert!(pause <= Duration::from_secs(1), "{ahead}, after {asked}: {pause:?}");
            }
        }
        assert_eq!(pause(10, 0, Duration::ZERO, Some(MS)), 100 * MS, "the tenth");
    }

    #[test]
    fn a_hand_over_is_as_long_as_a_waiter_stayed_where_it_was() {
        let key = Key::new(
            crate::Namespace::default(),
            crate::Space::Lock,
            crate::Name::new("a").unwrap(),
        );
        let times = HandOverTimes::default();
        let queued = Progress::next(None, 3, at(Duration::ZERO));
        let still = Progress::next(Some(queued), 3, at(8 * MS));
        times.saw(&key, queued, 3, at(8 * MS));
        assert_eq!(times.last(&key), None, "nothing moved");
        times.saw(&key, still, 1, at(10 * MS));
        assert_eq!(times.last(&key), Some(5 * MS));
        let first = Progress::next(Some(still), 1, at(10 * MS));
        times.saw(&key, first, 0, at(17 * MS));
        assert_eq!(times.last(&key), Some(7 * MS));
    }

    #[test]
    fn at_most_two_hundred_requests_are_sent_in_any_second() {
        let mut budget = RequestBudget::default();
        let mut now = at(Duration::ZERO);
        let mut sent = Vec::new();
        while sent.len() < 2_000 {
            // At times nothing is asked for a while.
            if sent.len() % 500 == 0 {
                now = now.after(Duration::from_millis(300));
            }
            now = now.after(budget.wait(now));
            assert_eq!(budget.wait(now), Duration::ZERO);
            budget.spend(now);
            sent.push(now);
        }
        assert_eq!(sent[7].since(sent[0]), Duration::ZERO, "some at once");
        for some in sent.windows(201) {
            assert!(some[200].since(some[0]) >= Duration::from_secs(1));
        }
    }
}
