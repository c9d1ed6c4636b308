//! Redis behind sentinels, and a Redis cluster: all cases on each.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::lab::{Group, Layout};
use lockkit_conformance::{Harness, Worker};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_redis::RedisDriver;
use tokio::sync::OnceCell;

struct Members(Layout);

/// One group of each layout for all cases: none of them disturbs it.
fn cell(layout: Layout) -> &'static OnceCell<Group> {
    static SENTINEL: OnceCell<Group> = OnceCell::const_new();
    static CLUSTER: OnceCell<Group> = OnceCell::const_new();
    if layout == Layout::RedisCluster { &CLUSTER } else { &SENTINEL }
}

async fn group(layout: Layout) -> Result<&'static Group, Error> {
    cell(layout)
        .get_or_try_init(|| Group::start(layout))
        .await
        .map_err(|e| Error::permanent("lab", e))
}

#[async_trait]
impl Harness for Members {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = format!("{}?timeout=30s", group(self.0).await?.url());
        Ok(Arc::new(RedisDriver::connect(&url).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let program = env!("CARGO_BIN_EXE_lockkit-conformance").into();
        Some(Worker { program, url: format!("{}?timeout=30s", cell(self.0).get()?.url()) })
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
