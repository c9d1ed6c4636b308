//! The stores of URLs, with the logins that the servers of tests take, at a pace for tests.

use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use lockkit_core::Error;
use lockkit_store::{
    AzureStore, DynamoStore, GcsStore, NatsStore, S3Store, Store, StoreDriver, StoreOptions,
};

pub(crate) async fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    Ok(match url.split(':').next() {
        Some("az") => Arc::new(AzureStore::open(url)?),
        Some("dynamodb") => {
            let login = Credentials::from_keys("test", "secret", None);
            let store = DynamoStore::open_with(url, |config| config.credentials_provider(login));
            Arc::new(store.await?)
        }
        Some("gs") => Arc::new(GcsStore::open_with(url, |it| it.with_bearer_token("test"))?),
        Some("s3") => Arc::new(S3Store::open_with(url, |client| {
            client.with_access_key_id("test").with_secret_access_key("secret")
        })?),
        _ => Arc::new(NatsStore::connect(url).await?),
    })
}

/// The tests of the probe have probed these stores.
pub(crate) fn quick() -> StoreOptions {
    StoreOptions::default()
        .skip_probe()
        .pace(Duration::from_millis(50))
        .swap_pace(Duration::ZERO)
        .min_ttl(Duration::from_millis(500))
}

/// NATS is quick enough as its URL says.
pub(crate) async fn driver(url: &str) -> Result<StoreDriver, Error> {
    match url.starts_with("nats") {
        true => StoreDriver::connect_url(url).await,
        false => StoreDriver::connect(open(url).await?, quick()).await,
    }
}
