//! The set-ups that `lockkit compare --lab` puts side by side, as data: what is started for each, and
//! which trials can be run on it. Knows no driver: it is handed one way to connect to any URL.

use std::any::Any;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::{StreamExt, stream};
use lockkit_conformance::{Report, compare};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::proxy::{Protocol, Proxy};
use crate::trials::{TRIALS, trial};
use crate::{Costs, Deployment, Group, LabError, Layout, Result, Server, ServerKind, s3};

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
    Server(ServerKind),
    Group(Layout),
    /// Three servers of a kind that know nothing of each other.
    Quorum(ServerKind),
    /// A bucket of the lab's own S3 server, in this process.
    Bucket,
}

/// Those that need nothing but Debian's packages.
pub const SET_UPS: [SetUp; 8] = [
    SetUp { name: "SQLite", about: "a new file on this machine", location: Location::File },
    SetUp {
        name: "PostgreSQL",
        about: "one server; writes are not forced to disk (fsync = off)",
        location: Location::Server(ServerKind::Postgres),
    },
    SetUp {
        name: "MariaDB",
        about: "one server; writes are forced to disk once a second",
        location: Location::Server(ServerKind::MariaDb),
    },
    SetUp {
        name: "Redis",
        about: "one server with an append-only file that is not forced to disk",
        location: Location::Server(ServerKind::Redis),
    },
    SetUp {
        name: "Redis Cluster",
        about: "three such masters",
        location: Location::Group(Layout::RedisCluster),
    },
    SetUp {
        name: "Quorum of Redis",
        about: "three such servers that know nothing of each other, and have 2 s to answer",
        location: Location::Quorum(ServerKind::Redis),
    },
    SetUp {
        name: "ZooKeeper",
        about: "one server; writes are not forced to disk; a tick of 500 ms instead of the usual 2 s, \
                so leases of the dead end sooner",
        location: Location::Server(ServerKind::ZooKeeper),
    },
    SetUp {
        name: "etcd",
        about: "one server; every write is forced to disk",
        location: Location::Server(ServerKind::Etcd),
    },
];

/// Stores, which take part when they are named: no package of Debian's has the servers of the first two, and the
/// figures of emulators are not those of the services.
pub const STORES: [SetUp; 3] = [
    SetUp {
        name: "NATS",
        about: "one server with JetStream; writes are forced to disk every two minutes",
        location: Location::Server(ServerKind::Nats),
    },
    SetUp {
        name: "DynamoDB Local",
        about: "the emulator, with its data in memory; polled every 50 ms instead of each second, \
                and a least ttl of 500 ms instead of 1 s",
        location: Location::Server(ServerKind::DynamoDb),
    },
    SetUp {
        name: "S3",
        about: "a server of the lab's own, in memory and in the process that measures; polled every \
                50 ms instead of each second, and a least ttl of 500 ms instead of 3 s",
        location: Location::Bucket,
    },
];

