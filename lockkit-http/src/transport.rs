//! Requests to a service: one of its servers, then the next when that one does not answer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lockkit_core::Error;
use lockkit_core::driver::{BatchError, locked};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::BACKEND;
use crate::access::Secret;
use crate::connector::Connector;
use crate::options::{HttpOptions, Server, Token};
use crate::transport_error::{ErrorKind, TransportError, of_all};
use crate::wire::{Code, Problem};

/// The longest answer that is read: a page of a listing has 1,000 locks.
const LONGEST_ANSWER: usize = 64 << 20;

/// A service, and connections to it.
#[derive(Debug)]
pub(crate) struct Transport {
    servers: Vec<Endpoint>,
    /// The one that answered last.
    current: AtomicUsize,
    /// Whether any of them has answered: then the URL is right.
    has_answered: AtomicBool,
    /// When it was last said that what answers now is no longer this service.
    warned: Mutex<Option<Instant>>,
    timeout: Duration,
    scheme: &'static str,
    /// The token, where there is one.
    authorization: Option<HeaderValue>,
}

/// One server, and connections to it.
#[derive(Debug)]
struct Endpoint {
    authority: String,
    client: Client<Connector, Full<Bytes>>,
    /// As errors name it.
    url: String,
}

/// How often a service that cannot be reached any more is complained of.
const WARN_EVERY: Duration = Duration::from_secs(30);

impl Transport {
    /// Reads the files that the options name.
    pub(crate) fn new(options: &HttpOptions) -> Result<Self, Error> {
        let authorization = match &options.token {
            Token::None => None,
            Token::File(path) => Some(Secret::read(path)?.header()?),
            Token::Given(secret) => Some(secret.header()?),
        };
        let tls = options.tls.as_ref().map(|tls| tls.config()).transpose()?;
        let patience = options.timeout.min(Duration::from_secs(2));
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let server = |server: &Server| {
            let (authority, connector, url) = match server {
                Server::Tcp(authority) => {
                    let url = format!("{scheme}://{authority}");
                    (authority.clone(), Connector::tcp(patience, tls.clone()), url)
                }
                Server::Unix(path) => {
                    let url = format!("http+unix:{}", path.display());
                    ("localhost".to_owned(), Connector::Unix(path.clone()), url)
                }
            };
            let client = Client::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .build(connector);
            Endpoint { authority, client, url }
        };
        Ok(Self {
            servers: options.servers.iter().map(server).collect(),
            current: AtomicUsize::new(0),
            has_answered: AtomicBool::new(false),
            warned: Mutex::default(),
            timeout: options.timeout,
            scheme,
            authorization,
        })
    }

    /// Asks for what is to be read, without a body.
    pub(crate) async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Error> {
        let answer = self.ask(Method::GET, path, Bytes::new(), Duration::ZERO).await;
        answer.map_err(|failed| failed.error)
    }

    /// Sends a request whose answer does not wait.
    pub(crate) async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Error> {
        self.poll(path, body, Duration::ZERO).await
    }

    /// Sends a batch; an error says how many requests may have been carried out.
    pub(crate) async fn submit<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, BatchError> {
        let body = serde_json::to_vec(body).map_err(unsent)?;
        self.ask(Method::POST, path, body.into(), Duration::ZERO).await
    }

