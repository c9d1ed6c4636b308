//! The rule: which claims of a list hold. Pure functions, no time and no I/O; drivers that can read
//! their list call them, the others state the same in their own language, and the conformance
//! suite holds all of them against this page.
//!
//! # The rule
//! A lock is an ordered list of live claims. A claim *holds* when nothing ahead of it conflicts
//! with it:
//! - **exclusive**: nothing is ahead;
//! - **shared**: no exclusive claim is ahead;
//! - **permits** (`n` of `limit`): the permits ahead plus `n` are at most `limit`.
//!
//! # One sum for all three
//! Every mode is a *weight* against a *capacity*: a claim holds when the weights ahead of it plus
//! its own are at most the capacity. An exclusive claim weighs as much as its lock can carry, a
//! shared one weighs 1. So a backend needs one number a claim and one sum:
//!
//! | mode | weight | capacity |
//! | --- | --- | --- |
//! | exclusive | [`LOCK_CAPACITY`] | [`LOCK_CAPACITY`] |
//! | shared | 1 | [`LOCK_CAPACITY`] |
//! | permits (n of limit) | n | limit |
//!
//! Weights are positive and all claims of one list have one capacity, so the sums grow along the
//! list: **those who hold are always the front of the list**, and once a claim holds it holds until
//! it leaves. From this follow FIFO order, that no writer starves, and that a large request at the
//! front is not overtaken by small ones.

use crate::Mode;

mod read;

pub use read::{
    Ahead, EXACT_ATTEMPTS, GivenLimit, LimitWrite, Queue, QueueMember, Resizing, RuleResult,
};

/// What a lock of the exclusive/shared kind can carry: one exclusive claim or this many shared
/// ones. Below 2^31, so that it fits every backend's integers; sums need 64 bits.
pub const LOCK_CAPACITY: u32 = i32::MAX as u32;

impl Mode {
    /// How much of the capacity a claim of this mode takes.
    pub const fn weight(self) -> u32 {
        match self {
            Self::Exclusive => LOCK_CAPACITY,
            Self::Shared => 1,
            Self::Permits { permits, .. } => permits,
        }
    }

    /// How much the list of such a claim carries.
    pub const fn capacity(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => LOCK_CAPACITY,
            Self::Permits { limit, .. } => limit,
        }
    }
}

/// Whether a claim of this mode holds, given the sum of the weights of the live claims ahead of it.
pub const fn admits(weight_ahead: u64, mode: Mode) -> bool {
    weight_ahead + mode.weight() as u64 <= mode.capacity() as u64
}

/// How many claims hold, given the modes of the live claims in order. They are the first ones.
pub fn holders(queue: impl IntoIterator<Item = Mode>) -> usize {
    let mut ahead = 0;
    queue
        .into_iter()
        .take_while(|mode| {
            let holds = admits(ahead, *mode);
            ahead += u64::from(mode.weight());
            holds
        })
        .count()
}

/// Whether two claims of one list may never hold at the same time, whatever else does. (Permits
/// conflict by their sum, not in pairs, unless two of them alone exceed the limit.)
pub const fn conflict(a: Mode, b: Mode) -> bool {
    a.weight() as u64 + b.weight() as u64 > a.capacity() as u64
}

#[cfg(test)]
mod tests;
