//! What the client knows about tokens: the greatest that it has seen, and the server's clock. From
//! these it proposes the next one, so that a script need not ask. The counter at the server decides
//! whether a proposal is good; a bad one costs a little time there, never the order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lockkit_core::clock::{BootClock, Clock, Moment};

use crate::keys::BUCKETS;

/// Tokens are written with so many digits, as many as the greatest has, so that text compares as the
/// numbers do.
pub(crate) const DIGITS: usize = 19;

/// The server's clock, as of the last connection.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<(u64, Moment)>>);

impl ServerClock {
    /// Takes the server's time, in µs, that has just been answered.
    pub(crate) fn set(&self, micros: u64) {
        let now = BootClock.now();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((micros, now));
    }

    /// At most the server's time: the answer took a while to come here, and clocks may run at rates
    /// that differ by a thousandth.
    fn at_most(&self) -> Option<u64> {
        let (micros, at) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let passed = BootClock.now().since(at).as_micros() as u64;
        Some(micros + passed - passed / 1024)
    }
}

/// The greatest token seen in each bucket.
pub(crate) struct Seen(Box<[AtomicU64]>);

impl Seen {
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn saw(&self, bucket: usize, token: u64) {
        self.0[bucket].fetch_max(token, Ordering::Relaxed);
    }

    /// A token for the next claim.
    pub(crate) fn propose(&self, bucket: usize, clock: Option<&ServerClock>) -> Proposal {
        let least = self.0[bucket].load(Ordering::Relaxed) + 1;
        match clock.and_then(ServerClock::at_most) {
            Some(now) => Proposal { said: written(now.max(least)), is_open: false },
            None => Proposal { said: written(least), is_open: true },
        }
    }
}

/// What a client says of the token of its claim.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// A "!", and the token or what it has to exceed.
    said: String,
    /// The server is to choose.
    is_open: bool,
}

impl Proposal {
    /// What to write into the claim.
    pub(crate) fn token(&self) -> &str {
        if self.is_open { NONE_YET } else { &self.said[1..] }
    }

    /// What to say to the script: the same, or, when the server is to choose, what it has to
    /// reach.
    pub(crate) fn said(&self) -> &str {
        &self.said[usize::from(!self.is_open)..]
    }
}

const NONE_YET: &str = "0000000000000000000";

fn written(token: u64) -> String {
    let (mut text, mut rest) = ([b'0'; DIGITS + 1], token);
    text[0] = b'!';
    for digit in text[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_exceeds_what_was_seen_and_keeps_up_with_the_servers_clock() {
        let seen = Seen::new();
        let clock = ServerClock::default();
        let open = seen.propose(3, Some(&clock));
        assert_eq!((open.token(), open.said()), (NONE_YET, "!0000000000000000001"));
        assert_eq!(NONE_YET.len(), DIGITS);
        clock.set(1_790_000_000_000_000);
        let proposal = seen.propose(3, Some(&clock));
        let token = proposal.token();
        assert_eq!(token, proposal.said());
        assert!(("0001790000000000000".."0001790000010000000").contains(&token));
        seen.saw(3, 1_800_000_000_000_000);
        assert_eq!(seen.propose(3, Some(&clock)).token(), "0001800000000000001");
        assert!(seen.propose(4, Some(&clock)).token() < "0001790000010000000");
        seen.saw(3, 5);
        assert_eq!(seen.propose(3, Some(&clock)).token(), "0001800000000000001");
    }
}
