//! The grammar of the URLs of DynamoDB's tables, and the client that one describes.

use aws_config::{ConfigLoader, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{Builder, StalledStreamProtectionConfig};
use lockkit_core::driver::split_query;
use lockkit_core::{Error, Result};

use super::http::OnceHttp;
use crate::https::LIMIT;
use crate::options::StoreOptions;

const FORM: &str = "the URL of a table is dynamodb://TABLE?region=REGION; a table's name has 3 to 255 letters, \
                    digits, dots, dashes and underscores";

/// A table, and where it is.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) table: String,
    pub(super) region: Option<String>,
    endpoint: Option<String>,
    pub(crate) store: StoreOptions,
}

/// Reads `dynamodb://TABLE` with its options. No I/O.
pub(crate) fn parse(url: &str) -> Result<Target> {
    let (place, options) = split_query(url);
    let table = place.strip_prefix("dynamodb://").unwrap_or_default();
    if table.contains('@') {
        return Err(Error::config(
            "the URL of a table has no place for credentials: put them into AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or into a profile",
        ));
    }
    let is_valid = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if !(3..=255).contains(&table.len()) || !table.chars().all(is_valid) {
        return Err(Error::config(FORM));
    }
    let store = StoreOptions::default();
    let mut target = Target { table: table.to_owned(), region: None, endpoint: None, store };
    for option in options {
        match option.name {
            "region" => {
                let region = option.decoded()?.into_owned();
                let is_region = |c: char| c.is_ascii_alphanumeric() || c == '-';
                if region.is_empty() || !region.chars().all(is_region) {
                    return Err(Error::config("region= is a name such as eu-central-1"));
                }
                target.region = Some(region);
            }
            "endpoint" => {
                let endpoint = option.decoded()?.trim_end_matches('/').to_owned();
                if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
                    let message = "endpoint= begins with https://, or with http:// for a server on a trusted \
                                   network";
                    return Err(Error::config(message));
                }
                target.endpoint = Some(endpoint);
            }
            name if !target.store.take(&option)? => {
                let message = format!(
                    "{name} is no option of a table of DynamoDB (there are: region, endpoint, {})",
                    StoreOptions::NAMES
                );
                return Err(Error::Config(message));
            }
            _ => {}
        }
    }
    Ok(target)
}

impl Target {
    /// A client of this table.
    pub(super) async fn client(&self, mut loader: ConfigLoader) -> Result<Client> {
        // Otherwise each program on a developer's machine would ask for the region of an EC2 instance.
        let of_endpoint = || {
            let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
            let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
            region.unwrap_or_else(|| "us-east-1".to_owned())
        };
        let region = self.region.clone().or_else(|| self.endpoint.as_ref().map(|_| of_endpoint()));
        if let Some(region) = region {
            loader = loader.region(Region::new(region));
        }
        // Credentials are asked for by the same client, also those of the machine's own http:// service.
        let config = loader.http_client(OnceHttp::new(self.needs_tls())?).load().await;
        if config.region().is_none() {
            return Err(Error::config(
                "which region is the table in? Name it as region= in the URL, in AWS_REGION or in a profile",
            ));
        }
        let mut builder = Builder::from(&config);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        Ok(Client::from_conf(once(builder).build()))
    }

    /// The same client with connections of its own.
    pub(super) fn again(&self, client: &Client) -> Result<Client> {
        let builder = client.config().to_builder();
        Ok(Client::from_conf(builder.http_client(OnceHttp::new(self.needs_tls())?).build()))
    }

    fn needs_tls(&self) -> bool {
        self.endpoint.as_ref().is_none_or(|endpoint| !endpoint.starts_with("http://"))
    }
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
