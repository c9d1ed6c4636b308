//! A bucket, and the requests by which its objects are documents.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::state::Finding;
use lockkit_core::{Error, Result};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, UpdateVersion,
};

use super::BucketService;
use super::answers::{RequestKind, ServerAnswer};
use super::http::ResponseHeaders;
use crate::document::META;
use crate::options::StoreOptions;
use crate::service_url::ServiceUrl;
use crate::store::{
    Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreError, StoreFacts, because,
};

/// Keys of one page of a listing, which servers bound.
const PAGE: usize = 1_000;

/// What is needed of a client of the client crate.
pub trait BucketClient: ObjectStore + PaginatedListStore {}

impl<C: ObjectStore + PaginatedListStore> BucketClient for C {}

/// A bucket of a service: an [`S3Store`](crate::S3Store), [`AzureStore`](crate::AzureStore) or
/// [`GcsStore`](crate::GcsStore). Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct BucketStore<S: BucketService> {
    client: Arc<dyn BucketClient>,
    /// Makes further clients.
    builder: S::Builder,
    url: Arc<ServiceUrl>,
    facts: Arc<StoreFacts>,
}

impl<S: BucketService> fmt::Debug for BucketStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (service, bucket) = (self.facts.name, &self.url.name);
        let mut debug = f.debug_struct("BucketStore");
        debug.field("service", &service).field("bucket", bucket).finish_non_exhaustive()
    }
}

impl<S: BucketService> BucketStore<S> {
    /// A store in the bucket that a URL names: `SCHEME://BUCKET/PREFIX?endpoint=…`, with the options of its
    /// service. Credentials, and what the URL does not say, come from the environment. No I/O but for the files
    /// that the environment names, and the certificates of this machine's authorities.
    pub fn open(url: &str) -> Result<Self> {
        Self::open_with(url, |client| client)
    }

    /// The same with settings of the client crate: credentials from elsewhere, encryption. Bucket and endpoint
    /// are those of the URL and the environment; and locks need conditional writes and requests that are sent
    /// once, whatever else is set.
    pub fn open_with(url: &str, configure: impl FnOnce(S::Builder) -> S::Builder) -> Result<Self> {
        let (url, builder) = (Arc::new(S::parse(url)?), configure(S::from_env()));
        let client = Arc::new(S::client(&url, builder.clone())?);
        Ok(Self { client, builder, url, facts: Arc::new(S::facts()) })
    }

    /// What holds of every bucket of this service.
    pub fn usual_facts() -> StoreFacts {
        S::facts()
    }

    /// What the URL says to drivers.
    pub(crate) fn options(&self) -> StoreOptions {
        self.url.store.clone()
    }
}

#[async_trait]
impl<S: BucketService> Store for BucketStore<S> {
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
            Some(version) => (PutMode::Update(condition(version)), RequestKind::Update),
        };
        let payload = PutPayload::from(document.to_vec());
        // Nothing between here and the store may answer with an older document.
        let attributes = Attributes::from_iter([(Attribute::CacheControl, "no-store")]);
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        match self.client.put_opts(&self.path(key), payload, options).await {
            Ok(stored) => match self.version(stored.e_tag, stored.version) {
                Some(version) => PutOutcome::Stored(version),
                None => PutOutcome::Unknown(because(NO_VERSION)),
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
            // Some servers begin with the key itself, or ignore where to begin.
            keys.extend(found.filter(|key| after.is_none_or(|after| key.as_str() > after)));
            options.page_token = page.page_token;
            if options.page_token.is_none() || keys.len() >= limit {
                keys.truncate(limit);
                return Ok(keys);
            }
        }
    }

    async fn another(&self) -> Result<Option<Arc<dyn Store>>, StoreError> {
        let refused = |error: Error| StoreError::Forbidden(because(error.to_string()));
        let client = Arc::new(S::client(&self.url, self.builder.clone()).map_err(refused)?);
        Ok(Some(Arc::new(Self { client, ..self.clone() })))
    }

    /// What the read of an object shows about the bucket.
    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let read = self.read(META, None).await;
        let (_, answer) = read.map_err(|error| error.into_error(self.facts.name))?;
        Ok(answer.map(|it| S::findings(&self.url.name, &it)).unwrap_or_default())
    }
}

impl<S: BucketService> BucketStore<S> {
    /// Reads an object; with the headers of the answer, where it has the object.
    async fn read(
        &self,
        key: &str,
        unless: Option<&DocumentVersion>,
    ) -> Result<(ReadOutcome, Option<ResponseHeaders>), StoreError> {
        let options = GetOptions {
            if_none_match: unless.and_then(|version| condition(version).e_tag),
            ..GetOptions::default()
        };
        let failed = |error: &object_store::Error| match self.answer(error, RequestKind::Get) {
            ServerAnswer::Missing => Ok((ReadOutcome::Absent, None)),
            ServerAnswer::Same => Ok((ReadOutcome::Same, None)),
            answer => Err(answer.into_error()),
        };
        let mut found = match self.client.get_opts(&self.path(key), options).await {
            Ok(found) => found,
            Err(error) => return failed(&error),
        };
        let headers = found.extensions.remove::<ResponseHeaders>().unwrap_or_default();
        let ObjectMeta { e_tag, version: generation, .. } = found.meta.clone();
        let Some(version) = self.version(e_tag, generation) else {
            return Err(StoreError::Forbidden(because(NO_VERSION)));
        };
        match found.bytes().await {
            Ok(bytes) => {
                let document = Document { bytes: bytes.to_vec(), version };
                Ok((ReadOutcome::Document(document), Some(headers)))
            }
            Err(error) => failed(&error),
        }
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}{key}", self.before_keys()))
    }

    /// What stands before each key in the bucket.
    fn before_keys(&self) -> String {
        match &*self.url.prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        }
    }

    fn answer(&self, error: &object_store::Error, kind: RequestKind) -> ServerAnswer {
        ServerAnswer::of::<S>(error, kind, &self.url.name)
    }

    fn version(
        &self,
        e_tag: Option<String>,
        generation: Option<String>,
    ) -> Option<DocumentVersion> {
        Some(DocumentVersion::opaque(match S::HAS_GENERATIONS {
            false => e_tag?,
            true => format!("{} {}", generation?, e_tag?),
        }))
    }
}

/// A version as the condition of a swap.
fn condition(version: &DocumentVersion) -> UpdateVersion {
    let (generation, e_tag) = match version.as_str().split_once(' ') {
        None => (None, version.as_str()),
        Some((generation, e_tag)) => (Some(generation.to_owned()), e_tag),
    };
    UpdateVersion { e_tag: Some(e_tag.to_owned()), version: generation }
}

const NO_VERSION: &str = "the server answers without the ETag or the generation by which versions are told \
                          apart: use another store";
