//! The arguments of `elect`, `latch`, `resize`, `get` and `put`, and the help for them. Decides nothing.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{BackendArgs, duration, lease, positive_duration};

/// `elect`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Campaigns for the leadership of NAME, runs the command while it leads, and campaigns again when the \
command has ended or the leadership was lost; until it gets SIGINT, SIGTERM, SIGHUP or SIGQUIT, \
which end the command and then lockkit, with the command's code. After a command has ended by itself, \
others go first.

The command runs as under `run`: it never outlives the leadership, and finds LOCKKIT_NAME and \
LOCKKIT_TOKEN in its environment. `lockkit show NAME` shows the leader, with its value as the note, \
and the candidates.")]
pub(crate) struct ElectArgs {
    /// What everybody is to know of this candidate once it leads, such as an address
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,

    /// How long a leader that vanished stays the leader [default: 30s, or that of the URL]
    #[arg(long, value_name = "DUR", value_parser = lease)]
    pub(crate) ttl: Option<Duration>,

    /// Lead no longer than this at a time
    #[arg(long, value_name = "DUR", value_parser = positive_duration)]
    pub(crate) max_term: Option<Duration>,

    /// The time between SIGTERM and SIGKILL when the leadership is lost; less than a third of the
    /// ttl [default: 5s, or a quarter of the ttl if that is less]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// The election: 1 to 512 bytes, anything but control characters
    pub(crate) name: String,

    /// The command and its arguments; `--` before it may be left out
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// `latch`.
#[derive(Debug, Subcommand)]
pub(crate) enum LatchVerb {
    /// Count down; prints how many are still missing
    Down {
        #[command(flatten)]
        latch: LatchArgs,

        /// Who counts: each counts once, however often it says so [default: this host's name]
        #[arg(long = "as", value_name = "ID")]
        participant: Option<String>,
    },
    /// Wait until nobody is missing
    Wait {
        #[command(flatten)]
        latch: LatchArgs,

        /// Wait at most this long, then end with 75 [default: for ever]
        #[arg(short, long, value_name = "DUR", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Print how many are missing, and who has counted, one a line
    Show {
        #[command(flatten)]
        latch: LatchArgs,
    },
    /// Close it again, for everybody, until so many have counted down
    Reset {
        #[command(flatten)]
        latch: LatchArgs,
    },
}

/// Which latch.
#[derive(Args, Debug)]
pub(crate) struct LatchArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// The latch
    pub(crate) name: String,

    /// How many open it: 1 to 800, the same for everybody
    pub(crate) count: u32,
}

/// `resize`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
The limit stays, whether or not anybody holds a permit. A higher one lets in at once whom it has room \
for, in the order of the line. A lower one evicts nobody: who holds a permit keeps it, and nobody \
comes in until there is room. At 0 nobody comes in.

  lockkit run --limit 5 --resizable importers -- ./import
  lockkit resize importers 2

Whoever takes a permit with --limit and without --resizable has to name the limit in force.")]
pub(crate) struct ResizeArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// The semaphore
    pub(crate) name: String,

    /// How many permits it has from now on
    pub(crate) limit: u32,
}

/// `get`.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// Print JSON: the version and the highest token as well; a value that is not UTF-8 as `hex`
    #[arg(long)]
    pub(crate) json: bool,

    /// The register
    pub(crate) name: String,
}

/// `put`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Prints the version that was stored. With --fenced, in a command of `run` or `elect`, the value goes \
along with the token of that lock: once a later holder of the lock has stored, this ends with 74 and \
stores nothing. So a command that was paused cannot undo what its successor did:

  lockkit run consumer -- sh -c 'from=$(lockkit get cursor); ...; lockkit put --fenced cursor 42'")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) backend: BackendArgs,

    /// Only over this version, as `get --json` prints it; otherwise end with 1
    #[arg(long, value_name = "V", conflicts_with = "if_absent")]
    pub(crate) if_version: Option<u64>,

    /// Only if there is no value; otherwise end with 1
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// Refuse if a later holder has stored, of the lock that this command runs under
    #[arg(long)]
    pub(crate) fenced: bool,

    /// Forget the value after this time [default: never]
    #[arg(long, value_name = "DUR", value_parser = positive_duration)]
    pub(crate) keep: Option<Duration>,

    /// The register: 1 to 512 bytes, anything but control characters
    pub(crate) name: String,

    /// The value, 64 KiB at most; read from stdin when it is left out
    pub(crate) value: Option<OsString>,
}
