//! A lock service over etcd: all cases, each through two servers.

#[path = "../../lockkit-server/tests/site/mod.rs"]
mod site;

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_etcd::EtcdDriver;
use lockkit_lab::{ServerKind, SharedServer};
use site::Site;

#[derive(Default)]
struct Served(Site);

#[async_trait]
impl Harness for Served {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let server =
            SharedServer::server(ServerKind::Etcd).await.map_err(|e| Error::permanent("lab", e))?;
        let backend = || async { Ok(Arc::new(EtcdDriver::connect(server.url()).await?) as Arc<_>) };
        self.0.driver(backend).await
    }
}

lockkit_conformance::suite!(Served::default());
