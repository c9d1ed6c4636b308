//! The arguments of `run`, `acquire`, `renew` and `release`, and the help for them.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{duration, lease, positive_duration, term};
use crate::exit::code;
use crate::progress::ProgressFormat;

/// How to take a lock.
#[derive(Args, Clone, Debug)]
pub(crate) struct LockArgs {
    /// How long the lock stays held when its holder vanishes [default: 30s, or that of the URL]
    #[arg(long, value_name = "DUR", value_parser = lease)]
    pub(crate) ttl: Option<Duration>,

    /// Wait at most this long, for the backend and the lock [default: for ever for the lock, not
    /// for the backend]
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: end with 75 when the lock is taken
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) once: bool,

    /// Share the lock with others that take it shared: as a reader
    #[arg(short, long, conflicts_with_all = ["permits", "limit"])]
    pub(crate) shared: bool,

    /// Take this many permits of a semaphore instead of a lock [default with --limit: 1]
    #[arg(long, value_name = "N", requires = "limit",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,

    /// How many permits the semaphore has: the same for all clients
    #[arg(long, group = "counted", value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,

    /// With --limit or --slots: the number is only the first one, until `lockkit resize` changes it
    #[arg(long, requires = "counted")]
    pub(crate) resizable: bool,

    /// Keep the lock for so long from when it is acquired, although the command ends sooner
    ///
    /// For a short job that several hosts start by clocks that differ: longer than these differ, and with
    /// --try. The exit code of the command changes nothing. A crash closes the name for that time too.
    #[arg(long, value_name = "DUR", value_parser = positive_duration)]
    pub(crate) at_least: Option<Duration>,

    /// Keep the lock closed for so long after it was lost, not after a release
    ///
    /// Time for what the command may have left under way. A lock of a host that crashed is free after the
    /// ttl and this. All clients of a lock should use the same.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) lock_delay: Option<Duration>,

    /// Report on stderr while waiting: the place in the queue, who holds the lock, for how long this has
    /// waited, and errors of the backend; at each change and every 10 s
    #[arg(long, value_name = "FORMAT", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "text")]
    pub(crate) progress: Option<ProgressFormat>,

    /// Why the lock is taken, for others to see; '' for none [default of run: the user and the
    /// command line, without what looks like a secret]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// The exit code when the lock is not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = code::BUSY)]
    pub(crate) busy_exit_code: u8,
}

/// What `elect` runs; nothing with --show.
#[derive(Args, Debug)]
pub(crate) struct ElectCommand {
    /// Run this text with /bin/sh -c instead of a COMMAND
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,

