//! A bucket of S3, or of a server that is compatible with it, as a [`Store`].
//!
//! A document is an object, and its version the object's ETag. A swap is a conditional PUT: `If-Match` with
//! the ETag, or `If-None-Match: *` for a document that is not there yet. Reads of S3 are linearizable since
//! December 2020. [`answers`](mod@answers) has what each answer of the server means; [`http`](mod@http) sends
//! each request once.

mod answers;
mod http;
mod target;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};

use self::answers::{RequestKind, ServerAnswer};
pub(crate) use self::target::{Target, parse};
use crate::document::META;
use crate::store::{
    Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreError, StoreFacts,
};

const BACKEND: &str = "s3";
/// Keys of one page of a listing, which servers bound.
const PAGE: usize = 1_000;

const FAULTS: &[(Fault, Guarantee)] = &[
    (Fault::DataLost, Guarantee::Tokens),
    (Fault::OlderDataRestored, Guarantee::Tokens),
    // A bucket that is replicated to another one, which takes over.
    (Fault::Failover, Guarantee::Tokens),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

/// A bucket of S3, or of a compatible server. Cheap to clone; clones share their connections.
///
/// ```no_run
/// use std::sync::Arc;
/// use lockkit_store::{S3Store, StoreDriver, StoreOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let store = S3Store::open("s3://my-bucket/locks?region=eu-central-1")?;
/// let driver = StoreDriver::connect(Arc::new(store), StoreOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct S3Store {
    client: Arc<AmazonS3>,
    /// For further clients.
    builder: AmazonS3Builder,
    target: Arc<Target>,
    facts: Arc<StoreFacts>,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Store").field("bucket", &self.target.bucket).finish_non_exhaustive()
    }
}

impl S3Store {
    /// A store in the bucket that a URL names: `s3://BUCKET/PREFIX?region=…&endpoint=…`. Credentials, and what
    /// the URL does not say, come from the environment variables that the AWS command knows. No I/O but for
    /// the certificates of this machine's authorities.
    pub fn open(url: &str) -> Result<Self> {
        Self::of(parse(url)?)
    }

    /// The same with settings of the client crate: credentials from elsewhere, encryption. Bucket, region and
    /// endpoint are those of the URL and the environment; and locks need conditional writes and requests that
    /// are sent once, whatever else is set.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), lockkit_core::Error> {
    /// use lockkit_store::S3Store;
    ///
    /// # let secret = String::new();
    /// let store = S3Store::open_with("s3://my-bucket/locks?region=eu-central-1", |client| {
    ///     client.with_access_key_id("AKIA…").with_secret_access_key(secret)
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn open_with(
        url: &str,
        configure: impl FnOnce(AmazonS3Builder) -> AmazonS3Builder,
    ) -> Result<Self> {
        let target = parse(url)?;
        let builder = configure(AmazonS3Builder::from_env());
        Self::from_parts(Arc::new(target), builder)
    }

    pub(crate) fn of(target: Target) -> Result<Self> {
        Self::from_parts(Arc::new(target), AmazonS3Builder::from_env())
    }

    fn from_parts(target: Arc<Target>, builder: AmazonS3Builder) -> Result<Self> {
        let client = Arc::new(target.client(builder.clone())?);
        let mut facts = StoreFacts::of(BACKEND);
        facts.most_bytes = 4_000_000;
        (facts.shards, facts.min_ttl) = (16, Duration::from_secs(3));
        (facts.pace, facts.faults) = (Duration::from_secs(1), FAULTS);
        Ok(Self { client, builder, target, facts: Arc::new(facts) })
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}{key}", self.before_keys()))
    }

    /// What stands before each key in the bucket.
    fn before_keys(&self) -> String {
        match &*self.target.prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        }
    }

    fn answer(&self, error: &object_store::Error, kind: RequestKind) -> ServerAnswer {
        ServerAnswer::of(error, kind, &self.target.bucket)
    }

    /// Reads an object: also whether the bucket keeps old versions of it.
    async fn read(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<(ReadOutcome, bool), StoreError> {
        let options = GetOptions {
            if_none_match: unless.map(|version| version.as_str().to_owned()),
            ..GetOptions::default()
        };
        let failed = |error: &object_store::Error| match self.answer(error, RequestKind::Get) {
            ServerAnswer::Missing => Ok((ReadOutcome::Absent, false)),
            ServerAnswer::Same => Ok((ReadOutcome::Same, false)),
            answer => Err(answer.into_error()),
        };
        let found = match self.client.get_opts(&self.path(key), options).await {
            Ok(found) => found,
            Err(error) => return failed(&error),
        };
        let keeps_versions = found.meta.version.as_ref().is_some_and(|version| version != "null");
        let Some(etag) = found.meta.e_tag.clone() else {
            return Err(StoreError::Forbidden(answers::because(NO_ETAG)));
        };
        match found.bytes().await {
            Ok(bytes) => {
                let (bytes, version) = (bytes.to_vec(), DocumentVersion::opaque(etag));
                Ok((ReadOutcome::Document(Document { bytes, version }), keeps_versions))
            }
            Err(error) => failed(&error),
        }
    }
}

