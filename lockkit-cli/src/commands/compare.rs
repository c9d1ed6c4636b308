//! `compare`: backends side by side. What is run, measured and printed is the suite's; which servers,
//! and where the answers go, is said here.

#[cfg(not(feature = "lab"))]
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
#[cfg(not(feature = "lab"))]
use std::process::ExitCode;
use std::sync::Arc;

use lockkit_conformance::compare::{
    Comparison, Connector, Difference, Effort, Subject, differences_text,
};
use lockkit_conformance::{Outcome, Worker};
use rustix::process::Signal;
use serde_json::json;

use crate::args::BackendArgs;
use crate::args::compare::CompareArgs;
use crate::backend::Backend;
#[cfg(not(feature = "lab"))]
use crate::exit::Ending;
use crate::exit::{ExitError, code};
use crate::output::{self, Verbosity};
#[cfg(not(feature = "lab"))]
use crate::run::role::asynchronously;
use crate::system;

/// Refuses a backend that the options choose.
pub(super) fn check_no_backend(backend: &BackendArgs) -> Result<(), ExitError> {
    match backend.url.is_some() || backend.local || backend.namespace.is_some() {
        true => Err(ExitError::usage(
            "compare takes its backends as arguments ([NAME=]URL), and uses namespaces of its own",
        )),
        false => Ok(()),
    }
}

pub(crate) async fn compare(args: &CompareArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    check_no_backend(backend)?;
    if args.subjects.is_empty() {
        return Err(ExitError::usage("name the backends to compare, as [NAME=]URL"));
    }
    let mut backends = Vec::with_capacity(args.subjects.len());
    for argument in &args.subjects {
        let (name, url) = named(argument);
        backends.push((name, url, Backend::compared(url)?));
    }
    let mut subjects: Vec<Subject> = Vec::with_capacity(backends.len());
    for (name, url, backend) in &backends {
        let place = backend.url_without_passwords();
        let reached = subject(*name, &place, url, &subjects).await;
        subjects.push(reached.map_err(|error| {
            let mut failure = ExitError::from(error);
            let sentence = failure.sentence.unwrap_or_default();
            failure.sentence = Some(format!("while connecting to {place}: {sentence}"));
            failure
        })?);
    }
    check_names(args, &subjects)?;
    let places: Vec<_> =
        backends.iter().map(|(.., backend)| backend.url_without_passwords()).collect();
    output::note(format!(
        "taking and releasing locks in namespaces of its own at {}; no other lock is touched, no \
         server is harmed, and what is left is cleaned up",
        places.join(", ")
    ));
    let comparison = measured(args, &subjects).await?;
    conclude(args, &comparison)
}

