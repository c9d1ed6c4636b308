//! Where a test plays: a folder of its own, `lockkit` in it, and ways to wait for events.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long an event may take on a machine that stalls at times.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    folder: TempDir,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("lockkit").tempdir().unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the default backend would be kept in.
    pub(crate) fn state_folder(&self) -> PathBuf {
        self.path("state")
    }

    /// A program in the folder, with an environment that knows no other backend.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LOCKKIT_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.folder.path())
            .env("XDG_STATE_HOME", self.state_folder())
            .env("HOME", self.folder.path())
            .env("LOCKKIT", env!("CARGO_BIN_EXE_lockkit"));
        command
    }

    /// A copy of `lockkit` that every user can run.
    pub(crate) fn copy_of_the_program(&self) -> PathBuf {
        let copy = self.path("lockkit");
        fs::copy(env!("CARGO_BIN_EXE_lockkit"), &copy).unwrap();
        copy
    }

    /// `lockkit` with these arguments.
    pub(crate) fn lockkit(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_lockkit"));
        command.args(arguments);
        command
    }

    /// Runs `lockkit` to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.lockkit(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts `lockkit`, with its stderr in the file `stderr`.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_command(&mut self.lockkit(arguments))
    }

    /// Starts a command, with its stderr in the file `stderr`.
    pub(crate) fn start_command(&self, command: &mut Command) -> Running {
        let stderr = fs::File::create(self.path("stderr")).unwrap();
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Running(command.spawn().unwrap())
    }

    /// The content of a file, once it is there and ends with a line.
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        let path = self.path(name);
        let whole = || fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
        wait_for(&format!("the file {name}"), whole)
    }

    /// The process id in a file, once it is there.
    pub(crate) fn wait_for_pid(&self, name: &str) -> i32 {
        self.wait_for_file(name).trim().parse().unwrap()
    }

    /// `show --json`, parsed.
    pub(crate) fn state(&self, name: &str) -> serde_json::Value {
        let output = self.run(&["show", "--local", "--json", name]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The token of the only holder, once there is one.
    pub(crate) fn wait_for_holder(&self, name: &str) -> u64 {
        wait_for("a holder", || self.state(name)["holders"][0]["token"].as_u64())
    }

    /// Returns once that many wait.
    pub(crate) fn wait_for_waiters(&self, name: &str, count: usize) {
        wait_for("waiters", || {
            let state = self.state(name);
            (state["waiters"].as_array().unwrap().len() == count).then_some(())
        });
    }
}

/// A process that does not outlive the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Its end, waited for.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait_for("the end of lockkit", || self.0.try_wait().unwrap())
    }

    /// The exit code as a shell shows it, waited for.
    pub(crate) fn code(&mut self) -> i32 {
        shown(self.end())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.kill();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Looks again and again until there is something, and returns it.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The letter that the kernel gives to the state of a process; `None` when it is gone or dead.
pub(crate) fn process_state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.trim().chars().next().filter(|state| !matches!(state, 'Z' | 'X'))
}

/// Returns once the process does nothing any more.
pub(crate) fn wait_for_death(pid: i32) {
    wait_for(&format!("the death of {pid}"), || process_state(pid).is_none().then_some(()));
}

/// The children of a process that are called so by the kernel.
pub(crate) fn children_called(parent: u32, name: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((head, tail)) = stat.rsplit_once(')') else {
            continue;
        };
        let its_parent = tail.split_whitespace().nth(1);
        if head.ends_with(&format!("({name}")) && its_parent == Some(&parent.to_string()) {
            found.extend(head.split_whitespace().next().and_then(|pid| pid.parse::<i32>().ok()));
        }
    }
    found
}

/// The exit code as a shell shows it.
pub(crate) fn code(output: &Output) -> i32 {
    shown(output.status)
}

fn shown(status: ExitStatus) -> i32 {
    let by_signal = || Some(128 + status.signal()?);
    status.code().or_else(by_signal).unwrap_or_else(|| panic!("{status}"))
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
