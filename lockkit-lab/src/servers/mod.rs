//! What differs between kinds of servers: how data is prepared, which command serves it, and which
//! question shows that it serves; a file per kind. May not start processes that stay: that is `server`.

pub(crate) mod azurite;
pub(crate) mod dynamodb;
pub(crate) mod etcd;
pub(crate) mod fake_gcs;
pub(crate) mod mariadb;
pub(crate) mod nats;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redis_cluster;
pub(crate) mod redis_sentinel;
pub(crate) mod zookeeper;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;

use super::error::{Doing, Result};
use super::kind::ServerKind;
use super::server_dir::ServerDir;

/// How to run one server of this kind that stands alone.
pub(crate) fn recipe(kind: ServerKind) -> Result<Box<dyn Recipe>> {
    Ok(match kind {
        ServerKind::Redis => Box::new(redis::Redis::single()?),
        ServerKind::Postgres => Box::new(postgres::Postgres::new()?),
        ServerKind::MariaDb => Box::new(mariadb::MariaDb::new()?),
        ServerKind::ZooKeeper => Box::new(zookeeper::ZooKeeper::single()?),
        ServerKind::Etcd => Box::new(etcd::Etcd::single()?),
        ServerKind::Nats => Box::new(nats::Nats::single()?),
        ServerKind::DynamoDb => Box::new(dynamodb::DynamoDb::single()?),
        ServerKind::Azurite => Box::new(azurite::Azurite::new()?),
        ServerKind::FakeGcs => Box::new(fake_gcs::FakeGcs::new()?),
    })
}

/// The URL of such a server at this address.
pub(crate) fn url(kind: ServerKind, addr: SocketAddr) -> String {
    match kind {
        ServerKind::Redis => format!("redis://{addr}"),
        ServerKind::Postgres => format!("postgres://postgres@{addr}/postgres"),
        ServerKind::MariaDb => format!("mysql://root@{addr}/{}", mariadb::DATABASE),
        ServerKind::ZooKeeper => format!("zk://{addr}"),
        ServerKind::Etcd => format!("etcd://{addr}"),
        ServerKind::Nats => format!("nats://{addr}/{}", nats::BUCKET),
        ServerKind::DynamoDb => dynamodb::url(addr),
        ServerKind::Azurite => azurite::url(addr),
        ServerKind::FakeGcs => format!("gs://{}?endpoint=http://{addr}", fake_gcs::BUCKET),
    }
}

#[async_trait]
pub(crate) trait Recipe: Send + Sync + std::fmt::Debug {
    /// Its name among the servers of one lab folder.
    fn name(&self) -> String;

    fn kind(&self) -> ServerKind;

    fn addr(&self) -> SocketAddr;

    /// The account to run under when the lab is run by root.
    fn account(&self) -> Option<&'static str> {
        None
    }

    /// Makes the data, where there is none.
    async fn prepare(&self, home: &ServerDir) -> Result<()>;

    /// The command that serves the data.
    fn command(&self, home: &ServerDir) -> Result<Command>;

    /// Asks the server something that only a server in working order answers.
    async fn answers(&self) -> io::Result<()>;

    /// Removes the data of a server that is down.
    async fn lose(&self, home: &ServerDir) -> Result<()> {
        let data = home.data();
        fs::remove_dir_all(&data).doing(format!("removing {}", data.display()))
    }
}
