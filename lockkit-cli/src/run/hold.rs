//! While the command runs: passes signals on, follows it into a stop, keeps the supervisor told of
//! the lease, and has the command ended when the lock is lost.

use std::io;
use std::time::Duration;

use lockkit::clock::{Clock, ClockPair, Moment, SteadyClock};
use lockkit::{LockManager, LossReason};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::HoldLimit;
use super::group::{End, Event, Group};
use super::launch::Job;
use super::leftovers::Notice;
use super::signals::{Signals, TELLING};
use super::supervisor::{Deed, Due, Supervisor};
use super::terminal::Terminal;
use crate::args::acquire::Leftovers;
use crate::exit::ExitError;
use crate::taken::TakenLease;
use crate::{describe, output};

/// How a command under a lock ended.
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// Why the lock was lost, or the command ended for its sake.
    pub(crate) lost: Option<String>,
    /// The signal that asked for an end, if one came: it was passed on.
    pub(crate) asked: Option<Signal>,
}

/// A command that runs under a lock.
pub(crate) struct Hold<'a> {
    locks: LockManager,
    lease: TakenLease,
    hold_limit: HoldLimit,
    /// When it began to hold, at the earliest; its last moment is counted from there.
    began: Moment,
    tick: Duration,
    /// How much earlier than the deadline SIGKILL is sent, for the way that it takes.
    lead: Duration,
    due: Due,
    group: Group,
    leftovers: Leftovers,
    supervisor: Option<Supervisor>,
    terminal: Option<Terminal>,
    ending: &'a mut Signals,
    telling: Signals,
    lost: Option<String>,
    asked: Option<Signal>,
    /// While what the command left behind is being waited for.
    leftover: Option<Leftover>,
}

/// The command ended; others of its group live on.
struct Leftover {
    end: End,
    since: Instant,
    announced: bool,
    /// While the lock is held for its sake.
    _notice: Option<Notice>,
    terminated: Option<Instant>,
    killed: bool,
}

/// How long what a command leaves behind may take to end by itself: the rest of a pipeline.
const GRACE: Duration = Duration::from_secs(1);

/// What there is to react to.
enum Happening {
    Command(Event),
    Lost(LossReason),
    Supervisor(Deed),
    Signal(Signal),
    Tick,
}

impl<'a> Hold<'a> {
    /// Starts the command. When this returns, it runs and is guarded.
    pub(crate) fn begin(
        locks: LockManager,
        lease: TakenLease,
        hold_limit: HoldLimit,
        job: &Job,
        ending: &'a mut Signals,
    ) -> io::Result<Self> {
        let telling = Signals::catch(&TELLING)?;
        // A process that ignores SIGCHLD hands that on, and the system then forgets how children ended.
        drop(signal(SignalKind::child())?);
        let began = SteadyClock.now();
        let ttl = lease.granted_ttl();
        let shortest = hold_limit.longest.map_or(ttl, |longest| longest.min(ttl));
        let lead = (shortest / 50).clamp(Duration::from_millis(10), Duration::from_millis(200));
        let due = due(&lease, hold_limit.kill_after, lead);
        let mut group = Group::launch(job)?;
        let supervisor = match Supervisor::start(group.id(), due) {
            Ok(supervisor) => supervisor,
            Err(error) => {
                group.signal(Signal::KILL);
                return Err(error);
            }
        };
        let mut terminal = Terminal::of_this_session();
        if let Some(terminal) = &mut terminal {
            terminal.lend_if_at_a_prompt(group.id());
        }
        group.start();
        Ok(Self {
            tick: (ttl / 20).clamp(Duration::from_millis(10), Duration::from_millis(500)),
            locks,
            lease,
            hold_limit,
            began,
            lead,
            due,
            group,
            leftovers: job.leftovers,
            supervisor: Some(supervisor),
            terminal,
            ending,
            telling,
            lost: None,
            asked: None,
            leftover: None,
        })
    }

