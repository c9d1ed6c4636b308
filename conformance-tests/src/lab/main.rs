//! `lockkit-lab KIND… [-- COMMAND…]`: starts servers, names them in the environment
//! (`LOCKKIT_TEST_REDIS_URL` and the like), and runs a command, or waits for
//! Ctrl-C; then ends them. May not do more to the servers.

use std::io::{self, Write};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkit_conformance::lab::{Kind, LabError, Server};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

const USAGE: &str = "usage: lockkit-lab all|KIND… [-- COMMAND…]\n\
    starts servers and runs COMMAND, or waits for Ctrl-C";

/// How long a command may take to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// What shells return for a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (kinds, command) = match arguments.iter().position(|word| word == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (&arguments[..], &[][..]),
    };
    let done = match kinds_of(kinds) {
        Ok(kinds) => run(&kinds, command).await,
        Err(error) => Err(format!("{error}\n{USAGE}")),
    };
    done.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "lockkit-lab: {error}");
        ExitCode::from(2)
    })
}

fn kinds_of(words: &[String]) -> Result<Vec<Kind>, String> {
    match words {
        [] => Err("no server is named".into()),
        [all] if all == "all" => Ok(Kind::ALL.to_vec()),
        words => words.iter().map(|word| word.parse()).collect(),
    }
}

async fn run(kinds: &[Kind], command: &[String]) -> Result<ExitCode, String> {
    // From here on it is no accident to be interrupted, also while servers start.
    let mut end = Requests::to_end().map_err(|error| error.to_string())?;
    let servers = tokio::select! {
        servers = start(kinds) => servers.map_err(|error| error.to_string())?,
        () = end.next() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let ended = match command {
        [] => {
            announce(&servers).map_err(|error| error.to_string())?;
            end.next().await;
            Ok(ExitCode::SUCCESS)
        }
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).kill_on_drop(true);
            command.envs(servers.iter().map(|server| (server.kind().variable(), server.url())));
            follow(command, &mut end).await
        }
    };
    ended.map_err(|error| error.to_string())
}

/// A server that the environment names already is used as it is.
async fn start(kinds: &[Kind]) -> Result<Vec<Server>, LabError> {
    let missing = kinds.iter().filter(|kind| std::env::var_os(kind.variable()).is_none());
    try_join_all(missing.map(|kind| Server::start(*kind))).await
}

/// As lines that a shell can read, each with the folder as a remark.
fn announce(servers: &[Server]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for server in servers {
        let (variable, url) = (server.kind().variable(), server.url());
        writeln!(out, "export {variable}='{url}' # {}", server.folder().display())?;
    }
    out.flush()
}

/// Runs the command to its end. Ctrl-C reaches it by itself; a polite request to
/// end ends it, too.
async fn follow(mut command: Command, end: &mut Requests) -> io::Result<ExitCode> {
    let mut child = command.spawn()?;
    tokio::select! {
        ended = child.wait() => ended.map(code),
        () = end.next() => {
            // The terminal has told the command as well: it has a moment to end.
            match timeout(PATIENCE, child.wait()).await {
                Ok(ended) => ended.map(code),
                Err(_) => child.kill().await.map(|()| ExitCode::from(INTERRUPTED)),
            }
        }
    }
}

/// Ctrl-C, and the polite request to end.
struct Requests {
    interrupt: Signal,
    terminate: Signal,
}

impl Requests {
    fn to_end() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn code(status: ExitStatus) -> ExitCode {
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::from(INTERRUPTED), ExitCode::from)
}