/// The trials that are run on stores, by how their names begin. Others need a proxy that tells messages apart,
/// which the lab's does not for NATS, or disturb each message of each operation in turn: a listing of a table
/// is some hundred.
const ON_STORES: [&str; 5] = ["robust_04", "robust_05", "robust_06", "loss_03", "token_07"];
/// These too, where data is on a disk.
const ON_DISK: [&str; 2] = ["robust_03", "token_06"];

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
            Location::Server(ServerKind::Postgres) => "postgres",
            Location::Server(ServerKind::MariaDb) => "mysql",
            Location::Server(ServerKind::ZooKeeper) => "zk",
            Location::Server(ServerKind::Etcd) => "etcd",
            Location::Server(ServerKind::Nats) => "nats",
            Location::Server(ServerKind::DynamoDb) => "dynamodb",
            Location::Server(ServerKind::Azurite) => "az",
            Location::Server(ServerKind::FakeGcs) => "gs",
            Location::Bucket => "s3",
            Location::Server(ServerKind::Redis) | Location::Group(_) | Location::Quorum(_) => {
                "redis"
            }
        }
    }

    /// What it lacks on this machine.
    pub fn missing(&self) -> Option<String> {
        let server = match self.location {
            Location::Server(kind) => kind.missing(),
            _ => None,
        };
        let is_signed = matches!(self.scheme(), "dynamodb" | "s3");
        let has_keys = std::env::var_os("AWS_ACCESS_KEY_ID").is_some();
        let keys = "its client signs what it sends: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
                    to anything, since its server here takes any";
        server.map(|why| why.to_string()).or((is_signed && !has_keys).then(|| keys.to_owned()))
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
                let url_at = |addr| format!("{}{}", server.url_at(addr), self.options());
                let counted = counted(server.addr(), kind.protocol(), url_at).await?;
                Running { url, counted, _held: Box::new(server) }
            }
            Location::Bucket => {
                let listening = async {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                    Ok((listener.local_addr()?, listener))
                };
                let (addr, listener) = listening.await.map_err(|e: io::Error| {
                    LabError::Answer(format!("no port to listen on: {e}"))
                })?;
                let mut serving = JoinSet::new();
                serving.spawn(s3::serve(listener));
                let url_at =
                    |addr| format!("s3://locks/lab?endpoint=http://{addr}&pace=50ms&min_ttl=500ms");
                let counted = counted(addr, Protocol::Http1, url_at).await?;
                Running { url: url_at(addr), counted, _held: Box::new(serving) }
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
            Location::Server(ServerKind::ZooKeeper) => "?tick=500ms",
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
        let Some(applies) = self.applies() else { return Vec::new() };
        let shows = |name| compare::shows(name) && applies(name);
        let chosen: Vec<_> = TRIALS.iter().filter(|trial| shows(trial.name)).collect();
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

    /// Which trials can be run on it, by their names; none without a server whose process is its own.
    fn applies(&self) -> Option<fn(&str) -> bool> {
        fn begins(name: &str, with: &[&str]) -> bool {
            with.iter().any(|it| name.starts_with(it))
        }
        match self.location {
            Location::File | Location::Bucket => None,
            Location::Server(ServerKind::Nats) => {
                Some(|name| begins(name, &ON_STORES) || begins(name, &ON_DISK))
            }
            Location::Server(ServerKind::DynamoDb) => Some(|name| begins(name, &ON_STORES)),
            _ => Some(|_| true),
        }
    }
}

/// The way on which requests are counted, where a proxy can tell them apart.
async fn counted(
    server: SocketAddr,
    protocol: Protocol,
    url_at: impl Fn(SocketAddr) -> String,
) -> Result<Option<(String, Arc<Proxy>)>> {
    if protocol == Protocol::Unknown {
        return Ok(None);
    }
    let proxy = Proxy::start(server, protocol).await?;
    Ok(Some((url_at(proxy.addr()), Arc::new(proxy))))
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
    async fn start(kind: ServerKind) -> Result<Self, Error> {
        let lab = |error: &dyn std::fmt::Display| Error::Config(format!("the lab: {error}"));
        let server = Server::start(kind).await.map_err(|e| lab(&e))?;
        let proxy = Proxy::start(server.addr(), Protocol::Resp).await.map_err(|e| lab(&e))?;
        proxy.latency(Duration::from_millis(15));
        Ok(Self { server, proxy })
    }
}

#[async_trait]
impl Deployment for Staged {
    fn kind(&self) -> ServerKind {
        match self.set_up.location {
            Location::Server(kind) | Location::Quorum(kind) => kind,
            Location::Group(layout) => layout.kind(),
            Location::File | Location::Bucket => unreachable!("no trials are run on it"),
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
            ServerKind::ZooKeeper => "?session_timeout=10s&tick=500ms",
            _ => "",
        }
    }

    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        match self.set_up.location {
            Location::Group(Layout::RedisCluster) => costs.renewed_side_by_side = 3,
            Location::Quorum(_) => {
                // Try, and then raise; also once granted in a queue.
                (costs.acquire, costs.granted_try) = (2, 2);
                (costs.acquire_shared, costs.first_use) = (2, 2);
                costs.look_when_woken = 2;
            }
            Location::Server(ServerKind::ZooKeeper) => {
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
            Location::Server(ServerKind::ZooKeeper) => vec![Layout::ZooKeeperEnsemble],
            Location::Server(ServerKind::Etcd) => vec![Layout::EtcdCluster],
            _ => Vec::new(),
        }
    }

    fn worker(&self) -> Option<PathBuf> {
        // Of a quorum, a worker would be told of one member.
        self.worker.clone().filter(|_| !self.is_member())
    }
}
