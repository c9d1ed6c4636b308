//! `lockkit-storm`: clients in tasks and processes on a few locks under a random but seeded plan of
//! faults, judged at the end. Also what each client process of a storm runs. It decides nothing
//! about locks or faults; the library does.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use lockkit::capabilities::Fault;
use lockkit::{Error, LockManager, Settings, parse_duration};
use lockkit_lab::history::judge::Judgement;
use lockkit_lab::storm::checkpoint::Verdict;
use lockkit_lab::storm::client::{self, Orders};
use lockkit_lab::storm::consumer;
use lockkit_lab::storm::{FAULTS, Stage, Storm};
use lockkit_lab::{Kind, LabError, Layout};
use lockkit_server::{Listen, Service};

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
    /// Start this group of servers and strike at it too
    #[arg(long, conflicts_with_all = ["url", "server"])]
    group: Option<Members>,
    /// Start Redis and two servers of a lock service on it, and strike at these: clients in Rust and
    /// in Python lock through them, and some past them
    #[arg(long, conflicts_with_all = ["url", "server", "group"])]
    service: bool,
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
    /// How long half of the operations hold, and the other half wait, without being renewed
    #[arg(long, value_parser = parse_duration, default_value = "2s")]
    ttl: Duration,
    /// How long the one half waits, and the other holds, without being renewed
    #[arg(long, value_parser = parse_duration, default_value = "8s")]
    wait_ttl: Duration,
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
    /// A ZooKeeper ensemble of three
    #[value(name = "zk-ensemble")]
    Ensemble,
}

impl Members {
    fn layout(self) -> Layout {
        match self {
            Self::Sentinel => Layout::RedisSentinel,
            Self::Cluster => Layout::RedisCluster,
            Self::ClusterWithReplicas => Layout::RedisClusterWithReplicas,
            Self::Ensemble => Layout::ZooKeeperEnsemble,
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
                Some("service") => serve(&arguments[2..]).await,
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
    client::serve(arguments, connect, run).await.map(|()| ExitCode::SUCCESS)
}

/// A server of a lock service: the words are its backend and its address.
async fn serve(words: &[OsString]) -> io::Result<ExitCode> {
    let [Some(backend), Some(address)] = [0, 1].map(|i| words.get(i).and_then(|w| w.to_str()))
    else {
        return Err(io::Error::other("a server of a storm is started by a storm"));
    };
    let locks = lockkit::connect(backend).await.map_err(io::Error::other)?;
    let service = Service::new(locks.driver().clone()).map_err(io::Error::other)?;
    let listener = address.parse::<Listen>().map_err(io::Error::other)?.open().await?;
    println!("ready");
    lockkit_server::serve(listener, service, std::future::pending()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    lockkit::connect_with(&url, settings).await
}

async fn storm(arguments: Arguments) -> io::Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("lockkit-storm-{seed}")),
    };
    std::fs::create_dir_all(&folder)?;
    let stage = match arguments.service {
        true => Stage::service(&std::env::current_exe()?).await?,
        false => stage(&arguments, seed, &folder).await.map_err(io::Error::other)?,
    };
    let storm = Storm {
        seed,
        lasts: arguments.lasts,
        processes: arguments.processes,
        tasks: arguments.tasks,
        locks: arguments.locks,
        ttl: arguments.ttl,
        wait_ttl: arguments.wait_ttl,
        program: std::env::current_exe()?,
        folder: folder.clone(),
        strike_clients: !arguments.spare_clients,
    };
    println!("storm: {}, seed {seed}, {:?}", stage.direct, arguments.lasts);
    if arguments.consumers {
        let look = storm.onlooker(&stage, connect).await?;
        let verdict = storm.run_consumers(&stage, &look).await?;
        look.shutdown().await;
        return conclude(&verdict, &folder, arguments.folder.is_none());
    }
    let report = storm.judged(&stage, connect).await?;
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

/// Where it is to be.
async fn stage(
    arguments: &Arguments,
    seed: u64,
    folder: &std::path::Path,
) -> Result<Stage, LabError> {
    if let Some(members) = arguments.group {
        return Stage::group(members.layout()).await;
    }
    match (arguments.server, arguments.quorum) {
        (Some(kind), Some(members)) => {
            Stage::quorum(kind, members, seed, arguments.ttl.max(arguments.wait_ttl)).await
        }
        (Some(kind), None) => {
            let mut faults = FAULTS.to_vec();
            if arguments.consumers {
                faults.retain(|fault| *fault != Fault::ServerRestarts);
            }
            Stage::server(kind, &faults).await
        }
        _ => {
            let file = || format!("sqlite:{}", folder.join("locks.db").display());
            Ok(Stage::calm(arguments.url.clone().unwrap_or_else(file)))
        }
    }
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
