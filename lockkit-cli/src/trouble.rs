//! Whether a backend that answers says that locks cannot work on it.

use std::time::Duration;

use lockkit::LockManager;
use lockkit::state::Severity;
use tokio::time::timeout;

/// Whether it reports a problem of that kind. `false` when it does not answer.
pub(crate) async fn is_in(locks: &LockManager) -> bool {
    match timeout(Duration::from_secs(5), locks.health()).await {
        Ok(Ok(health)) => health.findings.iter().any(|f| f.severity == Severity::Problem),
        _ => false,
    }
}
