//! The other processes of the tests of buckets. See `lockkit_lab::worker`.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::{Error, LockManager, Settings};
use lockkit_store::{AzureStore, GcsStore, S3Store, Store, StoreDriver, StoreOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    lockkit_lab::worker::serve(connect).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    let store: Arc<dyn Store> = match url.split(':').next() {
        Some("az") => Arc::new(AzureStore::open(&url)?),
        Some("gs") => Arc::new(GcsStore::open_with(&url, |it| it.with_bearer_token("test"))?),
        _ => Arc::new(S3Store::open_with(&url, |client| {
            client.with_access_key_id("test").with_secret_access_key("secret")
        })?),
    };
    let options = StoreOptions::default()
        .pace(Duration::from_millis(50))
        .swap_pace(Duration::ZERO)
        .min_ttl(Duration::from_millis(500));
    let driver = StoreDriver::connect(store, options).await?;
    LockManager::owning(Arc::new(driver), settings)
}
