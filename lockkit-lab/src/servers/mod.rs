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
use super::kind::Kind;
use super::server_dir::ServerDir;

/// How to run one server of this kind that stands alone.
pub(crate) fn recipe(kind: Kind) -> Result<Box<dyn Recipe>> {
    Ok(match kind {
        Kind::Redis => Box::new(redis::Redis::single()?),
        Kind::Postgres => Box::new(postgres::Postgres::new()?),
        Kind::MariaDb => Box::new(mariadb::MariaDb::new()?),
        Kind::ZooKeeper => Box::new(zookeeper::ZooKeeper::single()?),
        Kind::Etcd => Box::new(etcd::Etcd::single()?),
        Kind::Nats => Box::new(nats::Nats::single()?),
        Kind::DynamoDb => Box::new(dynamodb::DynamoDb::single()?),
        Kind::Azurite => Box::new(azurite::Azurite::new()?),
        Kind::FakeGcs => Box::new(fake_gcs::FakeGcs::new()?),
    })
}

/// The URL of such a server at this address.
pub(crate) fn url(kind: Kind, addr: SocketAddr) -> String {
    match kind {
        Kind::Redis => format!("redis://{addr}"),
        Kind::Postgres => format!("postgres://postgres@{addr}/postgres"),
        Kind::MariaDb => format!("mysql://root@{addr}/{}", mariadb::DATABASE),
        Kind::ZooKeeper => format!("zk://{addr}"),
        Kind::Etcd => format!("etcd://{addr}"),
        Kind::Nats => format!("nats://{addr}/{}", nats::BUCKET),
        Kind::DynamoDb => dynamodb::url(addr),
        Kind::Azurite => azurite::url(addr),
        Kind::FakeGcs => format!("gs://{}?endpoint=http://{addr}", fake_gcs::BUCKET),
    }
}

#[async_trait]
pub(crate) trait Recipe: Send + Sync + std::fmt::Debug {
    /// Its name among the servers of one lab folder.
    fn name(&self) -> String;

    fn kind(&self) -> Kind;

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
