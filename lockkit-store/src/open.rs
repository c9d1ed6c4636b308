//! From a URL to a driver: the one place of this crate that knows which stores there are.

use std::sync::Arc;

use lockkit_core::{Error, Result};

use crate::driver::StoreDriver;
#[cfg(feature = "objects")]
use crate::objects::BucketService;
use crate::options::StoreOptions;
use crate::store::Store;

impl StoreDriver {
    /// Connects to the store that the URL names, of those that are compiled in: the features of this crate.
    ///
    /// # Cancel safety
    /// As for [`connect`](Self::connect).
    pub async fn connect_url(url: &str) -> Result<Self> {
        let (store, options) = open(url).await?;
        Self::connect(store, options).await
    }

    /// Whether a store understands what the URL says, so far as it can tell without I/O (but for the files
    /// that the URL names).
    pub fn check_url(url: &str) -> Result<()> {
        match scheme(url) {
            #[cfg(feature = "dynamodb")]
            "dynamodb" => crate::dynamodb::parse(url).map(drop),
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" => crate::nats::parse(url).map(drop),
            #[cfg(feature = "s3")]
            "s3" => crate::s3::S3::parse(url).map(drop),
            #[cfg(feature = "azure")]
            "az" => crate::azure::Azure::parse(url).map(drop),
            #[cfg(feature = "gcs")]
            "gs" => crate::gcs::Gcs::parse(url).map(drop),
            other => Err(unknown(other)),
        }
    }
}

/// The store, and what its URL says to drivers.
async fn open(url: &str) -> Result<(Arc<dyn Store>, StoreOptions)> {
    match scheme(url) {
        #[cfg(feature = "dynamodb")]
        "dynamodb" => {
            let store = crate::DynamoStore::open(url).await?;
            Ok((Arc::new(store.clone()), store.options()))
        }
        #[cfg(feature = "nats")]
        "nats" | "nats+tls" => {
            let store = crate::NatsStore::connect(url).await?;
            Ok((Arc::new(store.clone()), store.options()))
        }
        #[cfg(feature = "s3")]
        "s3" => bucket::<crate::s3::S3>(url),
        #[cfg(feature = "azure")]
        "az" => bucket::<crate::azure::Azure>(url),
        #[cfg(feature = "gcs")]
        "gs" => bucket::<crate::gcs::Gcs>(url),
        other => Err(unknown(other)),
    }
}

#[cfg(feature = "objects")]
fn bucket<S: BucketService>(url: &str) -> Result<(Arc<dyn Store>, StoreOptions)> {
    let store = crate::BucketStore::<S>::open(url)?;
    Ok((Arc::new(store.clone()), store.options()))
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown(scheme: &str) -> Error {
    Error::Config(format!("there is no store for {scheme}: in this build of lockkit-store"))
}
