//! What can be written on the command line, and the help for it. Decides nothing.

pub(crate) mod sync;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use lockkit::Token;

use crate::exit::code;
use sync::{ElectArgs, GetArgs, LatchVerb, PutArgs, ResizeArgs};

const ABOUT: &str = "Run commands under distributed locks with fencing tokens: flock for a fleet";

const EXIT_CODES: &str = "\
Exit codes:
  0        success; of `run`: the command's own code, or 128 + n when signal n ended it
  1        break: nobody has that token; doctor: the backend has a problem; get: there is no
           value; put: somebody else has stored; latch: nobody is missing any more
  64       wrong usage: nothing was done
  69       the backend cannot be reached, or failed
  70, 71   lockkit itself failed; the system refused what it needs
  74       the lock was lost (of `run`: while the command ran, whatever the command returned); put
           --fenced: a later holder has stored
  75       not acquired: the lock is taken (of `run` and `acquire`: --busy-exit-code changes it);
           latch wait: somebody is still missing
  126, 127 the command cannot be run; there is no such command";

const ENVIRONMENT: &str = "\
Environment:
  LOCKKIT_URL       the backend, such as redis://db.example:6379 or sqlite:/srv/locks.db
  LOCKKIT_URL_FILE  a file that contains the backend's URL: `ps` and CI logs do not show it
  XDG_STATE_HOME    where the default SQLite file lives (in lockkit/locks.db);
                    ~/.local/state unless set";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "lockkit", version, about = ABOUT, max_term_width = 100,
    after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{ENVIRONMENT}"),
    subcommand_required = true, arg_required_else_help = false, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Say each step on stderr
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Say nothing on stderr but failures
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command while holding a lock
    Run(Box<RunArgs>),
    /// Run a command while leading, again and again
    Elect(Box<ElectArgs>),
    /// Count down, or wait until all have
    #[command(subcommand)]
    Latch(LatchVerb),
    /// Change the limit of a semaphore, for good; prints the limit
    Resize(ResizeArgs),
    /// Print the value of a register
    Get(GetArgs),
    /// Store a value in a register; prints its version
    Put(PutArgs),
    /// Take a lock that outlives this process; prints a ticket and the token
    Acquire(AcquireArgs),
    /// Keep a lock that `acquire` took for another ttl; prints the token
    Renew(TicketArgs),
    /// Give back a lock that `acquire` took
    Release(TicketArgs),
    /// Inside a command of `run`: find out whether its lock still holds
    Check(CheckArgs),
    /// List the locks in use
    Ls(LsArgs),
    /// Show who holds a lock and who waits for it
    Show(ShowArgs),
    /// Take a lock away from its holder
    Break(BreakArgs),
    /// Show a lock now and after each change, until interrupted
    Watch(ShowArgs),
    /// Check the backend and say what to do about what is wrong
    Doctor(DoctorArgs),
    /// Print the statements that make lockkit's tables, for who may make them
    Schema(DoctorArgs),
    /// Make the tokens here greater than all that another backend gave: a step of a move
    TakeOver(TakeOverArgs),
    /// Print the completions for a shell
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// Which backend, and under which prefix.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct BackendArgs {
    /// The backend, such as redis://host:6379 or sqlite:/srv/locks.db
    ///
    /// Others can see it with `ps`: prefer LOCKKIT_URL, or LOCKKIT_URL_FILE with the name of a file
    /// that contains the URL, when it has a password. Without any of these, locks are kept in a
    /// SQLite file in the user's state folder.
    #[arg(long, value_name = "URL", conflicts_with = "local", help_heading = "Backend")]
    pub(crate) url: Option<String>,

    /// Use the SQLite file in this user's state folder, and do not remark on it
    ///
    /// It reaches the processes of this user on this host.
    #[arg(long, help_heading = "Backend")]
    pub(crate) local: bool,

    /// Keep names apart from those of other applications on the same backend
    #[arg(long, value_name = "P", help_heading = "Backend")]
    pub(crate) prefix: Option<String>,
}

/// How to take a lock.
#[derive(Args, Clone, Debug)]
pub(crate) struct TakeArgs {
    /// How long the lock stays held when its holder vanishes [default: 30s, or that of the URL]
    #[arg(long, value_name = "DUR", value_parser = lease)]
    pub(crate) ttl: Option<Duration>,

    /// Wait at most this long for the lock [default: for ever]
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: end with 75 when the lock is taken
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) once: bool,

    /// Take the lock beside others who take it shared: as a reader
    #[arg(short, long, conflicts_with_all = ["permits", "limit"])]
    pub(crate) shared: bool,

    /// Take this many permits of a semaphore instead of a lock [default with --limit: 1]
    #[arg(long, value_name = "N", requires = "limit",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,

    /// How many permits the semaphore has: the same for everybody
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,

    /// With --limit: M is only the first limit, until `lockkit resize` changes it
    #[arg(long, requires = "limit")]
    pub(crate) resizable: bool,

    /// Why the lock is taken, for others to see
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// The exit code when the lock is not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = code::BUSY)]
    pub(crate) busy_exit_code: u8,
}

