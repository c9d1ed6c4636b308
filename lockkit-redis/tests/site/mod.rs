//! Redis as a site for trials: a server alone, or a group. Knows what can be staged, not what must
//! hold.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_lab::raw::resp;
use lockkit_lab::{Concerns, Costs, Deletion, Deployment, RefusalMode};
use lockkit_lab::{Layout, Server, ServerKind};
use lockkit_redis::RedisDriver;

pub(crate) struct Redis {
    layout: Option<Layout>,
}

impl Redis {
    #[allow(dead_code, reason = "each test file has one of these")]
    pub(crate) fn alone() -> Self {
        Self { layout: None }
    }

    #[allow(dead_code, reason = "each test file has one of these")]
    pub(crate) fn on(layout: Layout) -> Self {
        Self { layout: Some(layout) }
    }
}

#[async_trait]
impl Deployment for Redis {
    fn kind(&self) -> ServerKind {
        ServerKind::Redis
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(RedisDriver::connect(url).await?))
    }

    fn layout(&self) -> Option<Layout> {
        self.layout
    }

    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        if self.layout == Some(Layout::RedisCluster) {
            // The three masters.
            costs.renewed_side_by_side = 3;
        }
        costs
    }

    /// Those in which another server can take over.
    fn layouts(&self) -> Vec<Layout> {
        match self.layout {
            Some(Layout::RedisCluster) => vec![Layout::RedisClusterWithReplicas],
            layout => layout.into_iter().collect(),
        }
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![
            Deletion { what: "SCRIPT FLUSH", fault: None, act: |s| ask(s, &["SCRIPT", "FLUSH"]) },
            Deletion {
                what: "FLUSHALL",
                fault: Some(Fault::DataLost),
                act: |s| ask(s, &["FLUSHALL"]),
            },
        ]
    }

    fn refusals(&self) -> Vec<RefusalMode> {
        let mut refusals = vec![
            RefusalMode {
                what: "the memory is full",
                retryable: true,
                concerns: Concerns::Claims,
                begin: |s| ask(s, &["CONFIG", "SET", "maxmemory", "1"]),
                end: |s| ask(s, &["CONFIG", "SET", "maxmemory", "0"]),
            },
            RefusalMode {
                what: "the login is refused",
                retryable: false,
                concerns: Concerns::Newcomers,
                begin: |s| ask(s, &["CONFIG", "SET", "requirepass", PASSWORD]),
                end: |s| Box::pin(forget_password(s)),
            },
        ];
        // In a group it is not for us to say who leads.
        if self.layout.is_none() {
            refusals.push(RefusalMode {
                what: "the server is a read-only replica",
                retryable: true,
                concerns: Concerns::Claims,
                begin: |s| ask(s, &["REPLICAOF", "127.0.0.1", "1"]),
                end: |s| ask(s, &["REPLICAOF", "NO", "ONE"]),
            });
        }
        refusals
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("redis_worker"))
    }
}

const PASSWORD: &str = "not-for-everyone";

fn ask<'a>(server: &'a Server, words: &'static [&'static str]) -> BoxFuture<'a, io::Result<()>> {
    Box::pin(async move { resp::ask(server.addr(), words).await.map(drop) })
}

async fn forget_password(server: &Server) -> io::Result<()> {
    let mut connection = resp::RespConnection::open(server.addr()).await?;
    connection.call(&["AUTH", PASSWORD]).await?;
    connection.call(&["CONFIG", "SET", "requirepass", ""]).await.map(drop)
}
