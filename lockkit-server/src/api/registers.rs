//! Requests about registers, and the namespaces in use.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use lockkit_core::Namespace;
use lockkit_core::driver::Version;
use lockkit_core::state::{ListPage, RegisterState};
use lockkit_http::wire;

use crate::body::Body;
use crate::caller::Caller;
use crate::response::{ApiResponse, ErrorResponse};
use crate::service::Service;
use crate::state_name::name_of_state;
use crate::tokens::Permission;

type Result<T> = std::result::Result<ApiResponse<T>, ErrorResponse>;

pub(crate) async fn load(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(at): Body<wire::Register>,
) -> Result<wire::Loaded> {
    let at = at.for_driver()?;
    caller.check_read(&at)?;
    let entry = service.registers()?.load(&at).await?;
    Ok(ApiResponse::ok(wire::Loaded::of(entry)))
}

pub(crate) async fn store(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Store>,
) -> Result<wire::Outcome> {
    let (at, store) = request.for_driver()?;
    caller.check_write(&at)?;
    let outcome = service.registers()?.write(&at, &store).await?;
    Ok(came_out(wire::Outcome::of(outcome)))
}

pub(crate) async fn delete(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::Delete>,
) -> Result<wire::Outcome> {
    let (at, delete) = request.for_driver()?;
    caller.check_write(&at)?;
    let outcome = service.registers()?.write(&at, &delete).await?;
    Ok(came_out(wire::Outcome::of(outcome)))
}

pub(crate) async fn changed(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ChangedRegister>,
) -> Result<wire::Loaded> {
    let at = request.register.for_driver()?;
    caller.check_read(&at)?;
    let registers = service.registers()?;
    let change = registers.changed(&at, request.after.map(Version));
    let place = service.wait_permit(&caller)?;
    let entry = match service.wait(&place, request.wait_ms, change).await {
        Some(changed) => changed?,
        None => registers.load(&at).await?,
    };
    Ok(ApiResponse::ok(wire::Loaded::of(entry)))
}

/// The registers that the caller may see: pages of the backend are read on until one of its own is full.
pub(crate) async fn list(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ListRegisters>,
) -> Result<wire::RegisterPage> {
    let mut request = request.for_driver()?;
    caller.check_names(Permission::Read, &request.namespace, &request.prefix)?;
    if let Some(state) = name_of_state(&request.prefix) {
        caller.check_names(Permission::Terraform, &request.namespace, state)?;
    }
    let mut items = Vec::new();
    loop {
        let page = service.registers()?.page(&request).await?;
        request.after = page.items.last().map(|it| it.name.clone());
        let seen = |it: &RegisterState| caller.may_see(&request.namespace, &it.name);
        items.extend(page.items.into_iter().filter(seen));
        if items.len() > request.limit || !page.more || request.after.is_none() {
            return Ok(ApiResponse::ok(wire::RegisterPage::of(ListPage::first(
                request.limit,
                items,
            ))));
        }
    }
}

/// The namespaces in which the caller may read something; it learns of no other. So pages of the backend are
/// read on until one of its own is full.
pub(crate) async fn namespaces(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ListNamespaces>,
) -> Result<wire::Namespaces> {
    let (after, limit) = request.for_driver()?;
    let mut seen = after;
    let mut items: Vec<Namespace> = Vec::new();
    loop {
        let page = service.driver().namespaces(seen.as_ref(), limit).await?;
        seen = page.items.last().cloned();
        items.extend(page.items.into_iter().filter(|at| caller.may_read_in(at)));
        if items.len() > limit || !page.more || seen.is_none() {
            return Ok(ApiResponse::ok(wire::Namespaces::of(ListPage::first(limit, items))));
        }
    }
}

fn came_out(outcome: wire::Outcome) -> ApiResponse<wire::Outcome> {
    let status = match outcome {
        wire::Outcome::Stored { .. } => StatusCode::OK,
        wire::Outcome::Conflict { .. } | wire::Outcome::Stale { .. } => {
            StatusCode::PRECONDITION_FAILED
        }
    };
    ApiResponse(status, outcome)
}