/// `run`.
#[derive(Args, Debug)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) take: TakeArgs,

    /// End the command by then: the lock is not renewed beyond it, and SIGTERM comes --kill-after
    /// earlier
    #[arg(long, value_name = "DUR", value_parser = positive_duration)]
    pub(crate) max_hold: Option<Duration>,

    /// The time between SIGTERM and SIGKILL when the lock is lost; less than a third of the ttl
    /// [default: 5s, or a quarter of the ttl if that is less]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// Run it once for this NAME, on whichever host comes first: where the command has ended with 0,
    /// do nothing, and end with 0
    ///
    /// NAME then says which run it is, such as 2026-11-21/report. Whoever comes while the command
    /// runs waits for its end (or as --wait and --try say), and runs it if it failed or its host
    /// died.
    #[arg(long = "once", conflicts_with_all = ["shared", "permits", "limit"])]
    pub(crate) only_once: bool,

    /// With --once: how long it stays known that it was done [default: 7d]
    #[arg(long, value_name = "DUR", requires = "only_once", value_parser = positive_duration)]
    pub(crate) keep: Option<Duration>,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// The lock: 1 to 512 bytes, anything but control characters
    pub(crate) name: String,

    /// The command and its arguments; `--` before it may be left out
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

const RUN_HELP: &str = "\
The command runs with stdin, stdout and stderr as they are, in a process group of its own, and finds \
LOCKKIT_NAME and LOCKKIT_TOKEN in its environment. (LOCKKIT_HELD is for lockkit itself.) The lock is \
renewed while the command runs and released when it ends, however it ends.

The command never outlives the lease. When the lock is lost, its process group gets SIGTERM at once, \
and SIGKILL --kill-after later at most; when the backend does not answer, SIGTERM comes --kill-after \
before the lease ends; SIGKILL always comes before it ends. This holds also when lockkit itself \
stands still; when it is killed, the group is killed at once. What the command leaves running in its \
process group when it ends gets a second, then SIGTERM, then SIGKILL, before the lock is released. \
Processes that leave the group (daemons, the jobs of an interactive shell, what runs as another \
user) are out of reach: check the token at what they change.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the command. A job that is \
stopped (Ctrl-Z) is not renewed, and is killed when its lease ends.

Durations are numbers with ms, s, m, h or d; bare numbers are seconds.";

/// `acquire`.
#[derive(Args, Debug)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) take: TakeArgs,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// The lock
    pub(crate) name: String,
}

/// `renew` and `release`.
#[derive(Args, Debug)]
pub(crate) struct TicketArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// What `acquire` printed first. Whoever has it can keep and release the lock; `-` reads it
    /// from stdin, so that `ps` does not show it
    #[arg(allow_hyphen_values = true)]
    pub(crate) ticket: String,
}

/// `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// `ls`.
#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only names that begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) beginning: String,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,

    /// Only what somebody has been holding for longer than this
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) held_over: Option<Duration>,

    /// Only what somebody waits for
    #[arg(long)]
    pub(crate) waiting: bool,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// `show` and `watch`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The lock
    pub(crate) name: String,

    /// Print JSON: one object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// The semaphore of that name instead of the lock
    #[arg(long)]
    pub(crate) semaphore: bool,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// `break`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Without --force the holder is told that it lost the lock and is renewed no longer; the lock moves on \
when the holder lets go, or when its lease ends. So there are never two holders. With --force the \
lock moves on at once, and until the former holder notices, only tokens protect what it changes.")]
pub(crate) struct BreakArgs {
    /// The lock
    pub(crate) name: String,

    /// The token of the holder or waiter that is to lose it, as `show` prints it
    #[arg(long, value_name = "T", value_parser = token)]
    pub(crate) token: Token,

    /// Let the lock move on at once, although its holder may still be at work
    #[arg(long)]
    pub(crate) force: bool,

    /// Why, for the holder and for who looks
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    /// The semaphore of that name instead of the lock
    #[arg(long)]
    pub(crate) semaphore: bool,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// `doctor`, `schema`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

/// `take-over`.
#[derive(Args, Debug)]
pub(crate) struct TakeOverArgs {
    /// The backend that the fleet comes from
    ///
    /// When nobody uses it alone any more, and before anybody uses the new one alone: docs/moving.md
    /// has the steps of a move.
    #[arg(long, value_name = "URL")]
    pub(crate) from: String,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
}

fn duration(text: &str) -> Result<Duration, String> {
    lockkit::parse_duration(text).map_err(|e| e.to_string())
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be more than 0".to_owned()),
        duration => Ok(duration),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        lease if lease < Duration::from_millis(10) => Err("a lease needs 10ms at least".to_owned()),
        lease => Ok(lease),
    }
}

fn token(text: &str) -> Result<Token, String> {
    let number = text.parse().ok().and_then(Token::new);
    number.ok_or_else(|| "a token is a positive whole number, as `show` prints it".to_owned())
}
