//! The page: three files in the binary, which ask the service as any other client does.
//!
//! Nothing on it is secret, so it is given without a token; its script asks for one. It loads
//! nothing from elsewhere, and no other page can frame it.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// `GET /`.
pub(crate) async fn html() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// `GET /page.css`.
pub(crate) async fn css() -> Response {
    file("text/css; charset=utf-8", include_str!("page/style.css"))
}

/// `GET /page.js`.
pub(crate) async fn js() -> Response {
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