    /// The command and its arguments; `--` before it may be left out
    #[arg(required_unless_present_any = ["shell", "show"], trailing_var_arg = true,
        value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl ElectCommand {
    /// The words of the command; none with --show.
    pub(crate) fn words(&self) -> Vec<OsString> {
        words(self.shell.as_ref(), &self.command)
    }
}

fn words(shell: Option<&OsString>, command: &[OsString]) -> Vec<OsString> {
    match shell {
        Some(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
        None => command.to_vec(),
    }
}

/// `run`.
#[derive(Args, Debug)]
#[command(after_help = format!("{RUN_EXAMPLES}\n\n{RUN_CODES}\n\n{DURATIONS}"),
    after_long_help = format!("{RUN_HELP}\n\n{RUN_CODES}\n\n{DURATIONS}\n\n{RUN_EXAMPLES}"))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) take: LockArgs,

    /// End the command by then: the lock is not renewed beyond it, and SIGTERM comes --kill-after
    /// earlier
    #[arg(long, value_name = "DUR", value_parser = term)]
    pub(crate) max_hold: Option<Duration>,

    /// The time between SIGTERM and SIGKILL when the lock is lost; less than a third of the ttl and
    /// less than --max-hold [default: 5s, or a quarter of the shorter of the two if that is less]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// Take one of N numbered slots: the command finds its number, 0 to N - 1, in LOCKKIT_SLOT
    ///
    /// Each number is held by one command at a time, the lowest free one first: for worker ids, devices,
    /// ports. N is the same for all clients. LOCKKIT_TOKEN is the token of that number.
    #[arg(long, group = "counted", value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["shared", "permits", "limit", "only_once", "forget"])]
    pub(crate) slots: Option<u32>,

    /// Run it once for this NAME, on whichever host comes first: where the command has ended with 0,
    /// do nothing, and end with 0
    ///
    /// NAME then identifies the run, such as 2026-11-21/report. Another host that comes while the
    /// command runs waits for its end (or as --wait and --try say), and runs it if it failed or its
    /// host died.
    #[arg(long = "once", conflicts_with_all = ["shared", "permits", "limit", "at_least"])]
    pub(crate) only_once: bool,

    /// With --once: how long the success is remembered [default: 7d]
    #[arg(long, value_name = "DUR", requires = "only_once", value_parser = positive_duration)]
    pub(crate) keep: Option<Duration>,

    /// With --once, without a command: forget that NAME was done, so that it runs again
    #[arg(long, requires = "only_once", conflicts_with_all = ["keep", "command", "shell", "contain"])]
    pub(crate) forget: bool,

    /// What becomes of processes that the command leaves in its process group when it ends
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Leftovers::Wait,
        conflicts_with_all = ["contain", "forget"])]
    pub(crate) leftovers: Leftovers,

    /// Run the command in a PID namespace of its own: nothing that it starts survives it
    ///
    /// Also daemons and other sessions end with the command, and all of it is killed by the kernel
    /// when lockkit is. Needs root, or user namespaces for ordinary users; with these, setuid
    /// programs such as sudo have no effect in the command.
    #[arg(long)]
    pub(crate) contain: bool,

    /// The lock: 1 to 512 bytes, anything but control characters
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) what: RunCommand,
}

/// What becomes of the processes that a command leaves in its process group when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Leftovers {
    /// They work on, and the lock is held and renewed until the last of them has ended
    Wait,
    /// They work on; the lock is released after a second. Only the token protects from them
    Leave,
    /// They get SIGTERM after a second, then SIGKILL; then the lock is released
    End,
}

/// What `run` runs; nothing with --forget.
#[derive(Args, Debug)]
pub(crate) struct RunCommand {
    /// Run this text with /bin/sh -c instead of a COMMAND
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,

