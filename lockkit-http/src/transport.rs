//! Requests to a service: one of its servers, then the next when that one does not answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lockkit_core::Error;
use lockkit_core::driver::no_answer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};

use crate::BACKEND;
use crate::options::{HttpOptions, Server};
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
}

impl Transport {
    /// No I/O.
    pub(crate) fn new(options: &HttpOptions) -> Self {
        let server = |server: &Server| {
            let (authority, connector) = match server {
                Server::Tcp(authority) => {
                    let mut connector = HttpConnector::new();
                    connector.set_nodelay(true);
                    connector
                        .set_connect_timeout(Some(options.timeout.min(Duration::from_secs(2))));
                    (authority.clone(), Connector::Tcp(connector))
                }
                Server::Unix(path) => ("localhost".to_owned(), Connector::Unix(path.clone())),
            };
            let client = Client::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .build(connector);
            (authority, client)
        };
        let servers = options.servers.iter().map(server).collect();
        Self { servers, current: AtomicUsize::new(0), timeout: options.timeout }
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
            let uri = Uri::builder().scheme("http").authority(&**authority).path_and_query(path);
            let request = uri.build().and_then(|uri| {
                let json = HeaderValue::from_static("application/json");
                Request::builder()
                    .method(&method)
                    .uri(uri)
                    .header(CONTENT_TYPE, json)
                    .body(Full::new(body.clone()))
            });
            let request = request.map_err(|e| Error::permanent(BACKEND, e))?;
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
        return Err(Failure::Unknown(Error::permanent(BACKEND, what)));
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

/// How a server is reached.
#[derive(Clone, Debug)]
enum Connector {
    Tcp(HttpConnector),
    Unix(std::path::PathBuf),
}

/// A connection to a server.
enum Stream {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
}

type Connecting =
    Pin<Box<dyn Future<Output = Result<Stream, Box<dyn std::error::Error + Send + Sync>>> + Send>>;

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Connecting;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_ready(context).map_err(Into::into),
            Self::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        match self {
            Self::Tcp(tcp) => {
                let connecting = tcp.call(uri);
                Box::pin(async move { Ok(Stream::Tcp(connecting.await?)) })
            }
            Self::Unix(path) => {
                let path = path.clone();
                Box::pin(
                    async move { Ok(Stream::Unix(TokioIo::new(UnixStream::connect(path).await?))) },
                )
            }
        }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Tcp(tcp) => tcp.connected(),
            Self::Unix(_) => Connected::new(),
        }
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Self::Unix(unix) => Pin::new(unix).poll_read(context, buffer),
        }
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Unix(unix) => Pin::new(unix).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Unix(unix) => Pin::new(unix).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Unix(unix) => Pin::new(unix).poll_shutdown(context),
        }
    }
}
