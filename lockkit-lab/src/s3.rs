//! A small S3 server for tests: objects in memory under one mutex, conditional writes, and answers that get
//! lost on demand. It checks no signatures; the id of the access key says what the client may do. A client with
//! a bearer token, which then says so, speaks the XML API of Google Cloud Storage, whose conditions are
//! generations.
//!
//! Buckets: `locks`; `versioned`, which keeps old versions; `lenient` and `inverted`, which treat conditions of
//! writes wrongly, as some servers do; `elsewhere`, in another region; `paced`, where an object may be written
//! once a second; `nearline`, of another class. Access keys: `expired`, `unknown`, and `without-ACTION`, to which
//! one action is denied.

mod handle;
mod request;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, ETAG, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, LOCATION,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

pub use self::handle::S3Server;
use self::request::{Action, S3Request};

/// How a server misbehaves; probabilities are from 0 to 1. By default it does not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct S3Faults {
    /// A request is carried out, and its connection is cut before the answer.
    pub lost: f64,
    /// A request is carried out, and the answer is 500.
    pub failed: f64,
    /// A request is refused with 503 `SlowDown`, and not carried out.
    pub slow_down: f64,
    /// A write is refused with 429, and not carried out.
    pub throttled: f64,
    /// A conditional write is refused with 409, and not carried out.
    pub conflicts: f64,
    /// All credentials have expired.
    pub expired: bool,
    /// How long each request takes at most, in milliseconds.
    pub delay_ms: u64,
}

/// The condition of a write to Google Cloud Storage, and what tells of a generation.
const GENERATION_MATCH: HeaderName = HeaderName::from_static("x-goog-if-generation-match");
const GENERATION: HeaderName = HeaderName::from_static("x-goog-generation");
/// How often an object in the bucket `paced` may be written.
const PACE: Duration = Duration::from_secs(1);

type S3Response = Response<Full<Bytes>>;

#[derive(Debug, Default)]
struct Bucket(BTreeMap<String, StoredObject>);

#[derive(Clone, Debug)]
struct StoredObject {
    bytes: Bytes,
    etag: String,
    generation: u64,
    written: Instant,
}

