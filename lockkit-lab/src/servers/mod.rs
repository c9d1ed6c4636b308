//! One file per kind of server: how it is started and asked.

pub(crate) mod etcd;
pub(crate) mod mariadb;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod redis_cluster;
pub(crate) mod redis_sentinel;
pub(crate) mod zookeeper;

use std::net::SocketAddr;

use super::error::Result;
use super::kind::Kind;
use super::recipe::Recipe;

/// How to run one server of this kind that stands alone.
pub(crate) fn recipe(kind: Kind) -> Result<Box<dyn Recipe>> {
    Ok(match kind {
        Kind::Redis => Box::new(redis::Redis::alone()?),
        Kind::Postgres => Box::new(postgres::Postgres::new()?),
        Kind::MariaDb => Box::new(mariadb::MariaDb::new()?),
        Kind::ZooKeeper => Box::new(zookeeper::ZooKeeper::alone()?),
        Kind::Etcd => Box::new(etcd::Etcd::alone()?),
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
    }
}
