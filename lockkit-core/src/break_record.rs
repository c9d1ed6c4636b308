//! A break: how it is done, and the record that it leaves. Plain data.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::client::ClientIdentity;
use crate::clock::unix_ms;

/// How to break a claim.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::driver::BreakMode;
/// use lockkit_core::{LossReason, Space};
///
/// let guard = locks.mutex("nightly").lock().await?;
/// let token = guard.token()?;
/// let why = Some("the host is gone");
/// assert!(locks.admin().break_lock(Space::Lock, "nightly", token, BreakMode::Forced, why).await?);
/// assert!(matches!(guard.lost().await, LossReason::Broken(record) if record.forced));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakMode {
    /// Renew it no longer.
    Graceful,
    /// Take it out at once.
    Forced,
}

/// Who broke a lock, when and why.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use lockkit_core::Space;
/// use lockkit_core::driver::BreakMode;
///
/// let guard = locks.mutex("nightly").lock().await?;
/// let (token, why) = (guard.token()?, Some("deploy"));
/// locks.admin().break_lock(Space::Lock, "nightly", token, BreakMode::Graceful, why).await?;
/// let state = locks.inspect(Space::Lock, "nightly").await?;
/// let record = state.last_break.expect("it was broken");
/// assert_eq!(record.reason.as_deref(), Some("deploy"));
/// assert!(!record.forced);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BreakRecord {
    /// Who did it.
    pub by: ClientIdentity,
    /// When, in milliseconds since 1970 by the breaker's clock: for people, not for decisions.
    pub at_unix_ms: u64,
    /// Why, in the breaker's words.
    pub reason: Option<String>,
    /// Whether it was a forced break.
    pub forced: bool,
}

impl BreakRecord {
    /// The record of a break now.
    pub fn new(by: ClientIdentity, mode: BreakMode, reason: Option<String>) -> Self {
        let forced = mode == BreakMode::Forced;
        Self::from_parts(by, unix_ms(), reason, forced)
    }

    /// The record of a break of which a backend keeps the parts, or that another program made.
    pub fn from_parts(
        by: ClientIdentity,
        at_unix_ms: u64,
        reason: Option<String>,
        forced: bool,
    ) -> Self {
        Self { by, at_unix_ms, reason, forced }
    }

    /// Its JSON, in which drivers store it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data becomes JSON")
    }

    /// Reads what [`to_json`](Self::to_json) wrote; `None` for what is not such a text.
    pub fn from_json(json: impl AsRef<[u8]>) -> Option<Self> {
        serde_json::from_slice(json.as_ref()).ok()
    }
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
