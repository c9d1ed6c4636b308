//! Whether a backend that answers says that locks cannot work on it, or do not hold.

use std::time::Duration;

use lockkit::LockManager;
use lockkit::state::{Finding, Severity};
use tokio::time::timeout;

use crate::output;

/// Whether it reports a problem of that kind. `false` when it does not answer.
pub(crate) async fn is_in(locks: &LockManager) -> bool {
    !problems(locks).await.is_empty()
}

/// Says the problems on stderr: a lock may be had all the same, and be lost.
pub(crate) async fn tell(locks: LockManager) {
    for Finding { what, advice, .. } in problems(&locks).await {
        output::note(format!("{what}; {advice}"));
    }
}

async fn problems(locks: &LockManager) -> Vec<Finding> {
    let Ok(Ok(health)) = timeout(Duration::from_secs(5), locks.health()).await else {
        return Vec::new();
    };
    health.findings.into_iter().filter(|found| found.severity == Severity::Problem).collect()
}
