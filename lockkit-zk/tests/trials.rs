//! ZooKeeper, a server alone and an ensemble: what its operations cost, and what happens when server
//! or network misbehave.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_lab::{Concerns, Costs, Deletion, Deployment, RefusalMode};
use lockkit_lab::{Layout, Server, ServerKind};
use lockkit_zk::ZkDriver;
use lockkit_zk::zookeeper_client::{Acl, AuthId, Client, Error as ZkError, Permission};

struct ZooKeeper;

#[async_trait]
impl Deployment for ZooKeeper {
    fn kind(&self) -> ServerKind {
        ServerKind::ZooKeeper
    }

    /// Sessions that a busy machine does not end, and that end soon enough for a test.
    fn options(&self) -> &'static str {
        "?session_timeout=10s&tick=500ms"
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(ZkDriver::connect(url).await?))
    }

    /// Over the budget, as counted. The client leaves Nagle's algorithm on, so that requests that
    /// leave back to back are often two round trips.
    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        // A transaction that only looks, and a list behind it.
        costs.renew_thousand = 2;
        costs.fewer_at_times = 1;
        costs
    }

    fn layouts(&self) -> Vec<Layout> {
        vec![Layout::ZooKeeperEnsemble]
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![Deletion {
            what: "deleteall /lockkit",
            fault: Some(Fault::DataLost),
            act: |server| Box::pin(delete_all(server)),
        }]
    }

    fn refusals(&self) -> Vec<RefusalMode> {
        vec![RefusalMode {
            what: "the folder of the locks belongs to somebody else",
            retryable: false,
            concerns: Concerns::Claims,
            begin: |server| Box::pin(allow(server, Permission::READ | Permission::ADMIN)),
            end: |server| Box::pin(allow(server, Permission::ALL)),
        }]
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("zk_worker"))
    }
}

/// Allows this in the folders in which locks lie, to every client.
async fn allow(server: &Server, permission: Permission) -> io::Result<()> {
    let client = Client::connect(&server.addr().to_string()).await.map_err(io::Error::other)?;
    let acl = [Acl::new(permission, AuthId::anyone())];
    for namespace in client.list_children("/lockkit").await.map_err(io::Error::other)? {
        match client.set_acl(&format!("/lockkit/{namespace}/lock"), &acl, None).await {
            Ok(_) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(())
}

async fn delete_all(server: &Server) -> io::Result<()> {
    let client = Client::connect(&server.addr().to_string()).await.map_err(io::Error::other)?;
    delete_below(&client, "/lockkit".to_owned()).await;
    Ok(())
}

/// Children first; what comes again meanwhile stays.
fn delete_below(client: &Client, path: String) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        for child in client.list_children(&path).await.unwrap_or_default() {
            delete_below(client, format!("{path}/{child}")).await;
        }
        let _ = client.delete(&path, None).await;
    })
}

lockkit_lab::trials!(ZooKeeper);