#[derive(Debug, Default)]
struct S3State {
    buckets: Mutex<HashMap<String, Bucket>>,
    /// Of the last write.
    generation: AtomicU64,
    faults: Mutex<S3Faults>,
    /// `ACTION key status`, of each request since this was asked for.
    log: Mutex<Vec<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves for ever.
///
/// # Errors
/// When no further connection can be accepted.
pub async fn serve(listener: TcpListener) -> io::Result<Infallible> {
    let state = Arc::new(S3State::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let state = state.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(state.clone(), request));
            // A client that is gone is no concern of the server's.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// An error cuts the connection.
async fn answer(state: Arc<S3State>, request: Request<Incoming>) -> io::Result<S3Response> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    if let Some(control) = head.uri.path().strip_prefix("/-/") {
        return Ok(state.control(control, &body));
    }
    let faults = locked(&state.faults).clone();
    if faults.delay_ms > 0 {
        let delay = rand::rng().random_range(0..=faults.delay_ms);
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let request = match S3Request::of(&head) {
        Ok(request) => request,
        Err(refusal) => return Ok(*refusal),
    };
    let happens = |probability: f64| probability > 0.0 && rand::rng().random_bool(probability);
    let is_conditional = [IF_MATCH, IF_NONE_MATCH, GENERATION_MATCH];
    let is_conditional = is_conditional.iter().any(|name| head.headers.contains_key(name));
    let is_write = head.method == Method::PUT && is_conditional;
    let answer = if faults.expired {
        request::expired(request.is_google)
    } else if is_write && happens(faults.throttled) {
        too_many()
    } else if happens(faults.slow_down) {
        refused(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate.")
    } else if is_write && happens(faults.conflicts) {
        let message = "A conflicting operation is under way.";
        refused(StatusCode::CONFLICT, "ConditionalRequestConflict", message)
    } else {
        state.apply(&request, &head.headers, body)
    };
    let status = answer.status().as_u16();
    locked(&state.log).push(format!("{} {} {status}", request.action, request.key));
    if happens(faults.lost) {
        return Err(io::Error::other("this answer is lost"));
    }
    if happens(faults.failed) {
        let message = "We encountered an internal error.";
        return Ok(refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message));
    }
    Ok(answer)
}

impl S3State {
    fn apply(&self, request: &S3Request, headers: &HeaderMap, body: Bytes) -> S3Response {
        let mut buckets = locked(&self.buckets);
        let bucket = match &*request.bucket {
            name @ ("locks" | "versioned" | "lenient" | "inverted" | "paced" | "nearline") => {
                buckets.entry(name.to_owned()).or_default()
            }
            "elsewhere" => {
                let message = "The bucket must be addressed at another endpoint.";
                return refused(StatusCode::MOVED_PERMANENTLY, "PermanentRedirect", message);
            }
            _ => return refused(StatusCode::NOT_FOUND, "NoSuchBucket", "There is no such bucket."),
        };
        let stored = bucket.0.get(&request.key).cloned();
        let mut answer = match request.action {
            Action::ListBucket => bucket.list(request),
            Action::PutObject if request.is_google && !forbids_caches(headers) => {
                let message = "This server wants writes that no cache may keep.";
                refused(StatusCode::BAD_REQUEST, "InvalidArgument", message)
            }
            Action::PutObject => {
                let fails = condition_fails(headers, stored.as_ref());
                let is_wrong = match &*request.bucket {
                    "lenient" => None,
                    "paced" if stored.as_ref().is_some_and(|it| it.written.elapsed() < PACE) => {
                        Some(too_many())
                    }
                    "inverted" if creates(headers) => match fails {
                        None => Some(precondition_failed()),
                        Some(_) => None,
                    },
                    _ => fails,
                };
                is_wrong.unwrap_or_else(|| {
                    let etag = format!("\"{:x}\"", md5::compute(&body));
                    let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
                    let written = Instant::now();
                    let object = StoredObject { bytes: body, etag, generation, written };
                    let answer = with_version(Response::default(), &object);
                    bucket.0.insert(request.key.clone(), object);
                    answer
                })
            }
            Action::GetObject => match stored {
                None if request.lacks(Action::ListBucket) => request::denied(Action::ListBucket),
                None => no_such_key(),
                Some(object) => read(headers, object),
            },
            Action::DeleteObject if request.is_google && stored.is_none() => no_such_key(),
            Action::DeleteObject => {
                bucket.0.remove(&request.key);
                let mut answer = S3Response::default();
                *answer.status_mut() = StatusCode::NO_CONTENT;
                answer
            }
        };
        if request.bucket == "nearline" {
            let class = "NEARLINE".parse().expect("it is valid");
            answer.headers_mut().insert("x-goog-storage-class", class);
        }
        if request.bucket == "versioned" {
            answer.headers_mut().insert("x-amz-version-id", "1".parse().expect("it is valid"));
        }
        answer
    }

    /// Requests of the tests: `faults` sets them, `log` takes the log.
    fn control(&self, what: &str, body: &[u8]) -> S3Response {
        match what {
            "faults" => match serde_json::from_slice(body) {
                Ok(faults) => {
                    *locked(&self.faults) = faults;
                    S3Response::default()
                }
                Err(error) => {
                    refused(StatusCode::BAD_REQUEST, "InvalidArgument", &error.to_string())
                }
            },
            "log" => {
                let log = std::mem::take(&mut *locked(&self.log));
                Response::new(Full::new(log.join("\n").into()))
            }
            "objects" => {
                let buckets = locked(&self.buckets);
                let objects: BTreeMap<_, _> = buckets
                    .values()
                    .flat_map(|bucket| &bucket.0)
                    .map(|(key, object)| (key, String::from_utf8_lossy(&object.bytes)))
                    .collect();
                let text = serde_json::to_string(&objects).expect("these are texts");
                Response::new(Full::new(text.into()))
            }
            _ => no_such_key(),
        }
    }
}

impl Bucket {
    fn list(&self, request: &S3Request) -> S3Response {
        let of = |name| request.query.get(name).map_or("", String::as_str);
        let prefix = of("prefix");
        let after = of("start-after").max(of("continuation-token"));
        let most = of("max-keys").parse().unwrap_or(1_000).min(1_000);
        let keys = self.0.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let mut page: Vec<_> = keys.take(most + 1).collect();
        let is_truncated = page.len() > most;
        page.truncate(most);
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>{}</Name>\
             <KeyCount>{}</KeyCount><IsTruncated>{is_truncated}</IsTruncated>",
            request.bucket,
            page.len()
        );
        if let (true, Some((last, _))) = (is_truncated, page.last()) {
            text += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
        }
        for (key, object) in page {
            text += &format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                object.etag.replace('"', "&quot;"),
                object.bytes.len()
            );
        }
        Response::new(Full::new((text + "</ListBucketResult>").into()))
    }
}

