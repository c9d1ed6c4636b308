//! `storm` and `judge`: clients under injected faults, and the verdict on what happened. The lab
//! decides; where it takes place and what is printed of it is said here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lockkit::capabilities::Fault;
use lockkit::{Error, LockManager, Settings};
use lockkit_lab::LabError;
use lockkit_lab::history::{HistoryJudgement, Recorded, draw, judge};
use lockkit_lab::storm::checkpoint::ConsumerResult;
use lockkit_lab::storm::{FAULTS, HOT_FAULTS, Storm, StormSetup};
use lockkit_server::{Listen, Service};

use crate::args::BackendArgs;
use crate::args::lab::{JudgeArgs, StormArgs};
use crate::backend::Backend;
use crate::exit::{ExitError, code};
use crate::output;
use crate::system;

pub(crate) async fn storm(args: &StormArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    let elsewhere = backend.local || backend.namespace.is_some();
    if elsewhere || (backend.url.is_some() && (args.server.is_some() || args.group.is_some())) {
        return Err(ExitError::usage(
            "a storm takes one of --url, --server and --group, and no other",
        ));
    }
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ unique());
    // Of this run alone: a storm of the same seed may be under way, or have left its folder behind.
    let folder = format!("lockkit-storm-{seed}-{}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir(&folder)
        .map_err(|e| ExitError::os(&format!("cannot make the folder {}", folder.display()), e))?;
    let (stage, shown) = stage(args, backend, seed, &folder).await?;
    let storm = Storm {
        seed,
        lasts: args.lasts,
        processes: args.processes,
        tasks: args.tasks,
        locks: if args.hot { 1 } else { args.locks },
        hot: args.hot,
        ttl: args.ttl,
        wait_ttl: args.wait_ttl,
        program: system::this_program(),
        folder: folder.clone(),
        faults_at_clients: !args.spare_clients,
    };
    output::note(format!("storm: {shown}, seed {seed}, {:?}", args.lasts));
    let failed = |e| ExitError::new(code::UNAVAILABLE, format!("the storm could not be held: {e}"));
    if args.consumers {
        let look = storm.onlooker(&stage, connect).await.map_err(failed)?;
        let result = storm.run_consumers(&stage, &look).await.map_err(failed)?;
        look.shutdown().await;
        return conclude(&consumed(&result), result.wrong.is_empty(), &folder);
    }
    let report = storm.judged(&stage, connect).await.map_err(failed)?;
    let history = match &args.history {
        Some(file) => file.clone(),
        None => PathBuf::from(format!("storm-{seed}.jsonl")),
    };
    report.recorded.save(&history).map_err(|e| unwritten(&history, e))?;
    let judgement = &report.judgement;
    let said = format!("{}the history is in {}\n", judgement_text(judgement), history.display());
    conclude(&said, judgement.acquitted(), &folder)
}

pub(crate) fn judge_again(args: &JudgeArgs) -> Result<u8, ExitError> {
    let file = args.file.display();
    let recorded = Recorded::load(&args.file)
        .map_err(|e| ExitError::usage(format!("cannot read the history {file}: {e}")))?;
    let judgement = judge(&recorded.history, &recorded.promises);
    if let Some(svg) = &args.svg {
        let drawing = draw::svg(&recorded.history, &judgement.violations);
        std::fs::write(svg, drawing).map_err(|e| unwritten(svg, e))?;
    }
    output::print(&judgement_text(&judgement))?;
    Ok(if judgement.acquitted() { 0 } else { code::NO })
}

fn unwritten(file: &Path, error: std::io::Error) -> ExitError {
    ExitError::os(&format!("cannot write {}", file.display()), error)
}

/// What happened and what it means, a line each. The last word is "acquitted" or "convicted".
fn judgement_text(judgement: &HistoryJudgement) -> String {
    let counts: Vec<_> = judgement.counts.iter().map(|(what, n)| format!("{n} {what}")).collect();
    let mut said = format!("{}\n", counts.join(", "));
    if let Some((lock, longest)) =
        judgement.longest_waits.iter().max_by_key(|(_, longest)| **longest)
    {
        said.push_str(&format!(
            "longest time that a waiter was at a free lock: {longest:.1?} ({lock})\n"
        ));
    }
    for rule in &judgement.better {
        said.push_str(&format!("better than promised: {rule:?} held all the same\n"));
    }
    for violation in &judgement.excused {
        said.push_str(&format!("excused by a fault: {violation}\n"));
    }
    for violation in &judgement.violations {
        said.push_str(&format!("VIOLATION: {violation}\n"));
    }
    said.push_str(if judgement.acquitted() { "acquitted\n" } else { "convicted\n" });
    said
}

