//! Where a storm takes place, and how one is set up there and judged: one way for the tests of all
//! backends and for the program. What strikes, and what clients do, is said elsewhere.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkit_core::capabilities::Fault;
use lockkit_core::{Error, LockManager, Settings};

use super::group::GroupInjector;
use super::leader::LeaderInjector;
use super::members::MembersInjector;
use super::pair::PairInjector;
use super::server::ServerInjector;
use super::{FaultInjector, NoFaults, Storm, StormReport};
use crate::history::EventKind;
use crate::proxy::Protocol;
use crate::{Group, LabError, Layout, Pair, Proxy, Replication, Server, ServerKind};

/// For how long the members of an ensemble believe in each other: much shorter than a strike.
const FAITH: Duration = Duration::from_secs(2);

/// What strikes at a server alone, unless one says otherwise: all that takes no data away.
pub const FAULTS: [Fault; 4] =
    [Fault::ConnectionCut, Fault::Partition, Fault::ServerPaused, Fault::ServerRestarts];

/// What strikes at a server on which one name is contended for: answers are lost, and it stops.
pub const HOT_FAULTS: [Fault; 3] =
    [Fault::ConnectionCut, Fault::ServerPaused, Fault::ServerRestarts];

/// A backend, and who strikes at it.
pub struct StormSetup {
    /// The URL that clients connect to, or several, each in a line: client processes take them in
    /// turn. One that begins with `python+` is for a client in Python.
    pub url: String,
    /// The URL past all faults, for who looks at the end.
    pub direct: String,
    /// Who strikes.
    pub injector: Arc<dyn FaultInjector>,
}

impl StormSetup {
    /// A backend that is there already; only clients are struck.
    pub fn calm(url: impl Into<String>) -> Self {
        let url = url.into();
        Self { direct: url.clone(), url, injector: Arc::new(NoFaults) }
    }

    /// A server of its own behind a proxy, and these faults.
    ///
    /// # Errors
    /// When the server does not start.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn server(kind: ServerKind, faults: &[Fault]) -> Result<Self, LabError> {
        let (url, direct, injector) = struck(kind, faults).await?;
        Ok(Self {
            url: paced(kind, url),
            direct: paced(kind, direct),
            injector: Arc::new(injector),
        })
    }

    /// A quorum of so many servers that know nothing of each other, for locks of this ttl. One at a
    /// time is struck, and loses its data, too; which follows from the seed.
    ///
    /// # Errors
    /// When a server does not start.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn quorum(
        kind: ServerKind,
        members: usize,
        seed: u64,
        ttl: Duration,
    ) -> Result<Self, LabError> {
        let faults: Vec<_> = FAULTS.into_iter().chain([Fault::DataLost]).collect();
        let (mut urls, mut direct, mut injectors) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..members {
            let (url, past, injector) = struck(kind, &faults).await?;
            urls.push(url);
            direct.push(past);
            injectors.push(injector);
        }
        let longest = ttl.as_millis();
        let of = |urls: Vec<String>| format!("quorum:{}?max_ttl={longest}ms", urls.join(","));
        let injector = Arc::new(MembersInjector::new(injectors, seed, ttl * 2));
        Ok(Self { url: of(urls), direct: of(direct), injector })
    }

    /// A group of servers. Of ZooKeeper and etcd, the leaders are lost; of Redis, members in turn,
    /// and the network.
    ///
    /// # Errors
    /// When the group does not start.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn group(layout: Layout) -> Result<Self, LabError> {
        let group = match layout {
            Layout::ZooKeeperEnsemble => Group::start_divisible_ensemble(FAITH).await?,
            Layout::EtcdCluster | Layout::NatsCluster => Group::start(layout).await?,
            _ => return Self::redis(layout, |injector| injector).await,
        };
        let url = match layout {
            Layout::ZooKeeperEnsemble => paced(ServerKind::ZooKeeper, group.url()),
            _ => group.url(),
        };
        let injector = Arc::new(LeaderInjector::new(group, Fault::LeaderLost));
        Ok(Self { direct: url.clone(), url, injector })
    }

    /// A PostgreSQL server whose standby takes over, again and again; the old one dies.
    ///
    /// # Errors
    /// When a server does not start.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn pair(replication: Replication) -> Result<Self, LabError> {
        let pair = Pair::start(replication).await?;
        let proxy = Proxy::start(pair.primary().addr(), Protocol::Postgres).await?;
        let url = pair.primary().url_at(proxy.addr());
        let injector = Arc::new(PairInjector::new(pair, proxy, replication));
        Ok(Self { direct: url.clone(), url, injector })
    }

    /// A group of Redis servers whose old leaders live on when another takes over.
    ///
    /// # Errors
    /// When the group does not start.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing of it remains.
    pub async fn that_splits(layout: Layout) -> Result<Self, LabError> {
        Self::redis(layout, GroupInjector::that_splits).await
    }

    async fn redis(
        layout: Layout,
        change: fn(GroupInjector) -> GroupInjector,
    ) -> Result<Self, LabError> {
        let group = Group::start(layout).await?;
        let proxy = group.proxy(Protocol::Resp).await?;
        let (url, direct) = (group.url_through(&proxy), group.url());
        Ok(Self { url, direct, injector: Arc::new(change(GroupInjector::new(group, proxy))) })
    }
}

