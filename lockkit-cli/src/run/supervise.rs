//! The supervisor: a small process of its own that ends the command's process group when its lease
//! ends, whatever became of the `lockkit` that started it. It knows nothing of locks and does no
//! I/O but with its parent.
//!
//! It reads lines from stdin and answers on stdout; [`super::supervisor`] is the other side:
//!
//! | line | meaning | answer |
//! | --- | --- | --- |
//! | | it is up | `ready` |
//! | `group PGID` | this is the group to guard | `guarding` |
//! | `lease TERM KILL` | SIGTERM, SIGKILL are due then | |
//! | `end KILL` | SIGTERM now, SIGKILL then or when it was due, if that is earlier | |
//! | `done` | the group is gone: leave | |
//! | end of file | the parent is gone: SIGKILL now, and leave | |
//!
//! TERM and KILL are two words each, `BOOT RAW`: the moment (ns) on the boot clock, and on the clock
//! that is not slewed. Whichever comes first counts.
//!
//! It says `terminated` and `killed` when it has done so. What it does it does by the clock alone:
//! a parent that stands still cannot keep the group alive.

use std::io::{self, Write};
use std::process::ExitCode;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, kill_process_group, setsid};

use lockkit::clock::{ClockPair, Moment, nap};

use crate::system::{self, Alarm};

/// The supervisor's `main`.
pub(crate) fn main() -> ExitCode {
    // A program that stops a whole session, terminal or control group gracefully also asks this process to
    // end; it leaves only after the group it guards.
    let _ = SigSet::all().thread_block();
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
    // Not the parent's name: `pkill lockkit` is to leave the guard in place.
    system::show_as("lk-supervisor");
    match Guard::default().serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What it knows of the group, and what it has done to it.
#[derive(Default)]
struct Guard {
    group: Option<Pid>,
    term_at: Option<ClockPair>,
    kill_at: Option<ClockPair>,
    terminated: bool,
    killed: bool,
}

impl Guard {
    fn serve(mut self) -> io::Result<()> {
        let stdin = io::stdin();
        let alarm = Alarm::new()?;
        let mut unread = Vec::new();
        answer("ready");
        loop {
            self.act_on_time();
            match alarm.wait(&stdin, self.next()) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    self.kill();
                    return Err(error);
                }
            }
            let mut buffer = [0; 1024];
            let count = match rustix::io::read(&stdin, &mut buffer) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => 0,
            };
            if count == 0 {
                self.kill();
                return Ok(());
            }
            unread.extend_from_slice(&buffer[..count]);
            while let Some(end) = unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                if !self.obey(&String::from_utf8_lossy(&line)) {
                    return Ok(());
                }
            }
        }
    }

    /// Does what a line says; `false` when that is to leave.
    fn obey(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["group", id] => {
                self.group = id.parse().ok().and_then(Pid::from_raw);
                answer("guarding");
            }
            ["lease", term_boot, term_raw, kill_boot, kill_raw] if !self.terminated => {
                self.term_at = pair(term_boot, term_raw);
                self.kill_at = pair(kill_boot, kill_raw);
            }
            ["end", boot, raw] => {
                let both = [self.kill_at, pair(boot, raw)].into_iter().flatten();
                self.kill_at = both.reduce(ClockPair::min);
                self.terminate();
            }
            ["done"] => return false,
            _ => {}
        }
        true
    }

    fn act_on_time(&mut self) {
        let now = ClockPair::now();
        let is_due = |at: Option<ClockPair>| at.is_some_and(|at| at.since(now).is_zero());
        if is_due(self.kill_at) {
            self.kill();
        } else if is_due(self.term_at) {
            self.terminate();
        }
    }

    /// When to look at the clocks again, on the boot clock: no timer counts on the other one.
    fn next(&self) -> Option<Moment> {
        let at = match (self.killed, self.terminated) {
            (true, _) => None,
            (false, true) => self.kill_at,
            (false, false) => {
                [self.term_at, self.kill_at].into_iter().flatten().reduce(ClockPair::min)
            }
        };
        let now = ClockPair::now();
        at.map(|at| now.boot.after(nap(at.since(now))))
    }

    fn terminate(&mut self) {
        if let (Some(group), false) = (self.group, self.terminated) {
            self.terminated = true;
            let _ = kill_process_group(group, Signal::TERM);
            // A suspended command must wake up to tidy up.
            let _ = kill_process_group(group, Signal::CONT);
            answer("terminated");
        }
    }

    fn kill(&mut self) {
        if let (Some(group), false) = (self.group, self.killed) {
            self.killed = true;
            self.terminated = true;
            let _ = kill_process_group(group, Signal::KILL);
            answer("killed");
        }
    }
}

fn pair(boot: &str, raw: &str) -> Option<ClockPair> {
    let moment = |word: &str| word.parse().ok().map(Moment::from_nanos);
    Some(ClockPair { boot: moment(boot)?, raw: moment(raw)? })
}

/// The other end may be closed, which changes nothing.
fn answer(word: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}