    /// Returns when no process of the command's group is left, or is to be waited for.
    pub(crate) async fn until_the_end(mut self) -> Result<Outcome, ExitError> {
        let end = loop {
            match self.next().await {
                Happening::Command(Event::Ended(end)) => self.ended(end),
                Happening::Command(Event::Stopped(signal)) => self.stopped(signal).await,
                Happening::Lost(why) => {
                    self.end_for(self.over().unwrap_or_else(|| why.to_string()))
                }
                Happening::Supervisor(Deed::Died) => self.replace_supervisor()?,
                Happening::Supervisor(deed) => self.did(deed),
                Happening::Signal(signal) => self.pass_on(signal),
                Happening::Tick => self.tell_lease(),
            }
            if let Some(end) = self.cleared() {
                break end;
            }
        };
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        // The command may have ended by what the supervisor did, before its word came.
        if let Some(supervisor) = self.supervisor.take()
            && let Some(deed) = supervisor.dismiss().await
        {
            self.did(deed);
        }
        let lost = self.lost.or_else(|| self.lease.loss().map(|why| why.to_string()));
        Ok(Outcome { end, lost, asked: self.asked })
    }

    fn pass_on(&mut self, signal: Signal) {
        if Signals::asks_to_end(signal) {
            self.asked = Some(signal);
        }
        self.group.signal(signal);
    }

