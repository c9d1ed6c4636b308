//! `lockkit-lab KIND… [groups] [-- COMMAND…]`: starts servers, and groups of servers, names
//! them in the environment (`LOCKKIT_TEST_REDIS_URL` and the like), and runs a command, or
//! waits for Ctrl-C; then ends them. May not do more to the servers.

use std::io::{self, Write};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use futures_util::future::try_join_all;
use lockkit_lab::{Group, LabError, Layout, Server, ServerKind, shared};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

const USAGE: &str = "usage: lockkit-lab all|KIND… [groups] [-- COMMAND…]\n\
    starts servers, and groups of servers, and runs COMMAND, or waits for Ctrl-C";

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
    let (kinds, groups) = match kinds {
        [kinds @ .., last] if last == "groups" => (kinds, &Layout::SHARED[..]),
        kinds => (kinds, &[][..]),
    };
    let done = match kinds_of(kinds) {
        Ok(kinds) => run(&kinds, groups, command).await,
        Err(error) => Err(format!("{error}\n{USAGE}")),
    };
    done.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "lockkit-lab: {error}");
        ExitCode::from(2)
    })
}

fn kinds_of(words: &[String]) -> Result<Vec<ServerKind>, String> {
    match words {
        [] => Err("no server is named".into()),
        [all] if all == "all" => Ok(ServerKind::ALL.into_iter().filter(is_here).collect()),
        words => words.iter().map(|word| word.parse()).collect(),
    }
}

/// Whether it can be started on this machine; says why not.
fn is_here(kind: &ServerKind) -> bool {
    let missing = kind.missing();
    if let Some(why) = &missing {
        let _ = writeln!(io::stderr(), "lockkit-lab: without {kind}: {why}");
    }
    missing.is_none()
}

async fn run(
    kinds: &[ServerKind],
    groups: &[Layout],
    command: &[String],
) -> Result<ExitCode, String> {
    // From here on it is no accident to be interrupted, also while servers start.
    let mut end = Requests::to_end().map_err(|error| error.to_string())?;
    let lab = tokio::select! {
        lab = Lab::start(kinds, groups) => lab.map_err(|error| error.to_string())?,
        () = end.next() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let ended = match command {
        [] => {
            lab.announce().map_err(|error| error.to_string())?;
            end.next().await;
            Ok(ExitCode::SUCCESS)
        }
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).kill_on_drop(true);
            command.envs(lab.names());
            follow(command, &mut end).await
        }
    };
    ended.map_err(|error| error.to_string())
}

/// What was started.
struct Lab {
    servers: Vec<Server>,
    groups: Vec<Group>,
}

impl Lab {
    /// What the environment names already is used as it is.
    async fn start(kinds: &[ServerKind], groups: &[Layout]) -> Result<Self, LabError> {
        let missing = kinds.iter().filter(|kind| std::env::var_os(kind.variable()).is_none());
        let servers = try_join_all(missing.map(|kind| Server::start(*kind)));
        let missing = groups.iter().filter(|group| std::env::var_os(group.variable()).is_none());
        let missing = missing.filter(|group| group.kind().missing().is_none());
        let started = try_join_all(missing.map(|layout| shared::start_group(*layout)));
        let (servers, groups) = tokio::try_join!(servers, started)?;
        Ok(Self { servers, groups })
    }

    /// The variables that name all of it.
    fn names(&self) -> Vec<(String, String)> {
        let servers = self.servers.iter().map(|s| (s.kind().variable(), s.url()));
        let groups = self.groups.iter().map(|g| (g.layout().variable().to_owned(), g.url()));
        servers.chain(groups).collect()
    }

    /// As lines that a shell can read; those of servers that stand alone with the folder as a
    /// remark.
    fn announce(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let folders = self.servers.iter().map(|server| format!(" # {}", server.folder().display()));
        let remarks = folders.chain(std::iter::repeat(String::new()));
        for ((variable, url), remark) in self.names().into_iter().zip(remarks) {
            writeln!(out, "export {variable}='{url}'{remark}")?;
        }
        out.flush()
    }
}

/// Runs the command to its end. Ctrl-C reaches it by itself; a graceful request to
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

/// Ctrl-C, and the graceful request to end.
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
