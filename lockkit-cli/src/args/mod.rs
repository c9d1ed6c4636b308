//! What can be written on the command line, and the help for it. Decides nothing.

pub(crate) mod acquire;
#[cfg(feature = "compare")]
pub(crate) mod compare;
pub(crate) mod inspect;
#[cfg(feature = "lab")]
pub(crate) mod lab;
#[cfg(all(test, feature = "top", feature = "serve"))]
mod pages;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod sync;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use lockkit::Token;

use crate::output::{Color, Verbosity};
use acquire::{AcquireArgs, HoldArgs, RunArgs, TicketArgs};
#[cfg(feature = "top")]
use inspect::TopArgs;
use inspect::{BreakArgs, DoctorArgs, LsArgs, ShowArgs, TakeOverArgs, WatchArgs};
use sync::{DeleteArgs, ElectArgs, GetArgs, LatchVerb, PutArgs, ResizeArgs};

const ABOUT: &str = "Run commands under distributed locks with fencing tokens: flock for a fleet";

const EXIT_CODES: &str = "\
Exit codes:
  0        success; of `run`: the command's own code, or 128 + n when signal n ended it (when that
           was SIGINT, SIGTERM, SIGHUP or SIGQUIT, lockkit ends by the same signal)
  1        break: no claim has that token; doctor: the backend has a problem; get, delete: there is
           no value; elect --show: there is no leader; put: the register is not as expected; latch: the latch is open already;
           compare, storm, judge: a promise was broken
  64       wrong usage: nothing was done
  69       the backend cannot be reached, or failed, or takes no writes, or had not answered when a
           limited wait ended
  70, 71   lockkit itself failed; the system refused what it needs
  74       the lock was lost (of `run`: while the command ran, whatever the command returned); put
           --fenced: it is not held any more, or a later holder has stored
  75       not acquired: the lock is taken (of `run` and `acquire`: --busy-exit-code changes it);
           latch wait: the latch is still closed
  126, 127 the command cannot be run; there is no such command";

const ENVIRONMENT: &str = "\
Environment:
  LOCKKIT_URL       the backend, such as redis://db.example:6379 or sqlite:/srv/locks.db
  LOCKKIT_URL_FILE  a file that contains the backend's URL: `ps` and CI logs do not show it
  LOCKKIT_NAMESPACE the namespace, unless --namespace or the --url gives one
  NO_COLOR          set to anything: no colours
  XDG_STATE_HOME    where the default SQLite file lives (in lockkit/locks.db);
                    ~/.local/state unless set

A command of `run` or `elect` finds the backend and namespace of its lock in LOCKKIT_URL and
LOCKKIT_NAMESPACE, so a lockkit inside of it uses the same ones unless told otherwise.";

/// Options that all subcommands have come after a subcommand's own.
const OUTPUT: &str = "Output";

const EXAMPLES: &str = "\
Examples:
  lockkit run --local nightly -- ./backup.sh           one at a time on this host
  lockkit run --wait 5m deploy -c 'make && make push'  one at a time in the fleet of LOCKKIT_URL
  lockkit ls --waiting                                 which locks are contended
  lockkit show nightly                                 who holds it";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "lockkit", version, about = ABOUT, max_term_width = 100,
    after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"),
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}\n\n{ENVIRONMENT}"),
    subcommand_required = true, arg_required_else_help = false)]
pub(crate) struct Cli {
    /// Report each step on stderr
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = OUTPUT)]
    pub(crate) verbose: bool,

    /// Report only failures on stderr
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub(crate) quiet: bool,

    /// Use colours
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Color::Auto,
        help_heading = OUTPUT)]
    pub(crate) color: Color,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    #[command(subcommand)]
    pub(crate) verb: Command,
}

