//! A bucket of S3, or of a server that is compatible with it, as a [`Store`](crate::Store).
//!
//! A document's version is the object's ETag. A swap is a PUT with `If-Match` and the ETag, or with
//! `If-None-Match: *` for a document that is not there yet. Reads are linearizable since December 2020.

use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};

use crate::objects::{
    BucketService, BucketStore, OnceConnector, RequestKind, ResponseHeaders, ServerAnswer,
    ServerError, bucket_facts, never_again,
};
use crate::service_url::{ServiceUrl, UrlForm, first_set};
use crate::store::StoreFacts;

/// A bucket of S3, or of a compatible server. Credentials, and what the URL does not say, come from the
/// environment variables that the AWS command knows.
///
/// ```no_run
/// use std::sync::Arc;
/// use lockkit_store::{S3Store, StoreDriver, StoreOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let store = S3Store::open("s3://my-bucket/locks?region=eu-central-1")?;
/// let driver = StoreDriver::connect(Arc::new(store), StoreOptions::default()).await?;
///
/// # let secret = String::new();
/// let store = S3Store::open_with("s3://my-bucket/locks?region=eu-central-1", |client| {
///     client.with_access_key_id("AKIA…").with_secret_access_key(secret)
/// })?;
/// # Ok(()) }
/// ```
pub type S3Store = BucketStore<S3>;

impl S3Store {
    /// The commands that make the bucket of a URL, and a policy with the least rights in it. No I/O.
    ///
    /// # Errors
    /// [`Error::Config`] with `endpoint=`: a compatible server has its own tools for buckets and rights.
    pub fn schema(url: &str) -> Result<String> {
        let url = S3::parse(url)?;
        if url.endpoint.is_some() {
            return Err(Error::config(
                "a server that is compatible with S3 has its own commands for buckets and rights: leave out \
                 endpoint= to see those of AWS",
            ));
        }
        let keys = match &url.prefix[..] {
            "" => "*".to_owned(),
            prefix => format!("{prefix}/*"),
        };
        let commands = include_str!("s3/schema.sh").replace("{bucket}", &url.name);
        let commands = commands.replace("{region}", url.own("region").unwrap_or("REGION"));
        Ok(commands.replace("{keys}", &keys))
    }
}

/// S3, and what its answers mean.
#[derive(Clone, Copy, Debug)]
pub struct S3;

impl BucketService for S3 {
    type Builder = AmazonS3Builder;
    type Client = AmazonS3;

    const FORM: UrlForm = UrlForm {
        scheme: "s3",
        what: "an S3 bucket",
        form: "the URL of a bucket is s3://BUCKET/PREFIX?region=REGION, or with endpoint=https://HOST for a server \
               that is compatible with S3",
        login: "put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        signs: ".-_",
        options: &["region"],
    };

    fn from_env() -> Self::Builder {
        AmazonS3Builder::from_env()
    }

    fn parse(url: &str) -> Result<ServiceUrl> {
        let url = ServiceUrl::parse(url, &Self::FORM)?;
        if url.name.ends_with("--x-s3") {
            return Err(Error::config(
                "directory buckets (S3 Express) list their keys in no order: use a general purpose bucket",
            ));
        }
        Ok(url)
    }

    fn client(url: &ServiceUrl, builder: Self::Builder) -> Result<Self::Client> {
        let named = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
        let endpoint = url.endpoint.clone().or_else(|| first_set(&named));
        let region = url.own("region").map(str::to_owned);
        let region = region.or_else(|| first_set(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(Error::config(
                    "which region is the bucket in? Name it as region= in the URL, or in AWS_REGION",
                ));
            }
        };
        let mut builder = builder.with_bucket_name(&url.name);
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        if let Some(endpoint) = endpoint {
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        }
        // Whatever the environment says: locks rest on these.
        let builder = builder
            .with_region(region)
            .with_retry(never_again())
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_s3_express(false)
            .with_disable_bulk_delete(true)
            .with_http_connector(OnceConnector::new(!is_plain)?);
        builder.build().map_err(|error| Error::Config(format!("the settings of S3: {error}")))
    }

    fn facts() -> StoreFacts {
        bucket_facts("s3")
    }

    fn rights(request: RequestKind) -> &'static str {
        match request {
            // Without the right to list, a missing object is answered with 403.
            RequestKind::Get => "s3:GetObject on its objects, and s3:ListBucket on the bucket",
            RequestKind::Create => "s3:PutObject on its objects",
            RequestKind::Update => "s3:PutObject and s3:GetObject on its objects",
            RequestKind::Delete => "s3:DeleteObject on its objects",
            RequestKind::List => "s3:ListBucket on the bucket",
        }
    }

    fn explain(error: &ServerError<'_>) -> Option<ServerAnswer> {
        let ServerError { bucket, request, .. } = error;
        if error.text.contains("without LOCATION") {
            return Some(other_region(bucket));
        }
        Some(match (error.status?, error.code) {
            (404, "NoSuchBucket") => ServerAnswer::Forbidden(format!(
                "there is no bucket {bucket}: create it, or correct the bucket, region or endpoint of the URL"
            )),
            (404, "NoSuchKey") => request.missing(),
            (409 | 412, _) if request.is_write() => ServerAnswer::Conflict,
            (400 | 403, code @ ("ExpiredToken" | "TokenRefreshRequired")) => {
                ServerAnswer::Forbidden(format!(
                    "the credentials have expired ({code}): start this process with new ones, or give it a \
                     role whose credentials are renewed"
                ))
            }
            (
                400 | 401 | 403,
                code @ ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken"),
            ) => ServerAnswer::Forbidden(format!(
                "the server does not know these credentials ({code}): check AWS_ACCESS_KEY_ID, \
                 AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            )),
            (403, "RequestTimeTooSkewed") => ServerAnswer::Forbidden(
                "the clock of this machine differs too much from the server's: set it".to_owned(),
            ),
            (400, "AuthorizationHeaderMalformed") | (301, _) => other_region(bucket),
            (400, "RequestTimeout") => ServerAnswer::None(error.text.to_owned()),
            _ => return None,
        })
    }

    fn findings(bucket: &str, answer: &ResponseHeaders) -> Vec<Finding> {
        let keeps_versions =
            answer.get("x-amz-version-id").is_some_and(|version| version != "null");
        let finding = keeps_versions.then(|| {
            let what = format!(
                "the bucket {bucket} keeps old versions of objects, and each change of a lock makes one"
            );
            let advice =
                "add a lifecycle rule for this prefix that expires noncurrent versions after a day";
            Finding::new(Severity::Warning, what, advice)
        });
        finding.into_iter().collect()
    }
}

fn other_region(bucket: &str) -> ServerAnswer {
    ServerAnswer::Forbidden(format!(
        "the bucket {bucket} is in another region: name that as region= in the URL"
    ))
}
