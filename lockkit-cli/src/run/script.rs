//! `hold`: the rest of a script under a lock. Three processes beside the script:
//!
//! | process | does | ends |
//! | --- | --- | --- |
//! | `hold`, in `$(…)` | starts the keeper, prints what the script is to evaluate | when the lock is held |
//! | the keeper | takes and renews the lock, as `run` does | after the stand-in |
//! | the stand-in, its command | waits for the end of the script, ends it when the lock is lost | after the script |
//!
//! The script tells its process id through a file in a folder of `hold`'s own: in `$(…)` the parent
//! may be a subshell, and only what the script evaluates knows the script. The folder also has the URL,
//! if that contains a secret, and is removed when the script has ended.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, Signal, getpgid, kill_process_group, setsid};
use tokio::time::{sleep, timeout};

use super::launch::Job;
use super::signals::Signals;
use super::{HoldLimit, conclude, environment, held, nested, role, under};
use crate::acquire::{self, LockRequest};
use crate::args::acquire::{HoldArgs, Leftovers};
use crate::args::{BackendArgs, Cli, Command};
use crate::backend::Backend;
use crate::exit::{Ending, ExitError, code};
use crate::output;
use crate::system::{self, Process};

/// Where the script writes its process id.
const SCRIPT: &str = "script";

/// The line behind what the script is to evaluate.
const COMPLETE: &str = "# complete";

/// How long the script may take to evaluate what was printed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The verb. Whatever comes of it, the script hears of it: `eval ""` would go on without the lock.
pub(crate) fn hold() -> Result<Ending, ExitError> {
    let ended = start();
    let ending = match &ended {
        Ok(ending) => *ending,
        Err(failure) => failure.ending,
    };
    if ending != Ending::Code(0) {
        refuse(ending);
    }
    ended
}

/// Has the script end.
pub(crate) fn refuse(ending: Ending) {
    let _ = output::print(&format!("exit {}\n", ending.code()));
}

