//! What a request of S3 asks for, and whether its client may ask for it.

use std::collections::HashMap;
use std::fmt;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use super::{S3Response, refused};

/// What a request does, in S3's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    GetObject,
    PutObject,
    DeleteObject,
    ListBucket,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A request whose client is known.
#[derive(Debug)]
pub(super) struct S3Request {
    pub(super) action: Action,
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) query: HashMap<String, String>,
    /// Whether the client speaks with Google.
    pub(super) is_google: bool,
    client: String,
}

impl S3Request {
    /// Reads a request, or gives the answer to one that is refused.
    pub(super) fn of(head: &Parts) -> Result<Self, Box<S3Response>> {
        let path = decoded(head.uri.path().trim_start_matches('/'));
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        let action = match (&head.method, key.is_empty()) {
            (&Method::GET, true) => Action::ListBucket,
            (&Method::GET, false) => Action::GetObject,
            (&Method::PUT, false) => Action::PutObject,
            (&Method::DELETE, false) => Action::DeleteObject,
            _ => {
                let message = "This server does not know such requests.";
                let status = StatusCode::METHOD_NOT_ALLOWED;
                return Err(Box::new(refused(status, "MethodNotAllowed", message)));
            }
        };
        let authorization = head.headers.get("authorization").and_then(|it| it.to_str().ok());
        let bearer = authorization.and_then(|it| it.strip_prefix("Bearer "));
        let credential = authorization.and_then(|it| it.split_once("Credential="));
        let access_key = credential.and_then(|(_, rest)| rest.split('/').next());
        let client = bearer.or(access_key).unwrap_or_default();
        let query = head.uri.query().unwrap_or_default();
        let request = Self {
            action,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            is_google: bearer.is_some(),
            client: client.to_owned(),
        };
        let (status, code, message) = match client {
            "" => (StatusCode::FORBIDDEN, "AccessDenied", "Anonymous access is denied."),
            "expired" => return Err(Box::new(expired(request.is_google))),
            "unknown" => (StatusCode::FORBIDDEN, "InvalidAccessKeyId", "There is no such key."),
            _ if request.lacks(action) => return Err(Box::new(denied(action))),
            _ => return Ok(request),
        };
        Err(Box::new(refused(status, code, message)))
    }

    /// Whether its client must not do this.
    pub(super) fn lacks(&self, action: Action) -> bool {
        self.client == format!("without-{action}")
    }
}

/// Without its escapes; keys have no plus sign.
fn decoded(path: &str) -> String {
    let pair = format!("path={path}");
    form_urlencoded::parse(pair.as_bytes())
        .next()
        .map(|(_, path)| path.into_owned())
        .unwrap_or_default()
}

pub(super) fn expired(is_google: bool) -> S3Response {
    match is_google {
        true => {
            refused(StatusCode::UNAUTHORIZED, "AuthenticationRequired", "Authentication required.")
        }
        false => {
            refused(StatusCode::BAD_REQUEST, "ExpiredToken", "The provided token has expired.")
        }
    }
}

pub(super) fn denied(action: Action) -> S3Response {
    let message = format!("User is not authorized to perform: s3:{action}");
    refused(StatusCode::FORBIDDEN, "AccessDenied", &message)
}
