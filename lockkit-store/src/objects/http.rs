//! HTTP for the client crate: each request is sent once.

use std::collections::BTreeMap;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use lockkit_core::Error;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use rustls::ClientConfig;
use tokio::time::timeout;

use crate::https::{self, LIMIT, LONGEST, OnceClient};

/// Makes clients that send each request once.
#[derive(Debug)]
pub(crate) struct OnceConnector {
    tls: ClientConfig,
}

impl OnceConnector {
    /// With the certificates of this machine's authorities.
    pub(crate) fn new(needs_tls: bool) -> Result<Self, Error> {
        Ok(Self { tls: https::tls(needs_tls)? })
    }
}

impl HttpConnector for OnceConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(ObjectClient(https::client(self.tls.clone()))))
    }
}

/// The headers of an answer, which the client crate hands on as an extension.
#[derive(Clone, Debug, Default)]
pub struct ResponseHeaders(BTreeMap<String, String>);

impl ResponseHeaders {
    /// By its name in lower case.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[derive(Debug)]
struct ObjectClient(OnceClient<HttpRequestBody>);

#[async_trait]
impl HttpService for ObjectClient {
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
