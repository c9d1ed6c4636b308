//! GET, POST and DELETE of a state.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lockkit_http::wire::Code;

use super::head::StateVersion;
use super::parts::{Packed, pack};
use super::{Result, Target, conflict, request};
use crate::response::ErrorResponse;

/// How often a version is read whose parts were deleted meanwhile.
const READS: usize = 5;

pub(super) async fn get(target: &Target) -> Result<Response> {
    for _ in 0..READS {
        let head = target.load_head().await?;
        let version = if target.previous { head.previous } else { head.current };
        let Some(version) = version else {
            return Err(ErrorResponse::new(Code::NotFound, "there is no such state"));
        };
        if let Some(state) = target.load_parts(&version).await? {
            return served(state.into()).await;
        }
    }
    let detail = "the parts of this state are missing or damaged: ask again";
    Err(ErrorResponse::new(Code::Unavailable, detail))
}

/// 200, with a state that no page of a browser reads and no proxy keeps.
async fn served(state: Bytes) -> Result<Response> {
    let sum = request::md5_of(state.clone()).await?;
    let mut response = Response::new(Body::from(state));
    let headers = response.headers_mut();
    if let Ok(sum) = HeaderValue::from_str(&sum) {
        headers.insert(HeaderName::from_static("content-md5"), sum);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

pub(super) async fn post(target: &Target, request: Request) -> Result<Response> {
    let options = target.service.terraform();
    if target.id.is_none() && !options.unlocked_writes {
        return Err(conflict(
            "a state is written under its lock only: set lock_address and unlock_address, and do not \
             use -lock=false",
        ));
    }
    let _place = target.service.upload()?;
    let state = request::read_state(request, options.body).await?;
    let packed = pack(state).await?;
    let backend = target.service.driver().capabilities().backend;
    let most = options.stored_on(backend);
    if packed.bytes.len() > most {
        let detail = format!("the state has {} bytes compressed, of {most}", packed.bytes.len());
        return Err(ErrorResponse::new(Code::TooLarge, detail));
    }
    match &target.id {
        Some(id) => target.write(id, &packed).await?,
        None => {
            let id = target.lock_for_request("write without a lock").await?;
            target.write(&id, &packed).await.and(target.unlock(&id).await)?;
        }
    }
    Ok(StatusCode::OK.into_response())
}

/// Removes the state, under a lock for the request. The version before it can still be fetched.
pub(super) async fn delete(target: &Target) -> Result<Response> {
    let id = target.lock_for_request("delete").await?;
    target.clear(&id).await.and(target.unlock(&id).await)?;
    Ok(StatusCode::OK.into_response())
}

impl Target {
    /// Makes this the current version, under the lock of this id.
    async fn write(&self, id: &str, packed: &Packed) -> Result<()> {
        let token = self.token_of(id).await?;
        if self.announce(id, token, &packed.version).await? {
            self.store_parts(packed).await?;
            let garbage = self.publish(id, token, &packed.version).await?;
            self.delete_all(&garbage).await;
        }
        Ok(())
    }

    /// Removes the current version, under the lock of this id.
    async fn clear(&self, id: &str) -> Result<()> {
        let token = self.token_of(id).await?;
        let garbage = self.withdraw(id, token).await?;
        self.delete_all(&garbage).await;
        Ok(())
    }

    /// Deletes parts. What fails stays named in the head, and the next write deletes it.
    async fn delete_all(&self, garbage: &[StateVersion]) {
        for version in garbage {
            if self.delete_parts(version).await.is_err() {
                return;
            }
        }
    }
}
