//! Bodies of requests and answers: JSON both ways, problems as RFC 9457 has them.

use std::time::Duration;

use axum::body::{Body as HttpBody, Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkit_core::Error;
use lockkit_core::driver::BatchError;
use lockkit_http::wire::{Code, Problem};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::service::Service;

/// How long a body may take to come.
const SLOWEST: Duration = Duration::from_secs(20);

/// The body of a request.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Service> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, service: &Service) -> Result<Self, Refusal> {
        // A page of another origin can send other types without asking, and not this one.
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
            let detail = "send JSON, with the header content-type: application/json";
            return Err(Refusal::new(Code::Invalid, detail));
        }
        let most = service.longest_body();
        let all = tokio::time::timeout(SLOWEST, to_bytes(request.into_body(), most)).await;
        let all = all.map_err(|_| Refusal::new(Code::TooSlow, "the body did not come in time"))?;
        let bytes = all.map_err(|_| {
            let detail = format!("the body is longer than {most} bytes, or ended early");
            Refusal::new(Code::TooLarge, detail)
        })?;
        let body = serde_json::from_slice(&bytes).map_err(|error| {
            Refusal::new(Code::Invalid, format!("the body is not what this path takes: {error}"))
        })?;
        Ok(Self(body))
    }
}

/// An answer, with the status that says the same in short.
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T> Answer<T> {
    pub(crate) fn ok(body: T) -> Self {
        Self(StatusCode::OK, body)
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        json(self.0, &self.1, "application/json")
    }
}

/// A problem instead of an answer.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Problem>);

impl Refusal {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail).into())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        log(&error);
        Self(Problem::of(&error).into())
    }
}

impl From<BatchError> for Refusal {
    fn from(error: BatchError) -> Self {
        log(&error.error);
        Self(Problem::of_batch(&error).into())
    }
}

/// What a problem leaves out, the place of the backend, is told here only.
pub(crate) fn log(error: &Error) {
    match error {
        Error::Backend { retryable: false, .. } => tracing::warn!(%error, "the backend refuses"),
        Error::Backend { .. } => tracing::debug!(%error, "the backend failed"),
        _ => {}
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut response = json(status, &*self.0, "application/problem+json");
        if matches!(self.0.code, Code::Unavailable | Code::TooMany) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

fn json(status: StatusCode, body: &impl Serialize, kind: &'static str) -> Response {
    // Plain data: it always can be written as JSON.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(HttpBody::from(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