const NO_ETAG: &str =
    "the server answers without an ETag, by which versions are told apart: use another store";

#[async_trait]
impl Store for S3Store {
    fn facts(&self) -> &StoreFacts {
        &self.facts
    }

    async fn get(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<ReadOutcome, StoreError> {
        self.read(key, unless).await.map(|(outcome, _)| outcome)
    }

    async fn put_if(
        &self,
        key: &str,
        document: &[u8],
        expected: Option<&DocumentVersion>,
    ) -> PutOutcome {
        let (mode, kind) = match expected {
            None => (PutMode::Create, RequestKind::Create),
            Some(version) => {
                let e_tag = Some(version.as_str().to_owned());
                (PutMode::Update(UpdateVersion { e_tag, version: None }), RequestKind::Update)
            }
        };
        let payload = PutPayload::from(document.to_vec());
        let put = self.client.put_opts(&self.path(key), payload, PutOptions::from(mode)).await;
        match put {
            Ok(stored) => match stored.e_tag {
                Some(etag) => PutOutcome::Stored(DocumentVersion::opaque(etag)),
                None => PutOutcome::Unknown(answers::because(NO_ETAG)),
            },
            Err(error) => self.answer(&error, kind).into_outcome(),
        }
    }

    async fn remove(&self, key: &str) -> Result<(), StoreError> {
        match self.client.delete(&self.path(key)).await {
            Ok(()) => Ok(()),
            Err(error) => match self.answer(&error, RequestKind::Delete) {
                ServerAnswer::Missing => Ok(()),
                answer => Err(answer.into_error()),
            },
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let before_keys = self.before_keys();
        let all = format!("{before_keys}{prefix}");
        let mut options = PaginatedListOptions {
            offset: after.map(|after| format!("{before_keys}{after}")),
            max_keys: Some(limit.min(PAGE)),
            ..PaginatedListOptions::default()
        };
        let mut keys = Vec::new();
        loop {
            let page = self.client.list_paginated(Some(&all), options.clone()).await;
            let page = page.map_err(|error| self.answer(&error, RequestKind::List).into_error())?;
            let found = page.result.objects.into_iter().filter_map(|object| {
                object.location.as_ref().strip_prefix(&*before_keys).map(str::to_owned)
            });
            keys.extend(found);
            options.page_token = page.page_token;
            if options.page_token.is_none() || keys.len() >= limit {
                keys.truncate(limit);
                return Ok(keys);
            }
        }
    }

    async fn another(&self) -> Result<Option<Arc<dyn Store>>, StoreError> {
        let another = Self::from_parts(self.target.clone(), self.builder.clone());
        let refused = |error: Error| StoreError::Forbidden(answers::because(error.to_string()));
        Ok(Some(Arc::new(another.map_err(refused)?)))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let read = self.read(META, None).await;
        let (_, keeps_versions) = read.map_err(|error| error.into_error(BACKEND))?;
        let finding = keeps_versions.then(|| {
            let what = format!(
                "the bucket {} keeps old versions of objects, and each change of a lock makes one",
                self.target.bucket
            );
            let advice =
                "add a lifecycle rule for this prefix that expires noncurrent versions after a day";
            Finding::new(Severity::Warning, what, advice)
        });
        Ok(finding.into_iter().collect())
    }
}
