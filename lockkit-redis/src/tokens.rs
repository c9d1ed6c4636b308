//! What the client knows about tokens: the greatest that it has seen, and the server's clock. From
//! these it proposes the next one, so that a script need not ask. The counter at the server decides
//! whether a proposal is good; a bad one costs a little time there, never the order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lockkit_core::clock::{BootClock, Clock, Moment};

use crate::keys::BUCKETS;

/// The server's clock, as of the last connection, or of the last time since that a proposal was
/// behind.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<(u64, Moment)>>);

impl ServerClock {
    /// Takes the server's time, in µs, that has just been answered.
    pub(crate) fn set(&self, micros: u64) {
        let now = BootClock.now();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((micros, now));
    }

    /// Takes the server's time, in µs, from the answer to a request that was sent at `sent`; not
    /// when a connection was built since, which may lead to another server.
    pub(crate) fn correct(&self, micros: u64, sent: Moment) {
        let now = BootClock.now();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_some_and(|(_, at)| at < sent) {
            *known = Some((micros, now));
        }
    }

    /// At most the server's time at this moment: the answer took a while to come here, and clocks
    /// may run at rates that differ by a thousandth.
    pub(crate) fn at_most(&self, now: Moment) -> Option<u64> {
        let (micros, at) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let passed = now.since(at).as_micros() as u64;
        Some(micros + passed - passed / 1024)
    }
}

/// The greatest token seen or proposed in each bucket.
pub(crate) struct HighestTokens(Box<[AtomicU64]>);

impl HighestTokens {
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn saw(&self, bucket: usize, token: u64) {
        self.0[bucket].fetch_max(token, Ordering::Relaxed);
    }

    /// A token for the next claim, which is about to be sent, by the server's clock if it is known.
    /// Nobody else here is given the same, nor a greater one that may reach the server before it:
    /// what is behind the counter costs time there. Without the clock it is what the server's choice
    /// has to reach.
    pub(crate) fn propose(&self, bucket: usize, now: Option<u64>) -> u64 {
        let highest = &self.0[bucket];
        let Some(now) = now else { return highest.load(Ordering::Relaxed) + 1 };
        let mut before = highest.load(Ordering::Relaxed);
        loop {
            let token = now.max(before + 1);
            match highest.compare_exchange_weak(before, token, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return token,
                Err(other) => before = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_proposal_exceeds_what_was_seen_and_keeps_up_with_the_servers_clock() {
        let tokens = HighestTokens::new();
        let clock = ServerClock::default();
        let now = || clock.at_most(BootClock.now());
        assert_eq!(tokens.propose(3, now()), 1);
        clock.set(1_790_000_000_000_000);
        let token = tokens.propose(3, now());
        assert!((1_790_000_000_000_000..1_790_000_010_000_000).contains(&token));
        tokens.saw(3, 1_800_000_000_000_000);
        assert_eq!(tokens.propose(3, now()), 1_800_000_000_000_001);
        assert!(tokens.propose(4, now()) < 1_790_000_010_000_000);
        tokens.saw(3, 5);
        assert_eq!(tokens.propose(3, now()), 1_800_000_000_000_002);
        assert_eq!(tokens.propose(3, None), 1_800_000_000_000_003);
    }

    #[test]
    fn a_clock_is_corrected_but_not_by_an_answer_from_before_the_connection() {
        let (clock, before) = (ServerClock::default(), BootClock.now());
        clock.correct(1_790_000_000_000_000, before);
        assert_eq!(clock.at_most(BootClock.now()), None);
        clock.set(1_790_000_000_000_000);
        clock.correct(1_800_000_000_000_000, before);
        assert!(clock.at_most(BootClock.now()).unwrap() < 1_795_000_000_000_000);
        clock.correct(1_800_000_000_000_000, BootClock.now().after(Duration::from_nanos(1)));
        assert!(clock.at_most(BootClock.now()).unwrap() >= 1_800_000_000_000_000);
    }

    #[test]
    fn what_is_known_of_a_clock_falls_behind_by_a_thousandth() {
        let clock = ServerClock::default();
        clock.set(1_790_000_000_000_000);
        let hour = Duration::from_secs(3_600);
        let later = clock.at_most(BootClock.now().after(hour)).unwrap();
        let all = 1_790_000_000_000_000 + hour.as_micros() as u64;
        assert!(later > all - 4_000_000, "{later}");
    }
}
