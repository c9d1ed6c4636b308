//! `lockkit-storm`: clients in tasks and processes on a few locks under a random but seeded plan of
//! faults, judged at the end. Also what each client process of a storm runs. It decides nothing
//! about locks or faults; the library does.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use lockkit::capabilities::Fault;
use lockkit::{LockManager, Settings, parse_duration};
use lockkit_conformance::history::judge::Judgement;
use lockkit_conformance::lab::proxy::Protocol;
use lockkit_conformance::lab::{Group, Kind, LabError, Layout, Proxy, Server};
use lockkit_conformance::storm::checkpoint::Verdict;
use lockkit_conformance::storm::client::{self, Orders};
use lockkit_conformance::storm::consumer;
use lockkit_conformance::storm::group::GroupSaboteur;
use lockkit_conformance::storm::members::MembersSaboteur;
use lockkit_conformance::storm::server::ServerSaboteur;
use lockkit_conformance::storm::{NoSaboteur, Saboteur, Storm};

/// Lets clients and faults loose on a backend, and judges what happened.
///
/// Exits with 0 when every promise was kept that the backend makes under the faults that struck;
/// otherwise with 1, leaving the history and a drawing of the violation in the folder.
#[derive(Parser)]
#[command(name = "lockkit-storm", version)]
struct Arguments {
    /// The backend; a new SQLite file unless set
    #[arg(long, conflicts_with = "server")]
    url: Option<String>,
    /// Start this server (redis, postgres, mysql, zk, etcd) and strike at it too
    #[arg(long)]
    server: Option<Kind>,
    /// Start this group of Redis servers and strike at it too
    #[arg(long, conflicts_with_all = ["url", "server"])]
    group: Option<Members>,
    /// Start so many of these servers, and lock on a quorum of them; strikes at one at a time, and
    /// takes away its data, too
    #[arg(long, requires = "server")]
    quorum: Option<usize>,
    /// How long clients are at work
    #[arg(long, value_parser = parse_duration, default_value = "120s")]
    lasts: Duration,
    /// Client processes
    #[arg(long, default_value_t = 4)]
    processes: u32,
    /// Clients in each process
    #[arg(long, default_value_t = 3)]
    tasks: u32,
    /// Locks, and as many semaphores
    #[arg(long, default_value_t = 3)]
    locks: u32,
    /// The ttl of every lock
    #[arg(long, value_parser = parse_duration, default_value = "2s")]
    ttl: Duration,
    /// The same seed gives the same plan of faults; random unless set
    #[arg(long)]
    seed: Option<u64>,
    /// Where histories are written; a new folder under the system's temporary one unless set. It
    /// is removed when every promise was kept
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Kill and freeze only the server, not clients
    #[arg(long)]
    spare_clients: bool,
    /// Let consumers loose that keep in a register how far they are, and look for an event that
    /// was lost or done twice. (The server is not restarted then: what Redis loses by that is no
    /// fault of the consumers.)
    #[arg(long)]
    consumers: bool,
}

/// A group of servers.
#[derive(Clone, Copy, ValueEnum)]
enum Members {
    /// A Redis master, its replica and three sentinels
    #[value(name = "redis-sentinel")]
    Sentinel,
    /// A Redis Cluster of three masters
    #[value(name = "redis-cluster")]
    Cluster,
    /// The same with a replica for each
    #[value(name = "redis-cluster-with-replicas")]
    ClusterWithReplicas,
}

