//! Requests that list registers and prefixes.

use axum::extract::State as Shared;
use lockkit_core::Namespace;
use lockkit_core::state::Listed;
use lockkit_http::wire;

use crate::body::{Answer, Body, Refusal};
use crate::caller::Caller;
use crate::service::Service;
use crate::tokens::Verb;

type Result<T> = std::result::Result<Answer<T>, Refusal>;

pub(crate) async fn registers(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ListRegisters>,
) -> Result<wire::RegisterPage> {
    let request = request.for_driver()?;
    caller.check_names(Verb::Read, &request.namespace, &request.prefix)?;
    let page = super::registers::registers(&service)?.page(&request).await?;
    Ok(Answer::ok(wire::RegisterPage::of(page)))
}

/// Those in which the caller may read something; it learns of no other. So pages of the backend are
/// read on until one of its own is full.
pub(crate) async fn prefixes(
    Shared(service): Shared<Service>,
    caller: Caller,
    Body(request): Body<wire::ListPrefixes>,
) -> Result<wire::Prefixes> {
    let (after, limit) = request.for_driver()?;
    let mut seen = after;
    let mut items: Vec<Namespace> = Vec::new();
    loop {
        let page = service.driver().namespaces(seen.as_ref(), limit).await?;
        seen = page.items.last().cloned();
        items.extend(page.items.into_iter().filter(|at| caller.may_read_in(at)));
        if items.len() > limit || !page.more || seen.is_none() {
            return Ok(Answer::ok(wire::Prefixes::of(Listed::first(limit, items))));
        }
    }
}
