//! What is refused whatever it asks for: requests that a browser sends for a page of another origin.
//!
//! A page can have a browser send requests to the loopback address, and can have a name of its own
//! resolve to it. So a request has to name a host that this service answers for, and one that
//! carries an origin has to carry the same host in it.

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lockkit_http::wire::Code;

use crate::body::Refusal;

/// The middleware.
pub(crate) async fn same_host(request: Request, next: Next) -> Response {
    match check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(HOST).unwrap_or("");
    if !is_loopback(host) {
        let detail = "this service answers for localhost, 127.0.0.1 and [::1] only";
        return Err(Refusal::new(Code::Forbidden, detail));
    }
    let elsewhere = text(ORIGIN).is_some_and(|origin| origin.strip_prefix("http://") != Some(host))
        || headers
            .get("sec-fetch-site")
            .is_some_and(|site| site != "same-origin" && site != "none");
    match elsewhere {
        true => {
            Err(Refusal::new(Code::Forbidden, "this request comes from a page of another site"))
        }
        false => Ok(()),
    }
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(headers: &[(&'static str, &str)]) -> bool {
        let pairs = headers.iter().map(|(name, value)| {
            (name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap())
        });
        check(&pairs.collect()).is_ok()
    }

    #[test]
    fn a_name_of_somebody_elses_that_resolves_to_loopback_is_refused() {
        for own in ["localhost", "LOCALHOST:7411", "127.0.0.1:7411", "[::1]:7411", "[::1]"] {
            assert!(checked(&[("host", own)]), "{own}");
        }
        for other in ["", "evil.example", "localhost.evil.example:7411", "127.0.0.1.evil", "::1"] {
            assert!(!checked(&[("host", other)]), "{other}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let host = ("host", "localhost:7411");
        assert!(checked(&[host, ("origin", "http://localhost:7411")]));
        assert!(checked(&[host, ("sec-fetch-site", "same-origin")]));
        for other in ["http://localhost:80", "https://localhost:7411", "null", "http://evil"] {
            assert!(!checked(&[host, ("origin", other)]), "{other}");
        }
        assert!(!checked(&[host, ("sec-fetch-site", "cross-site")]));
    }
}
