//! `run --contain`: the command in a PID namespace of its own, so that nothing it starts survives
//! it, whatever group or session it moves to. The kernel kills everything in the namespace when its
//! first process dies, and that one dies with the launcher, which dies with lockkit.
//!
//! | process | in the namespace | ends when |
//! | --- | --- | --- |
//! | the launcher | no | lockkit dies, or the first process ends |
//! | the first process | as number 1 | the launcher dies, or the command and what it left have ended |
//! | the command | yes | the first process dies |

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal as NixSignal, kill};
use nix::unistd::Pid as NixPid;
use rustix::process::{Pid, Signal, WaitOptions, getgid, getuid, kill_process, waitpid};

use crate::exit::{cannot_run, code};
use crate::output;
use crate::run::role;
use crate::system;

/// How long what the command left behind may go on, and how long it has after SIGTERM.
const GRACE: Duration = Duration::from_secs(1);

/// The launcher's part: makes the namespace and its first process, and ends as that one does.
pub(crate) fn launch(command: &[OsString]) -> ExitCode {
    if let Err(error) = separate() {
        output::fail(format!(
            "--contain: the system does not let this user make a PID namespace ({error}): allow \
             user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces), \
             or leave --contain out"
        ));
        return ExitCode::from(code::OS);
    }
    // Signals to the group are for the command: this process ends when the first one does. Only
    // those that stop a job are left, so that lockkit sees a stopped job as one. Blocked before the
    // first process begins, so that they stay pending there until the command can have them.
    let mut deaf = SigSet::all();
    for stop in [NixSignal::SIGTSTP, NixSignal::SIGTTIN, NixSignal::SIGTTOU, NixSignal::SIGCONT] {
        deaf.remove(stop);
    }
    let _ = deaf.thread_block();
    let started = role::myself("lk-first", role::FIRST).args(command).spawn();
    let ended = started.and_then(|mut first| {
        hand_over(Pid::from_child(&first));
        first.wait()
    });
    match ended {
        Ok(status) => {
            let killed = status.signal().map(|n| code::SIGNAL.saturating_add(n as u8));
            let code = status.code().map(|code| code as u8);
            ExitCode::from(code.or(killed).unwrap_or(code::SOFTWARE))
        }
        Err(error) => {
            output::fail(format!("--contain: cannot start the first process: {error}"));
            ExitCode::from(code::OS)
        }
    }
}

/// Tells the first process what came before it was there, and that this was all.
fn hand_over(first: Pid) {
    for signal in pending().into_iter().filter_map(Signal::from_named_raw) {
        let _ = kill_process(first, signal);
    }
    let _ = kill_process(first, Signal::URG);
}

/// Waits until the launcher has [handed over](hand_over).
fn take_over() {
    let mut all_told = SigSet::empty();
    all_told.add(NixSignal::SIGURG);
    let _ = all_told.wait();
}

/// Has the next child be the first process of a new PID namespace. Root needs nothing else; others
/// need a user namespace, in which they stay who they are.
fn separate() -> io::Result<()> {
    if getuid().is_root() && unshare(CloneFlags::CLONE_NEWPID).is_ok() {
        return Ok(());
    }
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// The first process: starts the command, takes away what ends, ends after the command.
pub(crate) fn main(command: &[OsString]) -> ExitCode {
    system::die_with_the_parent();
    show_own_processes();
    take_over();
    let early = pending();
    let child = match role::myself("lockkit", role::UNMASK).args(command).spawn() {
        Ok(child) => child,
        Err(error) => {
            output::fail(format!("--contain: cannot start the command: {error}"));
            return ExitCode::from(code::OS);
        }
    };
    // What came before the command was there has reached this process alone.
    let early: BTreeSet<_> = early.into_iter().chain(pending()).collect();
    for signal in early.into_iter().filter_map(Signal::from_named_raw) {
        let _ = kill_process(Pid::from_child(&child), signal);
    }
    let its_pid = child.id() as i32;
    let mut ended = None;
    while ended.is_none() {
        match waitpid(None, WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == its_pid => {
                let code = status.exit_status().map(|code| code as u8);
                let killed = status.terminating_signal().map(|n| code::SIGNAL + n as u8);
                ended = code.or(killed);
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return ExitCode::from(code::SOFTWARE),
        }
    }
    clear_up();
    ExitCode::from(ended.unwrap_or(code::SOFTWARE))
}

/// The process that becomes the command: it takes signals again.
pub(crate) fn unmask(command: &[OsString]) -> ExitCode {
    let [program, arguments @ ..] = command else {
        return ExitCode::from(code::SOFTWARE);
    };
    let _ = SigSet::all().thread_unblock();
    let error = Command::new(program).args(arguments).exec();
    let failure = cannot_run(program, &error);
    let code = failure.ending.code();
    output::fail(failure.sentence.unwrap_or_default());
    ExitCode::from(code)
}

/// The signals that wait until this process takes them.
fn pending() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let child = Signal::CHILD.as_raw();
    (1..=64).filter(|n| mask & (1 << (n - 1)) != 0 && *n != child).collect()
}

/// Where the system allows it, `/proc` shows the processes of the namespace, to the command alone.
fn show_own_processes() {
    const NONE: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let _ = unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(NONE, "/", NONE, private, NONE))
        .and_then(|()| mount(Some("proc"), "/proc", Some("proc"), plain, NONE));
}

/// Waits for what the command left behind, and asks it to end. What does not, the kernel kills when
/// this process ends.
fn clear_up() {
    let everybody = NixPid::from_raw(-1);
    for asked in [false, true] {
        if asked {
            let _ = kill(everybody, NixSignal::SIGTERM);
            let _ = kill(everybody, NixSignal::SIGCONT);
        }
        let began = Instant::now();
        while began.elapsed() < GRACE {
            match waitpid(None, WaitOptions::NOHANG) {
                Err(rustix::io::Errno::CHILD) => return,
                Ok(Some(_)) => {}
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}
