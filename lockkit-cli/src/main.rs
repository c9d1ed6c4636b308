//! The `lockkit` command: reads the command line, does one verb, ends with its exit code.

mod args;
mod backend;
mod commands;
mod exit;
mod output;
mod phrase;
mod run;
mod take;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Verb};
use exit::{Failure, code};
use output::Verbosity;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // The two processes that `run` makes of this same program.
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some(run::SUPERVISE) => return run::supervise::main(),
        Some(run::LAUNCH) => return run::launch::main(&arguments[2..]),
        _ => {}
    }
    let done = match Cli::try_parse_from(arguments) {
        Ok(cli) => perform(cli),
        Err(error) => explain(&error),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if let Some(sentence) = failure.sentence {
                output::fail(sentence);
            }
            ExitCode::from(failure.code)
        }
    }
}

fn perform(cli: Cli) -> Result<u8, Failure> {
    output::set_verbosity(match (cli.quiet, cli.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    });
    // One thread: it is the one that starts the command, and lives as long as lockkit.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::os("cannot begin", e))?;
    let result = runtime.block_on(dispatch(cli.verb));
    // What a driver does in other threads is not waited for.
    runtime.shutdown_background();
    result
}

async fn dispatch(verb: Verb) -> Result<u8, Failure> {
    match verb {
        Verb::Run(args) => run::run(&args).await,
        Verb::Elect(args) => run::elect::elect(&args).await,
        Verb::Latch(verb) => commands::latch::latch(&verb).await,
        Verb::Resize(args) => commands::resize::resize(&args).await,
        Verb::Get(args) => commands::register::get(&args).await,
        Verb::Put(args) => commands::register::put(&args).await,
        Verb::Acquire(args) => commands::ticket::acquire(&args).await,
        Verb::Renew(args) => commands::ticket::renew(&args).await,
        Verb::Release(args) => commands::ticket::release(&args).await,
        Verb::Check(args) => commands::check::check(&args).await,
        Verb::Ls(args) => commands::ls::ls(&args).await,
        Verb::Show(args) => commands::show::show(&args).await,
        Verb::Break(args) => commands::break_lock::break_lock(&args).await,
        Verb::Watch(args) => commands::watch::watch(&args).await,
        Verb::Doctor(args) => commands::doctor::doctor(&args).await,
        Verb::Schema(args) => commands::schema::schema(&args),
        Verb::TakeOver(args) => commands::take_over::take_over(&args).await,
        Verb::Completions { shell } => commands::manual::completions(shell),
        Verb::Man => commands::manual::man(),
    }
}

/// Help and version go to stdout; what is wrong with a command line becomes one sentence.
fn explain(error: &clap::Error) -> Result<u8, Failure> {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print(&text)?;
        return Ok(0);
    }
    let paragraphs = text.split("\n\n").take_while(|p| !p.trim_start().starts_with("Usage:"));
    let words = |p: &str| p.split_whitespace().collect::<Vec<_>>().join(" ");
    let more = |p: &String| !p.is_empty() && !p.starts_with("For more information");
    let said: Vec<String> = paragraphs.map(words).filter(more).collect();
    let said = said.join("; ");
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    let usage = text.lines().find_map(|l| l.trim_start().strip_prefix("Usage: "));
    Err(Failure::new(
        code::USAGE,
        match usage {
            Some(usage) => format!("{said} (usage: {usage}; more with --help)"),
            None => format!("{said} (more with --help)"),
        },
    ))
}