/// Runs the cases and the measurements. An interrupt ends it after it has cleaned up.
pub(super) async fn measured(
    args: &CompareArgs,
    subjects: &[Subject],
) -> Result<Comparison, ExitError> {
    let effort = Effort { whole_suite: args.whole_suite, rounds: args.rounds, ..Effort::default() };
    // A case that fails panics; its message is in the report.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = Comparison::until(subjects, effort, &progress, interrupted()).await;
    std::panic::set_hook(hook);
    over();
    match found? {
        Some(comparison) => Ok(comparison),
        None => Err(ExitError::signal(Signal::INT, "interrupted; what it held is released")),
    }
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Prints what was asked for.
pub(super) fn conclude(args: &CompareArgs, comparison: &Comparison) -> Result<u8, ExitError> {
    let differences = match (&args.from, &args.to) {
        (Some(from), Some(to)) => comparison
            .differences(from, to)
            .map(|all| (name_of(comparison, from), name_of(comparison, to), all)),
        _ => None,
    };
    let differences = differences.as_ref().map(|(from, to, all)| (*from, *to, all.as_slice()));
    let mut printed = false;
    for (file, content) in [
        (&args.markdown, Comparison::markdown as fn(&Comparison, Differences<'_>) -> String),
        (&args.json, json_text),
        (&args.html, Comparison::html),
    ] {
        if let Some(file) = file {
            printed |= file == Path::new("-");
            write(file, &content(comparison, differences))?;
        }
    }
    if !printed {
        output::print(&match differences {
            Some((from, to, all)) => format!("From {from} to {to}\n\n{}", differences_text(all)),
            None => comparison.text(),
        })?;
    }
    let mut reports = comparison.set_ups.iter().flat_map(|set_up| &set_up.reports);
    Ok(match reports.any(|report| matches!(report.outcome, Outcome::Failed(_))) {
        true => code::NO,
        false => 0,
    })
}

type Differences<'a> = Option<(&'a str, &'a str, &'a [Difference])>;

fn json_text(comparison: &Comparison, differences: Differences<'_>) -> String {
    let differences = differences.map(|(.., all)| all);
    let mut value = json!(comparison);
    value["differences"] = json!(differences);
    format!("{value:#}\n")
}

fn name_of<'a>(comparison: &'a Comparison, name: &'a str) -> &'a str {
    comparison.set_up(name).map_or(name, |set_up| &set_up.name)
}

/// `NAME=URL`, or a URL.
fn named(argument: &str) -> (Option<&str>, &str) {
    match argument.split_once('=') {
        Some((name, url)) if !name.is_empty() && !name.contains([':', '/', '?']) => {
            (Some(name), url)
        }
        _ => (None, argument),
    }
}

/// Without a name it gets that of its backend, and a number when that is taken.
async fn subject(
    name: Option<&str>,
    place: &str,
    url: &str,
    others: &[Subject],
) -> Result<Subject, lockkit::Error> {
    let connect = connect(url.to_owned());
    let worker = Worker { program: system::this_program(), url: url.to_owned() };
    let name = match name {
        Some(name) => name.to_owned(),
        None => {
            let first = connect().await?.capabilities().backend.to_owned();
            let taken = |name: &str| others.iter().any(|other| other.name() == name);
            let numbered = (2..).map(|number| format!("{first} {number}"));
            std::iter::once(first.clone()).chain(numbered).find(|n| !taken(n)).unwrap_or(first)
        }
    };
    Subject::new(name, place, connect, Some(worker)).await
}

/// A way to reach a URL.
pub(super) fn connect(url: String) -> Connector {
    Arc::new(move || {
        let url = url.clone();
        Box::pin(async move { Ok(lockkit::connect(&url).await?.driver().clone()) })
    })
}

/// Refuses names that are taken or unknown.
pub(super) fn check_names(args: &CompareArgs, subjects: &[Subject]) -> Result<(), ExitError> {
    let names: Vec<_> = subjects.iter().map(Subject::name).collect();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(ExitError::usage(format!("two backends are called {name:?}")));
        }
    }
    for name in [&args.from, &args.to].into_iter().flatten() {
        if !subjects.iter().any(|subject| subject.is_called(name)) {
            let names = names.join(", ");
            return Err(ExitError::usage(format!(
                "no backend is called {name:?}; there are {names}"
            )));
        }
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), ExitError> {
    if file == Path::new("-") {
        return output::print(text);
    }
    std::fs::write(file, text)
        .map_err(|e| ExitError::os(&format!("cannot write {}", file.display()), e))
}

/// A line on a terminal that the next one replaces; with --verbose, a line each.
pub(super) fn progress(step: &str) {
    let mut stderr = std::io::stderr();
    match stderr.is_terminal() && output::says(Verbosity::Normal) {
        true => drop(write!(stderr, "\r\x1b[K{step}").and_then(|()| stderr.flush())),
        false => output::detail(step),
    }
}

/// Takes the line of progress away.
pub(super) fn over() {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() && output::says(Verbosity::Normal) {
        let _ = write!(stderr, "\r\x1b[K");
    }
}

/// This program as a process that takes part in a case, started by its parent.
#[cfg(not(feature = "lab"))]
pub(crate) fn take_part(arguments: &[OsString]) -> ExitCode {
    let words: Vec<_> = arguments.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    asynchronously(async move {
        let connect = |url: String, settings: lockkit::Settings| async move {
            lockkit::connect_with(&url, settings).await
        };
        let done = lockkit_conformance::worker::run(&words, connect).await;
        done.map(|()| Ending::Code(0)).map_err(|e| ExitError::new(code::SOFTWARE, e.to_string()))
    })
}
