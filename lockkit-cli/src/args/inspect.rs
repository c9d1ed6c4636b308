//! The arguments of `ls`, `show`, `watch`, `break` and `take-over`, and the help for them.

use std::time::Duration;

use clap::Args;
use lockkit::Token;

#[cfg(feature = "top")]
use super::pause;
use super::{duration, token};

/// `ls`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkit ls job/                  names that begin with job/
  lockkit ls --held-over 1h30m     what may hang
  lockkit ls --all-namespaces        of all applications on the backend
  lockkit ls --registers           what `put` stored, without the values
  lockkit ls --json | jq -r '.[].name'")]
pub(crate) struct LsArgs {
    /// Only names that begin with this
    #[arg(value_name = "BEGINNING", default_value = "", hide_default_value = true)]
    pub(crate) beginning: String,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,

    /// Only what has been held for longer than this
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) held_over: Option<Duration>,

    /// Only what is waited for
    #[arg(long)]
    pub(crate) waiting: bool,

    /// In every namespace, which is then shown too
    #[arg(long)]
    pub(crate) all_namespaces: bool,

    /// List the registers that have a value, instead of locks
    #[arg(long, conflicts_with_all = ["held_over", "waiting"])]
    pub(crate) registers: bool,
}

/// Which lock or semaphore.
#[derive(Args, Debug)]
pub(crate) struct Subject {
    /// The lock or semaphore
    pub(crate) name: String,

    /// Only the semaphore of that name [default: the lock and the semaphore]
    #[arg(long, conflicts_with = "lock")]
    pub(crate) semaphore: bool,

    /// Only the lock of that name
    #[arg(long)]
    pub(crate) lock: bool,
}

/// `show`.
#[derive(Args, Debug)]
#[command(after_help = "\
A lock and a semaphore may have the same name: what is in use is shown.

Examples:
  lockkit show nightly
  lockkit show --json --semaphore importers | jq .limit")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    /// Print JSON: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `watch`.
#[derive(Args, Debug)]
#[command(after_help = "\
While the backend is out of reach it goes on trying, and then shows what has changed.

Example:
  lockkit watch --json nightly | jq --unbuffered '.holders[].identity.host'")]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    /// Print JSON: one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `top`.
#[cfg(feature = "top")]
#[derive(Args, Debug)]
#[command(after_help = TOP_EXAMPLE, after_long_help = format!("\
A row is a lock or a semaphore that is held or waited for:

  HELD     for how long its longest holder has held it
  WAITERS  how many wait, and LONGEST, for how long the first has waited
  CHG/MIN  how many claims began to hold, a minute, over the last minute; what came and went between
           two listings is not counted

Keys:
  Up, Down, PageUp, PageDown, Home, End   choose a lock (also k, j, g, G)
  Enter                                   its line: holders and waiters in order; Esc goes back
  b                                       break the lock, or the chosen place in its line; asks first
  /                                       only locks whose name, holder or note contains a text
  p                                       only names that begin with a text
  s                                       order by age, longest wait, waiters, changes, name
  q, Ctrl-C                               quit

{TOP_EXAMPLE}"))]
pub(crate) struct TopArgs {
    /// Only names that begin with this
    #[arg(value_name = "BEGINNING", default_value = "", hide_default_value = true)]
    pub(crate) beginning: String,

    /// The time between two requests to the backend
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = pause)]
    pub(crate) interval: Duration,
}

#[cfg(feature = "top")]
const TOP_EXAMPLE: &str = "\
Example:
  lockkit top job/ --interval 250ms";

/// `break`.
#[derive(Args, Debug)]
#[command(after_help = BREAK_EXAMPLE, after_long_help = format!("\
Without --force the holder learns that it lost the lock and is renewed no longer; the lock moves on \
when the holder lets go, or when its lease ends. So there are never two holders. With --force the \
lock moves on at once, and until the former holder notices, only tokens protect what it changes. \
The lock of a Terraform state is never renewed: a break of it is always a forced one.

{BREAK_EXAMPLE}"))]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    /// The token of the holder or waiter that is to lose it, as `show` prints it
    #[arg(long, value_name = "T", value_parser = token)]
    pub(crate) token: Token,

    /// Let the lock move on at once, although its holder may still be at work
    #[arg(long)]
    pub(crate) force: bool,

    /// Why, for the holder and for others to see
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

const BREAK_EXAMPLE: &str = "\
Example:
  lockkit show nightly
  lockkit break nightly --token 1795237948685600 --reason 'host is gone'";

/// `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Try nothing: read only, as a login without the right to take locks may
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Print what these servers keep under each fault, as they are set up now, and why
    ///
    /// Reads their settings, and tries nothing. What a login may not read is unknown.
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) promises: bool,
}

/// `take-over`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  lockkit take-over --from redis://old --url postgres://locker@new/app")]
pub(crate) struct TakeOverArgs {
    /// The backend that the fleet comes from
    ///
    /// Run this when no client uses only that backend any more, and before any client uses only the new one:
    /// docs/moving.md has the steps of a move.
    #[arg(long, value_name = "URL")]
    pub(crate) from: String,
}
