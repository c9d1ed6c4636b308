//! What can go wrong, as a caller can act on it. Busy is not an error: `try_` forms return an
//! `Option`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::break_record::BreakRecord;
use crate::token::{InvalidToken, Token};

/// The result of lockkit's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a backend or its client said.
///
/// ```
/// use lockkit_core::Error;
///
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// if let Error::Backend { cause, .. } = Error::retryable("redis", refused) {
///     assert!(cause.downcast_ref::<std::io::Error>().is_some());
/// }
/// ```
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// The errors of every operation, on every backend.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::Error;
///
/// let guard = locks.mutex("invoice/42").lock().await?;
/// match guard.token() {
///     Ok(token) => println!("write with {token}"),
///     Err(Error::Lost { reason, .. }) => println!("leave the invoice alone: {reason}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was held, or waited for, and is not any more. What it protected must be left
    /// alone.
    #[error("the lock was lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// Why.
        reason: LossReason,
    },
    /// A semaphore has one limit while anyone holds it or waits for it, and this was another one.
    #[error(
        "the semaphore {name:?} is in use with a limit of {in_use}, not {asked}: use the same \
         limit everywhere, or wait until it is unused"
    )]
    #[non_exhaustive]
    LimitMismatch {
        /// The semaphore.
        name: String,
        /// The limit that it has.
        in_use: u32,
        /// The limit that was asked for.
        asked: u32,
    },
    /// A latch has one count, and this was another one.
    #[error(
        "the latch {name:?} counts down from {in_use}, not {asked}: use the same count everywhere"
    )]
    #[non_exhaustive]
    CountMismatch {
        /// The latch.
        name: String,
        /// The count that it has.
        in_use: u32,
        /// The count that was asked for.
        asked: u32,
    },
    /// A latch is open, and a participant counted down that was not among those that opened it.
    #[error("the latch {name:?} is open: there is nothing left to count down")]
    #[non_exhaustive]
    BelowZero {
        /// The latch.
        name: String,
    },
    /// A name, namespace or note that cannot be one. Nothing was sent.
    #[error("{name:?} cannot be used: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The beginning of what was given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This backend cannot do this; its `Capabilities` say so.
    #[error("{backend} does not support {operation}")]
    #[non_exhaustive]
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
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock.
        name: String,
    },
    /// A register was not as expected: another client wrote. Nothing was stored, unless
    /// `maybe_applied`.
    #[error("the register {name:?} was changed by somebody else: load it again{}", doubt(*.maybe_applied))]
    #[non_exhaustive]
    Conflict {
        /// The register.
        name: String,
        /// Whether an answer had been lost before this one came: then an earlier attempt of this
        /// same write may have been applied, and overwritten since.
        maybe_applied: bool,
    },
    /// A register has been written by a later holder of the lock. Nothing was stored, unless
    /// `maybe_applied`, and what this holder does must be left alone.
    #[error(
        "the register {name:?} has been written with token {highest}: token {token} is stale{}",
        doubt(*.maybe_applied)
    )]
    #[non_exhaustive]
    Stale {
        /// The register.
        name: String,
        /// The token that was refused.
        token: Token,
        /// The highest that was seen.
        highest: Token,
        /// As in [`Conflict`](Self::Conflict).
        maybe_applied: bool,
    },
    /// The backend failed, refused, or did not answer. Whether the operation happened may be
    /// unknown; lockkit cleans up behind it either way.
    ///
    /// The message includes that of the cause, so [`source`](std::error::Error::source) does not
    /// return the cause again: a printed chain of errors says everything once.
    #[error("{backend}: {cause}")]
    #[non_exhaustive]
    Backend {
        /// The backend.
        backend: &'static str,
        /// What the backend or its client said. Contains no password.
        cause: Cause,
        /// Whether trying again may help.
        retryable: bool,
    },
    /// The manager was shut down.
    #[error("this lock manager was shut down")]
    Closed,
    /// The manager was made before this process was forked: its connections and claims are the parent's.
    #[error("this lock manager was made before a fork, and is the parent's: make a new one here")]
    Forked,
    /// The guard of this lease has been given back.
    #[error("this lock was released")]
    Released,
}

