//! The greatest token that this client has seen in each bucket: what it sends along with an acquire as
//! the least that it accepts, should the server have lost its counters.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::keys::BUCKETS;

/// The greatest token seen in each bucket.
pub(crate) struct HighestTokens(Box<[AtomicU64]>);

impl HighestTokens {
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn saw(&self, bucket: usize, token: u64) {
        self.0[bucket].fetch_max(token, Ordering::Relaxed);
    }

    /// What the next token has to be at least.
    pub(crate) fn least(&self, bucket: usize) -> u64 {
        self.0[bucket].load(Ordering::Relaxed) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_token_exceeds_what_was_seen_in_its_bucket() {
        let tokens = HighestTokens::new();
        assert_eq!(tokens.least(3), 1);
        tokens.saw(3, 1_800_000_000_000_000);
        tokens.saw(3, 5);
        assert_eq!(tokens.least(3), 1_800_000_000_000_001);
        assert_eq!(tokens.least(4), 1);
    }
}
