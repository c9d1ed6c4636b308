//! The set-ups that `lockkit compare --lab` puts side by side, as data: what is started for each, and
//! which trials can be run on it. Knows no driver: it is handed one way to connect to any URL.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::{StreamExt, stream};
use lockkit_conformance::{Report, compare};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use tokio::sync::OnceCell;

use crate::proxy::{Protocol, Proxy};
use crate::trials::{TRIALS, trial};
use crate::{Costs, Deployment, Group, Kind, LabError, Layout, Result, Server};

/// A set-up that can be started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUp {
    /// What it is called.
    pub name: &'static str,
    /// What is started, in words.
    pub about: &'static str,
    location: Location,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// A new SQLite file.
    File,
    Server(Kind),
    Group(Layout),
    /// Three servers of a kind that know nothing of each other.
    Quorum(Kind),
}

/// All of them.
pub const SET_UPS: [SetUp; 8] = [
    SetUp { name: "SQLite", about: "a new file on this machine", location: Location::File },
    SetUp {
        name: "PostgreSQL",
        about: "one server; writes are not forced to disk (fsync = off)",
        location: Location::Server(Kind::Postgres),
    },
    SetUp {
        name: "MariaDB",
        about: "one server; writes are forced to disk once a second",
        location: Location::Server(Kind::MariaDb),
    },
    SetUp {
        name: "Redis",
        about: "one server with an append-only file that is not forced to disk",
        location: Location::Server(Kind::Redis),
    },
    SetUp {
        name: "Redis Cluster",
        about: "three such masters",
        location: Location::Group(Layout::RedisCluster),
    },
    SetUp {
        name: "Quorum of Redis",
        about: "three such servers that know nothing of each other, and have 2 s to answer",
        location: Location::Quorum(Kind::Redis),
    },
    SetUp {
        name: "ZooKeeper",
        about: "one server; writes are not forced to disk; a tick of 500 ms instead of the usual 2 s, \
                so leases of the dead end sooner",
        location: Location::Server(Kind::ZooKeeper),
    },
    SetUp {
        name: "etcd",
        about: "one server; every write is forced to disk",
        location: Location::Server(Kind::Etcd),
    },
];

/// Options of quorums: leases as long as cases ask for, and time for members on a busy machine.
const QUORUM: &str = "?max_ttl=3650d&member_limit=2s";

/// For trials, which ask for shorter ones, and whose members lose their data.
const STRUCK_QUORUM: &str = "?max_ttl=1h&member_limit=2s";

/// So many trials of one set-up run at the same time.
const AT_ONCE: usize = 4;

/// A set-up that runs, until the value is dropped.
#[derive(Debug)]
pub struct Running {
    url: String,
    /// A way to a single server on which requests are counted, and its URL.
    counted: Option<(String, Arc<Proxy>)>,
    /// A folder, servers or a group.
    _held: Box<dyn Any + Send + Sync>,
}

impl Running {
    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of a way on which requests are counted, and the proxy that counts them; single servers have
    /// one. It is slower than the other.
    pub fn counted(&self) -> Option<&(String, Arc<Proxy>)> {
        self.counted.as_ref()
    }
}

/// Makes a driver of its own onto whatever a URL names.
pub type Connect =
    Arc<dyn Fn(String) -> BoxFuture<'static, Result<Arc<dyn LockDriver>, Error>> + Send + Sync>;

impl SetUp {
    /// Whether this is its name, whatever its case, spaces and signs.
    pub fn is_called(&self, name: &str) -> bool {
        compare::same_name(self.name, name)
    }

    /// The scheme of its URLs.
    pub fn scheme(&self) -> &'static str {
        match self.location {
            Location::File => "sqlite",
            Location::Server(Kind::Postgres) => "postgres",
            Location::Server(Kind::MariaDb) => "mysql",
            Location::Server(Kind::ZooKeeper) => "zk",
            Location::Server(Kind::Etcd) => "etcd",
            Location::Server(Kind::Nats) => "nats",
            Location::Server(Kind::DynamoDb) => "dynamodb",
            Location::Server(Kind::Azurite) => "az",
            Location::Server(Kind::FakeGcs) => "gs",
            Location::Server(Kind::Redis) | Location::Group(_) | Location::Quorum(_) => "redis",
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When a server cannot be started.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn start(&self) -> Result<Running> {
        Ok(match self.location {
            Location::File => {
                let folder = tempfile::tempdir()
                    .map_err(|e| LabError::Answer(format!("no temporary folder: {e}")))?;
                let url = format!("sqlite:{}", folder.path().join("locks.db").display());
                Running { url, counted: None, _held: Box::new(folder) }
            }
            Location::Server(kind) => {
                let server = Server::start(kind).await?;
                let url = format!("{}{}", server.url(), self.options());
                let proxy = Proxy::start(server.addr(), kind.protocol()).await?;
                let counted = format!("{}{}", server.url_at(proxy.addr()), self.options());
                let counted = Some((counted, Arc::new(proxy)));
                Running { url, counted, _held: Box::new(server) }
            }
            Location::Group(layout) => {
                let group = Group::start(layout).await?;
                Running { url: group.url(), counted: None, _held: Box::new(group) }
            }
            Location::Quorum(kind) => {
                let servers = try_join_all((0..3).map(|_| Server::start(kind))).await?;
                let urls: Vec<_> = servers.iter().map(Server::url).collect();
                let url = format!("quorum:{}{QUORUM}", urls.join(","));
                Running { url, counted: None, _held: Box::new(servers) }
            }
        })
    }

    /// Drivers get the tick of the lab's ZooKeeper.
    fn options(&self) -> &'static str {
        match self.location {
            Location::Server(Kind::ZooKeeper) => "?tick=500ms",
            _ => "",
        }
    }

