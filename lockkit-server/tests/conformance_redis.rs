//! A service over Redis: all cases, each through two servers.

mod site;

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_redis::RedisDriver;
use site::Site;

#[derive(Default)]
struct Served(Site);

#[async_trait]
impl Harness for Served {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let server = SharedServer::server(ServerKind::Redis)
            .await
            .map_err(|e| Error::permanent("lab", e))?;
        let backend =
            || async { Ok(Arc::new(RedisDriver::connect(server.url()).await?) as Arc<_>) };
        self.0.driver(backend).await
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("http_worker");
        Some(Worker { program, url: self.0.url(0)? })
    }
}

lockkit_conformance::suite!(Served::default());
