//! Bodies of requests, which are JSON.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use lockkit_http::wire::Code;
use serde::de::DeserializeOwned;

use crate::response::ErrorResponse;
use crate::service::Service;

/// How long a body may take to come.
const SLOWEST: Duration = Duration::from_secs(20);

/// The body of a request.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Service> for Body<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, service: &Service) -> Result<Self, ErrorResponse> {
        check_json(request.headers())?;
        let most = service.longest_body();
        let all = tokio::time::timeout(SLOWEST, to_bytes(request.into_body(), most)).await;
        let all =
            all.map_err(|_| ErrorResponse::new(Code::TooSlow, "the body did not come in time"))?;
        let bytes = all.map_err(|_| {
            let detail = format!("the body is longer than {most} bytes, or ended early");
            ErrorResponse::new(Code::TooLarge, detail)
        })?;
        let body = serde_json::from_slice(&bytes).map_err(|error| {
            ErrorResponse::new(
                Code::Invalid,
                format!("the body is not what this path takes: {error}"),
            )
        })?;
        Ok(Self(body))
    }
}

/// Refuses a body that does not say that it is JSON: a page of another origin can send other types
/// without asking, and not this one.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    match kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        true => Ok(()),
        false => {
            let detail = "send JSON, with the header content-type: application/json";
            Err(ErrorResponse::new(Code::Invalid, detail))
        }
    }
}
