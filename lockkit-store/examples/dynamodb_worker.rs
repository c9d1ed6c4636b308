//! The other processes of the tests of DynamoDB. See `lockkit_lab::worker`.

use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_store::{DynamoStore, StoreDriver, StoreOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    lockkit_lab::worker::serve(connect).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    let store = DynamoStore::open_with(&url, |config| {
        config.credentials_provider(Credentials::from_keys("test", "secret", None))
    })
    .await?;
    let options =
        StoreOptions::default().pace(Duration::from_millis(50)).min_ttl(Duration::from_millis(500));
    let driver = StoreDriver::connect(Arc::new(store), options).await?;
    LockManager::owning(Arc::new(driver), settings)
}
