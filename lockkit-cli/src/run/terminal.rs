//! The terminal: lends it to the command's group and takes it back, and stops this job together
//! with a stopped command.
//!
//! The command has a process group of its own, and a terminal lets only its foreground group read.
//! Lent at the start when lockkit was plainly started from a shell's prompt. Otherwise (in a
//! script, in a pipeline) the terminal stays where it is, so that Ctrl-C still reaches script and
//! pipeline, and is lent when the command asks for it: the kernel then stops it with SIGTTIN or
//! SIGTTOU, and lockkit sees that.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as NixSignal};
use rustix::fs::OFlags;
use rustix::process::{
    Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_current_process_group,
};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};

use crate::system::parent_of;

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    device: File,
    /// The group that it is lent to.
    lent_to: Option<Pid>,
}

impl Terminal {
    /// The terminal of this session, if it has one.
    pub(crate) fn of_this_session() -> Option<Self> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NOCTTY.bits() as i32)
            .open("/dev/tty")
            .ok()?;
        Some(Self { device, lent_to: None })
    }

    /// Lends it to the group if lockkit was started at a shell's prompt and talks to the terminal.
    pub(crate) fn lend_if_at_a_prompt(&mut self, group: Pid) {
        let leads = getpgrp() == getpid();
        if leads && isatty(io::stdin()) && isatty(io::stdout()) {
            self.lend(group);
        }
    }

    /// Lends it to the group; says whether it could: only what is ours can be lent.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let ours = tcgetpgrp(&self.device).is_ok_and(|foreground| foreground == getpgrp());
        if ours && self.put_in_front(group) {
            self.lent_to = Some(group);
            return true;
        }
        false
    }

    /// Takes it back from whom it was lent to.
    pub(crate) fn take_back(&mut self) {
        if self.lent_to.take().is_some() {
            self.put_in_front(getpgrp());
        }
    }

    /// Stops this job as the terminal would have stopped it along with the command, and returns
    /// when it was continued; then lends the terminal again if it had been. At once, with `false`,
    /// when no shell is there that could continue it.
    ///
    /// # Cancel safety
    /// To be polled to its end.
    pub(crate) async fn stop_this_job(&mut self) -> io::Result<bool> {
        if is_orphaned() {
            return Ok(false);
        }
        let lent = self.lent_to.take();
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        // Not SIGTSTP, which lockkit itself catches. The shell takes the terminal when it sees its
        // job stopped, and gives it back to the job's group at `fg`.
        kill_current_process_group(Signal::STOP)?;
        continued.recv().await;
        if let Some(group) = lent {
            self.lend(group);
        }
        Ok(true)
    }

    fn put_in_front(&self, group: Pid) -> bool {
        // From the background this would stop lockkit, were the signal not blocked.
        let mut quiet = SigSet::empty();
        quiet.add(NixSignal::SIGTTOU);
        let before = quiet.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let done = tcsetpgrp(&self.device, group).is_ok();
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        done
    }
}

/// Whether no process of this session could continue this job: no ancestor outside the job's group is
/// in the session. (The kernel calls such a group orphaned, and does not stop it from the
/// terminal.)
fn is_orphaned() -> bool {
    let (group, session) = (getpgrp(), getsid(None).ok());
    let mut ancestor = getppid();
    while let Some(pid) = ancestor {
        if getsid(Some(pid)).ok() != session {
            return true;
        }
        if getpgid(Some(pid)).is_ok_and(|its| its != group) {
            return false;
        }
        ancestor = parent_of(pid);
    }
    true
}
