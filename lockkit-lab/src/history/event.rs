//! The vocabulary of histories.

use lockkit_core::Mode;
use lockkit_core::capabilities::Fault;
use serde::{Deserialize, Serialize};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in nanoseconds since boot.
    pub at: u64,
    /// To which client.
    pub client: u32,
    /// What.
    #[serde(flatten)]
    pub what: EventKind,
}

/// What happened. An `op` is a number that its client uses once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum EventKind {
    /// A client asks for a lock.
    Asked {
        /// Which operation begins.
        op: u64,
        /// Of which lock.
        lock: String,
        /// In which way.
        how: HeldMode,
    },
    /// The backend answered that the operation's claim is in the queue and waits.
    Placed {
        /// The operation.
        op: u64,
        /// Which claim: an operation whose waiting claim was lost goes on with another one.
        claim: u64,
        /// When the request was sent that was answered so.
        sent: u64,
    },
    /// It has it: a guard was returned.
    Granted {
        /// The operation.
        op: u64,
        /// The fencing token.
        token: u64,
        /// When the request was sent, at the earliest, from which the lease counts.
        since: u64,
        /// Until when the guard will say that it is valid, if nothing changes.
        valid_until: u64,
    },
    /// The guard said that it is valid.
    Valid {
        /// The operation that it came from.
        op: u64,
        /// Until when it will say so, if nothing changes.
        valid_until: u64,
    },
    /// The lock was busy, or the time to wait was over.
    Refused {
        /// The operation.
        op: u64,
    },
    /// The operation failed.
    Failed {
        /// The operation.
        op: u64,
        /// What it said.
        error: String,
    },
    /// The guard stopped being valid: its release is about to be sent, or its loss was noticed.
    Ended {
        /// The operation that it came from.
        op: u64,
        /// Why, when it was lost.
        lost: Option<String>,
    },
    /// A client asks the guarded register to write this value, or to be read.
    RegisterAsked {
        /// Which operation begins.
        op: u64,
        /// Of which register.
        register: String,
        /// The token that it presents.
        token: u64,
        /// The value to write; `None` to read.
        write: Option<u64>,
    },
    /// The register did it, and this is its value now.
    RegisterDone {
        /// The operation.
        op: u64,
        /// The value.
        value: u64,
    },
    /// The register refused the token.
    RegisterStale {
        /// The operation.
        op: u64,
        /// The highest token that it has seen.
        highest: u64,
    },
    /// The client crashed; its guards and what it had asked for belong to no client now.
    ClientCrashed,
    /// A fault begins.
    FaultBegins {
        /// Which kind, as the table of promises names it.
        fault: Fault,
        /// The server that it affects.
        on: String,
        /// The locks that it may touch; none are named where it may be any.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        locks: Vec<String>,
    },
    /// It is over.
    FaultEnds {
        /// Which kind.
        fault: Fault,
        /// Whom it struck.
        on: String,
    },
    /// After the last client is gone, and the time is up: the lock is free, or it is not.
    Inspected {
        /// Which lock.
        lock: String,
        /// Whether it is free.
        free: bool,
    },
}

/// [`Mode`], in a form that can be written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldMode {
    /// Alone.
    Exclusive,
    /// Beside others who share.
    Shared,
    /// So many of so many.
    Permits(u32, u32),
}

impl From<Mode> for HeldMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permits { permits, limit } => Self::Permits(permits, limit),
        }
    }
}

impl From<HeldMode> for Mode {
    fn from(how: HeldMode) -> Self {
        match how {
            HeldMode::Exclusive => Self::Exclusive,
            HeldMode::Shared => Self::Shared,
            HeldMode::Permits(permits, limit) => Self::Permits { permits, limit },
        }
    }
}
