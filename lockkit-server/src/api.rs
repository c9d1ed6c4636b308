//! The paths of the service. Names, ids and values travel in bodies, never in a path or a query:
//! proxies rewrite those. (Terraform's protocol has the name of a state in the path.)

mod claims;
mod inspect;
mod registers;
mod watch;

use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State as Shared};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};

use crate::caller::Caller;
use crate::guard;
use crate::response::ErrorResponse;
use crate::service::Service;
use crate::terraform;

impl Service {
    /// Its requests, for a server of one's own.
    pub fn router(&self) -> Router {
        router(self.clone())
    }
}

/// All paths.
fn router(service: Service) -> Router {
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
        .route("/v1/inspect", post(inspect::inspect))
        .route("/v1/list", post(inspect::list))
        .route("/v1/changed", post(inspect::changed))
        .route("/v1/watch", post(watch::watch))
        .route("/v1/break", post(inspect::break_claim))
        .route("/v1/resize", post(inspect::resize))
        .route("/v1/namespaces", post(registers::namespaces))
        .route("/v1/registers/list", post(registers::list))
        .route("/v1/registers/load", post(registers::load))
        .route("/v1/registers/store", post(registers::store))
        .route("/v1/registers/delete", post(registers::delete))
        .route("/v1/registers/changed", post(registers::changed))
        .route("/v1/terraform/{name}", any(terraform::state))
        .route("/v1/terraform-lock/{name}", any(terraform::state_lock))
        .route("/v1/capabilities", get(inspect::capabilities))
        .route("/v1/promises", get(inspect::promises))
        .route("/v1/health", get(inspect::health))
        .route("/metrics", get(metrics))
        .layer(from_fn_with_state(with(), guard::authenticate))
        .route("/", get(html))
        .route("/page.css", get(css))
        .route("/page.js", get(js))
        .route("/openapi.json", get(openapi))
        .route("/healthz", get(inspect::alive))
        .route("/readyz", get(inspect::ready))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(from_fn_with_state(with(), guard::same_host))
        .layer(from_fn_with_state(with(), counted))
        .with_state(service)
}

/// The description of all requests and answers, for programs that make clients of it.
async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], include_str!("../openapi.json"))
}

async fn unknown() -> ErrorResponse {
    ErrorResponse::unknown_path()
}

/// The middleware that counts requests.
async fn counted(Shared(service): Shared<Service>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let begun = Instant::now();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("other", MatchedPath::as_str);
    service.metrics().count(path, response.status(), begun.elapsed());
    response
}

/// `GET /metrics`.
async fn metrics(Shared(service): Shared<Service>, _: Caller) -> impl IntoResponse {
    let backend = service.driver().capabilities().backend;
    let page = service.metrics().page(backend, service.waiting(), service.connections());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page)
}

/// The policy of the page: three files in the binary, which ask the service as any other client does.
/// Nothing on it is secret, so it is given without a token; its script asks for one. It loads nothing
/// from elsewhere, and no other page can frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// `GET /`.
async fn html() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// `GET /page.css`.
async fn css() -> Response {
    file("text/css; charset=utf-8", include_str!("page/style.css"))
}

/// `GET /page.js`.
async fn js() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/script.js"))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let header = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    let headers = [
        header(CONTENT_TYPE, kind),
        header(CONTENT_SECURITY_POLICY, POLICY),
        header(X_CONTENT_TYPE_OPTIONS, "nosniff"),
        header(REFERRER_POLICY, "no-referrer"),
        // Another version of the server has another page.
        header(CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