impl Cli {
    /// Reads the command line. Refuses `run -- COMMAND`, which a script makes of `run $NAME -- COMMAND`
    /// when that variable is not set: COMMAND would become the name, and its first argument the command.
    pub(crate) fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let mut command = grouped(Self::command());
        let cli = command
            .try_get_matches_from_mut(line)
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|error| error.format(&mut command))?;
        let name = match &cli.verb {
            Command::Run(args) => &args.name,
            Command::Elect(args) => &args.name,
            _ => return Ok(cli),
        };
        let Some(at) = line.iter().position(|word| word == "--") else { return Ok(cli) };
        let before = line[..at].iter().cloned().chain([OsString::from("COMMAND")]);
        match Self::try_parse_from(before) {
            Err(error)
                if error.kind() == ErrorKind::MissingRequiredArgument && !name.starts_with('-') =>
            {
                let sentence = "NAME is missing before `--` (is a variable of the script not set?)";
                Err(Self::command().error(ErrorKind::MissingRequiredArgument, sentence))
            }
            _ => Ok(cli),
        }
    }

    /// How much is to be said.
    pub(crate) fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

/// The subcommands in the order in which a newcomer meets them. Which there are depends on features.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Hold a lock while something runs:", &["run", "hold", "elect", "check"]),
    ("Look at locks, and take them away:", &["ls", "show", "watch", "top", "break"]),
    ("Locks that outlive a process:", &["acquire", "renew", "release"]),
    ("Latches, semaphores and registers:", &["latch", "resize", "get", "put", "delete"]),
    ("The backend:", &["doctor", "schema", "serve", "take-over", "compare", "storm", "judge"]),
    ("This command:", &["help", "man", "completions"]),
];

/// The command with its subcommands listed in groups, for which clap has no means of its own.
fn grouped(mut command: clap::Command) -> clap::Command {
    command.build();
    let mut list = String::new();
    for (title, verbs) in GROUPS {
        list.push_str(&format!("{title}\n"));
        for verb in verbs.iter().filter_map(|verb| command.find_subcommand(verb)) {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            list.push_str(&format!("  {:<12} {about}\n", verb.get_name()));
        }
        list.push('\n');
    }
    let verbs: Vec<_> = command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for verb in verbs {
        command = command.mut_subcommand(verb, |verb| verb.hide(true));
    }
    command.help_template(format!(
        "{{before-help}}{{about-with-newline}}\nUsage: lockkit [OPTIONS] COMMAND\n\n\
         {list}{{all-args}}{{after-help}}"
    ))
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Box<RunArgs>),
    /// Hold a lock for the rest of a shell script: eval "$(lockkit hold NAME)"
    Hold(Box<HoldArgs>),
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
    /// Delete the value of a register
    Delete(DeleteArgs),
    /// Take a lock that outlives this process; prints a ticket
    Acquire(AcquireArgs),
    /// Extend a lock taken with `acquire` by its TTL; prints the token
    #[command(after_help = RENEW_EXAMPLE)]
    Renew(TicketArgs),
    /// Release a lock taken with `acquire`
    #[command(after_help = RELEASE_EXAMPLE)]
    Release(TicketArgs),
    /// Inside a command of `run`: check whether its lock still holds
    #[command(after_help = CHECK_EXAMPLE)]
    Check,
    /// List the locks in use
    Ls(LsArgs),
    /// Show who holds a lock and who waits for it
    Show(ShowArgs),
    /// Take a lock away from its holder
    Break(BreakArgs),
    /// Show a lock now and after each change, until interrupted
    Watch(WatchArgs),
    /// Show the locks in use, live
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Check the backend and give advice
    #[command(after_help = DOCTOR_EXAMPLE)]
    Doctor(DoctorArgs),
    /// Print the statements or commands that create lockkit's tables
    #[command(after_help = SCHEMA_EXAMPLE)]
    Schema,
    /// Serve the locks of a backend over HTTP, for programs in any language
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs),
    /// Raise the tokens of this backend above those of another: a step of a move
    TakeOver(TakeOverArgs),
    /// Compare backends: what they promise, what was just shown of it, and how fast they are
    #[cfg(feature = "compare")]
    Compare(compare::CompareArgs),
    /// Run clients under injected faults, and check the recorded history
    #[cfg(feature = "lab")]
    Storm(lab::StormArgs),
    /// Check a history that `storm` recorded, and draw it
    #[cfg(feature = "lab")]
    Judge(lab::JudgeArgs),
    /// Print the completions for a shell
    #[command(after_help = COMPLETIONS_EXAMPLE)]
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Print a manual page
    Man(ManArgs),
}

