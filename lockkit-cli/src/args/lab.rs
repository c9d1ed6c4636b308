//! The arguments of `storm` and `judge`, and the help for them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkit_lab::{Layout, ServerKind};

use super::positive_duration;

/// `storm`.
#[derive(Args, Debug)]
#[command(after_help = "\
With --url, faults strike only the storm's own clients. Servers to strike at are started here, from \
Debian's packages. Ends with 0 when every promise was kept that the backend makes under the faults \
that struck, with 1 otherwise.

Examples:
  lockkit storm --server redis --lasts 60s --history redis.jsonl
  lockkit judge redis.jsonl --svg redis.svg")]
pub(crate) struct StormArgs {
    /// Start this server (redis, postgres, mysql, zk, etcd, nats, dynamodb, azurite, fake-gcs) and strike at
    /// it too
    #[arg(long)]
    pub(crate) server: Option<ServerKind>,

    /// Start this group of servers and strike at it too
    #[arg(long, conflicts_with = "server")]
    pub(crate) group: Option<Members>,

    /// Start this many of the servers, and lock on a quorum of them; strikes at one at a time, and
    /// takes away its data, too
    #[arg(long, requires = "server", value_name = "N")]
    pub(crate) quorum: Option<usize>,

    /// Start Redis and two servers of a lock service on it, and strike at these: clients in Rust and
    /// in Python lock through them, and some past them. In a clone of the repository only
    #[arg(long, conflicts_with_all = ["server", "group"])]
    pub(crate) service: bool,

    /// How long clients are at work
    #[arg(long, value_parser = positive_duration, default_value = "120s")]
    pub(crate) lasts: Duration,

    /// Client processes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) processes: u32,

    /// Clients in each process
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) tasks: u32,

    /// Locks, and as many semaphores
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) locks: u32,

    /// One lock that all clients contend for, and most faults lose answers after the server has acted
    #[arg(long, conflicts_with_all = ["locks", "consumers"])]
    pub(crate) hot: bool,

    /// How long half of the operations hold, and the other half wait, without being renewed
    #[arg(long, value_parser = positive_duration, default_value = "2s")]
    pub(crate) ttl: Duration,

    /// How long the one half waits, and the other holds, without being renewed
    #[arg(long, value_parser = positive_duration, default_value = "8s")]
    pub(crate) wait_ttl: Duration,

    /// The same seed gives the same plan of faults; random unless set
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Where the history is written; storm-SEED.jsonl unless set
    #[arg(long, value_name = "FILE", conflicts_with = "consumers")]
    pub(crate) history: Option<PathBuf>,

    /// Kill and freeze only the server, not clients
    #[arg(long)]
    pub(crate) spare_clients: bool,

    /// Run consumers that keep in a register how far they are, and look for an event that was lost
    /// or done twice
    ///
    /// The server is not restarted then: what Redis loses by that is no fault of the consumers.
    #[arg(long)]
    pub(crate) consumers: bool,
}

/// A group of servers.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Members {
    /// A Redis master, its replica and three sentinels
    RedisSentinel,
    /// A Redis Cluster of three masters
    RedisCluster,
    /// The same with a replica for each
    RedisClusterWithReplicas,
    /// A ZooKeeper ensemble of three
    ZkEnsemble,
    /// Three NATS servers, and a bucket with three replicas
    NatsCluster,
}

impl Members {
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::RedisSentinel => Layout::RedisSentinel,
            Self::RedisCluster => Layout::RedisCluster,
            Self::RedisClusterWithReplicas => Layout::RedisClusterWithReplicas,
            Self::ZkEnsemble => Layout::ZooKeeperEnsemble,
            Self::NatsCluster => Layout::NatsCluster,
        }
    }
}

/// `judge`.
#[derive(Args, Debug)]
#[command(after_help = "\
Ends with 0 when every promise was kept, with 1 when one was broken.

Example:
  lockkit judge storm-2026.jsonl --svg storm.svg")]
pub(crate) struct JudgeArgs {
    /// The history, as `storm` wrote it
    pub(crate) file: PathBuf,

    /// Draw it: who held, who waited, which fault struck when, tokens, a violation in red
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
