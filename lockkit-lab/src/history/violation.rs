//! What a history is judged by: the invariants, what a set-up promises under faults, and what a broken
//! promise looks like.

use std::fmt;
use std::time::Duration;

use lockkit_core::capabilities::{Capabilities, Fault, Guarantee};
use serde::{Deserialize, Serialize};

/// What a set-up promises.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordedPromises {
    /// Which faults cost what. Those that are not named cost nothing.
    pub faults: Vec<(Fault, Guarantee)>,
    /// Whether claims are granted in the order in which they were queued.
    pub fifo: bool,
    /// How long after the last client's end a lock may still be held, and how long after a fault not
    /// everything need work.
    pub patience: Duration,
    /// How long a waiter may wait at a free lock: a ttl plus slack.
    pub idle: Duration,
    /// The longest ttl that a client had, plus the slack with which the backend ends leases: for so
    /// long after its end, a fault may explain a violation.
    pub lease: Duration,
}

impl RecordedPromises {
    /// Those of a driver.
    pub fn of(capabilities: &Capabilities, patience: Duration, lease: Duration) -> Self {
        let faults = capabilities.faults.to_vec();
        Self { faults, fifo: capabilities.fifo, patience, idle: patience, lease }
    }

    /// Which promises hold while this fault happens.
    pub fn guarantee(&self, fault: Fault) -> Guarantee {
        self.faults
            .iter()
            .find(|(f, _)| *f == fault)
            .map_or(Guarantee::All, |(_, guarantee)| *guarantee)
    }
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No guard is valid while a conflicting claim holds.
    Exclusion,
    /// A later conflicting holder has a greater token.
    TokensGrow,
    /// A token is given once.
    TokenOnce,
    /// Where it is promised, no client gets a lock before those in the queue.
    Order,
    /// The guarded register never goes back.
    Register,
    /// No acknowledged write is done over another that had the same ground.
    LostUpdate,
    /// After the last client is gone, every lock is free in time.
    FreeAtEnd,
    /// While a client waits and none holds, the lock is granted in time.
    Progress,
    /// Away from all faults, what is asked for succeeds; and some of it always.
    Success,
    /// The history makes sense: answers belong to questions.
    Sound,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// Of which lock or register.
    pub of: String,
    /// When what it came of began, at the earliest: a fault that was over by then is not its cause.
    pub since: u64,
    /// When it shows.
    pub at: u64,
    /// Who took part: clients and their operations.
    pub by: Vec<(u32, u64)>,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}: {}", self.invariant, self.of, self.text)
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
