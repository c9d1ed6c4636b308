//! Requests to a service: one of its servers, then the next when that one does not answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lockkit_core::Error;
use lockkit_core::driver::no_answer;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::BACKEND;
use crate::access::Secret;
use crate::connector::Connector;
use crate::options::{HttpOptions, Server, Token};
use crate::wire::{Code, Problem};

/// The longest answer that is read: a page of a listing has 1,000 locks.
const LONGEST_ANSWER: usize = 64 << 20;

/// A service, and connections to it.
#[derive(Debug)]
pub(crate) struct Transport {
    servers: Vec<(String, Client<Connector, Full<Bytes>>)>,
    /// The one that answered last.
    current: AtomicUsize,
    timeout: Duration,
    scheme: &'static str,
    /// The token, where there is one.
    authorization: Option<HeaderValue>,
}

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
        let server = |server: &Server| {
            let (authority, connector) = match server {
                Server::Tcp(authority) => {
                    (authority.clone(), Connector::tcp(patience, tls.clone()))
                }
                Server::Unix(path) => ("localhost".to_owned(), Connector::Unix(path.clone())),
            };
            let client = Client::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .build(connector);
            (authority, client)
        };
        let servers = options.servers.iter().map(server).collect();
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let (current, timeout) = (AtomicUsize::new(0), options.timeout);
        Ok(Self { servers, current, timeout, scheme, authorization })
    }

    /// Asks for what is to be read, without a body.
    pub(crate) async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Error> {
        self.ask(Method::GET, path, Bytes::new(), Duration::ZERO).await
    }

    /// Sends a request whose answer does not wait.
    pub(crate) async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Error> {
        self.poll(path, body, Duration::ZERO).await
    }

    /// Sends a request whose answer may wait that long.
    pub(crate) async fn poll<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<A, Error> {
        let body = serde_json::to_vec(body).map_err(|e| Error::permanent(BACKEND, e))?;
        self.ask(Method::POST, path, body.into(), wait).await
    }

    /// A server that is not there, or stops, sends the request on to the next; one that does not
    /// answer in time makes the *next* request go to another one: this one may have been carried
    /// out, and whoever asked knows how to repeat it.
    async fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        wait: Duration,
    ) -> Result<A, Error> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = None;
        for turn in 0..self.servers.len() {
            let at = (first + turn) % self.servers.len();
            let (authority, client) = &self.servers[at];
            let uri =
                Uri::builder().scheme(self.scheme).authority(&**authority).path_and_query(path);
            let request = uri.build().and_then(|uri| {
                let json = HeaderValue::from_static("application/json");
                Request::builder()
                    .method(&method)
                    .uri(uri)
                    .header(CONTENT_TYPE, json)
                    .body(Full::new(body.clone()))
            });
            let mut request = request.map_err(|e| Error::permanent(BACKEND, e))?;
            if let Some(token) = &self.authorization {
                request.headers_mut().insert(AUTHORIZATION, token.clone());
            }
            let exchange = exchange(client, request);
            let answer = tokio::time::timeout(self.timeout + wait, exchange).await;
            match answer.unwrap_or_else(|_| Err(Failure::Unknown(no_answer(BACKEND)))) {
                Ok((true, body)) => {
                    self.current.store(at, Ordering::Relaxed);
                    return read(&body);
                }
                Ok((false, body)) => {
                    let problem: Problem = read(&body)?;
                    if problem.code != Code::Unavailable {
                        self.current.store(at, Ordering::Relaxed);
                    } else {
                        self.current.store(at + 1, Ordering::Relaxed);
                    }
                    return Err(problem.error());
                }
                Err(Failure::NotSent(error)) => last = Some(error),
                Err(Failure::Unknown(error)) => {
                    self.current.store(at + 1, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| no_answer(BACKEND)))
    }
}

/// Why there is no answer.
enum Failure {
    /// The request certainly did not leave.
    NotSent(Error),
    /// It may have been carried out.
    Unknown(Error),
}

/// The body of an answer, and whether it is what was asked for and not a problem.
async fn exchange(
    client: &Client<Connector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<(bool, Bytes), Failure> {
    let answer = client.request(request).await.map_err(|error| {
        let not_sent = error.is_connect();
        let said = Error::retryable(BACKEND, chain(&error));
        if not_sent { Failure::NotSent(said) } else { Failure::Unknown(said) }
    })?;
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let (expected, status) = (kind == Some("application/json"), answer.status());
    let problem = kind == Some("application/problem+json");
    if !expected && !problem {
        let what = format!("{status}, and no answer of a lock service: check host and port");
        let error = match status.as_u16() {
            // A proxy's own, whose server does not answer, or has too much to do.
            408 | 429 | 502 | 503 | 504 => Error::retryable(BACKEND, what),
            _ => Error::permanent(BACKEND, what),
        };
        return Err(Failure::Unknown(error));
    }
    let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
    let body = body.map_err(|error| Failure::Unknown(Error::retryable(BACKEND, error)))?;
    Ok((expected, body.to_bytes()))
}

fn read<A: DeserializeOwned>(body: &[u8]) -> Result<A, Error> {
    serde_json::from_slice(body).map_err(|error| {
        Error::permanent(BACKEND, format!("an answer of another version: {error}"))
    })
}

/// An error with its causes, which the client crate's message leaves out.
fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        said = format!("{said}: {cause}");
        next = cause.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// What a client makes of a proxy that answers by itself with this status.
    async fn told(status: &str) -> Error {
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
            let error = told(status).await;
            assert!(error.is_retryable(), "{status}: {error}");
            assert!(error.to_string().contains(&status[..3]), "{error}");
        }
        for status in ["200 OK", "301 a", "404 Not Found", "500 a"] {
            let error = told(status).await;
            assert!(!error.is_retryable(), "{status}: {error}");
            assert!(error.to_string().contains("no answer of a lock service"), "{error}");
        }
    }
}
