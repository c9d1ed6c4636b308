//! The paths of the service. Names, ids and values travel in bodies, never in a path or a query:
//! proxies rewrite those.

mod claims;
mod listing;
mod looking;
mod registers;
mod watch;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use lockkit_http::wire::Code;

use crate::body::Refusal;
use crate::service::Service;
use crate::{caller, guard, metrics, page};

/// All of them.
pub(crate) fn router(service: Service) -> Router {
    let with = || service.clone();
    Router::new()
        .route("/v1/acquire", post(claims::acquire))
        .route("/v1/wait", post(claims::wait))
        .route("/v1/release", post(claims::release))
        .route("/v1/batch", post(claims::batch))
        .route("/v1/renew", post(claims::renew))
        .route("/v1/verify", post(claims::verify))
        .route("/v1/shorten", post(claims::shorten))
        .route("/v1/downgrade", post(claims::downgrade))
        .route("/v1/raise", post(claims::raise))
        .route("/v1/inspect", post(looking::inspect))
        .route("/v1/list", post(looking::list))
        .route("/v1/changed", post(looking::changed))
        .route("/v1/watch", post(watch::watch))
        .route("/v1/break", post(looking::break_claim))
        .route("/v1/resize", post(looking::resize))
        .route("/v1/prefixes", post(listing::prefixes))
        .route("/v1/registers/list", post(listing::registers))
        .route("/v1/registers/load", post(registers::load))
        .route("/v1/registers/store", post(registers::store))
        .route("/v1/registers/delete", post(registers::delete))
        .route("/v1/registers/changed", post(registers::changed))
        .route("/v1/capabilities", get(looking::capabilities))
        .route("/v1/promises", get(looking::promises))
        .route("/v1/health", get(looking::health))
        .route("/metrics", get(metrics::metrics))
        .layer(from_fn_with_state(with(), caller::known))
        .route("/", get(page::html))
        .route("/page.css", get(page::css))
        .route("/page.js", get(page::js))
        .route("/openapi.json", get(openapi))
        .route("/healthz", get(looking::alive))
        .route("/readyz", get(looking::ready))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(from_fn_with_state(with(), guard::same_host))
        .layer(from_fn_with_state(with(), metrics::counted))
        .with_state(service)
}

/// The description of all requests and answers, for programs that make clients of it.
async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], include_str!("../openapi.json"))
}

async fn unknown() -> Refusal {
    Refusal::new(Code::NotFound, "there is no such path, or not with this method")
}
