//! Runs the conformance suite against anybody's server, in namespaces of its own which it cleans
//! up, and prints a table. It decides nothing about locks; the library does.

mod progress;
mod table;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use clap::Parser;
use futures_util::{StreamExt, stream};
use lockkit::driver::LockDriver;
use lockkit::{Error, Settings};
use lockkit_conformance::broken::{BUGS, ToyHarness};
use lockkit_conformance::{CASES, Case, Harness, Outcome, Report, Time, Worker, run};
use tokio::sync::watch;

use progress::Progress;

/// Shows whether a lock driver or server keeps lockkit's promises.
///
/// Runs every case in a namespace of its own, cleans up behind it, and prints a table. Exits with 0
/// when all that applies passed, with 1 otherwise.
#[derive(Parser)]
#[command(name = "lockkit-conformance", version)]
struct Arguments {
    /// Where the server is, as for lockkit itself
    #[arg(long, env = "LOCKKIT_URL", hide_env_values = true, default_value = "memory:")]
    url: String,
    /// Only this group, or only cases whose name begins so; may be repeated
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
    /// So many cases at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    jobs: usize,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown
    #[arg(long)]
    markdown: bool,
    /// Print the cases and run none
    #[arg(long)]
    list: bool,
    /// Run the drivers that are wrong on purpose, and print which case caught each
    #[arg(long)]
    broken: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Runtime::new();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return failed(&format!("no runtime: {e}")),
    };
    if args.get(1).is_some_and(|arg| arg == "worker") {
        let connect =
            |url: String, settings| async move { lockkit::connect_with(&url, settings).await };
        return match runtime.block_on(lockkit_conformance::worker::run(&args[2..], connect)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => failed(&e.to_string()),
        };
    }
    let arguments = Arguments::parse();
    // A case that fails panics; its message is in the table.
    std::panic::set_hook(Box::new(|_| {}));
    if arguments.list {
        table::cases(CASES);
        return ExitCode::SUCCESS;
    }
    if arguments.broken {
        return broken_drivers();
    }
    runtime.block_on(suite(arguments))
}

async fn suite(arguments: Arguments) -> ExitCode {
    let harness = match UrlHarness::connect(&arguments.url).await {
        Ok(harness) => Arc::new(harness),
        Err(e) => return failed(&e.to_string()),
    };
    let chosen = match chosen(&arguments.only) {
        Ok(chosen) => chosen,
        Err(e) => return failed(&e),
    };
    let interrupted = on_interrupt();
    let progress = Progress::new(chosen.len());
    let reports: Vec<Report> = stream::iter(chosen)
        .map(|case| {
            let (harness, mut stop, progress) = (harness.clone(), interrupted.clone(), &progress);
            async move {
                if *stop.borrow() {
                    return None;
                }
                let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
                let report = run::case_until(harness, case, stopped).await;
                progress.done(&report);
                Some(report)
            }
        })
        .buffered(arguments.jobs.max(1))
        .filter_map(|report| async { report })
        .collect()
        .await;
    progress.finish();
    let capabilities = harness.first.capabilities();
    match (arguments.json, arguments.markdown) {
        (true, _) => table::json(capabilities, &reports),
        (_, true) => table::markdown(capabilities, &reports),
        _ => table::plain(capabilities, &reports),
    }
    let failures = reports.iter().filter(|r| matches!(r.outcome, Outcome::Failed(_))).count();
    ExitCode::from(u8::from(failures > 0 || *interrupted.borrow()))
}

fn failed(why: &str) -> ExitCode {
    eprintln!("lockkit-conformance: {why}");
    ExitCode::FAILURE
}

fn chosen(only: &[String]) -> Result<Vec<&'static Case>, String> {
    for wanted in only {
        if !CASES.iter().any(|case| fits(case, wanted)) {
            let groups: Vec<_> = CASES
                .iter()
                .map(|c| (c.group, ()))
                .collect::<BTreeMap<_, _>>()
                .into_keys()
                .collect();
            return Err(format!("no group or case {wanted:?}; there are {}", groups.join(", ")));
        }
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|w| fits(case, w));
    Ok(CASES.iter().filter(wanted).collect())
}

fn fits(case: &Case, wanted: &str) -> bool {
    case.group == wanted || (wanted.contains('_') && case.name.starts_with(wanted))
}

/// Turns true at Ctrl-C, so that cases can clean up.
fn on_interrupt() -> watch::Receiver<bool> {
    let (tell, told) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = tell.send(true);
        }
        std::future::pending::<()>().await;
    });
    told
}

/// Each broken driver against the case made for it.
fn broken_drivers() -> ExitCode {
    let mut escaped = 0;
    for caught in BUGS {
        let case = Case::named(caught.by).unwrap_or(&CASES[0]);
        let harness = Arc::new(ToyHarness::with(caught.bug));
        let report = run::runtime(Time::Paused).block_on(run::case(harness, case));
        escaped += usize::from(!matches!(report.outcome, Outcome::Failed(_)));
        table::broken(caught, &report.outcome);
    }
    ExitCode::from(u8::from(escaped > 0))
}

/// Whatever a URL leads to.
struct UrlHarness {
    url: String,
    first: Arc<dyn LockDriver>,
}

impl UrlHarness {
    async fn connect(url: &str) -> Result<Self, Error> {
        let manager = lockkit::connect_with(url, Settings::default()).await?;
        manager.health().await?;
        Ok(Self { url: url.to_owned(), first: manager.driver().clone() })
    }
}

#[async_trait]
impl Harness for UrlHarness {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        if !self.first.capabilities().shared_between_processes {
            return Ok(self.first.clone());
        }
        let manager = lockkit::connect_with(&self.url, Settings::default()).await?;
        Ok(manager.driver().clone())
    }

    fn worker(&self) -> Option<Worker> {
        let program = std::env::current_exe().ok()?;
        let url = self.url.clone();
        Some(Worker { program, url })
    }
}
