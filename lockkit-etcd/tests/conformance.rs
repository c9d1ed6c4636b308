//! The etcd driver: all cases of the conformance suite, on one server.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_conformance::lab::{Kind, Shared};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, GetOptions};

struct Etcd;

impl Etcd {
    async fn server() -> Shared {
        Shared::server(Kind::Etcd).await.expect("an etcd can be started here")
    }

    async fn count(&self, namespace: &Namespace) -> Result<i64, lockkit_etcd::etcd_client::Error> {
        let server = Self::server().await;
        let mut client = Client::connect([server.addr().to_string()], None).await?;
        let mut count = 0;
        for space in ["lock", "semaphore", "broken/lock", "broken/semaphore"] {
            let options = GetOptions::new().with_prefix().with_count_only();
            let prefix = format!("lockkit/{space}/{namespace}/");
            count += client.get(prefix, Some(options)).await?.count();
        }
        Ok(count)
    }
}

#[async_trait]
impl Harness for Etcd {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(EtcdDriver::connect(Self::server().await.url()).await?))
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let count = self.count(namespace).await;
        count.map(|keys| Some(keys as u64)).map_err(|e| Error::permanent("etcd", e.to_string()))
    }
}

lockkit_conformance::suite!(Etcd);
