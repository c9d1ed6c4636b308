//! The storm: many clients, in tasks and in OS processes, on a few locks in all modes, under a
//! random but seeded plan of faults; recorded, and judged.
//!
//! The parts: [`plan`] makes the plan, [`client`] is what every client does, [`FaultInjector`] strikes,
//! and [`Storm::run`] puts them together; a [`StormSetup`] is where it happens. [`checkpoint`] is a storm
//! of another kind: for consumers that keep in a register how far they are.

pub mod checkpoint;
pub mod client;
pub mod consumer;
pub mod group;
pub mod leader;
pub mod members;
mod pair;
pub mod plan;
mod processes;
pub mod server;
mod service;
mod stage;
mod witness;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;
use lockkit_core::{LockManager, Space};

use crate::history::register::GuardedRegisters;
use crate::history::{
    EventKind, History, HistoryJudgement, Recorded, RecordedPromises, Recorder, draw, judge,
};
use client::Orders;
use plan::{PlannedFault, StormPlan};
use processes::Processes;
pub use stage::{FAULTS, HOT_FAULTS, StormSetup};

/// Stages faults of the server, the network, or whatever else is not a client's process.
#[async_trait]
pub trait FaultInjector: Send + Sync {
    /// What it can stage.
    fn faults(&self) -> Vec<Fault>;
    /// Whom the next strike of this fault hits, and which of these locks it may touch.
    async fn aim(&self, fault: Fault, locks: &[String]) -> Target {
        let _ = (fault, locks);
        Target::whole("server")
    }
    /// Begins a fault, lets it last, and ends it.
    async fn inject(&self, fault: Fault, lasts: Duration, target: &Target);
    /// What the server wrote into its log last, for who looks for the cause of a violation.
    fn log(&self) -> String {
        String::new()
    }
}

/// Whom a strike hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server, as the history names it.
    pub on: String,
    /// The locks that it may touch; empty where that may be any.
    pub locks: Vec<String>,
}

impl Target {
    /// One on which any lock depends.
    pub fn whole(on: impl Into<String>) -> Self {
        Self { on: on.into(), locks: Vec::new() }
    }
}

/// Only clients have faults.
#[derive(Clone, Copy, Debug)]
pub struct NoFaults;

#[async_trait]
impl FaultInjector for NoFaults {
    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    async fn inject(&self, _: Fault, _: Duration, _: &Target) {}
}

/// How a storm is to be.
#[derive(Clone, Debug)]
pub struct Storm {
    /// The same seed gives the same plan of faults.
    pub seed: u64,
    /// How long clients are at work.
    pub lasts: Duration,
    /// Client processes.
    pub processes: u32,
    /// Clients in each of them.
    pub tasks: u32,
    /// Locks, and as many semaphores.
    pub locks: u32,
    /// Whether most operations ask for a lock alone, and hold it for a moment: so that it is passed on as
    /// often as can be.
    pub hot: bool,
    /// How long half of the operations hold without being renewed, and the other half wait.
    pub ttl: Duration,
    /// How long the one half waits without being renewed, and the other holds.
    pub wait_ttl: Duration,
    /// The program that runs clients: it hands its arguments after `storm-client` to
    /// [`client::Orders::parse`].
    pub program: PathBuf,
    /// Where histories are written.
    pub folder: PathBuf,
    /// Whether client processes are frozen and killed.
    pub faults_at_clients: bool,
}

/// What came of a storm.
#[derive(Debug)]
pub struct StormReport {
    /// What the judge says.
    pub judgement: HistoryJudgement,
    /// What it was told.
    pub recorded: Recorded,
    /// The drawing, when there was a violation.
    pub drawing: Option<PathBuf>,
}

