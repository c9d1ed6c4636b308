//! Redis behind sentinels, and a Redis cluster: all cases on each.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_conformance::lab::{Group, Layout};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_redis::RedisDriver;
use tokio::sync::OnceCell;

struct Members(Layout);

/// One group of each layout for all cases: none of them disturbs it.
async fn group(layout: Layout) -> Result<&'static Group, Error> {
    static SENTINEL: OnceCell<Group> = OnceCell::const_new();
    static CLUSTER: OnceCell<Group> = OnceCell::const_new();
    let cell = if layout == Layout::RedisCluster { &CLUSTER } else { &SENTINEL };
    cell.get_or_try_init(|| Group::start(layout)).await.map_err(|e| Error::permanent("lab", e))
}

#[async_trait]
impl Harness for Members {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(RedisDriver::connect(&group(self.0).await?.url()).await?))
    }
}

mod sentinel {
    use super::*;
    lockkit_conformance::suite!(Members(Layout::RedisSentinel));
}

mod cluster {
    use super::*;
    lockkit_conformance::suite!(Members(Layout::RedisCluster));
}
