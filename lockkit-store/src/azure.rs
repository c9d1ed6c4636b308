//! A container of Azure Blob Storage as a [`Store`](crate::Store).
//!
//! A document is a block blob, and its version the blob's ETag, which is new in every write. A swap is a Put
//! Blob with `If-Match` and the ETag, or with `If-None-Match: *` for a document that is not there yet. Reads
//! from the primary region are linearizable, and the secondary is never read.

use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, Result};
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};

use crate::objects::{
    BucketService, BucketStore, OnceConnector, RequestKind, ResponseHeaders, ServerAnswer,
    ServerError, bucket_facts, never_again,
};
use crate::service_url::{ServiceUrl, UrlForm};
use crate::store::StoreFacts;

/// A container of Azure Blob Storage. Credentials, and what the URL does not say, come from the environment
/// variables of Azure's tools (`AZURE_STORAGE_ACCOUNT_NAME` and so on).
///
/// ```no_run
/// use std::sync::Arc;
/// use lockkit_store::{AzureStore, StoreDriver, StoreOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let url = "az://my-container/locks?account=myaccount";
/// let store = AzureStore::open(url)?;
/// let driver = StoreDriver::connect(Arc::new(store), StoreOptions::default()).await?;
///
/// # let key = String::new();
/// let store = AzureStore::open_with(url, |client| client.with_access_key(key))?;
/// # Ok(()) }
/// ```
pub type AzureStore = BucketStore<Azure>;

impl AzureStore {
    /// The commands that make the container of a URL, and give an identity the least rights in it. No I/O.
    pub fn schema(url: &str) -> Result<String> {
        let url = Azure::parse(url)?;
        let account = url.own("account").unwrap_or("ACCOUNT");
        let commands = include_str!("azure/schema.sh").replace("{container}", &url.name);
        Ok(commands.replace("{account}", account))
    }
}

/// The emulator's account, and its key, which everybody knows.
const EMULATOR: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Azure Blob Storage, and what its answers mean.
#[derive(Clone, Copy, Debug)]
pub struct Azure;

impl BucketService for Azure {
    type Builder = MicrosoftAzureBuilder;
    type Client = MicrosoftAzure;

    const FORM: UrlForm = UrlForm {
        scheme: "az",
        what: "an Azure container",
        form: "the URL of a container is az://CONTAINER/PREFIX?account=ACCOUNT, or with \
               endpoint=https://HOST/ACCOUNT for an emulator",
        login: "put them into AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
        signs: "-",
        options: &["account"],
    };

    fn from_env() -> Self::Builder {
        MicrosoftAzureBuilder::from_env()
    }

    fn client(url: &ServiceUrl, builder: Self::Builder) -> Result<Self::Client> {
        let mut builder = builder.with_container_name(&url.name);
        if let Some(account) = url.own("account") {
            builder = builder.with_account(account);
        }
        if builder.get_config_value(&AzureConfigKey::AccountName).is_none() {
            return Err(Error::config(
                "which storage account is the container in? Name it as account= in the URL, or in \
                 AZURE_STORAGE_ACCOUNT_NAME",
            ));
        }
        if let Some(endpoint) = &url.endpoint {
            builder = builder.with_use_emulator(false).with_endpoint(endpoint.clone());
        }
        let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
        let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let is_set = |key| builder.get_config_value(&key).is_some();
        let has_login = [AzureConfigKey::AccessKey, AzureConfigKey::SasKey, AzureConfigKey::Token];
        let has_login = has_login.into_iter().any(is_set);
        let account = builder.get_config_value(&AzureConfigKey::AccountName);
        if is_plain && !has_login && account.is_some_and(|account| account == EMULATOR) {
            builder = builder.with_access_key(EMULATOR_KEY);
        }
        // Whatever the environment says: locks rest on these.
        let builder = builder
            .with_retry(never_again())
            .with_disable_tagging(true)
            .with_http_connector(OnceConnector::new(!is_plain)?);
        builder.build().map_err(|error| Error::Config(format!("the settings of Azure: {error}")))
    }

