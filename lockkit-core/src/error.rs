//! What can go wrong, as a caller can act on it. Busy is not an error: `try_` forms return an
//! `Option`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Identity;

/// The errors of every operation, on every backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was held, or waited for, and is not any more. What it protected must be left
    /// alone.
    #[error("the lock was lost: {reason}")]
    Lost {
        /// Why.
        reason: LossReason,
    },
    /// A semaphore has one limit while anyone holds it or waits for it, and this was another one.
    #[error(
        "the semaphore {name:?} is in use with a limit of {in_use}, not {asked}: use the same \
         limit everywhere, or wait until it is unused"
    )]
    LimitMismatch {
        /// The semaphore.
        name: String,
        /// The limit that it has.
        in_use: u32,
        /// The limit that was asked for.
        asked: u32,
    },
    /// A name, prefix or note that cannot be one. Nothing was sent.
    #[error("{name:?} is not a usable name: {reason}")]
    InvalidName {
        /// The beginning of what was given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This backend cannot do this; its `Capabilities` say so.
    #[error("{backend} does not support {operation}")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
        /// The backend.
        backend: &'static str,
    },
    /// A URL, duration, count or other setting that cannot work. Nothing was sent.
    #[error("{0}")]
    Config(String),
    /// The same owner asked for what it would wait for until it let go itself.
    #[error("{name:?} is held for reading by this owner, which would wait for itself to write")]
    WouldDeadlock {
        /// The lock.
        name: String,
    },
    /// The backend failed, refused, or did not answer. Whether the operation happened may be
    /// unknown; lockkit cleans up behind it either way.
    #[error("{backend}: {source}")]
    Backend {
        /// The backend.
        backend: &'static str,
        /// What the backend or its client said. Contains no password.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// Whether trying again may help.
        retryable: bool,
    },
    /// The manager was shut down.
    #[error("this lock manager was shut down")]
    Closed,
    /// The guard of this lease has been given back.
    #[error("this lock was released")]
    Released,
}

impl Error {
    /// A failure that may pass: a cut connection, a timeout, a server that starts up.
    pub fn retryable(
        backend: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Backend { backend, source: source.into(), retryable: true }
    }

    /// A failure that stays until somebody does something: a refused login, a read-only file.
    pub fn permanent(
        backend: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Backend { backend, source: source.into(), retryable: false }
    }

    /// A setting that cannot work.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config(message.into())
    }

    /// Whether trying again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Backend { retryable: true, .. })
    }

    /// Why the lock was lost, if that is what this is.
    pub fn loss(&self) -> Option<&LossReason> {
        match self {
            Self::Lost { reason } => Some(reason),
            _ => None,
        }
    }
}

/// Why a claim ended without having been released.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// Its lease ended: it was not renewed in time, was not to be renewed, or reached its
    /// `max_hold`.
    Expired,
    /// Somebody broke it.
    Broken(BreakRecord),
    /// The session that it lived in ended (ZooKeeper), or its lease was revoked (etcd).
    SessionEnded,
    /// The backend did not answer any more, so its lease has to be taken for ended.
    Unreachable,
    /// The backend does not have it although its lease had not ended: data was lost or deleted, or
    /// the server's clock was moved.
    Vanished,
    /// Its manager was shut down.
    ShutDown,
}

impl LossReason {
    /// One word, as in the labels of metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Broken(_) => "broken",
            Self::SessionEnded => "session_ended",
            Self::Unreachable => "unreachable",
            Self::Vanished => "vanished",
            Self::ShutDown => "shut_down",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ended"),
            Self::Broken(record) => write!(f, "it was broken {record}"),
            Self::SessionEnded => f.write_str("the backend ended its session"),
            Self::Unreachable => f.write_str("the backend did not answer until its lease ended"),
            Self::Vanished => f.write_str("the backend does not have it any more"),
            Self::ShutDown => f.write_str("its manager was shut down"),
        }
    }
}

/// Who broke a lock, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakRecord {
    /// Who did it.
    pub by: Identity,
    /// When, in milliseconds since 1970 by the breaker's clock: for people, not for decisions.
    pub at_unix_ms: u64,
    /// Why, in the breaker's words.
    pub reason: Option<String>,
    /// Whether it was by force.
    pub forced: bool,
}

impl fmt::Display for BreakRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}", self.by)?;
        if self.forced {
            f.write_str(" by force")?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}
