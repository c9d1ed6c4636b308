//! The grammar of the URLs of S3 buckets, and the client that one describes.

use lockkit_core::driver::split_query;
use lockkit_core::{Error, Result};
use object_store::RetryConfig;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};

use super::http::OnceConnector;
use crate::options::StoreOptions;

/// Room for lockkit's keys in S3's 1,024 bytes.
const LONGEST_PREFIX: usize = 800;

/// A bucket, and where it is.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) bucket: String,
    /// What stands before all keys, without a slash at its ends; empty for none.
    pub(crate) prefix: String,
    region: Option<String>,
    endpoint: Option<String>,
    pub(crate) store: StoreOptions,
}

/// Reads `s3://BUCKET/PREFIX` with its options. No I/O.
pub(crate) fn parse(url: &str) -> Result<Target> {
    let (place, options) = split_query(url);
    let place = place.strip_prefix("s3://").unwrap_or_default();
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.contains('@') {
        return Err(Error::config(
            "an S3 URL has no place for credentials: put them into AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY",
        ));
    }
    let is_valid = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if bucket.is_empty() || !bucket.chars().all(is_valid) {
        let message = "the URL of a bucket is s3://BUCKET/PREFIX?region=REGION, or with endpoint=https://HOST \
                       for a server that is compatible with S3";
        return Err(Error::config(message));
    }
    if bucket.ends_with("--x-s3") {
        return Err(Error::config(
            "directory buckets (S3 Express) list their keys in no order: use a general purpose bucket",
        ));
    }
    let prefix = prefix.trim_end_matches('/');
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_valid);
    if !prefix.is_empty() && (prefix.len() > LONGEST_PREFIX || !prefix.split('/').all(is_part)) {
        let message = format!(
            "the prefix of the keys in a bucket has at most {LONGEST_PREFIX} bytes: letters, digits, dots, \
             dashes and underscores, with single slashes between"
        );
        return Err(Error::Config(message));
    }
    let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
    let store = StoreOptions::default();
    let mut target = Target { bucket, prefix, region: None, endpoint: None, store };
    for option in options {
        match option.name {
            "region" => target.region = Some(option.decoded()?.into_owned()),
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
                    "{name} is no option of an S3 bucket (there are: region, endpoint, {})",
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
    /// A client with connections of its own.
    pub(crate) fn client(&self, builder: AmazonS3Builder) -> Result<AmazonS3> {
        let set = |names: &[&str]| {
            let name =
                names.iter().find(|name| std::env::var_os(name).is_some_and(|it| !it.is_empty()));
            name.and_then(|name| std::env::var(name).ok())
        };
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| set(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]));
        let region = self.region.clone().or_else(|| set(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(Error::config(
                    "which region is the bucket in? Name it as region= in the URL, or in AWS_REGION",
                ));
            }
        };
        let mut builder = builder.with_bucket_name(&self.bucket);
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        if let Some(endpoint) = endpoint {
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        }
        let never = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        // Whatever the environment says: locks rest on these.
        let builder = builder
            .with_region(region)
            .with_retry(never)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_s3_express(false)
            .with_disable_bulk_delete(true)
            .with_http_connector(OnceConnector::new(!is_plain)?);
        builder.build().map_err(|error| Error::Config(format!("the settings of S3: {error}")))
    }
}