    /// Sends a request whose answer may wait that long.
    pub(crate) async fn poll<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<A, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::permanent(BACKEND, error))?;
        let answer = self.ask(Method::POST, path, body.into(), wait).await;
        answer.map_err(|failed| failed.error)
    }

    /// A server that is not there, or stops, sends the request on to the next; one that does not
    /// answer in time makes the *next* request go to another one: this one may have been carried
    /// out, and the caller knows how to repeat it. So at most one attempt of a call is ambiguous.
    async fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        wait: Duration,
    ) -> Result<A, BatchError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for turn in 0..self.servers.len() {
            let at = (first + turn) % self.servers.len();
            let server = &self.servers[at];
            let request = self.request(server, &method, path, body.clone());
            let request = request.map_err(unsent)?;
            let answer = tokio::time::timeout(self.timeout + wait, exchange(server, request)).await;
            let no_answer =
                || Err(TransportError::ambiguous(&server.url, "did not answer in time"));
            let (next, result) = match answer.unwrap_or_else(|_| no_answer()) {
                Ok(ServiceResponse::Asked(body)) => (at, read(&body)),
                Ok(ServiceResponse::Problem(body)) => {
                    let problem: Problem = read(&body)?;
                    let next = if problem.code == Code::Unavailable { at + 1 } else { at };
                    let mut error = problem.batch_error();
                    error.error = error.error.at(&server.url);
                    (next, Err(error))
                }
                Ok(ServiceResponse::Refused(error)) => return Err(BatchError::unknown(error)),
                Err(failure) if failure.kind == ErrorKind::Ambiguous => {
                    self.current.store(at + 1, Ordering::Relaxed);
                    return Err(BatchError::unknown(failure.retryable()));
                }
                Err(failure) => {
                    failures.push(failure);
                    continue;
                }
            };
            self.has_answered.store(true, Ordering::Relaxed);
            self.current.store(next, Ordering::Relaxed);
            return result;
        }
        let has_answered = self.has_answered.load(Ordering::Relaxed);
        let misconfigured = failures.iter().any(|failure| failure.kind == ErrorKind::Misconfigured);
        let error = of_all(failures, has_answered);
        if misconfigured && has_answered {
            self.warn(&error);
        }
        Err(BatchError::refused(error))
    }

    fn request(
        &self,
        server: &Endpoint,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let authority = &*server.authority;
        let uri = Uri::builder().scheme(self.scheme).authority(authority).path_and_query(path);
        let mut request = Request::builder()
            .method(method)
            .uri(uri.build()?)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Full::new(body))?;
        if let Some(token) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        Ok(request)
    }

    /// Says that an operator has to act, once in a while: the request is repeated meanwhile.
    fn warn(&self, error: &Error) {
        let mut warned = locked(&self.warned);
        if warned.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(%error, "what answers is not the service any more; asking again");
        }
    }
}

/// What a server answers.
enum ServiceResponse {
    /// What was asked for.
    Asked(Bytes),
    /// A problem.
    Problem(Bytes),
    /// Not the service, but something that speaks HTTP.
    Refused(Error),
}

async fn exchange(
    server: &Endpoint,
    request: Request<Full<Bytes>>,
) -> Result<ServiceResponse, TransportError> {
    let url = &*server.url;
    let answer = server.client.request(request).await;
    let answer = answer.map_err(|error| TransportError::of(url, &error))?;
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let (expected, status) = (kind == Some("application/json"), answer.status());
    let problem = kind == Some("application/problem+json");
    if !expected && !problem {
        let what = format!("{status}, and no answer of a lock service: check host and port");
        return match status.as_u16() {
            // A proxy's own, whose server does not answer, or has too much to do.
            408 | 429 | 502 | 503 | 504 => Err(TransportError::ambiguous(url, what)),
            _ => Ok(ServiceResponse::Refused(Error::permanent(BACKEND, format!("{url}: {what}")))),
        };
    }
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    let body = body.map_err(|error| TransportError::ambiguous(url, error))?.to_bytes();
    Ok(if expected { ServiceResponse::Asked(body) } else { ServiceResponse::Problem(body) })
}

/// The error of a request that cannot be written.
fn unsent(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BatchError {
    BatchError::refused(Error::permanent(BACKEND, error))
}

fn read<A: DeserializeOwned>(body: &[u8]) -> Result<A, BatchError> {
    serde_json::from_slice(body).map_err(|error| {
        let what = format!("an answer of another version: {error}");
        BatchError::unknown(Error::permanent(BACKEND, what))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// What a client makes of a proxy that answers by itself with this status.
    async fn error_for(status: &str) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\n<p>");
        std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let mut head = BufReader::new(client.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            (&client).write_all(answer.as_bytes()).unwrap();
        });
        let transport = Transport::new(&HttpOptions::parse(&url).unwrap()).unwrap();
        transport.get::<Problem>("/v1/capabilities").await.unwrap_err()
    }

    #[tokio::test]
    async fn a_proxy_whose_server_is_away_is_asked_again_and_what_is_no_service_is_not() {
        for status in ["408 a", "429 a", "502 Bad Gateway", "503 a", "504 a"] {
            let error = error_for(status).await;
            assert!(error.is_retryable(), "{status}: {error}");
            assert!(error.to_string().contains(&status[..3]), "{error}");
        }
        for status in ["200 OK", "301 a", "404 Not Found", "500 a"] {
            let error = error_for(status).await;
            assert!(!error.is_retryable(), "{status}: {error}");
            assert!(error.to_string().contains("no answer of a lock service"), "{error}");
        }
    }
}