/// A server with a proxy before it: its URL for clients, the one past the proxy, and who strikes.
async fn struck(
    kind: ServerKind,
    faults: &[Fault],
) -> Result<(String, String, ServerInjector), LabError> {
    let server = Server::start(kind).await?;
    let proxy = Proxy::start(server.addr(), kind.protocol()).await?;
    let (url, direct) = (server.url_at(proxy.addr()), server.url());
    Ok((url, direct, ServerInjector::new(server, proxy, faults.to_vec())))
}

/// ZooKeeper's clients get the tick of the lab's servers: with a longer one, sessions would
/// outlast the storm's short leases by much.
fn paced(kind: ServerKind, url: String) -> String {
    if kind == ServerKind::ZooKeeper { format!("{url}?tick=500ms") } else { url }
}

impl Storm {
    /// A storm of a test: some seconds, or as many as `LOCKKIT_STORM_SECONDS` says, with clients in
    /// this program, in a new folder.
    pub fn brief(program: impl Into<PathBuf>) -> Self {
        static STORMS: AtomicU32 = AtomicU32::new(0);
        let seconds = std::env::var("LOCKKIT_STORM_SECONDS").ok().and_then(|s| s.parse().ok());
        let number = STORMS.fetch_add(1, Ordering::Relaxed);
        let folder = format!("lockkit-storm-{}-{number}", std::process::id());
        Self {
            seed: 2026,
            lasts: Duration::from_secs(seconds.unwrap_or(8)),
            processes: 3,
            tasks: 3,
            locks: 3,
            hot: false,
            ttl: Duration::from_secs(1),
            wait_ttl: Duration::from_secs(4),
            program: program.into(),
            folder: std::env::temp_dir().join(folder),
            faults_at_clients: true,
        }
    }

    /// The same with one lock for all clients, which is passed on from one to the other. Leases are short, so
    /// that a waiter that is forgotten shows.
    pub fn hot(program: impl Into<PathBuf>) -> Self {
        let (ttl, wait_ttl) = (Duration::from_secs(1), Duration::from_secs(2));
        let brief = Self::brief(program);
        let lasts = brief.lasts.max(Duration::from_secs(10));
        Self { lasts, locks: 1, hot: true, tasks: 8, ttl, wait_ttl, ..brief }
    }

    /// Connects who looks at the end, with `connect`, and takes a first lock: a new quorum begins
    /// when all its members are there, which a storm would see to only by and by.
    ///
    /// # Errors
    /// When the backend cannot be reached, or does not lock.
    ///
    /// # Cancel safety
    /// If the future is dropped, the first lock is given back in the background.
    pub async fn onlooker<C>(
        &self,
        stage: &StormSetup,
        connect: impl FnOnce(String, Settings) -> C,
    ) -> io::Result<LockManager>
    where
        C: Future<Output = Result<LockManager, Error>>,
    {
        let settings = Settings::default().ttl(self.ttl).wait_ttl(self.wait_ttl);
        let look = connect(stage.direct.clone(), settings).await.map_err(io::Error::other)?;
        let first = look.mutex("the first of all").lock().await.map_err(io::Error::other)?;
        first.release().await.map_err(io::Error::other)?;
        Ok(look)
    }

    /// Sets it up on this stage, runs it and has it judged.
    ///
    /// # Errors
    /// When something fails that no fault of the storm explains.
    ///
    /// # Cancel safety
    /// If the future is dropped, client processes are killed.
    pub async fn judged<C>(
        &self,
        stage: &StormSetup,
        connect: impl FnOnce(String, Settings) -> C,
    ) -> io::Result<StormReport>
    where
        C: Future<Output = Result<LockManager, Error>>,
    {
        let look = self.onlooker(stage, connect).await?;
        let report = self.run(stage, Vec::new(), &look).await?;
        look.shutdown().await;
        Ok(report)
    }

    /// The same for a test, which fails unless the storm is acquitted; its folder is kept then.
    ///
    /// # Panics
    /// When a promise was broken, or the storm could not be held.
    ///
    /// # Cancel safety
    /// As for [`judged`](Self::judged).
    pub async fn acquitted<C>(
        self,
        stage: StormSetup,
        connect: impl FnOnce(String, Settings) -> C,
    ) -> StormReport
    where
        C: Future<Output = Result<LockManager, Error>>,
    {
        let kept = self.folder.display();
        let report = self.judged(&stage, connect).await;
        let report = report.unwrap_or_else(|error| panic!("{error}, histories in {kept}"));
        let judgement = &report.judgement;
        assert!(judgement.acquitted(), "{:#?}, histories in {kept}", judgement.violations);
        println!("{:?}", judgement.counts);
        judgement.excused.iter().for_each(|excused| println!("excused: {excused}"));
        println!("longest time at a free lock: {:?}", judgement.longest_waits);
        let _ = std::fs::remove_dir_all(&self.folder);
        report
    }
}

impl StormReport {
    /// How many events of this kind there were.
    pub fn count(&self, what: &str) -> usize {
        self.judgement.counts.get(what).copied().unwrap_or(0)
    }

    /// How many faults of this kind struck.
    pub fn faults(&self, wanted: Fault) -> usize {
        let is_wanted = |what: &EventKind| matches!(what, EventKind::FaultBegins { fault, .. } if *fault == wanted);
        self.recorded.history.events.iter().filter(|event| is_wanted(&event.what)).count()
    }
}
