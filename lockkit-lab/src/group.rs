//! Several servers that make one service: started together, each of them a
//! [`Server`] that a test may kill and freeze. May not know the processes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use tokio::time;

use super::division::Division;
use super::error::{LabError, Result};
use super::folder::Folder;
use super::kind::Layout;
use super::program::{DEBIANS_NATS, NATS};
use super::proxy::{Protocol, Proxy};
use super::raw::{resp, zookeeper};
use super::server::{Data, Server};
use super::servers::{etcd, nats, redis, redis_cluster, redis_sentinel, zookeeper as zk};
use crate::servers::Recipe;

/// The size of all groups, and the number of sentinels.
pub(super) const SIZE: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(25);
/// For how long a server may be silent in a calm group.
const CALM: Duration = Duration::from_secs(60);
const STARTS: usize = 3;

/// A group of servers; they end and their folder goes when this is dropped.
#[derive(Debug)]
pub struct Group {
    layout: Layout,
    members: Vec<Server>,
    sentinels: Vec<Server>,
    pub(super) division: Option<Division>,
}

impl Group {
    /// Starts a group of its own for the caller, and returns once it is complete:
    /// every member answers and knows the others.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start(layout: Layout) -> Result<Self> {
        Self::start_fresh(layout, false).await
    }

    /// The same with members whose clocks can be
    /// [moved](Server::move_clock).
    ///
    /// # Errors
    ///
    /// As for [`Server::start_with_clock`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_with_clocks(layout: Layout) -> Result<Self> {
        Self::start_fresh(layout, true).await
    }

    /// Starts a cluster of Redis with servers of Valkey in it.
    ///
    /// # Errors
    ///
    /// As for [`Server::start_valkey`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_valkey(layout: Layout) -> Result<Self> {
        Self::start_once(layout, false, Some(redis::VALKEY)).await
    }

    /// Starts a cluster of Debian's NATS, of a version that lets several clients win one swap.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_debians_nats() -> Result<Self> {
        Self::start_once(Layout::NatsCluster, false, Some(DEBIANS_NATS)).await
    }

    async fn start_fresh(layout: Layout, clocks: bool) -> Result<Self> {
        for _ in 1..STARTS {
            match Self::start_once(layout, clocks, None).await {
                // Something else on the machine took a port.
                Err(LabError::Ended { .. }) => {}
                result => return result,
            }
        }
        Self::start_once(layout, clocks, None).await
    }

    /// Starts a ZooKeeper ensemble whose members wait for each other for a minute, so that a
    /// machine that stalls loses no leader: for tests in which no member fails.
    ///
    /// # Errors
    ///
    /// As for [`Server::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the group remains.
    pub async fn start_calm_ensemble() -> Result<Self> {
        let folder = Arc::new(Folder::create()?);
        let mut recipes = zk::ZooKeeper::ensemble(SIZE)?;
        recipes.iter_mut().for_each(|recipe| recipe.be_patient_for(CALM));
        let mut group = Self::empty(Layout::ZooKeeperEnsemble);
        group.add(boxed(recipes), &folder, false).await?;
        group.complete().await?;
        Ok(group)
    }

    pub(super) fn empty(layout: Layout) -> Self {
        Self { layout, members: Vec::new(), sentinels: Vec::new(), division: None }
    }

    async fn start_once(
        layout: Layout,
        clocks: bool,
        program: Option<&'static str>,
    ) -> Result<Self> {
        let redis = program.unwrap_or(redis::REDIS);
        let folder = Arc::new(Folder::create()?);
        let mut group = Self::empty(layout);
        let mut nodes = Vec::new();
        let recipes = match layout {
            Layout::RedisSentinel => {
                let master = redis::Redis::master("redis-1")?;
                let replica = redis::Redis::replica("redis-2", master.addr())?;
                for at in 1..=SIZE {
                    let name = format!("sentinel-{at}");
                    let recipe = redis_sentinel::Sentinel::new(&name, master.addr())?;
                    let folder = Arc::clone(&folder);
                    group.sentinels.push(Server::create(Box::new(recipe), folder, false).await?);
                }
                boxed([master.served_by(redis), replica.served_by(redis)])
            }
            Layout::RedisCluster | Layout::RedisClusterWithReplicas => {
                let size = if layout == Layout::RedisCluster { SIZE } else { 2 * SIZE };
                let node = |at| Ok(redis::Redis::node(&format!("redis-{at}"))?.served_by(redis));
                let recipes = (1..=size).map(node).collect::<Result<Vec<_>>>()?;
                nodes.extend(recipes.iter().filter_map(|node| Some((node.addr(), node.bus()?))));
                boxed(recipes)
            }
            Layout::ZooKeeperEnsemble => boxed(zk::ZooKeeper::ensemble(SIZE)?),
            Layout::EtcdCluster => boxed(etcd::Etcd::cluster(SIZE)?),
            Layout::NatsCluster => boxed(nats::Nats::cluster(SIZE, program.unwrap_or(NATS))?),
        };
        group.add(recipes, &folder, clocks).await?;
        if !nodes.is_empty() {
            let formed = redis_cluster::form(&nodes, SIZE).await;
            formed.map_err(|source| LabError::Answer(format!("forming a cluster: {source}")))?;
        }
        // Not before the master answers: a sentinel would take it for dead.
        try_join_all(group.sentinels.iter().map(|sentinel| sentinel.restart(Data::Keep))).await?;
        group.complete().await?;
        group.calm().await?;
        Ok(group)
    }

    /// Starts the members, all at once since they wait for each other.
    pub(super) async fn add(
        &mut self,
        recipes: Vec<Box<dyn Recipe>>,
        folder: &Arc<Folder>,
        clocks: bool,
    ) -> Result<()> {
        for recipe in recipes {
            let folder = Arc::clone(folder);
            self.members.push(Server::create(recipe, folder, clocks).await?);
        }
        try_join_all(self.members.iter().map(|member| member.launch(Data::Keep))).await?;
        try_join_all(self.members.iter().map(Server::ready)).await.map(drop)
    }

    /// What it is.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The servers that keep data.
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// The sentinels, in a group that has them.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The URL under which lockkit finds this group.
    pub fn url(&self) -> String {
        self.url_at(&self.doors().iter().map(Server::addr).collect::<Vec<_>>())
    }

    /// The servers that a URL names.
    fn doors(&self) -> &[Server] {
        if self.sentinels.is_empty() { &self.members } else { &self.sentinels }
    }

    /// A proxy before all servers of the group: clients of
    /// [`url_through`](Self::url_through) pass through it whatever addresses they learn.
    ///
    /// # Errors
    ///
    /// As for [`Proxy::start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no proxy remains.
    pub async fn proxy(&self, protocol: Protocol) -> Result<Proxy> {
        let servers = self.sentinels.iter().chain(&self.members);
        let addrs: Vec<_> = servers.map(Server::addr).collect();
        Proxy::start_before(&addrs, protocol).await
    }

    /// The URL through such a proxy.
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(&proxy.addrs()[..self.doors().len()])
    }

    /// The same URL with other addresses: those of proxies before the servers. In
    /// groups of Redis, servers tell clients the addresses of others, past any
    /// proxy; [`announce`](Self::announce) changes that for a cluster.
    pub fn url_at(&self, addrs: &[SocketAddr]) -> String {
        let addrs = addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match self.layout {
            Layout::RedisSentinel => {
                format!("redis+sentinel://{addrs}/{}", redis_sentinel::MASTER)
            }
            Layout::RedisCluster | Layout::RedisClusterWithReplicas => {
                format!("redis+cluster://{addrs}")
            }
            Layout::ZooKeeperEnsemble => format!("zk://{addrs}"),
            Layout::EtcdCluster => format!("etcd://{addrs}"),
            Layout::NatsCluster => format!("nats://{addrs}/{}?replicas={SIZE}", nats::BUCKET),
        }
    }

    /// Has a node of a Redis Cluster tell all clients that it is found at `port`:
    /// that of a proxy before it.
    ///
    /// # Errors
    ///
    /// If the node does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may have happened or not.
    pub async fn announce(&self, member: usize, port: u16) -> Result<()> {
        let set = ["CONFIG", "SET", "cluster-announce-port", &port.to_string()];
        let done = resp::ask(self.members[member].addr(), &set).await;
        done.map(drop).map_err(|error| LabError::Answer(format!("announcing a port: {error}")))
    }

    /// The member that leads now: Redis' master under sentinels, the leader of
    /// ZooKeeper or etcd. Waits until there is one that is awake and that the
    /// others agree on.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] for a Redis Cluster, in which all members are
    /// masters; [`LabError::NotReady`] if there is no leader for a long time.
    ///
    /// # Cancel safety
    ///
    /// It only asks: it may be dropped at any time.
    pub async fn leader(&self) -> Result<&Server> {
        if self.layout.divides_its_keys() {
            return Err(LabError::Unsupported {
                server: "a Redis Cluster".into(),
                cannot: "has no leader: all are masters; ask for the holder of a key".into(),
            });
        }
        let since = Instant::now();
        loop {
            if let Some(leader) = self.present_leader().await {
                return Ok(leader);
            }
            self.give_up(since, "there is no leader")?;
            time::sleep(PAUSE).await;
        }
    }

    /// From now on a Redis group takes a server that is silent for a second for dead,
    /// until it is [calm](Self::calm) again.
    ///
    /// # Errors
    ///
    /// If one does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some may be in a hurry.
    pub async fn hurry(&self) -> Result<()> {
        self.be_patient_for(Duration::from_secs(1)).await
    }

    /// From now on a Redis group takes a server for dead that is silent for a minute, so
    /// that a machine that stalls loses no leader. It is started like this.
    ///
    /// # Errors
    ///
    /// If one does not answer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some may still be in a hurry.
    pub async fn calm(&self) -> Result<()> {
        self.be_patient_for(CALM).await
    }

    async fn be_patient_for(&self, silence: Duration) -> Result<()> {
        for sentinel in &self.sentinels {
            answered(redis_sentinel::be_patient_for(sentinel.addr(), silence).await)?;
        }
        if self.layout.divides_its_keys() {
            let awake = self.members.iter().filter(|member| member.is_awake());
            for member in awake {
                answered(redis_cluster::be_patient_for(member.addr(), silence).await)?;
            }
        }
        Ok(())
    }

    /// Returns once the group is complete: all members and sentinels answer, and
    /// know each other. For use after faults.
    ///
    /// # Errors
    ///
    /// [`LabError::NotReady`] if that takes very long.
    ///
    /// # Cancel safety
    ///
    /// It only asks: it may be dropped at any time.
    pub async fn complete(&self) -> Result<()> {
        try_join_all(self.members.iter().map(Server::ready)).await?;
        let since = Instant::now();
        while let Err(missing) = self.is_complete().await {
            self.give_up(since, &missing.to_string())?;
            time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn is_complete(&self) -> io::Result<()> {
        if self.layout.divides_its_keys() {
            for member in &self.members {
                redis_cluster::serves(member.addr(), SIZE, self.members.len()).await?;
            }
        }
        if self.layout == Layout::NatsCluster {
            nats::has_all_replicas(self.members[0].addr(), SIZE).await?;
        }
        for sentinel in &self.sentinels {
            redis_sentinel::knows_all(sentinel.addr(), self.sentinels.len()).await?;
        }
        Ok(())
    }

    async fn present_leader(&self) -> Option<&Server> {
        if self.layout == Layout::RedisSentinel {
            return self.master_by_majority().await;
        }
        for member in self.members.iter().filter(|member| member.is_awake()) {
            let leads = match self.layout {
                Layout::EtcdCluster => etcd::leads(member.addr()).await.unwrap_or(false),
                Layout::NatsCluster => {
                    nats::leader(member.addr()).await.is_ok_and(|leader| leader == member.name())
                }
                _ => zookeeper::four_letters(member.addr(), "srvr")
                    .await
                    .is_ok_and(|answer| answer.contains("Mode: leader")),
            };
            if leads {
                return Some(member);
            }
        }
        None
    }

    /// The member that most sentinels name the master, whatever it says itself, if it
    /// says anything.
    ///
    /// # Errors
    ///
    /// [`LabError::NotReady`] if they do not agree for a long time.
    ///
    /// # Cancel safety
    ///
    /// It only asks: it may be dropped at any time.
    pub async fn named_master(&self) -> Result<&Server> {
        let since = Instant::now();
        loop {
            if let Some(named) = self.named_by_majority().await {
                return Ok(named);
            }
            self.give_up(since, "the sentinels name no master")?;
            time::sleep(PAUSE).await;
        }
    }

    async fn named_by_majority(&self) -> Option<&Server> {
        let awake = self.sentinels.iter().filter(|sentinel| sentinel.is_awake());
        let named = join_all(awake.map(|s| redis_sentinel::master(s.addr()))).await;
        let votes = |addr| named.iter().flatten().filter(|named| **named == addr).count();
        self.members.iter().find(|member| 2 * votes(member.addr()) > self.sentinels.len())
    }

    /// Most sentinels, and the server itself, take it for the master.
    async fn master_by_majority(&self) -> Option<&Server> {
        let chosen = self.named_by_majority().await?;
        if !chosen.is_awake() {
            return None;
        }
        let role = resp::ask(chosen.addr(), &["ROLE"]).await.ok()?;
        matches!(role, resp::RespReply::Array(parts) if parts.first()?.text() == "master")
            .then_some(chosen)
    }

    pub(super) fn give_up(&self, since: Instant, last: &str) -> Result<()> {
        if since.elapsed() < PATIENCE {
            return Ok(());
        }
        let logs = self.members.iter().chain(&self.sentinels);
        let logs: Vec<_> = logs.map(|s| format!("{}:\n{}", s.name(), s.log_tail())).collect();
        Err(LabError::NotReady {
            server: format!("{:?}", self.layout),
            waited: since.elapsed(),
            last: last.into(),
            log: logs.join("\n"),
        })
    }
}

pub(super) fn answered<T>(result: io::Result<T>) -> Result<T> {
    result.map_err(|error| LabError::Answer(error.to_string()))
}

pub(super) fn boxed<R: Recipe + 'static>(
    recipes: impl IntoIterator<Item = R>,
) -> Vec<Box<dyn Recipe>> {
    recipes.into_iter().map(|recipe| Box::new(recipe) as Box<dyn Recipe>).collect()
}
