//! An HTTP client that sends each request once, for the client crates of services. The pool below it would
//! repeat a request whose connection was closed before anything of it was written; here that is an error like
//! any other.

use std::sync::Arc;
use std::time::Duration;

use http_body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use lockkit_core::Error;
use rustls::ClientConfig;
use rustls::crypto::ring;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a request may take, with its answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// Shorter than the time after which servers close idle connections.
const IDLE: Duration = Duration::from_secs(4);
/// The longest answer that is read: a document, or a page of a listing.
pub(crate) const LONGEST: usize = 16 << 20;

/// The client, whose requests have bodies of this type.
pub(crate) type OnceClient<B> = Client<HttpsConnector<TcpConnector>, B>;

/// TLS with the certificates of this machine's authorities.
pub(crate) fn tls(is_needed: bool) -> Result<ClientConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    let (valid, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if valid == 0 && is_needed {
        let message = "this machine has no certificates of authorities, which https:// needs: install the \
                       package ca-certificates, or name a file as SSL_CERT_FILE";
        return Err(Error::config(message));
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Config(error.to_string()))?;
    Ok(tls.with_root_certificates(roots).with_no_client_auth())
}

/// A client with connections of its own.
pub(crate) fn client<B>(tls: ClientConfig) -> OnceClient<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut tcp = TcpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.enforce_http(false);
    let tls = HttpsConnectorBuilder::new().with_tls_config(tls);
    Client::builder(TokioExecutor::new())
        .retry_canceled_requests(false)
        .pool_idle_timeout(IDLE)
        .pool_timer(TokioTimer::new())
        .build(tls.https_or_http().enable_http1().wrap_connector(tcp))
}
