//! etcd, a single server and a cluster of three: what its operations cost, and what happens when
//! server or network misbehave.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{
    self, AlarmAction, AlarmType, Client, CompactionOptions, ConnectOptions, GetOptions, KeyValue,
};
use lockkit_lab::{Concerns, Costs, Deletion, Deployment, RefusalMode};
use lockkit_lab::{Layout, Server, ServerKind};

struct Etcd;

#[async_trait]
impl Deployment for Etcd {
    fn kind(&self) -> ServerKind {
        ServerKind::Etcd
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(EtcdDriver::connect(url).await?))
    }

    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        // The claim after the next one is told that the next one holds, so that it need not read the
        // queue when that leaves.
        costs.wake_ups = 2;
        costs
    }

    fn layouts(&self) -> Vec<Layout> {
        vec![Layout::EtcdCluster]
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![
            Deletion {
                what: "a compacted revision",
                fault: None,
                act: |server| Box::pin(async { done(compact(server.addr()).await) }),
            },
            Deletion {
                what: "the holder's lease is revoked",
                fault: Some(Fault::BrokenByForce),
                act: |server| Box::pin(async { done(revoke_holder(server.addr()).await) }),
            },
            Deletion {
                what: "the holder's key is deleted",
                fault: Some(Fault::BrokenByForce),
                act: |server| Box::pin(async { done(delete_holder(server.addr()).await) }),
            },
        ]
    }

    fn refusals(&self) -> Vec<RefusalMode> {
        vec![
            RefusalMode {
                what: "the disk is full",
                retryable: false,
                concerns: Concerns::Claims,
                begin: |server| alarm(server, AlarmAction::Activate),
                end: |server| alarm(server, AlarmAction::Deactivate),
            },
            RefusalMode {
                what: "the login is refused",
                retryable: false,
                concerns: Concerns::Claims,
                begin: |server| Box::pin(async { done(demand_logins(server.addr()).await) }),
                end: |server| Box::pin(async { done(forget_logins(server.addr()).await) }),
            },
        ]
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("etcd_worker"))
    }
}

type Done = Result<(), etcd_client::Error>;

fn done(result: Done) -> io::Result<()> {
    result.map_err(io::Error::other)
}

async fn client(addr: SocketAddr) -> Result<Client, etcd_client::Error> {
    Client::connect([addr.to_string()], None).await
}

/// Forgets all revisions but the last, which none of the locks has seen.
async fn compact(addr: SocketAddr) -> Done {
    let mut client = client(addr).await?;
    let written = client.put("no lock", "", None).await?;
    let now = written.header().map_or(0, |header| header.revision());
    client.compact(now, Some(CompactionOptions::new().with_physical())).await.map(drop)
}

async fn revoke_holder(addr: SocketAddr) -> Done {
    let (mut client, holder) = (client(addr).await?, holder(addr).await?);
    client.lease_revoke(holder.lease()).await.map(drop)
}

async fn delete_holder(addr: SocketAddr) -> Done {
    let (mut client, holder) = (client(addr).await?, holder(addr).await?);
    client.delete(holder.key(), None).await.map(drop)
}

/// The only lock's first key.
async fn holder(addr: SocketAddr) -> Result<KeyValue, etcd_client::Error> {
    let mut client = client(addr).await?;
    let mut line = client.get("lockkit/lock/", Some(GetOptions::new().with_prefix())).await?;
    let first = line.take_kvs().into_iter().min_by_key(|kv| kv.create_revision());
    first.ok_or_else(|| etcd_client::Error::InvalidArgs("there is no holder".into()))
}

fn alarm(
    server: &Server,
    action: AlarmAction,
) -> futures_util::future::BoxFuture<'_, io::Result<()>> {
    Box::pin(async move {
        let raised = async {
            let mut client = client(server.addr()).await?;
            client.alarm(action, AlarmType::Nospace, None).await.map(drop)
        };
        done(raised.await)
    })
}

const ROOT: (&str, &str) = ("root", "not-for-everyone");

async fn demand_logins(addr: SocketAddr) -> Done {
    let mut client = client(addr).await?;
    client.user_add(ROOT.0, ROOT.1, None).await?;
    client.user_grant_role(ROOT.0, "root").await?;
    client.auth_enable().await.map(drop)
}

async fn forget_logins(addr: SocketAddr) -> Done {
    let login = ConnectOptions::new().with_user(ROOT.0, ROOT.1);
    let mut client = Client::connect([addr.to_string()], Some(login)).await?;
    client.auth_disable().await.map(drop)
}

lockkit_lab::trials!(Etcd);
