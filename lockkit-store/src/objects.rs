//! What buckets of objects have in common: S3, Azure Blob Storage, Google Cloud Storage. A document is an
//! object, and a swap is one conditional PUT; reads of all three are linearizable.
//!
//! [`bucket`] has the requests, [`answers`] what errors mean; [`http`] sends each request once. What differs is
//! a [`BucketService`].

mod answers;
mod bucket;
mod http;

use lockkit_core::Result;
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::state::Finding;
use object_store::RetryConfig;

pub(crate) use self::answers::{RequestKind, ServerAnswer, ServerError};
pub(crate) use self::bucket::BucketClient;
pub use self::bucket::BucketStore;
pub(crate) use self::http::{OnceConnector, ResponseHeaders};
use crate::service_url::{ServiceUrl, UrlForm};
use crate::store::StoreFacts;

/// What differs between the services of buckets. Sealed.
pub trait BucketService: Clone + Send + Sync + 'static {
    /// Makes clients of the client crate.
    type Builder: Clone + Send + Sync + 'static;
    type Client: BucketClient;

    const FORM: UrlForm;

    /// Whether swaps name the generation of an object, and not its ETag.
    const HAS_GENERATIONS: bool = false;

    /// What the environment says.
    fn from_env() -> Self::Builder;

    /// A client with connections of its own.
    fn client(url: &ServiceUrl, builder: Self::Builder) -> Result<Self::Client>;

    /// Reads `SCHEME://BUCKET/PREFIX` with its options. No I/O.
    fn parse(url: &str) -> Result<ServiceUrl> {
        ServiceUrl::parse(url, &Self::FORM)
    }

    fn facts() -> StoreFacts;

    /// The rights that a request needs, in the service's own words.
    fn rights(request: RequestKind) -> &'static str;

    /// What an error means, where the service has a word for it.
    fn explain(error: &ServerError<'_>) -> Option<ServerAnswer>;

    /// What the answer to the read of an object shows about its bucket.
    fn findings(bucket: &str, answer: &ResponseHeaders) -> Vec<Finding>;
}

/// What holds of the buckets of every service.
pub(crate) fn bucket_facts(name: &'static str) -> StoreFacts {
    let mut facts = StoreFacts::of(name);
    (facts.most_bytes, facts.faults) = (4_000_000, FAULTS);
    facts
}

/// What each fault may cost in a bucket.
const FAULTS: &[(Fault, Guarantee)] = &[
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