    /// The command and its arguments; `--` before it may be left out
    #[arg(required_unless_present_any = ["shell", "forget"], trailing_var_arg = true,
        value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl RunCommand {
    /// The words of the command; none with --forget.
    pub(crate) fn words(&self) -> Vec<OsString> {
        words(self.shell.as_ref(), &self.command)
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  lockkit run --try nightly -- ./backup.sh --full
  lockkit run --wait 1h30m --note 'release 7' deploy -c 'make && make push'
  lockkit run --limit 5 importers -- ./import            a semaphore: five at a time
  lockkit run --slots 4 gpu -c 'CUDA_VISIBLE_DEVICES=$LOCKKIT_SLOT ./train'
  lockkit run --try --at-least 1m hourly -- ./report     on one host, although their clocks differ
  lockkit run --once 2026-11-21/report -- ./report       on one of the hosts that start it";

const RUN_HELP: &str = "\
The command runs with stdin, stdout and stderr as they are, in a process group of its own, and finds \
LOCKKIT_NAME and LOCKKIT_TOKEN in its environment, and in LOCKKIT_URL and LOCKKIT_NAMESPACE the backend \
of its lock (unless the URL contains a secret and was given with --url). The lock is renewed while the \
command runs and released when it ends, however it ends. --at-least keeps it for longer: on a backend \
whose leases need no process (Redis, PostgreSQL, MySQL, MariaDB, SQLite) lockkit ends with the command all \
the same; elsewhere it stays until then, and a signal that asks it to end makes it leave without a release.

The command never outlives the lease. When the lock is lost, its process group gets SIGTERM at once, \
and SIGKILL --kill-after later at most; when the backend does not answer, SIGKILL comes before the last \
tenth of the lease, which is left to clocks of different rates, and SIGTERM --kill-after before that. \
This holds also when lockkit itself stands still; when it is killed, the group is killed at once.

What the command leaves running in its process group when it ends (`job &` without `wait`) works on, \
and the lock stays held until it has ended. --leftovers=leave releases the lock instead, as for a \
script that starts a server; --leftovers=end ends it. A loss of the lock, --max-hold, or a signal that \
asks lockkit to end, ends it in any case.

What is left:
- Processes that leave the group (daemons, the jobs of an interactive shell, what runs as another \
user) are out of reach. --contain reaches them, but for what runs as another user.
- When something kills or stops lockkit and its supervisor at one stroke (`killall /path/of/lockkit`, \
a kill of all processes of the user), the command itself is killed with lockkit, but what it has \
started works on; --contain ends that too when lockkit is killed, not when both are stopped.
Check the token at what the command changes: that protects in these cases too.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command. When one of the \
first four ends it, lockkit ends by the same signal, as `sleep` would. A job that is stopped (Ctrl-Z) \
is not renewed, and is killed when its lease ends.";

const DURATIONS: &str =
    "DUR is a number with ms, s, m, h or d, such as 250ms or 1h30m; bare numbers are seconds.";

const RUN_CODES: &str = "\
Exit codes:
  the command's own, or 128 + n when signal n ended it; 74 the lock was lost; 75 not acquired (or
  --busy-exit-code); 64 wrong usage; 69 the backend failed; 70, 71 lockkit or the system failed;
  126, 127 the command cannot be run; there is no such command";

/// How `run` works inside, for the manual page.
pub(crate) const RUN_INTERNALS: &str = "\
Three processes take part: lockkit, which holds and renews the lock; the command; and a supervisor \
called lk-supervisor, which ends the command's process group when the lease ends or lockkit is gone. \
lockkit and the supervisor end the command for each other. A kill by name (`pkill -f lockkit`, \
`killall lockkit`) misses the supervisor; lockkit starts another one when that is killed. \
LOCKKIT_HELD in the command's environment lists the locks that it runs under, for `check`, \
`put --fenced`, and so that it does not wait for its own lock; what outlives its lock can unset it.";

/// `hold`.
#[derive(Args, Debug)]
#[command(after_help = HOLD_EXAMPLE, after_long_help = format!("\
Prints shell code for the script to evaluate. From then on the script holds the lock until it ends, \
however it ends, and finds the same variables in its environment as a command of `run`. When the lock \
is not acquired, the code ends the script with the exit code of `run`.

When the lock is lost, the script gets SIGTERM, and SIGKILL before the lease ends; with it all \
processes of its group, where the script leads one. Weaker than `run`: what the script leaves running \
when it ends is not waited for, and when lockkit is killed, the script works on. Check the token, or \
run `lockkit check` before what matters.

{HOLD_EXAMPLE}"))]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) take: LockArgs,

    /// Take one of N numbered slots: the script finds its number, 0 to N - 1, in LOCKKIT_SLOT
    ///
    /// As with `run --slots`. N is the same for all clients.
    #[arg(long, group = "counted", value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["shared", "permits", "limit"])]
    pub(crate) slots: Option<u32>,

    /// The lock
    pub(crate) name: String,
}

const HOLD_EXAMPLE: &str = "\
Example:
  #!/bin/sh
  eval \"$(lockkit hold --wait 5m deploy)\"
  make && make push";

/// `acquire`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints the ticket. A process that has it can renew and release the lock, so keep it like a password. \
Only `lockkit renew` renews the lock. If nothing could read the ticket (stdout is closed or \
/dev/null), the lock is not taken.

Example:
  ticket=$(lockkit acquire --ttl 10m job) || exit
  lockkit renew \"$ticket\" && step-2
  lockkit release \"$ticket\"")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) take: LockArgs,

    /// Print JSON: ticket, token, name, space and ttl_ms
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock
    pub(crate) name: String,
}

/// `renew` and `release`.
#[derive(Args, Debug)]
pub(crate) struct TicketArgs {
    /// What `acquire` printed. A process that has it can renew and release the lock; `-` reads it from
    /// stdin, so that `ps` does not show it
    #[arg(allow_hyphen_values = true)]
    pub(crate) ticket: String,
}
