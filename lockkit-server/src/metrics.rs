//! What the service counts, in Prometheus' text format.
//!
//! Labels are the path's template, the backend and the outcome: never a lock's name or a caller,
//! which are many, and confidential.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use axum::http::StatusCode;
use lockkit_core::driver::locked;

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<BTreeMap<(String, &'static str), Sum>>);

#[derive(Debug, Default)]
struct Sum {
    requests: u64,
    time: Duration,
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn count(&self, path: &str, status: StatusCode, time: Duration) {
        let mut sums = locked(&self.0);
        let sum = sums.entry((path.to_owned(), outcome(status))).or_default();
        sum.requests += 1;
        sum.time += time;
    }

    /// The page with these counts and gauges.
    pub(crate) fn page(&self, backend: &str, waiting: usize, connections: usize) -> String {
        let (mut page, mut times) = (String::new(), String::new());
        about(&mut page, "lockkit_http_requests_total", "counter", "Requests answered.");
        about(
            &mut times,
            "lockkit_http_request_seconds_total",
            "counter",
            "Time spent on requests, that of waiting included.",
        );
        for ((path, outcome), sum) in locked(&self.0).iter() {
            let labels = format!("{{path=\"{path}\",backend=\"{backend}\",outcome=\"{outcome}\"}}");
            let _ = writeln!(page, "lockkit_http_requests_total{labels} {}", sum.requests);
            let seconds = sum.time.as_secs_f64();
            let _ = writeln!(times, "lockkit_http_request_seconds_total{labels} {seconds}");
        }
        page.push_str(&times);
        for (name, help, number) in [
            ("lockkit_http_waiting_requests", "Requests that wait for an event.", waiting),
            ("lockkit_http_connections", "Open connections.", connections),
        ] {
            about(&mut page, name, "gauge", help);
            let _ = writeln!(page, "{name}{{backend=\"{backend}\"}} {number}");
        }
        page
    }
}

/// The outcome of a request, by its status; for claims this is their state.
fn outcome(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "ok",
        202 => "waiting",
        400 => "invalid",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "not_found",
        408 => "too_slow",
        409 => "busy",
        410 => "ended",
        412 => "conflict",
        413 => "too_large",
        423 => "locked",
        429 => "too_many",
        501 => "unsupported",
        502 => "backend",
        503 => "unavailable",
        _ => "other",
    }
}

fn about(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
