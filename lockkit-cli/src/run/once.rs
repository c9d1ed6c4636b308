//! `run --once`: whether the job of this key was done before, and the note that it is done now.

use std::time::{Duration, SystemTime};

use lockkit::{HeldLock, LockManager};

use crate::backend::Backend;
use crate::exit::{ExitError, code};
use crate::{acquire, describe, output};

/// `run --once --forget`.
pub(super) async fn forget(backend: &Backend, name: &str) -> Result<u8, ExitError> {
    lockkit::Name::new(name)?;
    let locks = backend.connect().await?;
    let forgotten = locks.once(name).forget().await;
    acquire::close(&locks).await;
    forgotten?;
    output::note(format!("{name:?} counts as not done"));
    Ok(0)
}

/// The job of a key.
pub(super) struct Once<'a> {
    once: lockkit::sync::Once,
    name: &'a str,
}

impl<'a> Once<'a> {
    pub(super) fn new(locks: &LockManager, name: &'a str, keep: Option<Duration>) -> Self {
        let once = locks.once(name);
        let once = match keep {
            Some(time) => once.keep(time),
            None => once,
        };
        Self { once, name }
    }

    /// Whether it was done; says by whom.
    pub(super) async fn is_decided(&self) -> Result<bool, ExitError> {
        let Some(decision) = self.once.decision().await? else {
            return Ok(false);
        };
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(decision.at_unix_ms);
        let ago = SystemTime::now().duration_since(since).unwrap_or_default();
        let (name, by, ago) = (self.name, &decision.by, describe::duration(ago));
        output::note(format!("{name:?} was done by {by} {ago} ago: nothing to do"));
        Ok(true)
    }

    /// Notes that it is done.
    pub(super) async fn decide(&self, lease: &HeldLock) -> Result<(), ExitError> {
        match self.once.decide(lease, "0").await {
            Ok(_) => Ok(()),
            Err(error) => {
                let name = self.name;
                let sentence = format!(
                    "the command is done, but that could not be noted ({error}): {name:?} may run again"
                );
                Err(ExitError::new(code::UNAVAILABLE, sentence))
            }
        }
    }
}
