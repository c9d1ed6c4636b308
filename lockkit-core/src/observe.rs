//! What can be watched: `tracing` spans and events, and metrics behind the feature of that name. Never
//! an id, never a password; names only in spans and events, not in labels.
//!
//! Fields follow OpenTelemetry's conventions: lower case, in the name space `lockkit.`, with units where
//! they have one; `error.type` is one of few words, and `otel.*` is read by `tracing-opentelemetry`.

use std::fmt;
use std::time::Duration;

use tracing::Span;
use tracing::field::Empty;

use crate::evidence::Renewed;
use crate::{Claim, Error, LossReason, Name, Token};

/// How an acquisition ended.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Granted,
    Busy,
    TimedOut,
    Failed,
}

impl Outcome {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Busy => "busy",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}

/// The labels of every metric about a claim.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "read by metrics only"))]
pub(crate) struct Labels {
    pub(crate) backend: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) class: Option<&'static str>,
}

#[cfg(feature = "metrics")]
impl Labels {
    fn base(self) -> Vec<metrics::Label> {
        let mut labels = vec![
            metrics::Label::from_static_parts("backend", self.backend),
            metrics::Label::from_static_parts("kind", self.kind),
        ];
        labels.extend(self.class.map(|class| metrics::Label::from_static_parts("class", class)));
        labels
    }

    fn and(self, name: &'static str, value: &'static str) -> Vec<metrics::Label> {
        let mut labels = self.base();
        labels.push(metrics::Label::from_static_parts(name, value));
        labels
    }
}

/// The span of one acquisition, from the request to the guard.
pub(crate) fn acquire_span(labels: Labels, name: &str) -> Span {
    tracing::debug_span!(
        "lockkit.acquire",
        otel.kind = "client",
        otel.status_code = Empty,
        error.type = Empty,
        lockkit.backend = labels.backend,
        lockkit.lock.name = name,
        lockkit.lock.kind = labels.kind,
        lockkit.outcome = Empty,
        lockkit.token = Empty,
    )
}

/// The span of work under a lock, which `run` runs.
pub(crate) fn hold_span(labels: Labels, name: &Name, token: Option<Token>) -> Span {
    tracing::debug_span!(
        "lockkit.hold",
        otel.kind = "internal",
        otel.status_code = Empty,
        error.type = Empty,
        lockkit.backend = labels.backend,
        lockkit.lock.name = name.as_str(),
        lockkit.lock.kind = labels.kind,
        lockkit.token = token.map(Token::as_i64),
    )
}

/// Says on a span that what it spans failed.
pub(crate) fn failed(span: &Span, error: &Error) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", error.kind());
}

pub(crate) fn acquired(labels: Labels, name: &str, outcome: Outcome, took: Duration) {
    tracing::debug!(
        lockkit.lock.name = name,
        lockkit.lock.kind = labels.kind,
        lockkit.outcome = outcome.as_str(),
        lockkit.acquire.seconds = took.as_secs_f64(),
        "acquire"
    );
    #[cfg(feature = "metrics")]
    metrics::histogram!("lockkit_acquire_seconds", labels.and("outcome", outcome.as_str()))
        .record(took);
}

/// A claim begins to wait (`+1.0`) or waits no more (`-1.0`).
pub(crate) fn waiting(labels: Labels, by: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("lockkit_waiting", labels.base()).increment(by);
    #[cfg(not(feature = "metrics"))]
    let _ = (labels, by);
}

/// A claim begins to hold (`+1.0`) or holds no more (`-1.0`).
pub(crate) fn held(labels: Labels, by: f64) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("lockkit_held", labels.base()).increment(by);
    #[cfg(not(feature = "metrics"))]
    let _ = (labels, by);
}

pub(crate) fn released(labels: Labels, name: &str, held_for: Option<Duration>) {
    tracing::debug!(
        lockkit.lock.name = name,
        lockkit.lock.kind = labels.kind,
        lockkit.hold.seconds = held_for.map(|held| held.as_secs_f64()),
        "release"
    );
    #[cfg(feature = "metrics")]
    if let Some(held_for) = held_for {
        metrics::histogram!("lockkit_hold_seconds", labels.and("outcome", "released"))
            .record(held_for);
    }
}

