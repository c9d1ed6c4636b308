//! What the client's errors mean for a caller.

use lockkit_core::driver::BatchError;
use lockkit_core::{Error, Result};
use zookeeper_client::Error as ZkError;

pub(crate) const BACKEND: &str = "zookeeper";

/// What ZooKeeper does not say when it refuses something.
const RIGHTS: &str = "the login needs the rights create, delete, read and write on what lies below \
                      \"lockkit\", or on the folders that neighbours share";

/// The error for what went wrong. Everything that is not known to stay may pass.
pub(crate) fn failed(error: ZkError) -> Error {
    match error {
        ZkError::NoAuth => Error::permanent(BACKEND, format!("{error}: {RIGHTS}")),
        ZkError::AuthFailed
        | ZkError::InvalidAcl
        | ZkError::BadArguments(_)
        | ZkError::QuotaExceeded
        | ZkError::Unimplemented
        | ZkError::NoChildrenForEphemerals => Error::permanent(BACKEND, error),
        _ => Error::retryable(BACKEND, error),
    }
}

/// The answer about a node; `None` where there is no such node.
pub(crate) fn if_there<T>(answer: Result<T, ZkError>) -> Result<Option<T>> {
    match answer {
        Err(ZkError::NoNode) => Ok(None),
        answer => answer.map(Some).map_err(failed),
    }
}

/// The error for a session that could not be had. The client does not say why a TLS connection came
/// to nothing: it may be that no server is there, so it may help to try again.
pub(crate) fn unreachable(error: ZkError, tls: bool) -> Error {
    match error {
        ZkError::AuthFailed => Error::permanent(BACKEND, "the server refuses the login"),
        ZkError::NoHosts | ZkError::ConnectionLoss if tls => {
            let message = "no server could be reached, or TLS failed: one side may not trust the \
                           other's certificate";
            Error::retryable(BACKEND, message)
        }
        other => failed(other),
    }
}

/// The error for a write, which is ambiguous unless the server refused it.
pub(crate) fn write_failed(error: ZkError) -> BatchError {
    let ambiguous = u32::from(!not_done(&error));
    BatchError::refused(failed(error)).after(ambiguous)
}

/// Whether a write that failed so was certainly not done, and will not be.
pub(crate) fn not_done(error: &ZkError) -> bool {
    matches!(
        error,
        ZkError::NoNode
            | ZkError::NoAuth
            | ZkError::InvalidAcl
            | ZkError::BadArguments(_)
            | ZkError::QuotaExceeded
            | ZkError::NotReadOnly
            | ZkError::Unimplemented
            | ZkError::NoChildrenForEphemerals
            | ZkError::NodeExists
            | ZkError::NotEmpty
            | ZkError::BadVersion
    )
}
