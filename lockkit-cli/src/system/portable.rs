//! Other Unixes. Weaker than on Linux:
//! - What kills lockkit and its supervisor at one stroke leaves the command running.
//! - The supervisor looks at the clock once a second, since a timer may not count while the machine
//!   sleeps; its name is lockkit's own.
//! - The process of a script is known by its id alone.
//! - A signal that was ignored when lockkit began is caught all the same.
//! - There is no `--contain`.
//! - Processes that a command leaves behind are not named, and count until they are taken away.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use lockkit::clock::{BootClock, Clock, Moment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::exit::ExitError;

pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "lockkit".into())
}

pub(crate) fn is_usable() -> Result<(), ExitError> {
    Ok(())
}

pub(crate) fn die_with_the_parent() {}

pub(crate) fn show_as(_name: &str) {}

pub(crate) fn ignored_signals() -> u64 {
    0
}

pub(crate) fn parent_of(_pid: Pid) -> Option<Pid> {
    None
}

pub(crate) fn processes_of(_group: Pid) -> Option<Vec<String>> {
    None
}

/// Wakes a wait at a moment of the boot clock, or up to a second later after a sleep.
pub(crate) struct Alarm;

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn wait(&self, input: impl AsFd, until: Option<Moment>) -> io::Result<bool> {
        const LONGEST: Duration = Duration::from_secs(1);
        let now = BootClock.now().as_nanos();
        let left = until.map(|at| Duration::from_nanos(at.as_nanos().saturating_sub(now)));
        let pause = left.map(|left| left.min(LONGEST));
        let pause = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs() as i64,
            tv_nsec: i64::from(pause.subsec_nanos()) as _,
        });
        let mut fds = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut fds, pause.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A process, by its id.
#[derive(Clone, Copy)]
pub(crate) struct Process(Pid);

impl Process {
    pub(crate) fn open(pid: Pid) -> Option<Self> {
        test_kill_process(pid).ok().map(|()| Self(pid))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(*self)
    }

    /// Polls: there is no descriptor of a process to wait on, and it is no child of this one.
    pub(crate) fn wait(&self) {
        while test_kill_process(self.0) != Err(rustix::io::Errno::SRCH) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.0, signal);
    }
}

/// What `--contain` needs is Linux's own.
pub(crate) mod contain {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use crate::exit::code;
    use crate::output;

    pub(crate) fn launch(_command: &[OsString]) -> ExitCode {
        output::fail("--contain needs the PID namespaces of Linux: leave it out");
        ExitCode::from(code::OS)
    }

    pub(crate) fn main(_command: &[OsString]) -> ExitCode {
        ExitCode::from(code::SOFTWARE)
    }

    pub(crate) fn unmask(_command: &[OsString]) -> ExitCode {
        ExitCode::from(code::SOFTWARE)
    }
}
