//! Requests that are refused whatever they ask for: those without a token that the service knows, and
//! those that a browser sends for a page of another origin.
//!
//! A page can have a browser send requests to the loopback address, and can have a name of its own
//! resolve to it. So a request has to name a host that this service answers for, and one that
//! carries an origin has to carry the same host in it.

use axum::extract::{Request, State as Shared};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lockkit_http::wire::Code;

use crate::caller::{Caller, Peer};
use crate::response::ErrorResponse;
use crate::service::Service;

/// The middleware that refuses requests of other origins.
pub(crate) async fn same_host(
    Shared(service): Shared<Service>,
    request: Request,
    next: Next,
) -> Response {
    match check(request.method(), request.headers(), service.hosts()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check(method: &Method, headers: &HeaderMap, hosts: &[String]) -> Result<(), ErrorResponse> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(HOST).unwrap_or("");
    if !LOOPBACK.iter().copied().chain(hosts.iter().map(String::as_str)).any(|own| names(host, own))
    {
        let detail = "this service does not answer for this host name: an operator can add it";
        return Err(ErrorResponse::new(Code::Forbidden, detail));
    }
    // What changes nothing may be asked for from anywhere: a link leads to the page, and without
    // leave of this service no other page reads its answers.
    if method == Method::GET {
        return Ok(());
    }
    // Of either scheme: before a proxy that ends TLS it is another one than here.
    let own = |origin: &str| {
        origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(host)
    };
    let elsewhere = text(ORIGIN).is_some_and(|origin| !own(origin))
        || headers
            .get("sec-fetch-site")
            .is_some_and(|site| site != "same-origin" && site != "none");
    match elsewhere {
        true => Err(ErrorResponse::new(
            Code::Forbidden,
            "this request comes from a page of another site",
        )),
        false => Ok(()),
    }
}

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Whether the value of a `Host` header names this host, at any port.
fn names(header: &str, host: &str) -> bool {
    let name = match header.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => header,
    };
    name.eq_ignore_ascii_case(host)
}

/// The middleware that gives every request its [`Caller`].
pub(crate) async fn authenticate(
    Shared(service): Shared<Service>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::Unknown);
    let scheme = Scheme::of(request.uri().path());
    let caller = match service.tokens() {
        None => Some(Caller::at(peer)),
        Some(tokens) => {
            scheme.token(request.headers()).and_then(|token| tokens.find(&token)).map(Caller::with)
        }
    };
    let Some(caller) = caller else {
        let detail = match scheme {
            Scheme::Bearer => "send a token of this service: authorization: Bearer TOKEN",
            Scheme::Basic => "send a token of this service as the password",
        };
        let mut response = ErrorResponse::new(Code::Unauthorized, detail).into_response();
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static(scheme.challenge()));
        return response;
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// How a caller may send its token.
#[derive(Clone, Copy)]
enum Scheme {
    Bearer,
    /// Also as a password, which is all that Terraform sends.
    Basic,
}

impl Scheme {
    fn of(path: &str) -> Self {
        let terraform = ["/v1/terraform/", "/v1/terraform-lock/"];
        match terraform.iter().any(|begin| path.starts_with(begin)) {
            true => Self::Basic,
            false => Self::Bearer,
        }
    }

    fn challenge(self) -> &'static str {
        match self {
            Self::Bearer => "Bearer",
            Self::Basic => "Basic realm=\"lockkit\", charset=\"UTF-8\"",
        }
    }

    /// The token of a request. Two headers are none: a proxy and a server may take different ones.
    fn token(self, headers: &HeaderMap) -> Option<Vec<u8>> {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let (only, more) = (all.next()?.as_bytes(), all.next());
        if more.is_some() {
            return None;
        }
        let of_scheme = |scheme: &[u8]| {
            let (begin, rest) = only.split_at_checked(scheme.len())?;
            begin.eq_ignore_ascii_case(scheme).then(|| rest.trim_ascii())
        };
        if let Some(token) = of_scheme(b"Bearer ") {
            return Some(token.to_vec());
        }
        let login = of_scheme(b"Basic ").filter(|_| matches!(self, Self::Basic))?;
        let login = BASE64_STANDARD.decode(login).ok()?;
        let colon = login.iter().position(|byte| *byte == b':')?;
        Some(login[colon + 1..].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(headers: &[(&'static str, &str)]) -> bool {
        let pairs = headers.iter().map(|(name, value)| {
            (name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap())
        });
        check(&Method::POST, &pairs.collect(), &["locks.example".to_owned()]).is_ok()
    }

    #[test]
    fn a_name_of_somebody_elses_that_resolves_to_loopback_is_refused() {
        for own in [
            "localhost",
            "LOCALHOST:7411",
            "127.0.0.1:7411",
            "[::1]:7411",
            "[::1]",
            "Locks.Example:1",
        ] {
            assert!(checked(&[("host", own)]), "{own}");
        }
        for other in
            ["", "evil.example", "localhost.evil.example:7411", "127.0.0.1.evil", "::1", "example"]
        {
            assert!(!checked(&[("host", other)]), "{other}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let host = ("host", "localhost:7411");
        assert!(checked(&[host, ("origin", "http://localhost:7411")]));
        assert!(checked(&[host, ("sec-fetch-site", "same-origin")]));
        assert!(checked(&[host, ("origin", "https://localhost:7411")]));
        for other in ["http://localhost:80", "https://localhost", "null", "http://evil"] {
            assert!(!checked(&[host, ("origin", other)]), "{other}");
        }
        assert!(!checked(&[host, ("sec-fetch-site", "cross-site")]));
    }
}
