//! A bucket of Google Cloud Storage as a [`Store`](crate::Store).
//!
//! A document's version is the object's generation; the ETag stands behind it, for reads that move no bytes. A
//! swap is a PUT with `x-goog-if-generation-match`, which is 0 for a document that is not there yet. Reads are
//! linearizable, as long as no cache may keep them, which each write says.
//!
//! An object may be written once a second. A shard's task keeps that pace
//! ([`swap_pace`](StoreFacts::swap_pace)); what comes from several processes is refused with 429, and certainly
//! not carried out.

use std::time::Duration;

use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, Result};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};

use crate::objects::{
    BucketService, BucketStore, OnceConnector, RequestKind, ResponseHeaders, ServerAnswer,
    ServerError, bucket_facts, never_again,
};
use crate::service_url::{ServiceUrl, UrlForm, first_set};
use crate::store::StoreFacts;

/// A bucket of Google Cloud Storage. Credentials come from `GOOGLE_APPLICATION_CREDENTIALS`,
/// `GOOGLE_SERVICE_ACCOUNT`, the file of `gcloud auth application-default login`, or the service account of this
/// machine.
///
/// ```no_run
/// use std::sync::Arc;
/// use lockkit_store::{GcsStore, StoreDriver, StoreOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let store = GcsStore::open("gs://my-bucket/locks")?;
/// let driver = StoreDriver::connect(Arc::new(store), StoreOptions::default()).await?;
///
/// # let key = String::new();
/// let store = GcsStore::open_with("gs://my-bucket/locks", |client| {
///     client.with_service_account_key(key)
/// })?;
/// # Ok(()) }
/// ```
pub type GcsStore = BucketStore<Gcs>;

impl GcsStore {
    /// The commands that make the bucket of a URL, and give an identity the least rights in it. No I/O.
    pub fn schema(url: &str) -> Result<String> {
        Ok(include_str!("gcs/schema.sh").replace("{bucket}", &Gcs::parse(url)?.name))
    }
}

/// Google Cloud Storage, and what its answers mean.
#[derive(Clone, Copy, Debug)]
pub struct Gcs;

impl BucketService for Gcs {
    type Builder = GoogleCloudStorageBuilder;
    type Client = GoogleCloudStorage;

    const FORM: UrlForm = UrlForm {
        scheme: "gs",
        what: "a bucket of Google Cloud Storage",
        form: "the URL of a bucket is gs://BUCKET/PREFIX, or with endpoint=http://HOST for an emulator",
        login: "name a file with them as GOOGLE_APPLICATION_CREDENTIALS",
        signs: ".-_",
        options: &[],
    };

    const HAS_GENERATIONS: bool = true;

    fn from_env() -> Self::Builder {
        GoogleCloudStorageBuilder::from_env()
    }

    fn client(url: &ServiceUrl, builder: Self::Builder) -> Result<Self::Client> {
        let mut builder = builder.with_bucket_name(&url.name);
        // The variable of Google's own libraries, whose emulators know no credentials.
        let emulator =
            first_set(&["STORAGE_EMULATOR_HOST"]).map(|host| match host.contains("://") {
                true => host,
                false => format!("http://{host}"),
            });
        let skips_signature = builder.get_config_value(&GoogleConfigKey::SkipSignature);
        let is_anonymous = url.endpoint.is_none() && emulator.is_some()
            || skips_signature.is_some_and(|skips| skips == "true");
        let endpoint = url.endpoint.clone().or(emulator);
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        if let Some(endpoint) = &endpoint {
            builder = builder.with_base_url(endpoint);
        }
        if is_anonymous && builder.get_config_value(&GoogleConfigKey::BearerToken).is_none() {
            // Writes of the client crate ask for a token in any case.
            builder = builder.with_bearer_token("anonymous");
        }
        // Whatever the environment says: locks rest on these.
        let builder =
            builder.with_retry(never_again()).with_http_connector(OnceConnector::new(!is_plain)?);
        builder
            .build()
            .map_err(|error| Error::Config(format!("the settings of Google Cloud: {error}")))
    }

    fn facts() -> StoreFacts {
        let mut facts = bucket_facts("gcs");
        (facts.shards, facts.min_ttl) = (64, Duration::from_secs(6));
        (facts.pace, facts.swap_pace) = (Duration::from_secs(2), Duration::from_secs(1));
        facts
    }

    fn rights(request: RequestKind) -> &'static str {
        match request {
            // Without the right to list, a missing object is answered with 403.
            RequestKind::Get => "storage.objects.get and storage.objects.list",
            RequestKind::Create => "storage.objects.create",
            RequestKind::Update => "storage.objects.create and storage.objects.delete",
            RequestKind::Delete => "storage.objects.delete",
            RequestKind::List => "storage.objects.list",
        }
    }

    fn explain(error: &ServerError<'_>) -> Option<ServerAnswer> {
        let ServerError { bucket, request, code, message, .. } = error;
        Some(match (error.status?, *code) {
            (404, "NoSuchBucket") => ServerAnswer::Forbidden(format!(
                "there is no bucket {bucket}: create it, or correct the bucket or endpoint of the URL"
            )),
            (404, "NoSuchKey") => request.missing(),
            (409 | 412, code) if request.is_write() && !code.is_empty() => ServerAnswer::Conflict,
            // The rate at which an object may be written: nothing was done.
            (429, code) if !code.is_empty() => ServerAnswer::Throttled(format!(
                "the server asks for fewer writes ({code}: {message})"
            )),
            (401, code) if !code.is_empty() => ServerAnswer::Forbidden(format!(
                "the credentials are refused ({code}: {message}): check GOOGLE_APPLICATION_CREDENTIALS or the \
                 service account of this process"
            )),
            _ => return None,
        })
    }

    fn findings(bucket: &str, answer: &ResponseHeaders) -> Vec<Finding> {
        let class = answer.get("x-goog-storage-class");
        let finding = class.filter(|class| matches!(*class, "NEARLINE" | "COLDLINE" | "ARCHIVE"));
        let finding = finding.map(|class| {
            let what = format!(
                "objects in {bucket} are of the class {class}, which charges weeks for each write"
            );
            let advice = "use a bucket whose default class is STANDARD";
            Finding::new(Severity::Warning, what, advice)
        });
        finding.into_iter().collect()
    }
}