    /// The trials that show an answer of a comparison, some at a time: they count messages, and
    /// stage faults on servers of their own, and most of their time is waiting. `worker` is a program
    /// that plays [`worker`](crate::worker). None where there is no server.
    pub async fn trials(
        &self,
        connect: &Connect,
        worker: Option<PathBuf>,
        say: &(dyn Fn(&str) + Sync),
    ) -> Vec<Report> {
        if self.location == Location::File {
            return Vec::new();
        }
        let chosen: Vec<_> = TRIALS.iter().filter(|trial| compare::shows(trial.name)).collect();
        let total = chosen.len();
        let site: Arc<dyn Deployment> = Arc::new(Staged {
            set_up: *self,
            connect: connect.clone(),
            worker,
            others: OnceCell::new(),
        });
        let at_once = match self.location {
            // They share the members beside their own.
            Location::Quorum(_) => 1,
            _ => AT_ONCE,
        };
        let mut running =
            stream::iter(chosen).map(|one| trial(site.clone(), one)).buffered(at_once);
        let mut reports = Vec::with_capacity(total);
        while let Some(report) = running.next().await {
            reports.push(report);
            say(&format!("{}: trial {} of {total}", self.name, reports.len()));
        }
        reports
    }
}

/// A set-up as a site.
struct Staged {
    set_up: SetUp,
    connect: Connect,
    worker: Option<PathBuf>,
    /// Of a quorum, the members beside the trials' server.
    others: OnceCell<Vec<Other>>,
}

/// A member that answers a little later than any behind a trial's proxy: so every majority has the
/// trial's server in it, and what is counted there is what an operation waits for.
struct Other {
    server: Server,
    proxy: Proxy,
}

impl Other {
    async fn start(kind: Kind) -> Result<Self, Error> {
        let lab = |error: &dyn std::fmt::Display| Error::Config(format!("the lab: {error}"));
        let server = Server::start(kind).await.map_err(|e| lab(&e))?;
        let proxy = Proxy::start(server.addr(), Protocol::Resp).await.map_err(|e| lab(&e))?;
        proxy.latency(Duration::from_millis(15));
        Ok(Self { server, proxy })
    }
}

#[async_trait]
impl Deployment for Staged {
    fn kind(&self) -> Kind {
        match self.set_up.location {
            Location::Server(kind) | Location::Quorum(kind) => kind,
            Location::Group(layout) => layout.kind(),
            Location::File => unreachable!("no trials are run on a file"),
        }
    }

    fn layout(&self) -> Option<Layout> {
        match self.set_up.location {
            Location::Group(layout) => Some(layout),
            _ => None,
        }
    }

    fn is_member(&self) -> bool {
        matches!(self.set_up.location, Location::Quorum(_))
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        let Location::Quorum(kind) = self.set_up.location else {
            return (self.connect)(url.to_owned()).await;
        };
        let starting = || try_join_all((0..2).map(|_| Other::start(kind)));
        let others = self.others.get_or_try_init(starting).await?;
        let others: Vec<_> = others.iter().map(|o| o.server.url_at(o.proxy.addr())).collect();
        (self.connect)(format!("quorum:{url},{}{STRUCK_QUORUM}", others.join(","))).await
    }

    fn options(&self) -> &'static str {
        match self.kind() {
            Kind::ZooKeeper => "?session_timeout=10s&tick=500ms",
            _ => "",
        }
    }

    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        match self.set_up.location {
            Location::Group(Layout::RedisCluster) => costs.renewed_side_by_side = 3,
            Location::Quorum(_) => {
                // Try, and then raise; who waits tries again.
                (costs.acquire, costs.granted_try) = (2, 2);
                (costs.acquire_shared, costs.first_use) = (2, 2);
                costs.look_when_woken = 2;
            }
            Location::Server(Kind::ZooKeeper) => {
                costs.renew_thousand = 2;
                costs.fewer_at_times = 1;
            }
            _ => {}
        }
        costs
    }

    fn layouts(&self) -> Vec<Layout> {
        match self.set_up.location {
            Location::Group(Layout::RedisCluster) => vec![Layout::RedisClusterWithReplicas],
            Location::Server(Kind::ZooKeeper) => vec![Layout::ZooKeeperEnsemble],
            Location::Server(Kind::Etcd) => vec![Layout::EtcdCluster],
            _ => Vec::new(),
        }
    }

    fn worker(&self) -> Option<PathBuf> {
        // Of a quorum, a worker would be told of one member.
        self.worker.clone().filter(|_| !self.is_member())
    }
}
