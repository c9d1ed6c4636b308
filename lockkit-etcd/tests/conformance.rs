//! The etcd driver: all cases of the conformance suite on one server, and those about the
//! driver on a cluster of three.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, GetOptions};
use lockkit_lab::{LabError, Layout, ServerKind, SharedServer};
use tokio::sync::OnceCell;

/// Where the cases run: on a server or a cluster that tests share, and that nothing disturbs.
#[derive(Default)]
struct Etcd {
    clustered: bool,
    place: OnceCell<Place>,
}

struct Place {
    url: String,
    member: String,
}

impl Etcd {
    fn clustered() -> Self {
        Self { clustered: true, ..Self::default() }
    }

    async fn place(&self) -> Result<&Place, Error> {
        self.place.get_or_try_init(|| self.find()).await.map_err(|e| Error::permanent("lab", e))
    }

    async fn find(&self) -> Result<Place, LabError> {
        let server = match self.clustered {
            true => SharedServer::group(Layout::EtcdCluster).await?,
            false => SharedServer::server(ServerKind::Etcd).await?,
        };
        Ok(Place { url: server.url().to_owned(), member: server.addr().to_string() })
    }
}

#[async_trait]
impl Harness for Etcd {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(EtcdDriver::connect(&self.place().await?.url).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let url = self.place.get()?.url.clone();
        Some(Worker { program: lockkit_lab::worker::example("etcd_worker"), url })
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let lost = |why| Error::permanent("etcd", why);
        let member = &self.place().await?.member;
        let mut client = Client::connect([member], None).await.map_err(lost)?;
        let mut count = 0;
        for kind in ["lock", "semaphore", "register"] {
            let options = GetOptions::new().with_prefix().with_keys_only();
            let prefix = format!("lockkit/{kind}/{namespace}/");
            let found = client.get(prefix, Some(options)).await.map_err(lost)?;
            // Not the fixed limit of a semaphore, nor what is remembered of a register.
            let kept = |key: &str| key.contains("/~") || key.ends_with("/meta");
            count += found.kvs().iter().filter(|kv| !kv.key_str().is_ok_and(kept)).count();
        }
        Ok(Some(count as u64))
    }
}

mod alone {
    lockkit_conformance::suite!(super::Etcd::default());
}

mod cluster {
    lockkit_conformance::suite!(driver: super::Etcd::clustered());
}
