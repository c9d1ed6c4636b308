//! Locks with fencing tokens over any store of small documents that can compare and swap.
//!
//! The author of a store implements [`Store`]: six short methods and some facts. [`StoreDriver`] is the
//! driver over it, with mutexes, read-write locks, semaphores, registers and everything that is built from
//! them. With the feature `testing`, a store in the test's own process loses and delays answers by a seed.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use std::sync::Arc;
//! use lockkit_core::LockManager;
//! use lockkit_store::testing::TestStore;
//! use lockkit_store::{StoreDriver, StoreOptions};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
//! let driver = StoreDriver::connect(Arc::new(TestStore::new()), StoreOptions::default()).await?;
//! let locks = LockManager::new(driver);
//! let guard = locks.mutex("invoice/42").lock().await?;
//! guard.release().await?;
//! locks.shutdown().await;
//! # Ok(()) }
//! # main().unwrap();
//! # }
//! ```
//!
//! # Where to begin reading
//! 1. `store.rs`: the trait and its contract.
//! 2. `document.rs`: what is stored. Queues lie in a fixed number of *shards*, and the claims of one process
//!    and TTL live by one *session*, whose owner *beats* it.
//! 3. `session.rs`, `sights.rs`, `observer.rs`: how a session is kept alive by its owner and ended by others.
//! 4. `queues.rs`, `shard.rs`: operations on a shard; the rule of who holds is core's.
//! 5. `claims.rs`, `waiters.rs`: the claims of this driver, and those that wait.
//! 6. `probe.rs`: what is tried on a store before it is used.
//! 7. `connect.rs`, `driver.rs`, `acquires.rs`, `listing.rs`, `registers.rs`: the driver's traits.
//! 8. `kept_sights.rs`: what is known of sessions after this process.
//!
//! `rules.rs` names the ten rules on which exclusion rests; in tests, each can be taken away.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquires;
#[cfg(feature = "azure")]
mod azure;
mod background;
mod claims;
mod connect;
mod context;
mod document;
mod driver;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "gcs")]
mod gcs;
#[cfg(any(feature = "dynamodb", feature = "objects"))]
mod https;
mod kept_sights;
mod listing;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "objects")]
mod objects;
mod observer;
mod open;
mod options;
mod probe;
mod queues;
mod registers;
mod rules;
#[cfg(feature = "s3")]
mod s3;
#[cfg(test)]
mod search;
#[cfg(any(feature = "dynamodb", feature = "objects"))]
mod service_url;
mod session;
mod shard;
mod sights;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod waiters;

#[cfg(feature = "azure")]
pub use azure::AzureStore;
pub use driver::StoreDriver;
#[cfg(feature = "gcs")]
pub use gcs::GcsStore;
pub use kept_sights::ignored_state;
#[cfg(feature = "nats")]
pub use nats::NatsStore;
pub use options::StoreOptions;
pub use probe::probe;
#[cfg(feature = "s3")]
pub use s3::S3Store;
pub use store::{
    ChangeReporter, Document, DocumentVersion, PutOutcome, ReadOutcome, Store, StoreError,
    StoreFacts,
};
#[cfg(feature = "dynamodb")]
pub use {aws_config, dynamodb::DynamoStore};
#[cfg(feature = "objects")]
pub use {object_store, objects::BucketStore};
