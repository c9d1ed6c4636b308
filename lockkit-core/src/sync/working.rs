//! Work under several locks that are held as one: slots, multi-locks.

use crate::{Error, FromLock, LossReason};

/// The result of the work, which is dropped at its next await point when the locks are lost; then the
/// locks are released. [`Error::Lost`] when they were lost until then.
///
/// Dropping it drops the work, and then the release.
pub(super) async fn run<T, E: FromLock>(
    lost: impl Future<Output = LossReason>,
    work: impl Future<Output = Result<T, E>>,
    release: impl Future<Output = Result<(), Error>>,
) -> Result<T, E> {
    let result = tokio::select! {
        biased;
        reason = lost => Err(Error::Lost { reason }.into()),
        result = work => result,
    };
    match release.await {
        Err(error @ Error::Lost { .. }) if result.is_ok() => Err(error.into()),
        // The work was done while the locks were held; the release goes on in the background.
        _ => result,
    }
}
