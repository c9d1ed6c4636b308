//! Answers: JSON, and problems as RFC 9457 has them.

use axum::body::{Body as HttpBody, Bytes};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkit_core::Error;
use lockkit_core::driver::BatchError;
use lockkit_http::wire::{Code, Problem};
use serde::Serialize;

/// An answer, with the status that says the same in short.
pub(crate) struct ApiResponse<T>(pub(crate) StatusCode, pub(crate) T);

impl<T> ApiResponse<T> {
    pub(crate) fn ok(body: T) -> Self {
        Self(StatusCode::OK, body)
    }
}

impl<T: Serialize> IntoResponse for ApiResponse<T> {
    fn into_response(self) -> Response {
        json(self.0, &self.1, "application/json")
    }
}

/// A problem instead of an answer.
#[derive(Debug)]
pub(crate) struct ErrorResponse(Box<Problem>);

impl ErrorResponse {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Problem::new(code, detail).into())
    }
}

impl ErrorResponse {
    pub(crate) fn unknown_path() -> Self {
        Self::new(Code::NotFound, "there is no such path, or not with this method")
    }
}

impl From<Error> for ErrorResponse {
    fn from(error: Error) -> Self {
        log(&error);
        Self(Problem::of(&error).into())
    }
}

impl From<BatchError> for ErrorResponse {
    fn from(error: BatchError) -> Self {
        log(&error.error);
        Self(Problem::of_batch(&error).into())
    }
}

/// What a problem leaves out, the place of the backend, is logged here only.
pub(crate) fn log(error: &Error) {
    match error {
        Error::Backend { retryable: false, .. } => tracing::warn!(%error, "the backend refuses"),
        Error::Backend { .. } => tracing::debug!(%error, "the backend failed"),
        _ => {}
    }
}

impl IntoResponse for ErrorResponse {
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