impl Storm {
    /// Runs it on this stage. Beside the client processes, each of the managers `here` has clients
    /// in this one. `look` reaches the same backend in the same namespace, past all faults.
    pub async fn run(
        &self,
        stage: &StormSetup,
        here: Vec<LockManager>,
        look: &LockManager,
    ) -> io::Result<StormReport> {
        let injector = &stage.injector;
        std::fs::create_dir_all(&self.folder)?;
        let registers = GuardedRegisters::default().serve()?;
        let judge_file = self.folder.join("storm.jsonl");
        let recorder = Arc::new(Recorder::open(&judge_file, 0)?);
        let orders = Orders {
            seed: self.seed,
            lasts: self.lasts,
            client: 0,
            tasks: self.tasks,
            locks: self.locks,
            hot: self.hot,
            ttl: self.ttl,
            wait_ttl: self.wait_ttl,
            registers,
            folder: self.folder.clone(),
        };
        let mut tasks = tokio::task::JoinSet::new();
        for (locks, client) in here.into_iter().zip((10_000..).step_by(100)) {
            tasks.spawn(client::run(locks, Orders { client, ..orders.clone() }));
        }
        let processes = Processes::start(self, &stage.url, "storm-client", &orders)?;
        let plan = StormPlan::new(self, &injector.faults());
        self.run_plan(plan, &processes, injector, &recorder).await?;
        processes.join(self.lasts + Duration::from_secs(60)).await?;
        while let Some(result) = tasks.join_next().await {
            result??;
        }
        self.check_free(look, &recorder).await?;
        let report = self.conclude(look)?;
        if !report.judgement.acquitted() {
            std::fs::write(self.folder.join("server.log"), injector.log())?;
        }
        Ok(report)
    }

    async fn run_plan(
        &self,
        plan: StormPlan,
        processes: &Processes,
        injector: &Arc<dyn FaultInjector>,
        recorder: &Arc<Recorder>,
    ) -> io::Result<()> {
        let begun = tokio::time::Instant::now();
        for PlannedFault { at, lasts, fault, target } in plan.faults {
            tokio::time::sleep_until(begun + at).await;
            let hit = match fault {
                Fault::ClientDies | Fault::ClientPaused => {
                    Target::whole(format!("process {target}"))
                }
                _ => injector.aim(fault, &self.names()).await,
            };
            let Target { on, locks } = hit.clone();
            recorder.record(EventKind::FaultBegins { fault, on: on.clone(), locks })?;
            match fault {
                Fault::ClientDies => processes.kill(target)?,
                Fault::ClientPaused => processes.freeze(target, lasts).await?,
                _ => injector.inject(fault, lasts, &hit).await,
            }
            recorder.record(EventKind::FaultEnds { fault, on })?;
        }
        tokio::time::sleep_until(begun + self.lasts).await;
        Ok(())
    }

    /// The names of all locks and semaphores.
    fn names(&self) -> Vec<String> {
        let of = |space| (0..self.locks).map(move |i| client::name(space, i));
        of(Space::Lock).chain(of(Space::Semaphore)).collect()
    }

    /// How long after the end of all clients a lock may still be held.
    fn patience(&self, look: &LockManager) -> Duration {
        self.longest() + look.capabilities().expiry_slack + Duration::from_secs(1)
    }

    /// The longer one of the two ttls.
    pub fn longest(&self) -> Duration {
        self.ttl.max(self.wait_ttl)
    }

    /// When the time of all leases is over: is every lock free? Until then they are looked at again and again, since
    /// a store without a clock counts the lease of a client that died from the first look at it.
    async fn check_free(&self, look: &LockManager, recorder: &Recorder) -> io::Result<()> {
        let end = tokio::time::Instant::now() + self.patience(look);
        let both = |i| [Space::Lock, Space::Semaphore].map(|space| (space, client::name(space, i)));
        let all = || (0..self.locks).flat_map(both);
        while tokio::time::Instant::now() < end {
            for (space, name) in all() {
                is_free(look, space, &name).await;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        for (space, name) in all() {
            let free = is_free(look, space, &name).await;
            recorder.record(EventKind::Inspected { lock: name, free })?;
        }
        Ok(())
    }

    fn conclude(&self, look: &LockManager) -> io::Result<StormReport> {
        let history = History::load(histories(&self.folder)?)?;
        let capabilities = look.capabilities();
        let patience = self.patience(look) + self.longest();
        let lease = self.longest() + capabilities.granularity + capabilities.expiry_slack;
        let mut promises = RecordedPromises::of(capabilities, patience, lease);
        promises.idle = self.patience(look);
        let judgement = judge(&history, &promises);
        let mut drawing = None;
        if !judgement.acquitted() {
            let path = self.folder.join("violation.svg");
            std::fs::write(&path, draw::svg(&history, &judgement.violations))?;
            drawing = Some(path);
        }
        Ok(StormReport { judgement, recorded: Recorded { history, promises }, drawing })
    }
}

/// The backend may be slow to come back; it is asked for long.
async fn is_free(look: &LockManager, space: Space, name: &str) -> bool {
    for _ in 0..60 {
        match look.inspect(space, name).await {
            Ok(state) => return state.is_free(),
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(_) => return false,
        }
    }
    false
}

fn histories(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "jsonl") {
            files.push(path);
        }
    }
    Ok(files)
}
