//! The kinds of servers and groups of servers that the lab can start. May not
//! know how: that is `servers`.

use std::fmt;
use std::str::FromStr;

use crate::proxy::Protocol;

/// A server that stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
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
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Redis, Self::Postgres, Self::MariaDb, Self::ZooKeeper, Self::Etcd];

    /// The word for it on a command line and in names of folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::MariaDb => "mysql",
            Self::ZooKeeper => "zk",
            Self::Etcd => "etcd",
        }
    }

    /// The environment variable that names a server which exists already.
    pub fn variable(self) -> String {
        format!("LOCKKIT_TEST_{}_URL", self.name().to_uppercase())
    }

    /// How a proxy tells the messages of its clients apart.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Redis => Protocol::Resp,
            Self::Postgres => Protocol::Postgres,
            Self::MariaDb => Protocol::MySql,
            Self::ZooKeeper => Protocol::ZooKeeper,
            Self::Etcd => Protocol::Grpc,
        }
    }

    /// Whether [`Server::move_clock`](super::Server::move_clock) works.
    pub fn has_movable_clock(self) -> bool {
        self != Self::Etcd
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
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
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::RedisSentinel,
        Self::RedisCluster,
        Self::RedisClusterWithReplicas,
        Self::ZooKeeperEnsemble,
        Self::EtcdCluster,
    ];

    /// Those that tests can share, since the cases of the suite disturb none of their members.
    pub const SHARED: [Self; 4] =
        [Self::RedisSentinel, Self::RedisCluster, Self::ZooKeeperEnsemble, Self::EtcdCluster];

    /// The environment variable that names a group which exists already.
    pub fn variable(self) -> &'static str {
        match self {
            Self::RedisSentinel => "LOCKKIT_TEST_REDIS_SENTINEL_URL",
            Self::RedisCluster => "LOCKKIT_TEST_REDIS_CLUSTER_URL",
            Self::RedisClusterWithReplicas => "LOCKKIT_TEST_REDIS_CLUSTER_WITH_REPLICAS_URL",
            Self::ZooKeeperEnsemble => "LOCKKIT_TEST_ZK_ENSEMBLE_URL",
            Self::EtcdCluster => "LOCKKIT_TEST_ETCD_CLUSTER_URL",
        }
    }

    /// Whether it is a Redis Cluster, which divides its keys among masters.
    pub fn divides_its_keys(self) -> bool {
        matches!(self, Self::RedisCluster | Self::RedisClusterWithReplicas)
    }

    /// What each of its members is.
    pub fn kind(self) -> Kind {
        match self {
            Self::RedisSentinel | Self::RedisCluster | Self::RedisClusterWithReplicas => {
                Kind::Redis
            }
            Self::ZooKeeperEnsemble => Kind::ZooKeeper,
            Self::EtcdCluster => Kind::Etcd,
        }
    }
}