fn start() -> Result<Ending, ExitError> {
    system::is_usable()?;
    let folder = private_folder()?;
    let failed = |e: io::Error| ExitError::os("cannot start the keeper of the lock", e);
    let mut keeper = role::myself("lockkit", role::KEEP)
        .arg(&folder)
        .args(std::env::args_os())
        // Its end tells the keeper that this process is gone.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut text = String::new();
    for line in keeper.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(failed)?;
        if line == COMPLETE {
            output::print(&text)?;
            return Ok(Ending::Code(0));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let _ = std::fs::remove_dir_all(&folder);
    let status = keeper.wait().map_err(failed)?;
    let code = status.code().map_or(code::SOFTWARE, |code| code as u8);
    Ok(Ending::Code(if code == 0 { code::SOFTWARE } else { code }))
}

fn private_folder() -> Result<PathBuf, ExitError> {
    let id = lockkit::driver::ClaimId::random().to_hex();
    let folder = std::env::temp_dir().join(format!("lockkit-{}", &id[..16]));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.map_err(|e| ExitError::os(&format!("cannot make the folder {}", folder.display()), e))?;
    Ok(folder)
}

/// The keeper's `main`. `arguments`: the folder, the command line of `hold`.
pub(crate) fn keeper(arguments: &[OsString]) -> ExitCode {
    let _ = setsid();
    let [folder, line @ ..] = arguments else {
        return ExitCode::from(code::SOFTWARE);
    };
    let Ok(cli) = Cli::try_parse_from(line) else {
        return ExitCode::from(code::SOFTWARE);
    };
    output::set_verbosity(cli.verbosity());
    let Command::Hold(args) = &cli.verb else {
        return ExitCode::from(code::SOFTWARE);
    };
    role::asynchronously(async { keep(args, &cli.backend, Path::new(folder)).await })
}

async fn keep(args: &HoldArgs, backend: &BackendArgs, folder: &Path) -> Result<Ending, ExitError> {
    let mut backend = Backend::choose(backend)?.ttl_or_default(args.take.ttl);
    let take = LockRequest::new(&args.name, &args.take, None, false).slots(args.slots);
    take.rehearse(&backend).await?;
    let hold_limit = HoldLimit::new("--max-hold", None, None, backend.ttl())?;
    let held = held::held();
    nested::refuse(&held, &backend, take.space(), &args.name)?;
    let locks = take.connect(&backend).await?;
    let _folder = Removed(folder);
    let result = async {
        let mut signals = Signals::ending()?;
        let guard = tokio::select! {
            guard = take.take(&locks, &mut signals) => guard?,
            () = end_of_stdin() => return Err(ExitError::silent(code::SOFTWARE)),
        };
        backend.hand_on_by_file(folder)?;
        let variables = environment(&guard, held, &backend, &take)?;
        for (name, value) in &variables {
            print_variable(name, value.as_deref())?;
        }
        let file = quoted(&folder.join(SCRIPT).to_string_lossy());
        output::print(&format!("echo $$ >{file}\n{COMPLETE}\n"))?;
        let command = role::stand_in(folder, hold_limit.kill_after);
        let leftovers = Leftovers::End;
        let job = Job { command, environment: variables, contained: false, leftovers };
        let ended = under(&locks, &guard, hold_limit, &job, &mut signals).await?;
        conclude(guard, ended, &args.name).await
    }
    .await;
    acquire::close_after(&locks, &result).await;
    result
}

fn print_variable(name: &str, value: Option<&str>) -> Result<(), ExitError> {
    match value {
        Some(value) => output::print(&format!("{name}={}; export {name}\n", quoted(value))),
        None => output::print(&format!("unset {name}\n")),
    }
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

async fn end_of_stdin() {
    let read = || io::stdin().lock().read_to_end(&mut Vec::new());
    let _ = tokio::task::spawn_blocking(read).await;
}

/// The stand-in's `main`. `arguments`: the folder, the time between SIGTERM and SIGKILL in ms.
pub(crate) fn stand_in(arguments: &[OsString]) -> ExitCode {
    let [folder, pause] = arguments else {
        return ExitCode::from(code::SOFTWARE);
    };
    let pause = pause.to_str().and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    role::asynchronously(async {
        let mut signals = Signals::ending()?;
        let _folder = Removed(Path::new(folder));
        let Ok(Some((pid, script))) = timeout(PATIENCE, script(Path::new(folder))).await else {
            return Ok(Ending::Code(0));
        };
        let watched = script.try_clone().map_err(|e| ExitError::os("the script", e))?;
        let mut ended = tokio::task::spawn_blocking(move || watched.wait());
        tokio::select! {
            _ = &mut ended => return Ok(Ending::Code(0)),
            _ = signals.next() => {}
        }
        end(pid, &script, Signal::TERM);
        // The supervisor kills this process when the lease is about to end: the script goes before.
        if timeout(pause.unwrap_or_default() / 4 * 3, &mut ended).await.is_err() {
            end(pid, &script, Signal::KILL);
        }
        Ok(Ending::Code(0))
    })
}

/// A folder that is removed when this is dropped.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0);
    }
}

/// The script, once it has said who it is.
async fn script(folder: &Path) -> Option<(Pid, Process)> {
    let file = folder.join(SCRIPT);
    let text = loop {
        match std::fs::read_to_string(&file) {
            Ok(text) if text.ends_with('\n') => break text,
            _ => sleep(Duration::from_millis(10)).await,
        }
    };
    let pid = Pid::from_raw(text.trim().parse().ok()?)?;
    Some((pid, Process::open(pid)?))
}

/// Signals the script, with what it started where it leads a process group.
fn end(pid: Pid, script: &Process, signal: Signal) {
    match getpgid(Some(pid)) {
        Ok(group) if group == pid => {
            let _ = kill_process_group(group, signal);
        }
        _ => script.signal(signal),
    }
}
