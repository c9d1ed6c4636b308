//! The limit that a semaphore was given, as it stands among the nodes of its claims, and what it
//! means for them. No I/O.
//!
//! It is a node that stays, in the folder of the list, and its name says all. So every list of the
//! children shows it with the claims, as both were at one moment; who watches the folder sees it
//! change; and the folder, which never gets empty, is not removed.

use lockkit_core::{Mode, Token};

/// A limit that stays, and who holds whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) limit: u32,
    /// Claims whose token is not greater than this held when the limit was lowered, and hold on.
    /// (Holders are the front of the line, so one tells them all; and tokens are numbers of
    /// changes, which only grow, other than the sequence.)
    pub(crate) until: u64,
}

/// The node whose name does not change. It is made with the first limit, so that of two who give
/// one to a list at the same time one fails.
pub(crate) const MARK: &str = "limited";

/// How many nodes a list has more that was given a limit.
pub(crate) const NODES: i32 = 2;

impl Given {
    /// The name of the node.
    pub(crate) fn name(self) -> String {
        format!("limit-{}-{:x}", self.limit, self.until)
    }

    /// What the node of this name says, if it is one.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (limit, until) = name.strip_prefix("limit-")?.split_once('-')?;
        Some(Self { limit: limit.parse().ok()?, until: u64::from_str_radix(until, 16).ok()? })
    }

    /// Whether the claim with this token held when the limit was lowered.
    pub(crate) fn holds_on(self, token: Token) -> bool {
        token.get() <= self.until
    }

    /// How a claim counts here, whatever limit it came with.
    pub(crate) fn counted(self, mode: Mode) -> Mode {
        match mode {
            Mode::Permits { permits, .. } => Mode::Permits { permits, limit: self.limit },
            other => other,
        }
    }

    /// Whether a claim holds that came with this limit, when nobody is ahead of it.
    pub(crate) fn admits_first(self, mode: Mode) -> bool {
        mode.limit() == Some(self.limit) && mode.weight() <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_survives_writing_and_reading() {
        for limit in [0, 7, u32::MAX] {
            for until in [0, 0x1_0000_0001, u64::MAX] {
                let given = Given { limit, until };
                assert_eq!(Given::of(&given.name()), Some(given));
            }
        }
        for other in [MARK, "limit-", "limit-1", "limit--1", "p1of2-00-0000000001"] {
            assert_eq!(Given::of(other), None, "{other}");
        }
    }
}
