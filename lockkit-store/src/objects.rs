//! What buckets of objects have in common: S3, Azure Blob Storage, Google Cloud Storage. A document is an
//! object, and a swap is one conditional PUT; reads of all three are linearizable.
//!
//! [`bucket`] has the requests, [`answers`] what errors mean, [`url`] the URLs; [`http`] sends each request
//! once. What differs is an [`ObjectService`].

mod answers;
mod bucket;
mod http;
mod url;

use std::fmt;

use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::state::Finding;
use object_store::RetryConfig;

pub(crate) use self::answers::{RequestKind, ServerAnswer, ServerError};
pub(crate) use self::bucket::ObjectBucket;
pub(crate) use self::http::{OnceConnector, ResponseHeaders};
pub(crate) use self::url::{BucketUrl, UrlForm, first_set};
use crate::store::StoreFacts;

/// What differs between the services of buckets.
pub(crate) trait ObjectService: fmt::Debug + Send + Sync {
    fn facts(&self) -> StoreFacts;

    /// Whether swaps name the generation of an object, and not its ETag.
    fn has_generations(&self) -> bool {
        false
    }

    /// The rights that a request needs, in the service's own words.
    fn rights(&self, request: RequestKind) -> &'static str;

    /// What an error means, where the service has a word for it.
    fn explain(&self, error: &ServerError<'_>) -> Option<ServerAnswer>;

    /// What the answer to the read of an object shows about its bucket.
    fn findings(&self, bucket: &str, answer: &ResponseHeaders) -> Vec<Finding>;
}

/// What each fault may cost in a bucket.
pub(crate) const FAULTS: &[(Fault, Guarantee)] = &[
    (Fault::DataLost, Guarantee::Tokens),
    (Fault::OlderDataRestored, Guarantee::Tokens),
    // A bucket that is replicated to another one, which takes over.
    (Fault::Failover, Guarantee::Tokens),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
];

/// A swap that succeeded comes back as a conflict when it is repeated.
pub(crate) fn never_again() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Makes a type around an [`ObjectBucket`] a [`Store`](crate::Store).
macro_rules! store_of_bucket {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($name));
                debug.field("bucket", &self.bucket.name()).finish_non_exhaustive()
            }
        }

        #[async_trait::async_trait]
        impl crate::Store for $name {
            fn facts(&self) -> &crate::StoreFacts {
                self.bucket.facts()
            }

            async fn get(
                &self,
                key: &str,
                unless: Option<&crate::DocumentVersion>,
            ) -> Result<crate::ReadOutcome, crate::StoreError> {
                self.bucket.get(key, unless).await
            }

            async fn put_if(
                &self,
                key: &str,
                document: &[u8],
                expected: Option<&crate::DocumentVersion>,
            ) -> crate::PutOutcome {
                self.bucket.put_if(key, document, expected).await
            }

            async fn remove(&self, key: &str) -> Result<(), crate::StoreError> {
                self.bucket.remove(key).await
            }

            async fn list(
                &self,
                prefix: &str,
                after: Option<&str>,
                limit: usize,
            ) -> Result<Vec<String>, crate::StoreError> {
                self.bucket.list(prefix, after, limit).await
            }

            async fn another(
                &self,
            ) -> Result<Option<std::sync::Arc<dyn crate::Store>>, crate::StoreError> {
                let bucket = self.bucket.another()?;
                Ok(Some(std::sync::Arc::new(Self { bucket })))
            }

            async fn examine(
                &self,
            ) -> Result<Vec<lockkit_core::state::Finding>, lockkit_core::Error> {
                self.bucket.examine().await
            }
        }
    };
}
pub(crate) use store_of_bucket;