pub(crate) fn lost(labels: Labels, claim: &Claim, why: &LossReason) {
    tracing::warn!(
        lockkit.lock.name = %claim.key.name,
        lockkit.lock.kind = labels.kind,
        lockkit.loss.reason = why.as_str(),
        "lock lost: {why}"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("lockkit_lost_total", labels.and("reason", why.as_str())).increment(1);
}

/// A renewal was answered, or was not.
pub(crate) fn renewal(
    backend: &'static str,
    answer: Option<&Result<Vec<Result<Renewed, Error>>, Error>>,
    claims: usize,
    remaining: Duration,
    took: Duration,
) {
    match answer {
        Some(Ok(_)) => {
            tracing::trace!(lockkit.backend = backend, lockkit.claims = claims, "renewed")
        }
        failed => tracing::warn!(
            lockkit.backend = backend,
            lockkit.claims = claims,
            lockkit.renew.seconds = took.as_secs_f64(),
            lockkit.lease.remaining.seconds = remaining.as_secs_f64(),
            error.type = failed.and_then(|answer| answer.as_ref().err()).map_or("timeout", Error::kind),
            "renewal failed: {}",
            match failed {
                Some(Err(error)) => error as &dyn fmt::Display,
                _ => &"no answer in time",
            }
        ),
    }
    #[cfg(feature = "metrics")]
    {
        let outcome = if matches!(answer, Some(Ok(_))) { "renewed" } else { "failed" };
        metrics::histogram!("lockkit_renew_seconds", "backend" => backend, "outcome" => outcome)
            .record(took);
        if matches!(answer, Some(Ok(_))) {
            metrics::histogram!("lockkit_lease_margin_seconds", "backend" => backend)
                .record(remaining.saturating_sub(took));
        } else {
            metrics::counter!("lockkit_renew_failures_total", "backend" => backend).increment(1);
        }
    }
}

/// An answer showed another server, older data, or a clock that jumped; what so many claims were answered
/// before is in doubt.
pub(crate) fn in_doubt(backend: &'static str, why: &LossReason, claims: usize) {
    tracing::warn!(
        lockkit.backend = backend,
        lockkit.claims = claims,
        lockkit.doubt.reason = why.as_str(),
        "claims in doubt, {claims} of them: {why}"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("lockkit_doubts_total", "backend" => backend, "reason" => why.as_str())
        .increment(1);
}

/// This process broke a lock.
pub(crate) fn broke(backend: &'static str, name: &str, token: Token, forced: bool) {
    tracing::warn!(
        lockkit.lock.name = name,
        lockkit.token = token.as_i64(),
        lockkit.break.forced = forced,
        "lock broken"
    );
    #[cfg(feature = "metrics")]
    {
        let how = if forced { "forced" } else { "graceful" };
        metrics::counter!("lockkit_breaks_total", "backend" => backend, "outcome" => how)
            .increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = backend;
}

/// The backend refuses the messages by which this process tells waiters of other processes that they
/// hold. A driver says so once a connection.
pub fn wake_ups_refused(backend: &'static str, why: &dyn fmt::Display) {
    tracing::warn!(
        lockkit.backend = backend,
        "the backend refuses messages to waiters, which therefore poll: {why}"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("lockkit_wake_ups_refused_total", "backend" => backend).increment(1);
}

/// A release in the background failed for the first time.
pub(crate) fn release_failed(claim: &Claim, error: &Error) {
    let (name, kind) = (&claim.key.name, error.kind());
    tracing::warn!(
        lockkit.lock.name = %name,
        error.type = kind,
        "release failed, will be tried again until the lease is over: {error}"
    );
}

pub(crate) fn granted_too_late(claim: &Claim) {
    tracing::warn!(
        lockkit.lock.name = %claim.key.name,
        lockkit.lease.ttl.seconds = claim.hold_ttl.as_secs_f64(),
        "granted, but the answer came later than the lease lasts"
    );
}

/// A request failed, and is sent again.
pub(crate) fn retried(backend: &'static str, operation: &'static str, error: &Error) {
    tracing::debug!(
        lockkit.backend = backend,
        lockkit.operation = operation,
        error.type = error.kind(),
        "{operation} failed, will be tried again: {error}"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("lockkit_retries_total", "backend" => backend, "operation" => operation)
        .increment(1);
}

/// Nothing was answered for this long, and so many wait for an answer or for their turn.
pub(crate) fn silent(backend: &'static str, lasted: Duration, waiting: usize, error: Option<&str>) {
    tracing::warn!(
        lockkit.backend = backend,
        lockkit.silent.seconds = lasted.as_secs_f64(),
        lockkit.waiting = waiting,
        "the backend has not answered for {:.1} s, {waiting} wait: {}",
        lasted.as_secs_f64(),
        error.unwrap_or("no answer yet")
    );
}

pub(crate) fn answers_again(backend: &'static str, lasted: Duration) {
    tracing::info!(
        lockkit.backend = backend,
        lockkit.silent.seconds = lasted.as_secs_f64(),
        "the backend answers again, after {:.1} s",
        lasted.as_secs_f64()
    );
}

/// The last clone of a manager is gone, and its locks are not.
pub(crate) fn manager_gone(backend: &'static str, held: &[Name]) {
    tracing::warn!(
        lockkit.backend = backend,
        lockkit.held = held.len(),
        "the last LockManager was dropped while locks are held{}: release them before the program \
         ends, or keep the manager and call shutdown().await; otherwise each stays taken for its ttl",
        Few(held)
    );
}

/// The runtime ended before the locks were released.
pub(crate) fn runtime_gone(backend: &'static str, held: &[Name], unreleased: usize) {
    tracing::warn!(
        lockkit.backend = backend,
        lockkit.held = held.len(),
        lockkit.unreleased = unreleased,
        "the runtime ended before its locks were released (held: {}{}, being released: \
         {unreleased}): each may stay taken for its ttl; call shutdown().await on the LockManager \
         before main returns",
        held.len(),
        Few(held)
    );
}

/// The first few of many names.
struct Few<'a>(&'a [Name]);

impl fmt::Display for Few<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma} {:?}", name.as_str())?;
        }
        match self.0.len() > SHOWN {
            true => f.write_str(", …"),
            false => Ok(()),
        }
    }
}