    async fn next(&mut self) -> Happening {
        let nap = match &self.leftover {
            Some(leftover) if leftover.since.elapsed() < GRACE => Duration::from_millis(10),
            Some(_) => self.tick.min(Duration::from_millis(100)),
            None => self.tick,
        };
        let deed = async {
            match &mut self.supervisor {
                Some(supervisor) => supervisor.deed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            deed = deed => Happening::Supervisor(deed),
            why = self.lease.lost(), if self.lost.is_none() => Happening::Lost(why),
            signal = self.ending.next() => Happening::Signal(signal),
            signal = self.telling.next() => Happening::Signal(signal),
            event = self.group.event() => Happening::Command(event),
            () = sleep(nap) => Happening::Tick,
        }
    }

    fn ended(&mut self, end: End) {
        let since = Instant::now();
        self.leftover = Some(Leftover {
            end,
            since,
            announced: false,
            _notice: None,
            terminated: None,
            killed: false,
        });
    }

    /// How the command ended, once no process that it left in its group is to be waited for.
    fn cleared(&mut self) -> Option<End> {
        let leftover = self.leftover.as_mut()?;
        if self.group.is_empty() {
            return Some(leftover.end);
        }
        if leftover.since.elapsed() < GRACE {
            return None;
        }
        let leftovers = match self.lost.is_some() || self.asked.is_some() {
            true => Leftovers::End,
            false => self.leftovers,
        };
        if !leftover.announced {
            leftover.announced = true;
            announce(leftovers, &self.group.processes());
            if leftovers == Leftovers::Wait {
                let (locks, lease) = (self.locks.clone(), self.lease.lock().clone());
                leftover._notice = Some(Notice::begin(locks, lease, self.group.id()));
            }
            // Its keys are to reach this process, which ends what ignores them.
            if let Some(terminal) = &mut self.terminal {
                terminal.take_back();
            }
        }
        match leftovers {
            Leftovers::Wait => return None,
            Leftovers::Leave => return Some(leftover.end),
            Leftovers::End => {}
        }
        let Some(terminated) = leftover.terminated else {
            leftover.terminated = Some(Instant::now());
            self.group.signal(Signal::TERM);
            self.group.signal(Signal::CONT);
            return None;
        };
        if terminated.elapsed() >= self.hold_limit.kill_after && !leftover.killed {
            leftover.killed = true;
            self.group.signal(Signal::KILL);
        }
        // Dead, but not taken away, and where the system does not tell: what is dead does no work.
        (terminated.elapsed() >= self.hold_limit.kill_after + GRACE).then_some(leftover.end)
    }

    /// The command was stopped, from the terminal or by a signal.
    async fn stopped(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else {
            return;
        };
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if !wants_terminal && signal != Signal::TSTP {
            return; // SIGSTOP: the process that stopped it will continue it.
        }
        if wants_terminal && terminal.lend(self.group.id()) {
            self.group.signal(Signal::CONT);
            return;
        }
        match terminal.stop_this_job().await {
            // No process could continue this job, so the terminal would not have stopped it.
            Ok(false) if wants_terminal => {
                output::note("the command stands still: it wants the terminal of another job");
            }
            _ => self.group.signal(Signal::CONT),
        }
    }

    fn tell_lease(&mut self) {
        // After a loss nothing is left of the lease, and the event of the loss is about to come.
        if self.lost.is_some() || self.lease.loss().is_some() {
            return;
        }
        self.due = due(&self.lease, self.hold_limit.kill_after, self.lead);
        if let Some(supervisor) = &mut self.supervisor {
            // One that is gone says so by itself.
            let _ = supervisor.lease(self.due);
        }
    }

    /// Has the command ended: the lock is not held any more.
    fn end_for(&mut self, why: String) {
        output::note(format!("the lock is lost ({why}): ending the command"));
        self.lost = Some(why);
        let now = ClockPair::now();
        self.due =
            Due { term: now, kill: self.due.kill.min(now.after(self.hold_limit.kill_after)) };
        if let Some(supervisor) = &mut self.supervisor {
            let _ = supervisor.end(self.due.kill);
        }
    }

    fn did(&mut self, deed: Deed) {
        output::detail(format!("the supervisor has {deed:?} the command's group"));
        if self.lost.is_none() {
            let unrenewed = || "its lease was about to end without having been renewed".to_owned();
            let why = self.over().unwrap_or_else(unrenewed);
            output::note(format!("ending the command: {why}"));
            self.lost = Some(why);
        }
    }

    /// Says so when the time is over that the command may hold, whatever the lease.
    fn over(&self) -> Option<String> {
        let longest = self.hold_limit.longest?;
        // The supervisor acts --kill-after earlier, and the clock began to run a bit before `began`.
        let early = self.hold_limit.kill_after + self.lead + longest / 20;
        let over = SteadyClock.now().since(self.began) + early >= longest;
        let (option, longest) = (self.hold_limit.option, describe::duration(longest));
        over.then(|| format!("the time of {option} ({longest}) is over"))
    }

    /// The command is never unguarded for long.
    fn replace_supervisor(&mut self) -> Result<(), ExitError> {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.bury();
        }
        match Supervisor::start(self.group.id(), self.due) {
            Ok(supervisor) => {
                // Said once the group is guarded again: who reads it may count on that.
                output::note("warning: the supervisor was killed; another one has taken over");
                self.supervisor = Some(supervisor);
                Ok(())
            }
            Err(error) => {
                self.group.signal(Signal::KILL);
                Err(ExitError::os("cannot start another supervisor", error))
            }
        }
    }
}

/// Names what a command left behind, also with -q: the lock is held, or released, in spite of it.
fn announce(leftovers: Leftovers, processes: &[String]) {
    let many =
        if processes.is_empty() { String::new() } else { format!(" {}", processes.join(", ")) };
    let so = match leftovers {
        Leftovers::Wait => {
            "the lock stays held until they have ended (--leftovers=leave releases it now, \
             --leftovers=end ends them)"
        }
        Leftovers::Leave => "the lock is released, and they work on (--leftovers=leave)",
        Leftovers::End => "ending them",
    };
    output::fail(format!("the command left processes behind in its group{many}: {so}"));
}

/// When the command is to be ended if nothing is heard of the lock any more.
fn due(lease: &TakenLease, kill_after: Duration, lead: Duration) -> Due {
    // The clocks are read before what is left: so the sums are never too late.
    let now = ClockPair::now();
    let deadline = now.after(lease.remaining());
    let kill = deadline.before(lead);
    Due { term: deadline.before(kill_after).min(kill), kill }
}
