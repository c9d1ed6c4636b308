//! HTTP for the client crate: each request is sent once, its answer is read whole, and both have a limit.

use aws_sdk_dynamodb::config::RuntimeComponents;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use http_body_util::{BodyExt, Limited};
use lockkit_core::Error;
use tokio::time::timeout;

use crate::https::{self, LIMIT, LONGEST, OnceClient};

/// A client that sends each request once.
#[derive(Debug)]
pub(super) struct OnceHttp(SharedHttpConnector);

impl OnceHttp {
    /// With connections of its own.
    pub(super) fn new(needs_tls: bool) -> Result<Self, Error> {
        let client = https::client(https::tls(needs_tls)?);
        Ok(Self(SharedHttpConnector::new(OnceConnector(client))))
    }
}

impl HttpClient for OnceHttp {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        self.0.clone()
    }
}

#[derive(Debug)]
struct OnceConnector(OnceClient<SdkBody>);

impl HttpConnector for OnceConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.0.clone();
        HttpConnectorFuture::new(async move {
            let request = request.try_into_http1x();
            let request = request.map_err(|error| ConnectorError::user(error.into()))?;
            let exchange = async {
                let (parts, body) = client.request(request).await?.into_parts();
                let body = Limited::new(body, LONGEST).collect().await?.to_bytes();
                Ok(http::Response::from_parts(parts, SdkBody::from(body)))
            };
            let answer = timeout(LIMIT, exchange).await;
            let answer = answer.map_err(|late| ConnectorError::timeout(late.into()))?;
            let answer = answer.map_err(ConnectorError::io)?;
            HttpResponse::try_from(answer).map_err(|error| ConnectorError::io(error.into()))
        })
    }
}
