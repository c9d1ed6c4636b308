//! The fixed limit of a semaphore, as a node among those of its claims. No I/O.
//!
//! It is a node that stays, in the folder of the list, and its name says all. So every list of the
//! children shows it with the claims, as both were at one moment; a watch of the folder sees it
//! change; and the folder, which never gets empty, is not removed.

use lockkit_core::Mode;
use lockkit_core::queue::{GivenLimit, admits};

/// The node whose name does not change. It is made with the first limit, so that of two clients
/// that give one to a list at the same time one fails.
pub(crate) const MARK: &str = "limited";

/// How many nodes a list has more with a fixed limit.
pub(crate) const NODES: i32 = 2;

/// The path of the node of this fixed limit.
pub(crate) fn limit_at(folder: &str, given: GivenLimit) -> String {
    format!("{folder}/{}", node_name(given))
}

/// What the node of this name says, if it is one of a limit.
pub(crate) fn limit_of(name: &str) -> Option<GivenLimit> {
    let (limit, until) = name.strip_prefix("limit-")?.split_once('-')?;
    Some(GivenLimit { limit: limit.parse().ok()?, until: u64::from_str_radix(until, 16).ok()? })
}

/// Whether a claim holds that came with this limit, when no client is ahead of it.
pub(crate) fn admits_first(given: GivenLimit, mode: Mode) -> bool {
    mode.limit() == Some(given.limit) && admits(0, mode)
}

pub(crate) fn node_name(given: GivenLimit) -> String {
    format!("limit-{}-{:x}", given.limit, given.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_survives_writing_and_reading() {
        for limit in [0, 7, u32::MAX] {
            for until in [0, 0x1_0000_0001, u64::MAX] {
                let given = GivenLimit { limit, until };
                assert_eq!(limit_of(&node_name(given)), Some(given));
            }
        }
        for other in [MARK, "limit-", "limit-1", "limit--1", "p1of2-00-0000000001"] {
            assert_eq!(limit_of(other), None, "{other}");
        }
    }
}
