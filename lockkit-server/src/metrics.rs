//! What the service counts, in Prometheus' text format.
//!
//! Labels are the path's template, the backend and the outcome: never a lock's name or a caller,
//! which are many, and nobody else's business.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State as Shared};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::caller::Caller;
use crate::service::Service;

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<BTreeMap<(String, &'static str), Sum>>);

#[derive(Debug, Default)]
struct Sum {
    requests: u64,
    time: Duration,
}

impl Metrics {
    fn count(&self, path: &str, outcome: &'static str, time: Duration) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = sums.entry((path.to_owned(), outcome)).or_default();
        sum.requests += 1;
        sum.time += time;
    }
}

/// The middleware that counts.
pub(crate) async fn counted(
    Shared(service): Shared<Service>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let begun = Instant::now();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("other", MatchedPath::as_str);
    service.metrics().count(path, outcome(response.status()), begun.elapsed());
    response
}

/// What came of a request, by its status; for claims this is how they stand.
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
        429 => "too_many",
        501 => "unsupported",
        502 => "backend",
        503 => "unavailable",
        _ => "other",
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(Shared(service): Shared<Service>, _: Caller) -> Response {
    let backend = service.driver().capabilities().backend;
    let (mut page, mut times) = (String::new(), String::new());
    about(&mut page, "lockkit_http_requests_total", "counter", "Requests answered.");
    about(
        &mut times,
        "lockkit_http_request_seconds_total",
        "counter",
        "Time spent on requests, that of waiting included.",
    );
    {
        let sums = service.metrics().0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((path, outcome), sum) in sums.iter() {
            let labels = format!("{{path=\"{path}\",backend=\"{backend}\",outcome=\"{outcome}\"}}");
            let _ = writeln!(page, "lockkit_http_requests_total{labels} {}", sum.requests);
            let seconds = sum.time.as_secs_f64();
            let _ = writeln!(times, "lockkit_http_request_seconds_total{labels} {seconds}");
        }
    }
    page.push_str(&times);
    for (name, help, number) in [
        ("lockkit_http_waiting_requests", "Requests that wait for an event.", service.waiting()),
        ("lockkit_http_connections", "Open connections.", service.connections()),
    ] {
        about(&mut page, name, "gauge", help);
        let _ = writeln!(page, "{name}{{backend=\"{backend}\"}} {number}");
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

fn about(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
