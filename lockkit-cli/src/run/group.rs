//! The command's process group: starts it, passes signals to it, tells when it stops or ends, and
//! clears up what the command leaves in it. Who decides to signal it stands elsewhere.

use std::io;
use std::os::unix::process::CommandExt;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, kill_process_group,
    test_kill_process_group, waitid, waitpgid,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::launch::Job;
use super::signals::Signals;
use crate::exit::{Ending, code};
use crate::system;

/// What happened to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A signal stopped it.
    Stopped(Signal),
    /// It ended.
    Ended(End),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Killed(u8),
}

impl End {
    /// How this process is to end along with it: by the same signal, if that is one by which people
    /// and scripts are asked to end.
    pub(crate) fn ending(self) -> Ending {
        let signal = match self {
            Self::Killed(signal) => Signal::from_named_raw(i32::from(signal)),
            Self::Exited(_) => None,
        };
        match signal.filter(|signal| Signals::asks_to_end(*signal)) {
            Some(signal) => Ending::Signal(signal),
            None => Ending::Code(self.code()),
        }
    }

    /// The exit code that a shell would show.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => code::SIGNAL.saturating_add(signal),
        }
    }
}

/// The group. Its id is that of the command's process.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    events: Option<UnboundedReceiver<Event>>,
    reaped: bool,
}

impl Group {
    /// Makes the command's process, in a group of its own, standing still before the command.
    pub(crate) fn launch(job: &Job) -> io::Result<Self> {
        let mut launcher = job.launcher();
        for (name, value) in &job.environment {
            match value {
                Some(value) => launcher.env(name, value),
                None => launcher.env_remove(name),
            };
        }
        let child = launcher.process_group(0).spawn()?;
        let leader = Pid::from_child(&child);
        // Not taken away: if it ended already, that is for `events` to see.
        let look = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let status = wait_for(leader, look)?;
        if status.stopped() {
            wait_for(leader, WaitIdOptions::STOPPED)?;
        }
        Ok(Self { leader, events: None, reaped: false })
    }

    /// The group's id.
    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// Lets it become the command.
    pub(crate) fn start(&mut self) {
        let (tell, events) = unbounded_channel();
        self.events = Some(events);
        let leader = self.leader;
        std::thread::spawn(move || {
            while let Ok(event) = next_event(leader) {
                let ended = matches!(event, Event::Ended(_));
                if tell.send(event).is_err() || ended {
                    return;
                }
            }
        });
        self.signal(Signal::CONT);
    }

    /// What happened to the command next; pends for ever after its end.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    pub(crate) async fn event(&mut self) -> Event {
        if let Some(events) = &mut self.events
            && let Some(event) = events.recv().await
        {
            return event;
        }
        std::future::pending().await
    }

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // While the leader is not reaped, or while anybody is left, the id is not another's.
        let _ = kill_process_group(self.leader, signal);
    }

    /// Whether no process of the group is alive. Only after the command's end: it takes away the
    /// command's process, and others of the group that ended and that were handed to this process.
    pub(crate) fn is_empty(&mut self) -> bool {
        while let Ok(Some(_)) = waitpgid(self.leader, WaitOptions::NOHANG) {
            self.reaped = true;
        }
        if !self.reaped {
            return false;
        }
        // The signal also finds processes that ended and that their parent has not taken away: in a
        // container without an init, for ever.
        test_kill_process_group(self.leader) == Err(Errno::SRCH)
            || system::processes_of(self.leader).is_some_and(|alive| alive.is_empty())
    }

    /// The processes of the group that are alive, as far as the system shows them.
    pub(crate) fn processes(&self) -> Vec<String> {
        system::processes_of(self.leader).unwrap_or_default()
    }
}

/// Blocks until the command stops or ends; leaves an ended one for [`Group::is_empty`], so that
/// no other process gets its id while the group may still be signalled.
fn next_event(leader: Pid) -> io::Result<Event> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        let status = wait_for(leader, look)?;
        if status.stopped() {
            // It may have been continued meanwhile; then there is nothing to tell.
            let take = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let taken = waitid(WaitId::Pid(leader), take)?;
            let signal = taken.and_then(|s| s.stopping_signal());
            if let Some(signal) = signal.and_then(Signal::from_named_raw) {
                return Ok(Event::Stopped(signal));
            }
            continue;
        }
        return Ok(Event::Ended(end_of(&status)));
    }
}

fn end_of(status: &WaitIdStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Exited(code as u8),
        (None, Some(signal)) => End::Killed(signal as u8),
        (None, None) => End::Exited(code::SOFTWARE),
    }
}

fn wait_for(leader: Pid, options: WaitIdOptions) -> io::Result<WaitIdStatus> {
    loop {
        match waitid(WaitId::Pid(leader), options) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
