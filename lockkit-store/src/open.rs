//! From a URL to a driver: the one place of this crate that knows which stores there are.

#[cfg(any(feature = "azure", feature = "gcs", feature = "nats", feature = "s3"))]
use std::sync::Arc;

use lockkit_core::{Error, Result};

use crate::driver::StoreDriver;

impl StoreDriver {
    /// Connects to the store that the URL names, of those that are compiled in: the features of this crate.
    ///
    /// # Cancel safety
    /// As for [`connect`](Self::connect).
    pub async fn connect_url(url: &str) -> Result<Self> {
        match scheme(url) {
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" => {
                let target = crate::nats::parse(url)?;
                let options = target.store.clone();
                Self::connect(Arc::new(crate::nats::NatsStore::open(target).await?), options).await
            }
            #[cfg(feature = "s3")]
            "s3" => {
                let target = crate::s3::parse(url)?;
                let options = target.store.clone();
                Self::connect(Arc::new(crate::s3::S3Store::of(target)?), options).await
            }
            #[cfg(feature = "azure")]
            "az" => {
                let target = crate::azure::parse(url)?;
                let options = target.store.clone();
                Self::connect(Arc::new(crate::azure::AzureStore::of(target)?), options).await
            }
            #[cfg(feature = "gcs")]
            "gs" => {
                let target = crate::gcs::parse(url)?;
                let options = target.store.clone();
                Self::connect(Arc::new(crate::gcs::GcsStore::of(target)?), options).await
            }
            other => Err(unknown(other)),
        }
    }

    /// Whether a store understands what the URL says, so far as it can tell without I/O (but for the files
    /// that the URL names).
    pub fn check_url(url: &str) -> Result<()> {
        match scheme(url) {
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" => crate::nats::parse(url).map(drop),
            #[cfg(feature = "s3")]
            "s3" => crate::s3::parse(url).map(drop),
            #[cfg(feature = "azure")]
            "az" => crate::azure::parse(url).map(drop),
            #[cfg(feature = "gcs")]
            "gs" => crate::gcs::parse(url).map(drop),
            other => Err(unknown(other)),
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown(scheme: &str) -> Error {
    Error::Config(format!("there is no store for {scheme}: in this build of lockkit-store"))
}
