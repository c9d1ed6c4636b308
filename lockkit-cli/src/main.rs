//! The `lockkit` command: reads the command line, does one verb, ends with its exit code.

mod acquire;
mod advice;
mod args;
mod backend;
mod commands;
mod describe;
mod exit;
mod kept_state;
mod note;
mod outage;
mod output;
mod progress;
mod run;
mod system;
mod taken;
#[cfg(feature = "top")]
mod top;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use args::{BackendArgs, Cli, Command};
use backend::Backend;
use exit::{Ending, ExitError, code};
use run::{launch, role, script, supervise};
use system::contain;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(done) = play(&arguments) {
        return done;
    }
    let holds = arguments.iter().any(|word| word == "hold");
    let done = match Cli::read(&arguments) {
        Ok(cli) => perform(cli),
        Err(error) => explain(&error).inspect_err(|failure| {
            if holds {
                script::refuse(failure.ending);
            }
        }),
    };
    let ending = done.unwrap_or_else(|failure| {
        if let Some(sentence) = failure.sentence {
            output::fail(sentence);
        }
        failure.ending
    });
    match ending {
        Ending::Code(code) => ExitCode::from(code),
        Ending::Signal(signal) => role::end_by(signal),
    }
}

/// The words that make this program the clients of a storm.
#[cfg(feature = "lab")]
const CLIENTS: [&str; 2] = ["storm-client", "storm-consumer"];

/// The word that makes this program a server that a storm strikes at.
#[cfg(feature = "lab")]
const SERVICE: &str = "service";

/// Plays the role that these arguments name, if they name one.
fn play(arguments: &[OsString]) -> Option<ExitCode> {
    let rest = arguments.get(2..).unwrap_or_default();
    match arguments.get(1)?.to_str()? {
        role::SUPERVISE => Some(supervise::main()),
        role::LAUNCH => Some(launch::main(rest)),
        role::FIRST => Some(contain::main(rest)),
        role::UNMASK => Some(contain::unmask(rest)),
        role::KEEP => Some(script::keeper(rest)),
        role::STAND_IN => Some(script::stand_in(rest)),
        role::END => Some(role::end(rest)),
        #[cfg(feature = "lab")]
        word if word == role::WORKER || CLIENTS.contains(&word) => {
            Some(commands::storm::take_part(&arguments[1..]))
        }
        #[cfg(feature = "lab")]
        SERVICE => Some(commands::storm::be_struck(rest)),
        #[cfg(all(feature = "compare", not(feature = "lab")))]
        role::WORKER => Some(commands::compare::take_part(rest)),
        _ => None,
    }
}

fn perform(cli: Cli) -> Result<Ending, ExitError> {
    output::set_verbosity(cli.verbosity());
    output::set_color(cli.color);
    let mut builder = match &cli.verb {
        #[cfg(feature = "serve")]
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        #[cfg(feature = "compare")]
        Command::Compare(_) => tokio::runtime::Builder::new_multi_thread(),
        #[cfg(feature = "lab")]
        Command::Storm(_) => tokio::runtime::Builder::new_multi_thread(),
        // One thread: it is the one that starts the command, and lives as long as lockkit.
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build().map_err(|e| ExitError::os("cannot begin", e))?;
    let doing = cli.verb.doing();
    let result = runtime.block_on(dispatch(cli.verb, &cli.backend));
    let result = result.map_err(|failure| located(failure, doing, &cli.backend));
    // What a driver does in other threads is not waited for.
    runtime.shutdown_background();
    result
}

async fn dispatch(verb: Command, backend: &BackendArgs) -> Result<Ending, ExitError> {
    let code = match verb {
        Command::Run(args) => return run::run(&args, backend).await,
        Command::Hold(args) => return script::hold(&args.name),
        Command::Elect(args) => return run::elect::elect(&args, backend).await,
        Command::Latch(verb) => commands::latch::latch(&verb, backend).await,
        Command::Resize(args) => commands::admin::resize(&args, backend).await,
        Command::Get(args) => commands::register::get(&args, backend).await,
        Command::Put(args) => commands::register::put(&args, backend).await,
        Command::Delete(args) => commands::register::delete(&args, backend).await,
        Command::Acquire(args) => commands::ticket::acquire(&args, backend).await,
        Command::Renew(args) => commands::ticket::renew(&args, backend).await,
        Command::Release(args) => commands::ticket::release(&args, backend).await,
        Command::Check => commands::check::check(backend).await,
        Command::Ls(args) => commands::ls::ls(&args, backend).await,
        Command::Show(args) => commands::show::show(&args, backend).await,
        Command::Break(args) => commands::admin::break_lock(&args, backend).await,
        Command::Watch(args) => commands::show::watch(&args, backend).await,
        #[cfg(feature = "top")]
        Command::Top(args) => return top::top(&args, backend).await,
        Command::Doctor(args) => return commands::doctor::doctor(&args, backend).await,
        Command::Schema => commands::schema::schema(backend),
        #[cfg(feature = "serve")]
        Command::Serve(args) => commands::serve::serve(&args, backend).await,
        #[cfg(feature = "lab")]
        Command::Compare(args) if args.lab => commands::compare_lab::compare(&args, backend).await,
        #[cfg(feature = "compare")]
        Command::Compare(args) => commands::compare::compare(&args, backend).await,
        #[cfg(feature = "lab")]
        Command::Storm(args) => commands::storm::storm(&args, backend).await,
        #[cfg(feature = "lab")]
        Command::Judge(args) => commands::storm::judge_again(&args),
        Command::TakeOver(args) => commands::admin::take_over(&args, backend).await,
        Command::Completions { shell } => commands::manual::completions(shell),
        Command::Man(args) => commands::manual::man(&args),
    };
    code.map(Ending::Code)
}

/// A failure of the backend says which one it was, and what was being done. Commands that have
/// another one than the arguments choose have said so themselves.
fn located(failure: ExitError, doing: Option<&str>, args: &BackendArgs) -> ExitError {
    match (doing, Backend::choose(args)) {
        (Some(doing), Ok(backend)) => failure.at(&format!("{doing} at"), &backend),
        _ => failure,
    }
}

/// Help and version go to stdout; what is wrong with a command line becomes one sentence.
fn explain(error: &clap::Error) -> Result<Ending, ExitError> {
    let text = error.render().to_string();
    if error.kind() == ErrorKind::MissingSubcommand && !text.contains("lockkit latch") {
        return Err(ExitError::usage(
            "say what to do, such as `lockkit run NAME -- COMMAND`; `lockkit help` lists all subcommands",
        ));
    }
    if let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && let Some(ours) = advice::instead_of_flock(option)
    {
        return Err(ExitError::usage(format!("{option} is an option of flock: {ours}")));
    }
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print(&text)?;
        return Ok(Ending::Code(0));
    }
    let paragraphs = text.split("\n\n").take_while(|p| !p.trim_start().starts_with("Usage:"));
    let words = |p: &str| p.split_whitespace().collect::<Vec<_>>().join(" ");
    let more = |p: &String| !p.is_empty() && !p.starts_with("For more information");
    let said: Vec<String> = paragraphs.map(words).filter(more).collect();
    let said = said.join("; ");
    // A URL in the wrong place may have a password.
    let said = note::without_logins(said.strip_prefix("error: ").unwrap_or(&said));
    let usage = text.lines().find_map(|l| l.trim_start().strip_prefix("Usage: "));
    Err(ExitError::new(
        code::USAGE,
        match usage {
            Some(usage) => format!("{said} (usage: {usage}; more with --help)"),
            None => format!("{said} (more with --help)"),
        },
    ))
}
