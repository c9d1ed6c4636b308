//! What an error means: for core, whether trying again may help; for the driver, whether the request
//! may have been carried out.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::driver::Writes;
use redis::{ErrorKind, RedisError, RedisResult};

/// The error as core knows them: whether trying again may help.
pub(crate) fn to_error(error: RedisError) -> Error {
    // What a script of ours says in its own words.
    if error.code() == Some("LOCKKIT") {
        let what = error.detail().unwrap_or_default().to_owned();
        return Error::permanent(crate::BACKEND, Foreign(what));
    }
    if says(&error, "READONLY") {
        return Writes::refused(crate::BACKEND, "it is a standby (a replica)", error);
    }
    match may_pass(&error) {
        true => Error::retryable(crate::BACKEND, error),
        false => Error::permanent(crate::BACKEND, error),
    }
}

/// A key of lockkit's has a value that lockkit did not write.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Foreign(String);

impl Foreign {
    /// What it says, if this is why something failed.
    pub(crate) fn why(error: &Error) -> Option<String> {
        match error {
            Error::Backend { cause, .. } => cause.downcast_ref::<Self>().map(Self::to_string),
            _ => None,
        }
    }
}

/// What a server says that is full, cannot save, has too few replicas, is busy with a script, is
/// loading, follows another one, or is in a cluster that is not in order just now. Servers before
/// Redis 7 say it of a script's command within a longer sentence.
const PASSING: [&str; 10] = [
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
];

/// What a server says that carried nothing out, beside what may pass. Not a plain `ERR`, nor what is said of
/// rights: a script that is stopped in the middle keeps what it wrote before.
const REFUSING: [&str; 6] = ["READONLY", "WRONGTYPE", "LOCKKIT", "NOAUTH", "WRONGPASS", "NOSCRIPT"];

/// Whether the server says that certainly nothing was done.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    REFUSING.iter().chain(&PASSING).any(|code| says(error, code))
}

fn may_pass(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io => !is_about_certificates(error),
        ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::ClusterConnectionNotFound => true,
        _ => {
            let detail = error.detail().unwrap_or_default();
            PASSING.iter().any(|code| says(error, code))
                || (error.code() == Some("ERR") && detail.starts_with("max number of clients"))
        }
    }
}

/// Whether a server says this, by itself or of a script's command.
fn says(error: &RedisError, code: &str) -> bool {
    let wrapped = || error.detail().is_some_and(|it| it.contains(&format!("-{code} ")));
    error.code() == Some(code) || (error.code() == Some("ERR") && wrapped())
}

/// A server whose certificate is not trusted today will not be in a second.
fn is_about_certificates(error: &RedisError) -> bool {
    use std::error::Error;
    // The client crate hands out the pointer in which it keeps the cause.
    let shared = error.source().and_then(|e| e.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|cause| (**cause).downcast_ref::<std::io::Error>());
    let tls = io.and_then(std::io::Error::get_ref).and_then(|e| e.downcast_ref::<rustls::Error>());
    tls.is_some_and(|tls| !matches!(tls, rustls::Error::General(_)))
}

pub(crate) async fn bounded<T>(
    limit: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(timed_out()),
    }
}

pub(crate) fn timed_out() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the server did not answer in time").into()
}

/// A request without an answer that could be used.
#[derive(Debug)]
pub(crate) struct RequestError {
    pub(crate) error: RedisError,
    /// Whether another attempt, at once and over another connection, may help.
    pub(crate) retry: bool,
    /// How many requests may have been carried out although no answer came: 1, or 0.
    pub(crate) ambiguous: u32,
}

impl RequestError {
    /// A request that was sent: an error of the server is its answer, all others leave open whether it was
    /// carried out.
    pub(crate) fn of(error: RedisError) -> Self {
        let ambiguous = u32::from(!is_refusal(&error));
        Self { error, retry: false, ambiguous }
    }

    /// A request that never left this process.
    pub(crate) fn unsent(error: RedisError) -> Self {
        Self { error, retry: false, ambiguous: 0 }
    }
}

impl From<RequestError> for Error {
    fn from(failed: RequestError) -> Self {
        to_error(failed.error)
    }
}

/// Whether the server refused a command, a key or a channel to this user.
pub(crate) fn is_about_rights(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    // In scripts: before Redis 7.2, and since.
    let says = |what| detail.contains(what);
    error.code() == Some("NOPERM")
        || says("The user executing the script can't")
        || says("ACL failure in script")
}