fn forbids_caches(headers: &HeaderMap) -> bool {
    headers.get(CACHE_CONTROL).is_some_and(|control| control == "no-store")
}

fn creates(headers: &HeaderMap) -> bool {
    let is_new = headers.get(GENERATION_MATCH).is_some_and(|generation| generation == "0");
    is_new || headers.contains_key(IF_NONE_MATCH)
}

/// The answer to a write whose condition does not hold.
fn condition_fails(headers: &HeaderMap, stored: Option<&StoredObject>) -> Option<S3Response> {
    if headers.get(IF_NONE_MATCH).is_some_and(|it| it == "*") && stored.is_some() {
        return Some(precondition_failed());
    }
    if let Some(expected) = headers.get(GENERATION_MATCH) {
        let generation = stored.map_or(0, |stored| stored.generation);
        return (*expected != *generation.to_string()).then(precondition_failed);
    }
    match (headers.get(IF_MATCH), stored) {
        (Some(_), None) => Some(no_such_key()),
        (Some(etag), Some(stored)) if *etag != *stored.etag => Some(precondition_failed()),
        _ => None,
    }
}

fn read(headers: &HeaderMap, object: StoredObject) -> S3Response {
    let is_same = headers.get(IF_NONE_MATCH).is_some_and(|etag| *etag == *object.etag);
    let mut answer = match is_same {
        false => Response::new(Full::new(object.bytes.clone())),
        true => S3Response::default(),
    };
    if is_same {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let modified = "Thu, 01 Jan 2026 00:00:00 GMT".parse().expect("it is valid");
    answer.headers_mut().insert(LAST_MODIFIED, modified);
    with_version(answer, &object)
}

fn with_version(mut answer: S3Response, object: &StoredObject) -> S3Response {
    answer.headers_mut().insert(ETAG, object.etag.parse().expect("hexadecimal digits"));
    answer.headers_mut().insert(GENERATION, object.generation.into());
    answer
}

fn too_many() -> S3Response {
    let message = "The object exceeded the rate limit for object mutation operations.";
    refused(StatusCode::TOO_MANY_REQUESTS, "SlowDown", message)
}

fn precondition_failed() -> S3Response {
    let message = "At least one of the preconditions did not hold.";
    refused(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
}

fn no_such_key() -> S3Response {
    refused(StatusCode::NOT_FOUND, "NoSuchKey", "The specified key does not exist.")
}

fn refused(status: StatusCode, code: &str, message: &str) -> S3Response {
    let text = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    if status.is_redirection() {
        answer.headers_mut().insert(LOCATION, "http://127.0.0.1:9/".parse().expect("it is valid"));
    }
    answer
}
