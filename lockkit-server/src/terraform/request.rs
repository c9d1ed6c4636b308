//! Bodies of requests: states, which are long, and lock infos, which are short.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::StreamExt;
use lockkit_http::wire::Code;

use super::Result;
use super::parts::blocking;
use crate::body::check_json;
use crate::response::ErrorResponse;

/// The longest lock info. Terraform's have some 300 bytes; the head keeps it among others.
const LONGEST_INFO: usize = 4_096;

/// How long a body may make no progress.
const STALL: Duration = Duration::from_secs(20);

/// How long a body may take in all: 32 MiB at half a megabit per second.
const SLOWEST: Duration = Duration::from_secs(600);

/// The body of a LOCK or UNLOCK; empty where there is none.
pub(super) async fn read_info(request: Request) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    let body = read(&parts.headers, body, LONGEST_INFO).await?;
    if !body.is_empty() {
        check_json(&parts.headers)?;
        check_md5(&parts.headers, &body).await?;
    }
    Ok(body)
}

/// The body of a POST, of this length at most.
pub(super) async fn read_state(request: Request, most: usize) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    check_json(&parts.headers)?;
    let body = read(&parts.headers, body, most).await?;
    if body.is_empty() {
        return Err(invalid("a state is not empty: DELETE removes one"));
    }
    check_md5(&parts.headers, &body).await?;
    Ok(body)
}

async fn read(headers: &HeaderMap, body: Body, most: usize) -> Result<Bytes> {
    let too_large = || {
        let detail = format!("the body is longer than the {most} bytes that this server takes");
        ErrorResponse::new(Code::TooLarge, detail)
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > most) {
        return Err(too_large());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(length.unwrap_or(0));
    let all = async {
        while let Some(more) = tokio::time::timeout(STALL, stream.next()).await.transpose() {
            let more = more.map_err(|_| too_slow())?;
            let more = more.map_err(|_| invalid("the body ended before its length"))?;
            if bytes.len() + more.len() > most {
                return Err(too_large());
            }
            bytes.extend_from_slice(&more);
        }
        Ok(())
    };
    tokio::time::timeout(SLOWEST, all).await.map_err(|_| too_slow())??;
    Ok(bytes.into())
}

/// Refuses a body that is not the one whose sum the client sent.
async fn check_md5(headers: &HeaderMap, body: &Bytes) -> Result<()> {
    let Some(sent) = headers.get("content-md5") else {
        return Ok(());
    };
    let body = body.clone();
    if sent.as_bytes() != md5_of(body).await?.as_bytes() {
        return Err(invalid("the body does not have the sum in Content-MD5"));
    }
    Ok(())
}

/// The value of `Content-MD5`.
pub(super) async fn md5_of(body: Bytes) -> Result<String> {
    blocking(move || BASE64_STANDARD.encode(*md5::compute(&body))).await
}

fn invalid(detail: &str) -> ErrorResponse {
    ErrorResponse::new(Code::Invalid, detail)
}

fn too_slow() -> ErrorResponse {
    ErrorResponse::new(Code::TooSlow, "the body did not come in time")
}
