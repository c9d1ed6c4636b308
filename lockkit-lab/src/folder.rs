//! The temporary folder of a lab, and the promise that nothing outlives it: a
//! small shell process makes it, watches over it, and ends and removes all that
//! is in it when this process lets go or dies. May not know what servers are.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::{env, fs};

use rustix::process::{Pid, Signal, kill_process};

use super::error::{Doing, LabError, Result};

/// A temporary folder; every process that works inside of it ends, and the
/// folder goes, when this value is dropped or its process ends in any way.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    watchdog: Child,
    leash: Option<ChildStdin>,
}

impl Folder {
    pub(crate) fn create() -> Result<Self> {
        // A process group of its own: Ctrl-C in the terminal must not end the
        // one process that cleans up after Ctrl-C.
        let mut watchdog = Command::new("sh")
            .args(["-c", include_str!("watchdog.sh"), "lockkit-lab-watchdog"])
            .arg(env::temp_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .doing("starting the watchdog of a lab")?;
        let leash = watchdog.stdin.take();
        let mut path = String::new();
        if let Some(said) = watchdog.stdout.take() {
            BufReader::new(said).read_line(&mut path).doing("making a temporary folder")?;
        }
        let path = PathBuf::from(path.trim_end());
        if !path.is_dir() {
            return Err(LabError::Answer(format!(
                "no temporary folder could be made in {}",
                env::temp_dir().display()
            )));
        }
        Ok(Self { path, watchdog, leash })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut leash) = self.leash.take() {
            let _ = leash.write_all(b"done\n");
        }
        let _ = self.watchdog.wait();
    }
}

/// The processes whose working directory lies in `folder`.
pub fn processes_in(folder: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
        })
        .collect()
}

/// Sends a signal; a process that is gone already is no error.
pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process stands still (after SIGSTOP), or is gone.
pub(crate) fn is_stopped(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
        // The program's name, in parentheses, may itself contain anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X'))
    })
}
