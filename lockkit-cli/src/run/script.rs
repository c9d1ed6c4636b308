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
//!
//! A script that was stopped while it waited, or between `$(…)` and `eval`, may come to that file after the
//! lock was given back. So the file is in a folder of its own, which is renamed before the lock is given
//! back: a script that writes later finds no folder and ends, and one that wrote before is found in it.

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
use super::{HoldLimit, conclude, held, nested, role, under};
use crate::acquire::{self, LockRequest};
use crate::args::acquire::{HoldArgs, Leftovers};
use crate::args::{BackendArgs, Cli, Command};
use crate::backend::Backend;
use crate::exit::{Ending, ExitError, code};
use crate::output;
use crate::system::{self, Process};

/// Where the script writes its process id, and the folder of that file.
const SCRIPT: &str = "pid";
const ENTRY: &str = "script";

/// What that folder is called once it is too late for the script.
const CLOSED: &str = "closed";

/// The line behind what the script is to evaluate.
const COMPLETE: &str = "# complete";

/// How long the script may take to evaluate what was printed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The verb. Whatever comes of it, the script hears of it: `eval ""` would go on without the lock.
pub(crate) fn hold(name: &str) -> Result<Ending, ExitError> {
    let ended = start(name);
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

fn start(name: &str) -> Result<Ending, ExitError> {
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
    let mut is_complete = false;
    for line in keeper.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(failed)?;
        if line == COMPLETE {
            is_complete = true;
            // This process may have been stopped since the line was written.
            if keeper.try_wait().map_err(failed)?.is_some() {
                break;
            }
            output::print(&text)?;
            return Ok(Ending::Code(0));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let _ = std::fs::remove_dir_all(&folder);
    if is_complete {
        return Err(ExitError::new(code::LOST, given_back(name)));
    }
    let status = keeper.wait().map_err(failed)?;
    let code = status.code().map_or(code::SOFTWARE, |code| code as u8);
    Ok(Ending::Code(if code == 0 { code::SOFTWARE } else { code }))
}

fn given_back(name: &str) -> String {
    format!("the lock {name:?} was given back, since the script did not go on in time")
}

fn private_folder() -> Result<PathBuf, ExitError> {
    let id = lockkit::driver::ClaimId::random().to_hex();
    let folder = std::env::temp_dir().join(format!("lockkit-{}", &id[..16]));
    let mut private = DirBuilder::new();
    private.mode(0o700);
    let made = private.create(&folder).and_then(|()| private.create(folder.join(ENTRY)));
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
        let variables = nested::environment(held, &args.name, &guard.lease(), &backend)?;
        for (name, value) in &variables {
            print_variable(name, value.as_deref())?;
        }
        let file = quoted(&folder.join(ENTRY).join(SCRIPT).to_string_lossy());
        let late = quoted(&format!("lockkit: {}", given_back(&args.name)));
        output::print(&format!(
            "echo $$ >{file} && [ -s {file} ] || {{ printf '%s\\n' {late} >&2; exit {}; }}\n{COMPLETE}\n",
            code::LOST
        ))?;
        let command = role::stand_in(folder, hold_limit.kill_after);
        let leftovers = Leftovers::End;
        let job = Job { command, environment: variables, contained: false, leftovers };
        let ended = under(&locks, &guard, hold_limit, &job, &mut signals).await;
        close(folder);
        conclude(guard, ended?, &args.name).await
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
        let script = match timeout(PATIENCE, written(Path::new(folder))).await {
            Ok(text) => script(&text),
            Err(_) => read(&close(Path::new(folder))).and_then(|text| script(&text)),
        };
        let Some((pid, script)) = script else { return Ok(Ending::Code(0)) };
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

/// Makes it too late for the script to say who it is. Returns where it has said so, if it has.
fn close(folder: &Path) -> PathBuf {
    let closed = folder.join(CLOSED);
    let _ = std::fs::rename(folder.join(ENTRY), &closed);
    closed.join(SCRIPT)
}

/// What the script has written, once it has.
async fn written(folder: &Path) -> String {
    let file = folder.join(ENTRY).join(SCRIPT);
    loop {
        match read(&file) {
            Some(text) => return text,
            None => sleep(Duration::from_millis(10)).await,
        }
    }
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))
}

/// The script that has said who it is; `None` when it has ended.
fn script(text: &str) -> Option<(Pid, Process)> {
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