/// An error that work under a lock may end with: any type into which an [`Error`] converts.
///
/// The forms that run work (`run`, `try_run`, `try_run_for`) have one error type, that of the program,
/// for the work and for the lock. So `?` inside of the work takes both, `?` behind `run` needs no
/// second one, and nothing is wrapped: an error of the work arrives as it was.
///
/// - `anyhow::Error`, `Box<dyn Error>`, `Box<dyn Error + Send + Sync>`, [`std::io::Error`] and
///   [`Error`] are such types as they are.
/// - An error type of the program's becomes one with `From<lockkit::Error>`: with `thiserror`, a variant
///   `Lock(#[from] lockkit::Error)`.
/// - The error type of a client crate, such as `sqlx::Error`, has no place for the loss of a lock, and
///   only that crate could add the conversion. For sqlx there is `lockkit::sql::WorkError`, which is
///   either; elsewhere use one of the types above.
///
/// Where the work ends with `Ok(())`, the compiler needs to be told the type: `anyhow::Ok(())` or
/// `Ok::<_, MyError>(())`.
///
/// ```
/// #[derive(Debug, thiserror::Error)]
/// enum PayError {
///     #[error("the invoice is paid already")]
///     Paid,
///     #[error("no lock")]
///     Lock(#[from] lockkit_core::Error),
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let paid = locks.mutex("invoice/42").run(async |lock| {
///     let _token = lock.token()?;
///     Err::<(), _>(PayError::Paid)
/// }).await;
/// assert!(matches!(paid, Err(PayError::Paid)));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that a lock was lost",
    label = "the work ends with `{Self}`, into which `lockkit::Error` does not convert",
    note = "let the work return `anyhow::Error`, `Box<dyn Error + Send + Sync>`, an error type with \
            `#[from] lockkit::Error`, or, with sqlx, `lockkit::sql::WorkError`"
)]
pub trait FromLock: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromLock for E {}

/// For work that is input and output: the lock's error is the [inner one](std::io::Error::get_ref).
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}

impl From<InvalidToken> for Error {
    fn from(error: InvalidToken) -> Self {
        Self::Config(error.to_string())
    }
}

fn doubt(maybe_applied: bool) -> &'static str {
    match maybe_applied {
        true => " (an answer was lost: this write may have been applied before that)",
        false => "",
    }
}

impl Error {
    /// The lock was lost, for this reason.
    pub fn lost(reason: LossReason) -> Self {
        Self::Lost { reason }
    }

    /// This backend cannot do this.
    pub fn unsupported(operation: &'static str, backend: &'static str) -> Self {
        Self::Unsupported { operation, backend }
    }

    /// A semaphore is in use with another limit than the one that was asked for.
    pub fn limit_mismatch(name: impl Into<String>, in_use: u32, asked: u32) -> Self {
        Self::LimitMismatch { name: name.into(), in_use, asked }
    }

    /// A failure that may pass: a cut connection, a timeout, a server that starts up.
    pub fn retryable(
        backend: &'static str,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Backend { backend, cause: cause.into().into(), retryable: true }
    }

    /// A failure that stays until an operator acts: a refused login, a read-only file.
    pub fn permanent(
        backend: &'static str,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Backend { backend, cause: cause.into().into(), retryable: false }
    }

    /// A setting that cannot work.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config(message.into())
    }

    /// The same; a failure of a backend says where that is, before what it said: for programs and
    /// drivers that have several. (Its cause becomes a text.)
    ///
    /// ```
    /// use lockkit_core::Error;
    ///
    /// let error = Error::retryable("redis", "connection refused").at("redis://a:6379");
    /// assert_eq!(error.to_string(), "redis: redis://a:6379: connection refused");
    /// ```
    pub fn at(self, part: &str) -> Self {
        match self {
            Self::Backend { backend, cause, retryable } => {
                let text = format!("{part}: {cause}");
                let cause: Box<dyn std::error::Error + Send + Sync> = match cause.is::<ReadOnly>() {
                    true => ReadOnly(text).into(),
                    false => text.into(),
                };
                Self::Backend { backend, cause: cause.into(), retryable }
            }
            other => other,
        }
    }

    /// Whether trying again may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Backend { retryable: true, .. })
    }

    /// Whether a server takes no writes: a standby before its promotion, or a login with a read-only
    /// role. It is [retryable](Self::is_retryable) once the driver has written there; at first contact it
    /// stays. An acquire with a time limit waits in either case.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Backend { cause, .. } if cause.is::<ReadOnly>())
    }

    /// The same, as one that may pass, or stays.
    pub(crate) fn with_retryable(self, retryable: bool) -> Self {
        match self {
            Self::Backend { backend, cause, .. } => Self::Backend { backend, cause, retryable },
            other => other,
        }
    }

    /// One word for what this is, as `error.type` of OpenTelemetry's conventions.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lost { reason } => reason.as_str(),
            Self::LimitMismatch { .. } => "limit_mismatch",
            Self::CountMismatch { .. } => "count_mismatch",
            Self::BelowZero { .. } => "below_zero",
            Self::InvalidName { .. } => "invalid_name",
            Self::Unsupported { .. } => "unsupported",
            Self::Config(_) => "config",
            Self::WouldDeadlock { .. } => "would_deadlock",
            Self::Conflict { .. } => "conflict",
            Self::Stale { .. } => "stale",
            Self::Backend { .. } => "backend",
            Self::Closed => "closed",
            Self::Forked => "forked",
            Self::Released => "released",
        }
    }

    /// Why the lock was lost, if that is what this is.
    pub fn loss(&self) -> Option<&LossReason> {
        match self {
            Self::Lost { reason } => Some(reason),
            _ => None,
        }
    }
}

