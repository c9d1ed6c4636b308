//! The moment between the birth of the command's process and the command: the process stands
//! still, in its own group, until the supervisor guards that group and the terminal is set, and
//! then becomes the command. So there is no instant in which the command runs unguarded.
//!
//! Passing on a descriptor to wait on would leave it open in the command; a stop signal leaves
//! nothing behind.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{Access, access};
use rustix::process::{Signal, getpid, getppid, kill_process};

use super::role;
use crate::args::acquire::Leftovers;
use crate::exit::{ExitError, cannot_run, code};
use crate::output;
use crate::system::{self, contain};

/// A command to be run under a lock.
#[derive(Debug)]
pub(crate) struct Job {
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// What it finds in its environment; `None`: what it does not.
    pub(crate) environment: Vec<(&'static str, Option<String>)>,
    /// Whether it gets a PID namespace of its own.
    pub(crate) contained: bool,
    /// What becomes of what it leaves in its process group.
    pub(crate) leftovers: Leftovers,
}

const PLAIN: &str = "plain";
const CONTAINED: &str = "contained";

impl Job {
    /// The process that becomes the command.
    pub(super) fn launcher(&self) -> Command {
        let mut launcher = role::myself("lockkit", role::LAUNCH);
        let how = if self.contained { CONTAINED } else { PLAIN };
        launcher.arg(std::process::id().to_string()).arg(how).args(&self.command);
        launcher
    }
}

/// The `main` of that moment. `arguments`: the parent's process id, how, the command, its arguments.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, how, command, rest @ ..] = arguments else {
        return ExitCode::from(code::SOFTWARE);
    };
    // A last net under the supervisor: should it be killed along with lockkit, at least the
    // command itself goes too. (It survives the exec; lockkit's starting thread is its main one.)
    system::die_with_the_parent();
    let orphaned = || {
        let now = getppid().map(|p| p.as_raw_nonzero().to_string());
        now.as_deref().map(OsStr::new) != Some(parent)
    };
    // Asked before and after: who is orphaned before it set the signal hears nothing of it.
    if orphaned() || kill_process(getpid(), Signal::STOP).is_err() || orphaned() {
        return ExitCode::from(code::SOFTWARE);
    }
    if how == CONTAINED {
        return contain::launch(&arguments[2..]);
    }
    let error = Command::new(command).args(rest).exec();
    let failure = cannot_run(command, &error);
    if let Some(sentence) = failure.sentence {
        output::fail(sentence);
    }
    ExitCode::from(failure.ending.code())
}

/// Looks for the command the way `execvp` does, so that a missing one is reported before the lock is
/// waited for.
pub(crate) fn find(command: &OsStr) -> Result<PathBuf, ExitError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    find_in(&path, command).map_err(|error| cannot_run(command, &error))
}

fn find_in(path: &OsStr, command: &OsStr) -> io::Result<PathBuf> {
    if command.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if command.as_encoded_bytes().contains(&b'/') {
        return runnable(Path::new(command));
    }
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for folder in std::env::split_paths(path) {
        match runnable(&folder.join(command)) {
            Ok(found) => return Ok(found),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => error = e,
            Err(_) => {}
        }
    }
    Err(error)
}

fn runnable(file: &Path) -> io::Result<PathBuf> {
    let kind = std::fs::metadata(file)?;
    if !kind.is_file() || access(file, Access::EXEC_OK).is_err() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_found_on_the_path_or_by_its_path() {
        let path = OsStr::new("/nowhere:/bin:/usr/bin");
        assert!(find_in(path, OsStr::new("sh")).unwrap().ends_with("sh"));
        assert!(find_in(path, OsStr::new("/bin/sh")).is_ok());
        let missing = find_in(path, OsStr::new("no-such-command")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let folder = find_in(path, OsStr::new("/bin/")).unwrap_err();
        assert_eq!(folder.kind(), io::ErrorKind::PermissionDenied);
    }
}
