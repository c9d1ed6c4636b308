//! The grammar of the URLs of DynamoDB's tables, and the client that one describes.

use aws_config::{ConfigLoader, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{Builder, StalledStreamProtectionConfig};
use lockkit_core::{Error, Result};

use super::http::OnceHttp;
use crate::https::LIMIT;
use crate::service_url::{ServiceUrl, UrlForm, first_set};

const FORM: UrlForm = UrlForm {
    scheme: "dynamodb",
    what: "a table of DynamoDB",
    form: "the URL of a table is dynamodb://TABLE?region=REGION; a table's name has 3 to 255 letters, digits, dots, \
           dashes and underscores",
    login: "put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or into a profile",
    signs: ".-_",
    options: &["region"],
};

/// Reads `dynamodb://TABLE` with its options. No I/O.
pub(crate) fn parse(url: &str) -> Result<ServiceUrl> {
    let url = ServiceUrl::parse(url, &FORM)?;
    if !url.prefix.is_empty() || !(3..=255).contains(&url.name.len()) {
        return Err(Error::config(FORM.form));
    }
    let is_sign = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_region = |region: &str| !region.is_empty() && region.chars().all(is_sign);
    if url.own("region").is_some_and(|region| !is_region(region)) {
        return Err(Error::config("region= is a name such as eu-central-1"));
    }
    Ok(url)
}

/// A client of this table.
pub(super) async fn client(table: &ServiceUrl, mut loader: ConfigLoader) -> Result<Client> {
    // Otherwise each program on a developer's machine would ask for the region of an EC2 instance.
    let of_endpoint = || {
        let region = first_set(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        region.unwrap_or_else(|| "us-east-1".to_owned())
    };
    let region = table.own("region").map(str::to_owned);
    let region = region.or_else(|| table.endpoint.as_ref().map(|_| of_endpoint()));
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    }
    // Credentials are asked for by the same client, also those of the machine's own http:// service.
    let config = loader.http_client(OnceHttp::new(needs_tls(table))?).load().await;
    if config.region().is_none() {
        return Err(Error::config(
            "which region is the table in? Name it as region= in the URL, in AWS_REGION or in a profile",
        ));
    }
    let mut builder = Builder::from(&config);
    if let Some(endpoint) = &table.endpoint {
        builder = builder.endpoint_url(endpoint);
    }
    Ok(Client::from_conf(once(builder).build()))
}

/// The same client with connections of its own.
pub(super) fn again(table: &ServiceUrl, client: &Client) -> Result<Client> {
    let builder = client.config().to_builder();
    Ok(Client::from_conf(builder.http_client(OnceHttp::new(needs_tls(table))?).build()))
}

fn needs_tls(table: &ServiceUrl) -> bool {
    table.endpoint.as_ref().is_none_or(|endpoint| !endpoint.starts_with("http://"))
}

/// One call is one request, whatever the environment says: locks rest on this.
fn once(builder: Builder) -> Builder {
    let limits = TimeoutConfig::builder().operation_timeout(LIMIT * 2).build();
    builder
        .retry_config(RetryConfig::disabled())
        .timeout_config(limits)
        // Answers are read whole, within a limit.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}
