//! Requests about locks as they are, about the backend, and by force.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State as Shared;
use axum::response::{IntoResponse, Response};
use lockkit_core::driver::BreakMode;
use lockkit_core::state::LockState;
use lockkit_core::{BreakRecord, ClientIdentity, Token};
use lockkit_http::wire::{self, Code};

use crate::body::Body;
use crate::caller::Caller;
use crate::response::{Answer, Refusal};
use crate::service::{Service, unbased};
use crate::tokens::Verb;

type Result<T> = std::result::Result<Answer<T>, Refusal>;

pub(crate) async fn inspect(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(key): Body<wire::Key>,
) -> Result<wire::Lock> {
    let key = key.for_driver()?;
    caller.check(Verb::Read, &key.namespace, &key.name)?;
    let base = service.base(&key.namespace).await?;
    let state = service.driver().inspect(&key).await?;
    Ok(Answer::ok(wire::Lock::of(rebased(state, base))))
}

pub(crate) async fn list(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::List>,
) -> Result<wire::Page> {
    let request = request.for_driver()?;
    caller.check_names(Verb::Read, &request.namespace, &request.prefix)?;
    let base = service.base(&request.namespace).await?;
    let mut page = service.driver().list(&request).await?;
    page.states = page.states.into_iter().map(|state| rebased(state, base)).collect();
    Ok(Answer::ok(wire::Page::of(page)))
}

pub(crate) async fn changed(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Changed>,
) -> Result<wire::Lock> {
    let key = request.key.for_driver()?;
    caller.check(Verb::Read, &key.namespace, &key.name)?;
    let base = service.base(&key.namespace).await?;
    let seen = LockState::new(key.clone(), wire::standings(request.seen), None);
    let seen = unrebased(seen, base);
    let change = service.driver().changed(&key, &seen);
    let place = service.place(&caller)?;
    let state = match service.wait(&place, request.wait_ms, change).await {
        Some(changed) => changed?,
        None => service.driver().inspect(&key).await?,
    };
    Ok(Answer::ok(wire::Lock::of(rebased(state, base))))
}

pub(crate) async fn break_claim(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Break>,
) -> Result<wire::Broke> {
    let key = request.key.for_driver()?;
    caller.check(Verb::Break, &key.namespace, &key.name)?;
    let by = breaker(&caller, request.by);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let at_unix_ms = request.at_unix_ms.unwrap_or_else(|| u64::try_from(now()).unwrap_or(0));
    let record = BreakRecord { by, at_unix_ms, reason: request.reason, forced: request.force };
    record.check()?;
    let base = service.base(&key.namespace).await?;
    let Some(token) = unbased(request.token, base) else {
        return Ok(Answer::ok(wire::Broke { found: false }));
    };
    let force = if request.force { BreakMode::Forced } else { BreakMode::Graceful };
    let found = service.driver().break_claim(&key, token, force, &record).await?;
    Ok(Answer::ok(wire::Broke { found }))
}

pub(crate) async fn resize(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Resize>,
) -> Result<wire::Limit> {
    let key = request.key.for_driver()?;
    caller.check(Verb::Lock, &key.namespace, &key.name)?;
    if request.key.space != wire::SpaceName::Semaphore {
        let detail = "only a semaphore has a limit: give \"space\": \"semaphore\" in its key";
        return Err(Refusal::new(Code::Invalid, detail));
    }
    let limit = service.driver().resize(&key, request.limit()).await?;
    Ok(Answer::ok(wire::Limit { limit }))
}

pub(crate) async fn capabilities(
    Shared(service): Shared<Service>,
    _: Caller,
) -> Answer<wire::Capabilities> {
    Answer::ok(wire::Capabilities::of(service.driver().capabilities()))
}

pub(crate) async fn promises(
    Shared(service): Shared<Service>,
    _: Caller,
) -> Result<wire::Promises> {
    Ok(Answer::ok(wire::Promises { promises: service.driver().promises().await? }))
}

pub(crate) async fn health(Shared(service): Shared<Service>, _: Caller) -> Result<wire::Health> {
    Ok(Answer::ok(wire::Health::of(service.driver().health().await?)))
}

/// Whether this process answers.
pub(crate) async fn alive() -> Response {
    "ok\n".into_response()
}

/// Whether the backend answers.
pub(crate) async fn ready(
    Shared(service): Shared<Service>,
) -> std::result::Result<Response, Refusal> {
    service.driver().health().await?;
    Ok("ok\n".into_response())
}

/// Who breaks. A caller with a token goes by the token's name: its own word is no proof.
fn breaker(caller: &Caller, said: Option<ClientIdentity>) -> ClientIdentity {
    let by = said.unwrap_or_else(ClientIdentity::of_this_process);
    match caller.name() {
        "" => by,
        name => ClientIdentity { program: name.to_owned(), ..by },
    }
}

pub(super) fn rebased(mut state: LockState, base: u64) -> LockState {
    for standing in &mut state.line {
        let number = standing.token.get().saturating_add(base);
        standing.token = Token::new(number).unwrap_or(standing.token);
    }
    state
}

fn unrebased(mut state: LockState, base: u64) -> LockState {
    for standing in &mut state.line {
        standing.token = unbased(standing.token, base).unwrap_or(standing.token);
    }
    state
}
