//! The kinds of servers and groups of servers that the lab can start. May not
//! know how: that is `servers`.

use std::fmt;
use std::str::FromStr;

use super::error::LabError;
use super::program;
use crate::proxy::Protocol;

/// A server that stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ServerKind {
    /// Redis, with an append-only file.
    Redis,
    /// PostgreSQL.
    Postgres,
    /// MariaDB, for everything that speaks MySQL.
    MariaDb,
    /// Apache ZooKeeper.
    ZooKeeper,
    /// etcd.
    Etcd,
    /// NATS with JetStream; its URL names a bucket that its first client creates.
    Nats,
    /// DynamoDB Local; its URL names a table that exists. It has its data in memory: a restart loses it.
    DynamoDb,
    /// Azurite, the emulator of Azure Blob Storage.
    Azurite,
    /// An emulator of Google Cloud Storage that does not look at the conditions of all writes.
    FakeGcs,
}

impl ServerKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Redis,
        Self::Postgres,
        Self::MariaDb,
        Self::ZooKeeper,
        Self::Etcd,
        Self::Nats,
        Self::DynamoDb,
        Self::Azurite,
        Self::FakeGcs,
    ];

    /// The word for it on a command line and in names of folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
            Self::ZooKeeper => "zk",
            Self::Etcd => "etcd",
            Self::Nats => "nats",
            Self::DynamoDb => "dynamodb",
            Self::Azurite => "azurite",
            Self::FakeGcs => "fake-gcs",
        }
    }

    /// Why there is none on this machine, of those that Debian 12 has no package of: `cargo xtask install`
    /// fetches them where it can, and tests are skipped elsewhere.
    pub fn missing(self) -> Option<LabError> {
        match self {
            Self::Nats => program::find(program::NATS).err(),
            Self::DynamoDb => program::find(program::DYNAMODB).err(),
            Self::Azurite => program::find("node").and(program::find(program::AZURITE)).err(),
            Self::FakeGcs => program::find(program::FAKE_GCS).err(),
            _ => None,
        }
    }

    /// The environment variable that names a server which exists already.
    pub fn variable(self) -> String {
        format!("LOCKKIT_TEST_{}_URL", self.name().replace('-', "_").to_uppercase())
    }

    /// How a proxy tells the messages of its clients apart.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Redis => Protocol::Resp,
            Self::Postgres => Protocol::Postgres,
            Self::MariaDb => Protocol::MySql,
            Self::ZooKeeper => Protocol::ZooKeeper,
            Self::Etcd => Protocol::Grpc,
            Self::DynamoDb => Protocol::Http1,
            Self::Nats | Self::Azurite | Self::FakeGcs => Protocol::Unknown,
        }
    }

    /// Whether [`Server::move_clock`](super::Server::move_clock) works.
    pub fn has_movable_clock(self) -> bool {
        !matches!(self, Self::Etcd | Self::Nats | Self::DynamoDb | Self::Azurite | Self::FakeGcs)
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ServerKind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == word).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("`{word}` is none of the servers {known}")
        })
    }
}

/// Several servers that make one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Layout {
    /// A Redis master, one replica, and three sentinels.
    RedisSentinel,
    /// A Redis Cluster of three masters.
    RedisCluster,
    /// The same with a replica for each master.
    RedisClusterWithReplicas,
    /// A ZooKeeper ensemble of three.
    ZooKeeperEnsemble,
    /// An etcd cluster of three.
    EtcdCluster,
    /// Three NATS servers; the bucket that its URL names has three replicas.
    NatsCluster,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::RedisSentinel,
        Self::RedisCluster,
        Self::RedisClusterWithReplicas,
        Self::ZooKeeperEnsemble,
        Self::EtcdCluster,
        Self::NatsCluster,
    ];

    /// Those that tests can share, since the cases of the suite disturb none of their members.
    pub const SHARED: [Self; 5] = [
        Self::RedisSentinel,
        Self::RedisCluster,
        Self::ZooKeeperEnsemble,
        Self::EtcdCluster,
        Self::NatsCluster,
    ];

    /// The environment variable that names a group which exists already.
    pub fn variable(self) -> &'static str {
        match self {
            Self::RedisSentinel => "LOCKKIT_TEST_REDIS_SENTINEL_URL",
            Self::RedisCluster => "LOCKKIT_TEST_REDIS_CLUSTER_URL",
            Self::RedisClusterWithReplicas => "LOCKKIT_TEST_REDIS_CLUSTER_WITH_REPLICAS_URL",
            Self::ZooKeeperEnsemble => "LOCKKIT_TEST_ZK_ENSEMBLE_URL",
            Self::EtcdCluster => "LOCKKIT_TEST_ETCD_CLUSTER_URL",
            Self::NatsCluster => "LOCKKIT_TEST_NATS_CLUSTER_URL",
        }
    }

    /// Whether it is a Redis Cluster, which divides its keys among masters.
    pub fn divides_its_keys(self) -> bool {
        matches!(self, Self::RedisCluster | Self::RedisClusterWithReplicas)
    }

    /// What each of its members is.
    pub fn kind(self) -> ServerKind {
        match self {
            Self::RedisSentinel | Self::RedisCluster | Self::RedisClusterWithReplicas => {
                ServerKind::Redis
            }
            Self::ZooKeeperEnsemble => ServerKind::ZooKeeper,
            Self::EtcdCluster => ServerKind::Etcd,
            Self::NatsCluster => ServerKind::Nats,
        }
    }
}
