//! The other processes of the tests of S3 buckets. See `lockkit_lab::worker`.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::{Error, LockManager, Settings};
use lockkit_store::{S3Store, StoreDriver, StoreOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    lockkit_lab::worker::serve(connect).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    let store = S3Store::open_with(&url, |client| {
        client.with_access_key_id("test").with_secret_access_key("secret")
    })?;
    let options =
        StoreOptions::default().pace(Duration::from_millis(50)).min_ttl(Duration::from_millis(500));
    let driver = StoreDriver::connect(Arc::new(store), options).await?;
    LockManager::owning(Arc::new(driver), settings)
}
