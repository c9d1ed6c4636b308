//! lockkit's side of the [supervisor](super::supervise): starts it, tells it the group and the
//! lease, hears what it did.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use lockkit::clock::ClockPair;
use rustix::process::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::role;

/// What the supervisor did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// It sent SIGTERM to the group.
    Terminated,
    /// It sent SIGKILL to the group.
    Killed,
    /// It has ended itself, although no process told it to.
    Died,
}

/// When the group is to be ended. In pairs, since the supervisor has its own
/// [`SteadyClock`](lockkit::clock::SteadyClock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// SIGTERM, unless told otherwise by then.
    pub(crate) term: ClockPair,
    /// SIGKILL, unless told otherwise by then.
    pub(crate) kill: ClockPair,
}

/// A running supervisor. When it is dropped, it kills the group.
#[derive(Debug)]
pub(crate) struct Supervisor {
    child: Child,
    to: ChildStdin,
    deeds: UnboundedReceiver<Deed>,
    last_sent: Option<Due>,
}

impl Supervisor {
    /// Starts one that guards this group. When this returns, it does.
    pub(crate) fn start(group: Pid, due: Due) -> io::Result<Self> {
        // Under another name than this process, so that a kill by name (`pkill -f lockkit`) misses
        // one of the two, and that one ends the command.
        // A stderr without a reader. Not /dev/null, which an image with nothing else does not have.
        let (_, nowhere) = io::pipe()?;
        let mut child = role::myself("lk-supervisor", role::SUPERVISE)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It must not hold open what a reader of lockkit's stderr waits for the end of.
            .stderr(nowhere)
            .spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("its pipes are missing"));
        };
        let mut from = BufReader::new(from);
        expect(&mut from, "ready")?;
        let (tell, deeds) = unbounded_channel();
        let mut supervisor = Self { child, to, deeds, last_sent: None };
        supervisor.lease(due)?;
        supervisor.say(&format!("group {}", group.as_raw_nonzero()))?;
        expect(&mut from, "guarding")?;
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                let deed = match line.as_str() {
                    "terminated" => Deed::Terminated,
                    "killed" => Deed::Killed,
                    _ => continue,
                };
                let _ = tell.send(deed);
            }
            let _ = tell.send(Deed::Died);
        });
        Ok(supervisor)
    }

    /// Tells it the lease as it is now.
    pub(crate) fn lease(&mut self, due: Due) -> io::Result<()> {
        // Moments are computed each time; below this they are the same lease.
        const SAME: Duration = Duration::from_millis(1);
        if let Some(told) = self.last_sent
            && due.kill.before(SAME).min(told.kill) == due.kill.before(SAME)
            && told.kill.before(SAME).min(due.kill) == told.kill.before(SAME)
        {
            return Ok(());
        }
        self.say(&format!("lease {} {}", words(due.term), words(due.kill)))?;
        self.last_sent = Some(due);
        Ok(())
    }

    /// Has it send SIGTERM now, and SIGKILL at this moment at the latest.
    pub(crate) fn end(&mut self, kill: ClockPair) -> io::Result<()> {
        self.say(&format!("end {}", words(kill)))
    }

    /// What it did next.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    pub(crate) async fn deed(&mut self) -> Deed {
        match self.deeds.recv().await {
            Some(deed) => deed,
            None => std::future::pending().await,
        }
    }

    /// Sends it away, since the group is gone; says what it did that was not heard yet.
    pub(crate) async fn dismiss(mut self) -> Option<Deed> {
        let _ = self.say("done");
        drop(self.to);
        let _ = self.child.wait();
        // Nothing comes behind the end of its output.
        self.deeds.recv().await.filter(|deed| *deed != Deed::Died)
    }

    /// Clears away one that died.
    pub(crate) fn bury(mut self) {
        drop(self.to);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.to.write_all(format!("{line}\n").as_bytes())
    }
}

fn words(pair: ClockPair) -> String {
    format!("{} {}", pair.boot.as_nanos(), pair.raw.as_nanos())
}

fn expect(from: &mut impl BufRead, word: &str) -> io::Result<()> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    match line.trim_end() == word {
        true => Ok(()),
        false => Err(io::Error::other(format!("it did not say {word:?}"))),
    }
}
