//! What a backend answers, and what it is asked with: plain data. [`driver`](crate::driver) shows it.

use std::time::Duration;

use crate::clock::Moment;
use crate::{BreakRecord, Token};

/// An answer of the backend, and how many attempts the driver made before it.
///
/// A driver that repeats a request by itself, because a connection broke before the answer came,
/// says so: an attempt without an answer may have been carried out, or may still be on its way
/// and be carried out later. Core then keeps releasing the claim until its ttl is over, and does
/// not take "somebody else wrote" at its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered<T> {
    /// The answer.
    pub answer: T,
    /// How many earlier attempts of this request got no answer. An attempt that certainly never
    /// left this process, or that the backend certainly refused, does not count.
    pub unanswered: u32,
}

impl<T> Answered<T> {
    /// The answer to a request that was sent again after this many attempts without one.
    pub const fn after(unanswered: u32, answer: T) -> Self {
        Self { answer, unanswered }
    }

    /// Another answer after as many attempts.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Answered<U> {
        Answered { answer: f(self.answer), unanswered: self.unanswered }
    }
}

/// The answer to a request that was sent once.
impl<T> From<T> for Answered<T> {
    fn from(answer: T) -> Self {
        Self { answer, unanswered: 0 }
    }
}

/// What a claim does when it cannot hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Leaves at once.
    Try,
    /// Stands in line.
    Wait,
}

/// The answer to [`LockDriver::acquire`](crate::driver::LockDriver::acquire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// The claim holds.
    Granted(Grant),
    /// The claim is in line, behind this many live claims.
    Queued {
        /// How many live claims stand ahead of it.
        ahead: u32,
    },
    /// The claim could not hold, and is not in the list.
    Busy,
}

/// A claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its fencing token.
    pub token: Token,
    /// How long its lease lasts at the backend, which may have rounded what was asked for up.
    pub ttl: Duration,
    /// The moment from which the ttl counts at the latest: **before the request was sent** that
    /// the backend answered with this lease. `None` stands for the last request about this claim
    /// that core sent itself and that was answered, which is right wherever that request set the
    /// lease; a driver that shares leases between claims, or that asked on its own, says it here.
    pub since: Option<Moment>,
}

/// What became of a renewed claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It holds; its lease was renewed.
    Holds(Grant),
    /// It is in line, behind this many live claims.
    Waits {
        /// How many live claims stand ahead of it.
        ahead: u32,
    },
    /// It is not live any more, and never will be again.
    Ended(Ended),
}

/// Why a claim is not live, as far as the backend can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It is not in the list: released, expired, or lost. Core tells these apart.
    NotInLine,
    /// It was broken.
    Broken(BreakRecord),
    /// The session or the lease that kept it alive ended.
    SessionEnded,
}

/// The answer to [`LockDriver::anchor`](crate::driver::LockDriver::anchor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchored {
    /// It holds, and this is where: [`Anchor::at`](crate::Anchor::at).
    At(Vec<u8>),
    /// It is not live any more, and never will be again.
    Ended(Ended),
}

/// The answer to [`LockDriver::release`](crate::driver::LockDriver::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The claim was in the list, and was taken out.
    Removed,
    /// The claim was not in the list; others are. (It ended, or it is somebody else's.)
    NotInLine,
    /// The list was empty: nobody holds this lock.
    NoSuchLock,
}

/// Which limit a semaphore is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetLimit {
    /// This one, unless it has one.
    IfUnset(u32),
    /// This one.
    To(u32),
}

/// How to break a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Renew it no longer.
    Polite,
    /// Take it out at once.
    Immediate,
}
