//! Connections to a server: TCP, with or without TLS, or a Unix socket.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::Read as _;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::transport_error::NotHttp;

/// How a server is reached.
#[derive(Clone)]
pub(crate) enum Connector {
    Tcp(HttpConnector),
    /// With how long a handshake may take.
    Tls(HttpConnector, TlsConnector, Duration),
    Unix(std::path::PathBuf),
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// By TCP, with TLS where there is a configuration for it.
    pub(crate) fn tcp(patience: Duration, tls: Option<Arc<ClientConfig>>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(patience));
        connector.enforce_http(false);
        match tls {
            Some(tls) => Self::Tls(connector, tls.into(), patience),
            None => Self::Tcp(connector),
        }
    }
}

/// A connection to a server.
pub(crate) struct Stream {
    transport: RawStream,
    /// The first bytes that came, until they can be told from HTTP.
    first: Option<Vec<u8>>,
}

impl Stream {
    fn new(transport: RawStream) -> Self {
        Self { transport, first: Some(Vec::new()) }
    }
}

/// The stream below HTTP.
enum RawStream {
    Tcp(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
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
            Self::Tcp(tcp) | Self::Tls(tcp, ..) => tcp.poll_ready(context).map_err(Into::into),
            Self::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        match self {
            Self::Tcp(tcp) => {
                let connecting = tcp.call(uri);
                Box::pin(async move { Ok(Stream::new(RawStream::Tcp(connecting.await?))) })
            }
            Self::Tls(tcp, tls, patience) => {
                let host = uri.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let (connecting, tls, patience) = (tcp.call(uri), tls.clone(), *patience);
                Box::pin(async move {
                    let (name, stream) = (ServerName::try_from(host)?, connecting.await?);
                    let handshake = tls.connect(name, stream.into_inner());
                    let stream = tokio::time::timeout(patience, handshake).await??;
                    Ok(Stream::new(RawStream::Tls(Box::new(TokioIo::new(stream)))))
                })
            }
            Self::Unix(path) => {
                let path = path.clone();
                Box::pin(async move {
                    let stream = TokioIo::new(UnixStream::connect(path).await?);
                    Ok(Stream::new(RawStream::Unix(stream)))
                })
            }
        }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match &self.transport {
            RawStream::Tcp(tcp) => tcp.connected(),
            RawStream::Tls(tls) => tls.inner().get_ref().0.connected(),
            RawStream::Unix(_) => Connected::new(),
        }
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let Self { transport, first } = self.get_mut();
        let Some(seen) = first else {
            return transport.poll_read(context, buffer);
        };
        // The client crate reports what is no HTTP in several ways, some of which look as if the
        // connection had been cut: so it is recognized here.
        let mut bytes = [0; FIRST];
        let room = buffer.remaining().min(FIRST);
        let mut read = hyper::rt::ReadBuf::new(&mut bytes[..room]);
        ready!(transport.poll_read(context, read.unfilled()))?;
        let read = read.filled();
        seen.extend_from_slice(read);
        let compared = seen.len().min(HTTP.len());
        if seen[..compared] != HTTP[..compared] {
            let no_http = NotHttp(std::mem::take(seen));
            return Poll::Ready(Err(std::io::Error::new(ErrorKind::InvalidData, no_http)));
        }
        buffer.put_slice(read);
        if compared == HTTP.len() {
            *first = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// What every answer begins with.
const HTTP: &[u8] = b"HTTP/";

/// How much is read at once before it is known to be HTTP.
const FIRST: usize = 16;

impl RawStream {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(context, buffer),
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
        match &mut self.get_mut().transport {
            RawStream::Tcp(tcp) => Pin::new(tcp).poll_write(context, bytes),
            RawStream::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
            RawStream::Unix(unix) => Pin::new(unix).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.get_mut().transport {
            RawStream::Tcp(tcp) => Pin::new(tcp).poll_flush(context),
            RawStream::Tls(tls) => Pin::new(tls).poll_flush(context),
            RawStream::Unix(unix) => Pin::new(unix).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.get_mut().transport {
            RawStream::Tcp(tcp) => Pin::new(tcp).poll_shutdown(context),
            RawStream::Tls(tls) => Pin::new(tls).poll_shutdown(context),
            RawStream::Unix(unix) => Pin::new(unix).poll_shutdown(context),
        }
    }
}
