//! Redis behind sentinels, and a Redis cluster: all cases about the driver on each.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_lab::{Layout, SharedServer};
use lockkit_redis::RedisDriver;

struct Members(Layout);

/// Where the group of this process is, once a driver was made.
static URL: OnceLock<String> = OnceLock::new();

#[async_trait]
impl Harness for Members {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let group = SharedServer::group(self.0).await.map_err(|e| Error::permanent("lab", e))?;
        let url = format!("{}?timeout=30s", group.url());
        let driver = RedisDriver::connect(&url).await?;
        let _ = URL.set(url);
        Ok(Arc::new(driver))
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("redis_worker");
        Some(Worker { program, url: URL.get()?.clone() })
    }
}

mod sentinel {
    use super::*;
    lockkit_conformance::suite!(driver: Members(Layout::RedisSentinel));
}

mod cluster {
    use super::*;
    lockkit_conformance::suite!(driver: Members(Layout::RedisCluster));
}