fn consumed(result: &ConsumerResult) -> String {
    let ConsumerResult { events, stored, unsure, turns, faults, wrong } = result;
    let mut said = format!(
        "{events} events, {stored} checkpoints stored, {unsure} not or perhaps, in {turns} turns, \
         {faults} faults\n"
    );
    for what in wrong {
        said.push_str(&format!("VIOLATION: {what}\n"));
    }
    said.push_str(if wrong.is_empty() { "acquitted\n" } else { "convicted\n" });
    said
}

/// What each process wrote down is kept for who looks for the cause of a violation.
fn conclude(said: &str, acquitted: bool, folder: &Path) -> Result<u8, ExitError> {
    output::print(said)?;
    if acquitted {
        let _ = std::fs::remove_dir_all(folder);
        return Ok(0);
    }
    let folder = folder.display();
    output::note(format!("what clients and server wrote down, and a drawing, are in {folder}"));
    Ok(code::NO)
}

/// Where it takes place, and how that is shown.
async fn stage(
    args: &StormArgs,
    backend: &BackendArgs,
    seed: u64,
    folder: &Path,
) -> Result<(StormSetup, String), ExitError> {
    if let Some(url) = &backend.url {
        let chosen = Backend::beside(&BackendArgs::default(), url, "--url")?;
        return Ok((StormSetup::calm(url), chosen.url_without_passwords()));
    }
    if args.service {
        let stage = StormSetup::service(&system::this_program()).await;
        let stage = stage.map_err(|e| ExitError::new(code::OS, e.to_string()))?;
        return Ok((stage, "two servers of a lock service on Redis".to_owned()));
    }
    let started = |stage: Result<StormSetup, LabError>| {
        let stage = stage.map_err(|e| ExitError::new(code::OS, e.to_string()))?;
        let shown = stage.direct.clone();
        Ok((stage, shown))
    };
    match (args.group, args.server, args.quorum) {
        (Some(members), ..) => started(StormSetup::group(members.layout()).await),
        (None, Some(kind), Some(members)) => {
            started(StormSetup::quorum(kind, members, seed, args.ttl.max(args.wait_ttl)).await)
        }
        (None, Some(kind), None) => {
            let mut faults = if args.hot { HOT_FAULTS.to_vec() } else { FAULTS.to_vec() };
            if args.consumers {
                faults.retain(|fault| *fault != Fault::ServerRestarts);
            }
            started(StormSetup::server(kind, &faults).await)
        }
        (None, None, _) => {
            let url = format!("sqlite:{}", folder.join("locks.db").display());
            Ok((StormSetup::calm(&url), url))
        }
    }
}

/// Another number each time.
fn unique() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64 >> 8)
}

/// How clients of a storm reach a URL.
async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    lockkit::connect_with(&url, settings).await
}

/// This program as the clients of a storm, or as a process that takes part in a case or trial.
pub(crate) fn take_part(arguments: &[OsString]) -> ExitCode {
    as_process(lockkit_lab::worker::play(arguments, connect))
}

/// This program as a server of a lock service, for a storm to strike at: its backend and address.
pub(crate) fn be_struck(arguments: &[OsString]) -> ExitCode {
    as_process(async {
        let [Some(backend), Some(address)] =
            [0, 1].map(|i| arguments.get(i).and_then(|word| word.to_str()))
        else {
            return Err("a storm starts this: BACKEND ADDRESS".into());
        };
        let locks = lockkit::connect(backend).await?;
        let service = Service::new(locks.driver().clone())?;
        let listener = address.parse::<Listen>()?.open().await?;
        output::print_line("ready").map_err(|_| "nobody reads")?;
        Ok(lockkit_server::serve(listener, service, std::future::pending()).await?)
    })
}

type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Threads, as a program of a user's has: clients block on the registers that they write to.
fn as_process(work: impl Future<Output = Done>) -> ExitCode {
    let done = tokio::runtime::Runtime::new().map_err(Into::into);
    match done.and_then(|runtime| runtime.block_on(work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::fail(error);
            ExitCode::from(code::SOFTWARE)
        }
    }
}