    fn facts() -> StoreFacts {
        bucket_facts("azure")
    }

    fn rights(request: RequestKind) -> &'static str {
        match request {
            RequestKind::Get => "the data action blobs/read (SAS: r)",
            RequestKind::Create | RequestKind::Update => {
                "the data action blobs/write (SAS: c and w)"
            }
            RequestKind::Delete => "the data action blobs/delete (SAS: d)",
            RequestKind::List => "the data action blobs/read (SAS: l, for the container)",
        }
    }

    fn explain(error: &ServerError<'_>) -> Option<ServerAnswer> {
        let ServerError { bucket, request, code, message, .. } = error;
        let forbidden = |message: String| Some(ServerAnswer::Forbidden(message));
        if *request == RequestKind::Delete
            && let Some(status) = status_in_batch(error.text)
        {
            return Some(match status {
                404 => ServerAnswer::Missing,
                401 | 403 => ServerAnswer::Forbidden(format!(
                    "a right is missing in {bucket}: {}",
                    Self::rights(*request)
                )),
                _ => ServerAnswer::None(error.text.to_owned()),
            });
        }
        match (error.status?, *code) {
            (404, "ContainerNotFound") | (409, "ContainerBeingDeleted") => forbidden(format!(
                "there is no container {bucket}: create it, or correct the container, account or endpoint of \
                 the URL"
            )),
            (404, "BlobNotFound") => Some(request.missing()),
            (412, "ConditionNotMet") | (409, "BlobAlreadyExists") if request.is_write() => {
                Some(ServerAnswer::Conflict)
            }
            // Neither is a conflict: nothing changes while it lasts.
            (412, "LeaseIdMissing") => forbidden(format!(
                "a blob in {bucket} has a lease of Azure's own, which lockkit does not use: break it \
                 (az storage blob lease break)"
            )),
            (409, "BlobImmutableDueToPolicy") => forbidden(format!(
                "a policy of immutability or a legal hold keeps the blobs in {bucket} from being changed: use \
                 a container without"
            )),
            (401, code) | (403, code @ ("AuthenticationFailed" | "InvalidAuthenticationInfo"))
                if !code.is_empty() =>
            {
                forbidden(format!(
                    "the credentials are refused ({code}: {message}): a key that was replaced, a SAS or token \
                     that has expired, or a clock that is wrong. Check AZURE_STORAGE_ACCOUNT_KEY, \
                     AZURE_STORAGE_SAS_TOKEN or the identity of this process"
                ))
            }
            _ => None,
        }
    }

    fn findings(bucket: &str, answer: &ResponseHeaders) -> Vec<Finding> {
        let mut findings = Vec::new();
        if answer.get("x-ms-version-id").is_some() {
            let what = format!(
                "the account of {bucket} keeps old versions of blobs, and each change of a lock makes one"
            );
            let advice =
                "add a lifecycle rule for this prefix that deletes previous versions after a day";
            findings.push(Finding::new(Severity::Warning, what, advice));
        }
        if let Some(tier @ ("Cool" | "Cold")) = answer.get("x-ms-access-tier") {
            let what = format!(
                "blobs in {bucket} are in the tier {tier}, which charges days for each write"
            );
            let advice = "use an account whose default tier is Hot";
            findings.push(Finding::new(Severity::Warning, what, advice));
        }
        // Only accounts with a hierarchical namespace say what a path is.
        if answer.get("x-ms-resource-type").is_some() {
            let what = format!("the account of {bucket} has a hierarchical namespace");
            let advice = "that works, but costs more for each write: an account without is enough";
            findings.push(Finding::new(Severity::Note, what, advice));
        }
        findings
    }
}

/// The status of the one request in a batch, which is how the client crate deletes.
fn status_in_batch(text: &str) -> Option<u16> {
    let (_, rest) = text.rsplit_once("(code: ")?;
    rest.get(..3)?.parse().ok()
}
