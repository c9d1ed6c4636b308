//! HTTP for the client crate: each request is sent once. The pool below would repeat one whose connection
//! was closed before anything of it was written; here that is an error like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use lockkit_core::Error;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use rustls::ClientConfig;
use rustls::crypto::ring;
use tokio::time::timeout;

/// How long a connection may take, and a request with its answer.
const CONNECT: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(5);
/// Shorter than the time after which servers close idle connections.
const IDLE: Duration = Duration::from_secs(4);
/// The longest answer that is read: a document, or a page of a listing.
const LONGEST: usize = 16 << 20;

/// Makes clients that send each request once.
#[derive(Debug)]
pub(crate) struct OnceConnector {
    tls: ClientConfig,
}

impl OnceConnector {
    /// With the certificates of this machine's authorities.
    pub(crate) fn new(needs_tls: bool) -> Result<Self, Error> {
        let mut roots = rustls::RootCertStore::empty();
        let (valid, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if valid == 0 && needs_tls {
            let message = "this machine has no certificates of authorities, which https:// needs: install \
                           the package ca-certificates, or name a file as SSL_CERT_FILE";
            return Err(Error::config(message));
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Config(error.to_string()))?;
        Ok(Self { tls: tls.with_root_certificates(roots).with_no_client_auth() })
    }
}

impl HttpConnector for OnceConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut tcp = TcpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.enforce_http(false);
        let tls = HttpsConnectorBuilder::new().with_tls_config(self.tls.clone());
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(tls.https_or_http().enable_http1().wrap_connector(tcp));
        Ok(HttpClient::new(OnceClient(client)))
    }
}

/// The headers of an answer, which the client crate hands on as an extension.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseHeaders(BTreeMap<String, String>);

impl ResponseHeaders {
    /// By its name in lower case.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[derive(Debug)]
struct OnceClient(Client<HttpsConnector<TcpConnector>, HttpRequestBody>);

#[async_trait]
impl HttpService for OnceClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Of no kind that would be repeated.
        let failed = |error| HttpError::new_boxed(HttpErrorKind::Unknown, error);
        let exchange = async {
            let (mut parts, body) = self.0.request(request).await?.into_parts();
            let body = Limited::new(body, LONGEST).collect().await?.to_bytes();
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let headers = parts.headers.iter();
            let headers = headers.map(|(name, value)| (name.to_string(), text(value.as_bytes())));
            let headers = ResponseHeaders(headers.collect());
            parts.extensions.insert(headers);
            Ok(HttpResponse::from_parts(parts, body.into()))
        };
        timeout(LIMIT, exchange).await.map_err(|late| failed(late.into()))?.map_err(failed)
    }
}
