//! Linux: `/proc`, descriptors for timers and processes, signals at the parent's death.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use lockkit::clock::Moment;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::exit::{ExitError, code};

/// This program, by the kernel's name for it: the file may have been replaced by an upgrade since
/// this process started.
pub(crate) fn this_program() -> PathBuf {
    "/proc/self/exe".into()
}

/// Refuses to begin where the system lacks what this module needs.
pub(crate) fn is_usable() -> Result<(), ExitError> {
    match std::fs::metadata(this_program()) {
        Ok(_) => Ok(()),
        Err(_) => {
            let sentence = "/proc is not mounted here, and lockkit needs it to start the command \
                            under supervision: mount it (mount -t proc proc /proc)";
            Err(ExitError::new(code::OS, sentence))
        }
    }
}

/// Has the kernel kill this process when its parent dies.
pub(crate) fn die_with_the_parent() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Gives this process another name for `ps` and `pkill`.
pub(crate) fn show_as(name: &str) {
    let _ = std::fs::write("/proc/self/comm", name);
}

/// The set of signals that this process ignores, bit n - 1 for signal n.
pub(crate) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The parent of a process.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).ok()?;
    // The name, in parentheses, may contain anything; state and parent follow it.
    let (_, after) = stat.rsplit_once(')')?;
    Pid::from_raw(after.split_whitespace().nth(1)?.parse().ok()?)
}

/// The processes of a group that are alive, as `name[id]`; `None` where `/proc` shows none of the
/// group, not even one that ended: it may hide those of other users.
pub(crate) fn processes_of(group: Pid) -> Option<Vec<String>> {
    let group = group.as_raw_nonzero().to_string();
    let mut alive = None;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let id = entry.file_name();
        let Some(id) = id.to_str().filter(|id| id.starts_with(|c: char| c.is_ascii_digit())) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((before, after)) = stat.rsplit_once(')') else { continue };
        // State, parent, group.
        let mut fields = after.split_whitespace();
        let (state, its_group) = (fields.next(), fields.nth(1));
        if its_group != Some(&*group) {
            continue;
        }
        let alive = alive.get_or_insert_with(Vec::new);
        if !matches!(state, Some("Z" | "X")) {
            let name = before.split_once('(').map_or("", |(_, name)| name);
            alive.push(format!("{name}[{id}]"));
        }
    }
    alive
}

/// Wakes a wait at a moment of the boot clock.
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        // The boot clock: a machine that slept through the lease finds out on waking.
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Waits until there is something to read, or until the moment; says whether there is.
    pub(crate) fn wait(&self, input: impl AsFd, until: Option<Moment>) -> io::Result<bool> {
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once_at(until))?;
        let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A timer that fires once at that moment; one that never does without.
fn once_at(moment: Option<Moment>) -> Itimerspec {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let nanos = moment.map_or(0, |m| m.as_nanos().clamp(1, i64::MAX as u64));
    Itimerspec {
        it_interval: zero,
        it_value: Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as _,
        },
    }
}

/// A process, also when its id was given to another one since.
pub(crate) struct Process(OwnedFd);

impl Process {
    pub(crate) fn open(pid: Pid) -> Option<Self> {
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Returns when it has ended.
    pub(crate) fn wait(&self) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        while let Err(rustix::io::Errno::INTR) = poll(&mut fds, None) {}
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.0, signal);
    }
}
