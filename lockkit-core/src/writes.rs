//! What it means that a server takes no writes: after a failover it soon will, at first contact it is the
//! wrong one.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;
use crate::error::ReadOnly;

/// Whether a driver has written to the address that it has. Until then a server that takes no writes is an
/// error that stays: the address is that of a standby, or the login has a read-only role. After that it
/// is a failover that has not ended.
///
/// ```
/// use lockkit_core::driver::Writes;
///
/// let writes = Writes::default();
/// let refused = Writes::refused("mine", "it is a standby", "READONLY");
/// assert!(refused.is_read_only() && !writes.judge(refused.clone()).is_retryable());
/// writes.done();
/// assert!(writes.judge(refused.clone()).is_retryable());
/// assert!(refused.at("redis://a").is_read_only());
/// ```
#[derive(Debug, Default)]
pub struct Writes(AtomicBool);

impl Writes {
    /// The server took a write.
    pub fn done(&self) {
        // A line of memory that all operations share is better only read.
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// The error of a server that takes no writes: what it is, and what it said. It is retryable, as is
    /// right for what keeps or ends a claim; other writes are [judged](Self::judge).
    pub fn refused(backend: &'static str, role: &'static str, refusal: impl Display) -> Error {
        let what = "the server is read-only, so nothing can be locked there";
        Error::retryable(backend, ReadOnly(format!("{what}: {role} ({refusal})")))
    }

    /// An error of a write that begins something. Other errors stay what they are.
    #[must_use]
    pub fn judge(&self, error: Error) -> Error {
        match error.is_read_only() {
            true => error.with_retryable(self.0.load(Ordering::Relaxed)),
            false => error,
        }
    }
}
