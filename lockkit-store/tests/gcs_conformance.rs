//! All cases on the lab's server, which speaks the XML API of Google Cloud Storage, at a pace for tests.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::s3::S3Server;
use lockkit_store::{GcsStore, StoreDriver, StoreOptions};

#[path = "buckets/leftovers.rs"]
mod leftovers;

struct Bucket;

fn url() -> String {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| S3Server::start().expect("it listens"));
    format!("gs://locks/test?endpoint={}", server.endpoint())
}

fn store() -> Result<GcsStore, Error> {
    GcsStore::open_with(&url(), |client| client.with_bearer_token("test"))
}

#[async_trait]
impl Harness for Bucket {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let options = StoreOptions::default()
            .pace(Duration::from_millis(50))
            .swap_pace(Duration::ZERO)
            .min_ttl(Duration::from_millis(500))
            .skip_probe();
        Ok(Arc::new(StoreDriver::connect(Arc::new(store()?), options).await?))
    }

    fn worker(&self) -> Option<Worker> {
        Some(Worker { program: lockkit_lab::worker::example("bucket_worker"), url: url() })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        leftovers::leftovers(&store()?, namespace).await
    }
}

mod on_gcs {
    lockkit_conformance::suite!(super::Bucket);
}