/// Why a server takes no writes: the cause of an [`Error::Backend`], by which
/// [`Error::is_read_only`] knows it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ReadOnly(pub(crate) String);

/// Why a claim ended without having been released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::LossReason;
///
/// let guard = locks.mutex("nightly").lock().await?;
/// locks.shutdown().await;
/// match guard.lost().await {
///     LossReason::Broken(record) => println!("an operator took it: {record}"),
///     LossReason::ShutDown => println!("this program is ending"),
///     other => println!("leave the work alone: {other}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// Its lease ended: it was not renewed in time, or was not to be renewed.
    Expired,
    /// It was held for as long as its `max_hold` allows.
    MaxHold,
    /// It was broken.
    Broken(BreakRecord),
    /// The session that it lived in ended (ZooKeeper), or its lease was revoked (etcd).
    SessionEnded,
    /// The backend did not answer any more, so its lease has to be taken for ended. With the text of
    /// the last error.
    Unreachable(Arc<str>),
    /// The backend refused to renew it until its lease ended: a login or a right was withdrawn, say.
    /// With the text of the last error.
    Refused(Arc<str>),
    /// The backend does not have it although its lease had not ended: data was lost or deleted, the
    /// server's clock was moved, or its ticket was released elsewhere.
    Vanished,
    /// Another server, or the same with older data, answers in place of the one that kept it, and does not
    /// have it, or did not confirm it in time.
    ServerChanged,
    /// The backend does not have it any more, or it was trusted for a shorter time, since the server's clock
    /// got ahead of this process's: it was stepped, it runs fast, or the machine of this process was paused.
    ClockJump,
    /// What keeps [neighbours](crate::driver::Gate) out was not there any more, or theirs: it was deleted, its
    /// data was lost, or its lease ended. One of them may hold the lock.
    Neighbour,
    /// Its manager was shut down.
    ShutDown,
    /// This process is a fork of the one that holds it, which goes on holding it.
    Forked,
}

impl LossReason {
    /// Why a claim is lost whose lease ends after its renewals failed with this error.
    pub(crate) fn of_renewals(error: &Error) -> Self {
        let text = error.to_string().into();
        match error.is_retryable() {
            true => Self::Unreachable(text),
            false => Self::Refused(text),
        }
    }

    /// One word, as in the labels of metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::MaxHold => "max_hold",
            Self::Broken(_) => "broken",
            Self::SessionEnded => "session_ended",
            Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::Vanished => "vanished",
            Self::ServerChanged => "server_changed",
            Self::ClockJump => "clock_jump",
            Self::Neighbour => "neighbour",
            Self::ShutDown => "shut_down",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ended"),
            Self::MaxHold => f.write_str("it was held for as long as its max_hold allows"),
            Self::Broken(record) => write!(f, "it was broken {record}"),
            Self::SessionEnded => f.write_str("the backend ended its session"),
            Self::Unreachable(error) => {
                write!(f, "the backend did not answer until its lease ended ({error})")
            }
            Self::Refused(error) => {
                write!(f, "the backend refused to renew it until its lease ended ({error})")
            }
            Self::Vanished => f.write_str("the backend does not have it any more"),
            Self::ServerChanged => {
                f.write_str("another server, or older data, took its server's place")
            }
            Self::ClockJump => {
                f.write_str("the server's clock got ahead of this process's: a step, or a pause")
            }
            Self::Neighbour => f.write_str("what keeps neighbours out was gone, or theirs"),
            Self::ShutDown => f.write_str("its manager was shut down"),
            Self::Forked => f.write_str("it is the parent's of this forked process"),
        }
    }
}

/// The error of a request that was given up because its answer did not come in time. Retryable.
pub fn no_answer(backend: &'static str) -> Error {
    Error::retryable(backend, "the backend did not answer in time")
}

/// The answer to a request, or [`no_answer`] where it has not come after this time.
///
/// # Cancel safety
/// That of the request.
pub async fn in_time<T>(
    backend: &'static str,
    limit: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(no_answer(backend)))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::Error;

    #[test]
    fn a_printed_chain_of_causes_says_everything_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = Error::retryable("redis", refused);
        let mut printed = vec![error.to_string()];
        let mut next = error.source();
        while let Some(cause) = next {
            printed.push(cause.to_string());
            next = cause.source();
        }
        assert_eq!(printed.join(": ").matches("connection refused").count(), 1, "{printed:?}");
        let Error::Backend { cause, .. } = error else { panic!("it is the backend's") };
        assert!(cause.is::<std::io::Error>(), "the cause is there for who looks for it");
    }
}