impl Members {
    fn layout(self) -> Layout {
        match self {
            Self::Sentinel => Layout::RedisSentinel,
            Self::Cluster => Layout::RedisCluster,
            Self::ClusterWithReplicas => Layout::RedisClusterWithReplicas,
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let done = tokio::runtime::Runtime::new().and_then(|runtime| {
        runtime.block_on(async {
            match arguments.get(1).and_then(|word| word.to_str()) {
                Some("storm-client") => be_client(&arguments[2..], client::run).await,
                Some("storm-consumer") => be_client(&arguments[2..], consumer::run).await,
                _ => storm(Arguments::parse()).await,
            }
        })
    });
    done.unwrap_or_else(|error| {
        eprintln!("lockkit-storm: {error}");
        ExitCode::from(2)
    })
}

async fn be_client<F>(
    arguments: &[OsString],
    run: impl FnOnce(LockManager, Orders) -> F,
) -> io::Result<ExitCode>
where
    F: Future<Output = io::Result<()>>,
{
    let connect =
        |url: String, settings| async move { lockkit::connect_with(&url, settings).await };
    client::serve(arguments, connect, run).await.map(|()| ExitCode::SUCCESS)
}

async fn storm(arguments: Arguments) -> io::Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("lockkit-storm-{seed}")),
    };
    std::fs::create_dir_all(&folder)?;
    let (url, direct, saboteur) = match (arguments.server, arguments.quorum) {
        (Some(kind), Some(members)) => quorum(kind, members, seed, arguments.ttl).await?,
        _ => backend(&arguments, &folder).await?,
    };
    let storm = Storm {
        seed,
        lasts: arguments.lasts,
        processes: arguments.processes,
        tasks: arguments.tasks,
        locks: arguments.locks,
        ttl: arguments.ttl,
        program: std::env::current_exe()?,
        url: url.clone(),
        folder: folder.clone(),
        strike_clients: !arguments.spare_clients,
    };
    println!("storm: {direct}, seed {seed}, {:?}", arguments.lasts);
    let settings = Settings::default().ttl(storm.ttl).wait_ttl(storm.ttl);
    let look = lockkit::connect_with(&direct, settings).await.map_err(io::Error::other)?;
    // A new quorum begins when all its members are there, which a storm would see to by and by.
    let first = look.mutex("the first of all").lock().await.map_err(io::Error::other)?;
    first.release().await.map_err(io::Error::other)?;
    if arguments.consumers {
        let verdict = storm.run_consumers(&look, saboteur).await?;
        look.shutdown().await;
        return conclude(&verdict, &folder, arguments.folder.is_none());
    }
    let report = storm.run(Vec::new(), &look, saboteur).await?;
    look.shutdown().await;
    say(&report.judgement);
    if report.judgement.acquitted() {
        if arguments.folder.is_none() {
            std::fs::remove_dir_all(&folder)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    println!("histories are in {}", folder.display());
    if let Some(drawing) = report.drawing {
        println!("the violation is drawn in {}", drawing.display());
    }
    Ok(ExitCode::FAILURE)
}

fn conclude(verdict: &Verdict, folder: &std::path::Path, remove: bool) -> io::Result<ExitCode> {
    let Verdict { events, stored, unsure, turns, faults, wrong } = verdict;
    println!(
        "{events} events, {stored} checkpoints stored, {unsure} not or perhaps, in {turns} turns, {faults} faults"
    );
    for what in wrong {
        println!("VIOLATION: {what}");
    }
    if wrong.is_empty() {
        println!("acquitted");
        if remove {
            std::fs::remove_dir_all(folder)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    println!("convicted; what the consumers wrote down is in {}", folder.display());
    Ok(ExitCode::FAILURE)
}

/// The URL for clients, the one past all faults, and who strikes.
async fn backend(
    arguments: &Arguments,
    folder: &std::path::Path,
) -> io::Result<(String, String, Arc<dyn Saboteur>)> {
    if let Some(members) = arguments.group {
        return group(members.layout()).await.map_err(io::Error::other);
    }
    let Some(kind) = arguments.server else {
        let file = || format!("sqlite:{}", folder.join("locks.db").display());
        let url = arguments.url.clone().unwrap_or_else(file);
        return Ok((url.clone(), url, Arc::new(NoSaboteur)));
    };
    let mut faults = FAULTS.to_vec();
    if arguments.consumers {
        faults.retain(|fault| *fault != Fault::ServerRestarts);
    }
    let (url, direct, saboteur) = server(kind, faults).await?;
    Ok((url, direct, Arc::new(saboteur)))
}

const FAULTS: [Fault; 4] =
    [Fault::ConnectionCut, Fault::Partition, Fault::ServerStandsStill, Fault::ServerRestarts];

/// A server with a proxy before it: its URL for clients, the one past the proxy, and who strikes.
async fn server(kind: Kind, faults: Vec<Fault>) -> io::Result<(String, String, ServerSaboteur)> {
    let protocol = match kind {
        Kind::Redis => Protocol::Resp,
        Kind::Postgres => Protocol::Postgres,
        Kind::MariaDb => Protocol::MySql,
        Kind::ZooKeeper => Protocol::ZooKeeper,
        Kind::Etcd => Protocol::Grpc,
        _ => Protocol::Unknown,
    };
    let server = Server::start(kind).await.map_err(io::Error::other)?;
    let proxy = Proxy::start(server.addr(), protocol).await.map_err(io::Error::other)?;
    let (url, direct) = (server.url_at(proxy.addr()), server.url());
    Ok((url, direct, ServerSaboteur::new(server, proxy, faults)))
}

/// Several servers that know nothing of each other.
async fn quorum(
    kind: Kind,
    members: usize,
    seed: u64,
    ttl: Duration,
) -> io::Result<(String, String, Arc<dyn Saboteur>)> {
    let faults = FAULTS.iter().copied().chain([Fault::DataLost]);
    let (mut urls, mut direct, mut saboteurs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..members {
        let (url, past, saboteur) = server(kind, faults.clone().collect()).await?;
        urls.push(url);
        direct.push(past);
        saboteurs.push(saboteur);
    }
    let of =
        |urls: Vec<String>| format!("quorum:{}?longest_ttl={}ms", urls.join(","), ttl.as_millis());
    let saboteur = MembersSaboteur::new(saboteurs, seed, ttl * 2);
    Ok((of(urls), of(direct), Arc::new(saboteur)))
}

async fn group(layout: Layout) -> Result<(String, String, Arc<dyn Saboteur>), LabError> {
    let group = Group::start(layout).await?;
    let proxy = group.proxy(Protocol::Resp).await?;
    let (url, direct) = (group.url_through(&proxy), group.url());
    Ok((url, direct, Arc::new(GroupSaboteur::new(group, proxy))))
}

fn say(judgement: &Judgement) {
    let counts: Vec<_> = judgement.counts.iter().map(|(what, n)| format!("{n} {what}")).collect();
    println!("{}", counts.join(", "));
    for rule in &judgement.better {
        println!("better than promised: {rule:?} held all the same");
    }
    for violation in &judgement.excused {
        println!("excused by a fault: {violation}");
    }
    for violation in &judgement.violations {
        println!("VIOLATION: {violation}");
    }
    let verdict = if judgement.acquitted() { "acquitted" } else { "convicted" };
    println!("{verdict}");
}
