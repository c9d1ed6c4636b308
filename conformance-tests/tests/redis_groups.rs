//! Redis behind sentinels, and a Redis cluster: all cases on each.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_conformance::lab::raw::resp::{self, Reply};
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
    cell.get_or_try_init(|| calm(layout)).await.map_err(|e| Error::permanent("lab", e))
}

/// A group that takes a machine which stands still for some seconds for nothing worse. The lab's own
/// groups are quick to believe a member dead, since that is what faults are staged with.
async fn calm(layout: Layout) -> Result<Group, String> {
    let group = Group::start(layout).await.map_err(|e| e.to_string())?;
    let (servers, words): (_, &[&str]) = match layout {
        Layout::RedisCluster => {
            (group.members(), &["CONFIG", "SET", "cluster-node-timeout", "60000"])
        }
        _ => (group.sentinels(), &["SENTINEL", "SET", "main", "down-after-milliseconds", "60000"]),
    };
    for server in servers {
        match resp::ask(server.addr(), words).await.map_err(|e| e.to_string())? {
            Reply::Text(done) if done == "OK" => {}
            other => return Err(format!("{words:?}: {other:?}")),
        }
    }
    Ok(group)
}

#[async_trait]
impl Harness for Members {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(
            RedisDriver::connect(&format!("{}?timeout=30s", group(self.0).await?.url())).await?,
        ))
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
