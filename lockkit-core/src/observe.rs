//! What can be watched: `tracing` events, and metrics behind the feature of that name. Never an id,
//! never a password; names only in events, not in labels.

use std::time::Duration;

use crate::driver::Renewal;
use crate::{Claim, Error, LossReason, Token};

/// How an acquisition ended.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Granted,
    Busy,
    TimedOut,
    Failed,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Busy => "busy",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}

/// What stands in the labels of every metric about a claim.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "read by metrics only"))]
pub(crate) struct Labels {
    pub(crate) backend: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) class: Option<&'static str>,
}

#[cfg(feature = "metrics")]
impl Labels {
    fn alone(self) -> Vec<metrics::Label> {
        let mut labels = vec![
            metrics::Label::from_static_parts("backend", self.backend),
            metrics::Label::from_static_parts("kind", self.kind),
        ];
        labels.extend(self.class.map(|class| metrics::Label::from_static_parts("class", class)));
        labels
    }

    fn and(self, name: &'static str, value: &'static str) -> Vec<metrics::Label> {
        let mut labels = self.alone();
        labels.push(metrics::Label::from_static_parts(name, value));
        labels
    }
}

pub(crate) fn acquired(labels: Labels, name: &str, outcome: Outcome, took: Duration) {
    tracing::debug!(name, kind = labels.kind, outcome = outcome.as_str(), ?took, "acquire");
    #[cfg(feature = "metrics")]
    metrics::histogram!("lockkit_acquire_seconds", labels.and("outcome", outcome.as_str()))
        .record(took);
}

/// A claim begins to wait (`+1.0`) or waits no more (`-1.0`).
pub(crate) fn waiting(labels: Labels, by: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("lockkit_waiting", labels.alone()).increment(by);
    #[cfg(not(feature = "metrics"))]
    let _ = (labels, by);
}

/// A claim begins to hold (`+1.0`) or holds no more (`-1.0`).
pub(crate) fn held(labels: Labels, by: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("lockkit_held", labels.alone()).increment(by);
    #[cfg(not(feature = "metrics"))]
    let _ = (labels, by);
}

pub(crate) fn released(labels: Labels, name: &str, held_for: Option<Duration>) {
    tracing::debug!(name, kind = labels.kind, ?held_for, "release");
    #[cfg(feature = "metrics")]
    if let Some(held_for) = held_for {
        metrics::histogram!("lockkit_hold_seconds", labels.and("outcome", "released"))
            .record(held_for);
    }
}

pub(crate) fn lost(labels: Labels, claim: &Claim, why: &LossReason) {
    tracing::warn!(name = %claim.key.name, kind = labels.kind, reason = %why, "lock lost");
    #[cfg(feature = "metrics")]
    metrics::counter!("lockkit_lost_total", labels.and("reason", why.as_str())).increment(1);
}

/// A renewal was answered, or was not.
pub(crate) fn renewal(
    backend: &'static str,
    answer: Option<&Result<Vec<Result<Renewal, Error>>, Error>>,
    claims: usize,
    left: Duration,
    took: Duration,
) {
    match answer {
        Some(Ok(_)) => tracing::trace!(backend, claims, ?took, "renewed"),
        Some(Err(error)) => tracing::warn!(backend, claims, ?took, ?left, %error, "renewal failed"),
        None => tracing::warn!(backend, claims, ?took, ?left, "renewal was not answered in time"),
    }
    #[cfg(feature = "metrics")]
    {
        let outcome = if matches!(answer, Some(Ok(_))) { "renewed" } else { "failed" };
        metrics::histogram!("lockkit_renew_seconds", "backend" => backend, "outcome" => outcome)
            .record(took);
        if matches!(answer, Some(Ok(_))) {
            metrics::histogram!("lockkit_lease_margin_seconds", "backend" => backend)
                .record(left.saturating_sub(took));
        } else {
            metrics::counter!("lockkit_renew_failures_total", "backend" => backend).increment(1);
        }
    }
}

/// This process broke somebody's lock.
pub(crate) fn broke(backend: &'static str, name: &str, token: Token, forced: bool) {
    tracing::warn!(name, %token, forced, "lock broken");
    #[cfg(feature = "metrics")]
    {
        let how = if forced { "forced" } else { "polite" };
        metrics::counter!("lockkit_breaks_total", "backend" => backend, "outcome" => how)
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = backend;
}

pub(crate) fn release_failed(claim: &Claim, error: &Error) {
    tracing::warn!(name = %claim.key.name, %error, "release failed");
}

pub(crate) fn granted_too_late(claim: &Claim) {
    let (name, ttl) = (&claim.key.name, claim.hold_ttl);
    tracing::warn!(%name, ?ttl, "granted, but the answer came later than the lease lasts");
}

pub(crate) fn acquire_failed(claim: &Claim, error: &Error) {
    tracing::warn!(name = %claim.key.name, %error, "acquire failed, will be tried again");
}
