//! All cases on the lab's S3 server, at a pace for tests.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::s3::S3Server;
use lockkit_store::{S3Store, StoreDriver, StoreOptions};

struct Bucket;

fn server() -> &'static S3Server {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    SERVER.get_or_init(|| S3Server::start().expect("it listens"))
}

fn url() -> String {
    format!("s3://locks/test?endpoint={}", server().endpoint())
}

#[async_trait]
impl Harness for Bucket {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let store = S3Store::open_with(&url(), |client| {
            client.with_access_key_id("test").with_secret_access_key("secret")
        })?;
        // Each case has a server of its own, which the tests of the probe have probed.
        let options = StoreOptions::default()
            .pace(Duration::from_millis(50))
            .min_ttl(Duration::from_millis(500))
            .skip_probe();
        Ok(Arc::new(StoreDriver::connect(Arc::new(store), options).await?))
    }

    fn worker(&self) -> Option<Worker> {
        Some(Worker { program: lockkit_lab::worker::example("bucket_worker"), url: url() })
    }

    /// Claims in queues, and values that stay.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let objects = server().objects().map_err(|error| Error::permanent("lab", error))?;
        let mut count = 0;
        for (key, document) in objects {
            let own = format!("\"namespace\":{:?}", namespace.as_str());
            if key.starts_with("test/r/") && document.contains(&own) {
                let stays = document.contains("\"ttl_us\":null");
                count += u64::from(stays && !document.contains("\"value\":null"));
            }
            if key.starts_with("test/l/") {
                // Each queue begins with its namespace, and each of its claims has a session.
                let queues = document.split("\"namespace\":").skip(1);
                let named = format!("{:?}", namespace.as_str());
                let queues = queues.filter(|queue| queue.starts_with(&named));
                count +=
                    queues.map(|queue| queue.matches("\"session\":").count() as u64).sum::<u64>();
            }
        }
        Ok(Some(count))
    }
}

lockkit_conformance::suite!(Bucket);
