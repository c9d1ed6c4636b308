//! Requests that inspect locks and the backend, and those that break and resize.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use lockkit_core::driver::BreakMode;
use lockkit_core::state::LockState;
use lockkit_core::{BreakRecord, Space, Token};
use lockkit_http::wire::{self, Code};

use crate::body::Body;
use crate::caller::Caller;
use crate::response::{ApiResponse, ErrorResponse};
use crate::service::{Service, without_offset};
use crate::state_name::name_of_state;
use crate::tokens::Permission;

type Result<T> = std::result::Result<ApiResponse<T>, ErrorResponse>;

pub(crate) async fn inspect(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(key): Body<wire::Key>,
) -> Result<wire::Lock> {
    let key = key.for_driver()?;
    caller.check(Permission::Read, &key.namespace, &key.name)?;
    let offset = service.token_offset(&key.namespace).await?;
    let state = service.driver().inspect(&key).await?;
    Ok(ApiResponse::ok(wire::Lock::of(state_with_offset(state, offset))))
}

pub(crate) async fn list(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ListBody>,
) -> Result<wire::Page> {
    let request = request.for_driver()?;
    caller.check_names(Permission::Read, &request.namespace, &request.prefix)?;
    let offset = service.token_offset(&request.namespace).await?;
    let mut page = service.driver().list(&request).await?;
    page.states = page.states.into_iter().map(|state| state_with_offset(state, offset)).collect();
    Ok(ApiResponse::ok(wire::Page::of(page)))
}

pub(crate) async fn changed(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Changed>,
) -> Result<wire::Lock> {
    let key = request.key.for_driver()?;
    caller.check(Permission::Read, &key.namespace, &key.name)?;
    let offset = service.token_offset(&key.namespace).await?;
    let seen = LockState::new(key.clone(), wire::claim_states(request.known), None);
    let seen = state_without_offset(seen, offset);
    let change = service.driver().changed(&key, &seen);
    let place = service.wait_permit(&caller)?;
    let state = match service.wait(&place, request.wait_ms, change).await {
        Some(changed) => changed?,
        None => service.driver().inspect(&key).await?,
    };
    Ok(ApiResponse::ok(wire::Lock::of(state_with_offset(state, offset))))
}

pub(crate) async fn break_claim(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::BreakBody>,
) -> Result<wire::BreakResult> {
    let key = request.key.for_driver()?;
    caller.check(Permission::Break, &key.namespace, &key.name)?;
    let by = caller.breaker(request.by);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let at_unix_ms = request.at_unix_ms.unwrap_or_else(|| u64::try_from(now()).unwrap_or(0));
    // A graceful break only refuses renewals, and Terraform renews nothing.
    let forced =
        request.force || (key.space == Space::Lock && name_of_state(key.name.as_str()).is_some());
    let record = BreakRecord::from_parts(by, at_unix_ms, request.reason, forced);
    record.check()?;
    let offset = service.token_offset(&key.namespace).await?;
    let Some(token) = without_offset(request.token, offset) else {
        return Ok(ApiResponse::ok(wire::BreakResult { found: false }));
    };
    let force = if forced { BreakMode::Forced } else { BreakMode::Graceful };
    let found = service.driver().break_claim(&key, token, force, &record).await?;
    Ok(ApiResponse::ok(wire::BreakResult { found }))
}

pub(crate) async fn resize(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ResizeBody>,
) -> Result<wire::Limit> {
    let key = request.key.for_driver()?;
    caller.check(Permission::Lock, &key.namespace, &key.name)?;
    if request.key.space != wire::SpaceName::Semaphore {
        let detail = "only a semaphore has a limit: give \"space\": \"semaphore\" in its key";
        return Err(ErrorResponse::new(Code::Invalid, detail));
    }
    let limit = service.driver().resize(&key, request.limit()).await?;
    Ok(ApiResponse::ok(wire::Limit { limit }))
}

pub(crate) async fn capabilities(
    Shared(service): Shared<Service>,
    _: Caller,
) -> ApiResponse<wire::Capabilities> {
    ApiResponse::ok(wire::Capabilities::of(service.driver().capabilities()))
}

pub(crate) async fn promises(
    Shared(service): Shared<Service>,
    _: Caller,
) -> Result<wire::Promises> {
    Ok(ApiResponse::ok(wire::Promises { promises: service.driver().promises().await? }))
}

pub(crate) async fn health(Shared(service): Shared<Service>, _: Caller) -> Result<wire::Health> {
    Ok(ApiResponse::ok(wire::Health::of(service.driver().health().await?)))
}

/// Whether this process answers.
pub(crate) async fn alive() -> Response {
    "ok\n".into_response()
}

/// Whether the backend answers.
pub(crate) async fn ready(
    Shared(service): Shared<Service>,
) -> std::result::Result<Response, ErrorResponse> {
    service.driver().health().await?;
    Ok("ok\n".into_response())
}

pub(super) fn state_with_offset(mut state: LockState, offset: u64) -> LockState {
    for standing in &mut state.queue {
        let number = standing.token.get().saturating_add(offset);
        standing.token = Token::new(number).unwrap_or(standing.token);
    }
    state
}

fn state_without_offset(mut state: LockState, offset: u64) -> LockState {
    for standing in &mut state.queue {
        standing.token = without_offset(standing.token, offset).unwrap_or(standing.token);
    }
    state
}