impl Command {
    /// What it does with the backend, for the message when that fails.
    pub(crate) fn doing(&self) -> Option<&'static str> {
        Some(match self {
            Self::Run(_) | Self::Hold(_) | Self::Acquire(_) => "taking the lock",
            Self::Elect(_) => "campaigning",
            Self::Latch(_) => "using the latch",
            Self::Resize(_) => "resizing the semaphore",
            Self::Get(_) => "reading the register",
            Self::Put(_) => "storing in the register",
            Self::Delete(_) => "deleting from the register",
            Self::Renew(_) => "renewing the lock",
            Self::Release(_) => "releasing the lock",
            Self::Ls(_) => "listing the locks",
            Self::Check | Self::Show(_) | Self::Watch(_) => "looking at the lock",
            Self::Break(_) => "breaking the lock",
            Self::TakeOver(_) => "raising the tokens",
            // These have several, or one that others chose, and name them themselves.
            #[cfg(feature = "compare")]
            Self::Compare(_) => return None,
            #[cfg(feature = "lab")]
            Self::Storm(_) | Self::Judge(_) => return None,
            _ => "asking the backend",
        })
    }
}

const RENEW_EXAMPLE: &str = "\
Example:
  ticket=$(lockkit acquire --ttl 1h job)
  lockkit renew \"$ticket\"              held for another hour; prints the token";

const RELEASE_EXAMPLE: &str = "\
Example:
  ticket=$(lockkit acquire job)
  lockkit release \"$ticket\"";

const CHECK_EXAMPLE: &str = "\
Ends with 0 while the lock is held and with 74 once it is lost. Asks the backend.

Example:
  lockkit run job -- sh -c 'prepare && lockkit check && publish'";

const DOCTOR_EXAMPLE: &str = "\
Tries what locks need: takes, renews, hands over and releases a lock, and writes and deletes a \
register, both named lockkit.doctor. Ends with 1 when the backend refuses any of it.

Example:
  lockkit doctor --url redis://db.example:6379 || alert";

const SCHEMA_EXAMPLE: &str = "\
For a database whose user of locks may not create tables, for DynamoDB and for buckets. The rights \
that this user needs stand at the end of the output.

Example:
  lockkit schema --url postgres://locker@db/app | psql -U admin app";

const COMPLETIONS_EXAMPLE: &str = "\
Example:
  lockkit completions bash >/etc/bash_completion.d/lockkit";

/// Which backend, and in which namespace. Before or after the subcommand.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct BackendArgs {
    /// The backend, such as redis://host:6379 or sqlite:/srv/locks.db
    ///
    /// Others can see it with `ps`: prefer LOCKKIT_URL, or LOCKKIT_URL_FILE with the name of a file
    /// that contains the URL, when it has a password. Without any of these, locks are kept in a
    /// SQLite file in the user's state folder.
    #[arg(long, value_name = "URL", global = true, help_heading = "Backend")]
    pub(crate) url: Option<String>,

    /// Use the SQLite file in this user's state folder, without the remark about it
    ///
    /// It reaches the processes of this user on this host.
    #[arg(long, global = true, help_heading = "Backend")]
    pub(crate) local: bool,

    /// Keep names apart from those of other applications on the same backend
    #[arg(long, value_name = "P", global = true, help_heading = "Backend")]
    pub(crate) namespace: Option<String>,
}

/// `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkit man | man -l -
  lockkit man run | man -l -
  lockkit man --dir /usr/local/share/man/man1      lockkit.1, lockkit-run.1 and the others")]
pub(crate) struct ManArgs {
    /// The page of this subcommand; without one, that of lockkit
    pub(crate) subcommand: Option<String>,

    /// Write all pages into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "subcommand")]
    pub(crate) dir: Option<PathBuf>,
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

/// The longest time that a command may hold or lead.
fn term(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(100) => Err("it must be 100ms or more".to_owned()),
        duration => Ok(duration),
    }
}

/// A pause that leaves the backend some peace.
#[cfg(feature = "top")]
fn pause(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        pause if pause < Duration::from_millis(50) => Err("it must be 50ms or more".to_owned()),
        pause => Ok(pause),
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
