//! Connections: accepting them, how long each may take for what, and their end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tower_service::Service as _;

use crate::caller::Peer;
use crate::linger::LingeringStream;
use crate::listen::{Accepted, Listener};
use crate::service::Service;
use crate::stall::StallTimeout;
use crate::unread::Unread;

/// How long the head of a request may take, and a connection may be idle: longer than the 30 s for
/// which lockkit's clients keep an idle connection, so that the client is the one to close it.
const HEAD: Duration = Duration::from_secs(40);

/// How long an answer may make no progress.
const STALL: Duration = Duration::from_secs(20);

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long requests may still take once the server stops.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// How long, and how many bytes, a connection is read that was shut before its request had come.
const LINGER: (Duration, usize) = (Duration::from_secs(2), 4 << 20);

/// How many headers a request may have, and their bytes.
const HEADERS: (usize, usize) = (64, 16 << 10);

/// Accepts and serves until `stop`, and then until what is under way has been answered.
pub(crate) async fn serve(
    listener: Listener,
    service: Service,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = service.router();
    let ending = GracefulShutdown::new();
    // In a set: they end with this future.
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let next = async {
            let place = service.connection().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            Some(_) = connections.join_next() => continue,
            () = &mut stop => break,
        };
        match accepted {
            Ok(accepted) => {
                let (service, router) = (service.clone(), router.clone());
                let connection = Connection { service, router, permit: place };
                connections.spawn(connection.serve(accepted, ending.watcher()));
            }
            Err(error) if of_one_connection(&error) => {}
            Err(error) => {
                // Usually no file descriptor is left: one will be.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    // Connections that wait to be accepted are refused from here on.
    drop(listener);
    service.stop();
    if tokio::time::timeout(LAST_ANSWERS, ending.shutdown()).await.is_err() {
        tracing::warn!("some requests were not answered in time");
    }
    connections.shutdown().await;
    Ok(())
}

fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

struct Connection {
    service: Service,
    router: Router,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Serves it to its end. One that its peer has too many of is closed.
    async fn serve(self, accepted: Accepted, watcher: Watcher) {
        let peer = accepted.peer();
        let Some(_place) = self.service.connection_of(peer) else {
            return;
        };
        match accepted {
            // In boxes: a connection without TLS takes no room for what TLS needs.
            Accepted::Tcp(stream, _, None) => Box::pin(self.http(stream, peer, watcher)).await,
            Accepted::Tcp(stream, _, Some(tls)) => {
                let handshake = tokio::time::timeout(HANDSHAKE, Box::pin(tls.accept(stream))).await;
                if let Ok(Ok(stream)) = handshake {
                    Box::pin(self.http(stream, peer, watcher)).await;
                }
            }
            Accepted::Unix(stream) => Box::pin(self.http(stream, peer, watcher)).await,
        }
    }

    async fn http<S>(self, stream: S, peer: Peer, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, permit: place, service } = self;
        let stalls = StallTimeout::new(stream, STALL);
        let (longest, most) = LINGER;
        let enough = async move {
            tokio::select! {
                () = tokio::time::sleep(longest) => {}
                () = service.stopped() => {}
            }
        };
        let stream = LingeringStream::new(stalls, most, enough);
        let linger = stream.asked();
        let answer = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let (router, linger) = (router.clone(), linger.clone());
            async move { Ok::<_, Infallible>(answer(router, request, &linger).await) }
        });
        let (most, bytes) = HEADERS;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_headers(most)
            .max_header_size(bytes)
            .serve_connection(TokioIo::new(stream), answer);
        if let Err(error) = watcher.watch(connection).await {
            // The request line of a bad request may have anything in it.
            tracing::debug!(kind = kind(&error), "a connection ended early");
        }
        drop(place);
    }
}

/// Answers a request. One that is answered before its body has come, as most refusals are, leaves
/// the connection usable if the rest is short; otherwise the answer says that it is the last.
async fn answer(
    mut router: Router,
    request: hyper::Request<Incoming>,
    linger: &AtomicBool,
) -> Response {
    let unread = Unread::default();
    let waits_for_invitation = request.headers().contains_key(EXPECT);
    let request = request.map(|body| unread.lend(body));
    let mut response = router.call(request).await.unwrap_or_else(|e| match e {});
    if !unread.discard(waits_for_invitation).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        linger.store(true, Ordering::Relaxed);
    }
    response
}

fn kind(error: &hyper::Error) -> &'static str {
    match () {
        () if error.is_parse() => "no HTTP",
        () if error.is_timeout() => "too slow",
        () => "closed",
    }
}
