//! Reports about the backend: that it does not answer while something is waited for, as often as the
//! library warns; and that it answers, but locks cannot work on it.

use std::convert::Infallible;
use std::time::Duration;

use lockkit::state::{Finding, Severity};
use lockkit::{LockManager, Outage};
use tokio::time::{Instant, sleep, timeout};

use crate::{describe, output};

/// A shorter outage is not reported.
const NOTABLE: Duration = Duration::from_secs(2);
/// Between two lines about the same outage.
pub(crate) const AGAIN: Duration = Duration::from_secs(30);

/// Reports on stderr what is waited for while the backend does not answer, every 30 s, and when it
/// answers again.
pub(crate) async fn report(locks: &LockManager, subject: &str) -> Infallible {
    let mut reported: Option<Instant> = None;
    loop {
        sleep(Duration::from_millis(250)).await;
        match sentence(locks) {
            Some(sentence) if reported.is_none_or(|at| at.elapsed() >= AGAIN) => {
                reported = Some(Instant::now());
                output::note(format!("waiting for {subject}: {sentence}"));
            }
            Some(_) => {}
            None if locks.outage().is_none() && reported.take().is_some() => {
                output::note(format!("waiting for {subject}: the backend answers again"));
            }
            None => {}
        }
    }
}

/// What there is to say about the backend while it does not answer.
pub(crate) fn sentence(locks: &LockManager) -> Option<String> {
    let Outage { lasted, error, .. } = locks.outage().filter(|it| it.lasted >= NOTABLE)?;
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    Some(format!("the backend has not answered for {}{error}", describe::duration(lasted)))
}

/// The same when nothing was answered for at least as long as a request may take: then it is not known
/// whether what was waited for is still taken.
pub(crate) fn at_the_limit(locks: &LockManager, limit: Duration) -> Option<String> {
    locks.outage().filter(|it| it.lasted >= limit)?;
    sentence(locks)
}

/// Whether the backend answers that locks cannot work on it, or do not hold.
pub(crate) async fn has_problem(locks: &LockManager) -> bool {
    !problems(locks).await.is_empty()
}

/// Reports such problems on stderr: a lock may be had all the same, and be lost.
pub(crate) async fn report_problems(locks: LockManager) {
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
