//! All cases on Azurite, the emulator of Azure Blob Storage, at a pace for tests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::{ClaimId, LockDriver};
use lockkit_core::{Error, Namespace};
use lockkit_lab::raw::azure;
use lockkit_lab::{Kind, LabError, Shared};
use lockkit_store::{AzureStore, StoreDriver, StoreOptions};
use tokio::sync::OnceCell;

#[path = "buckets/leftovers.rs"]
mod leftovers;

/// A container of its own, since cases that run at the same time would be in each other's way in the 16
/// documents of one.
#[derive(Default)]
struct Container {
    url: OnceCell<String>,
}

impl Container {
    async fn url(&self) -> Result<&str, Error> {
        let url = self.url.get_or_try_init(|| async {
            let server = Shared::server(Kind::Azurite).await?.addr();
            let name = format!("case-{}", ClaimId::random().to_hex());
            let created = azure::create_container(server, &name).await;
            created.map_err(|error| LabError::Answer(error.to_string()))?;
            let account = azure::ACCOUNT;
            let place = format!("account={account}&endpoint=http://{server}/{account}");
            Ok::<_, LabError>(format!("az://{name}/test?{place}"))
        });
        url.await.map(String::as_str).map_err(|error| Error::permanent("lab", error))
    }
}

#[async_trait]
impl Harness for Container {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let store = AzureStore::open(self.url().await?)?;
        let options = StoreOptions::default()
            .pace(Duration::from_millis(50))
            .min_ttl(Duration::from_millis(500))
            .skip_probe();
        Ok(Arc::new(StoreDriver::connect(Arc::new(store), options).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let url = self.url.get()?.clone();
        Some(Worker { program: lockkit_lab::worker::example("bucket_worker"), url })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        leftovers::leftovers(&AzureStore::open(self.url().await?)?, namespace).await
    }
}

mod on_azurite {
    lockkit_conformance::suite!(super::Container::default());
}
