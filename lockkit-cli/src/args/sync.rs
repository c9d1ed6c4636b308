//! The arguments of `elect`, `latch`, `resize`, `get`, `put` and `delete`, and the help for them.
//! Decides nothing.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::acquire::{ElectCommand, Leftovers};
use super::{duration, lease, positive_duration, term};

/// `elect`.
#[derive(Args, Debug)]
#[command(after_help = ELECT_EXAMPLE, after_long_help = format!("\
Campaigns for the leadership of NAME, runs the command while it leads, and campaigns again when the \
command has ended or the leadership was lost; until it gets SIGINT, SIGTERM, SIGHUP or SIGQUIT, \
which end the command and then lockkit, as the command ended. After a command has ended by itself, \
other candidates go first.

The command runs as under `run`: it never outlives the leadership, and finds LOCKKIT_NAME and \
LOCKKIT_TOKEN in its environment. `lockkit show NAME` shows the leader, with its value as the note, \
and the candidates.

{ELECT_EXAMPLE}"))]
pub(crate) struct ElectArgs {
    /// What others see of this candidate while it leads, such as an address
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) value: Option<String>,

    /// How long a leader that vanished stays the leader [default: 30s, or that of the URL]
    #[arg(long, value_name = "DUR", value_parser = lease)]
    pub(crate) ttl: Option<Duration>,

    /// Lead no longer than this at a time
    #[arg(long, value_name = "DUR", value_parser = term)]
    pub(crate) max_term: Option<Duration>,

    /// The time between SIGTERM and SIGKILL when the leadership is lost; less than a third of the
    /// ttl and less than --max-term [default: 5s, or a quarter of the shorter of the two if that is
    /// less]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// What becomes of processes that the command leaves in its process group when it ends
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Leftovers::Wait)]
    pub(crate) leftovers: Leftovers,

    /// Without a command: print the value of the leader (or who it is, if it has none); end with 1
    /// when there is none
    #[arg(long, conflicts_with_all = ["value", "max_term", "kill_after", "leftovers", "shell", "command"])]
    pub(crate) show: bool,

    /// The election: 1 to 512 bytes, anything but control characters
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) what: ElectCommand,
}

const ELECT_EXAMPLE: &str = "\
Examples:
  lockkit elect --value 10.0.0.7:4000 shard-7 -- ./serve --shard 7
  leader=$(lockkit elect --show shard-7)";

/// `latch`.
#[derive(Debug, Subcommand)]
#[command(after_help = LATCH_EXAMPLE)]
pub(crate) enum LatchVerb {
    /// Count down; prints how many are still missing
    #[command(after_help = "Example:\n  lockkit latch down boot 3 --as db-1")]
    Down {
        #[command(flatten)]
        latch: LatchArgs,

        /// The participant that counts: each counts once, however often it says so [default: this
        /// host's name]
        #[arg(long = "as", value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
        participant: Option<String>,
    },
    /// Wait until none is missing
    #[command(after_help = "Example:\n  lockkit latch wait boot 3 --wait 5m && ./serve")]
    Wait {
        #[command(flatten)]
        latch: LatchArgs,

        /// Wait at most this long, then end with 75 [default: for ever]
        #[arg(short, long, value_name = "DUR", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Print how many are missing, and which have counted, one a line
    #[command(after_help = "Example:\n  lockkit latch show boot")]
    Show {
        /// The latch
        name: String,

        /// The count that it is expected to have; another one is an error [default: any]
        count: Option<u32>,
    },
    /// Close it again, for all, until so many have counted down
    #[command(after_help = "Example:\n  lockkit latch reset boot 3")]
    Reset {
        #[command(flatten)]
        latch: LatchArgs,
    },
}

const LATCH_EXAMPLE: &str = "\
Example:
  lockkit latch down boot 3            on three hosts, each when it is ready
  lockkit latch wait boot 3 && ./serve";

/// Which latch.
#[derive(Args, Debug)]
pub(crate) struct LatchArgs {
    /// The latch
    pub(crate) name: String,

    /// How many open it: 1 to 800, the same for all clients
    pub(crate) count: u32,
}

/// `resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
The limit stays, whether or not a permit is held. A higher one admits waiters at once, \
in order, as far as there is room. A lower one evicts nobody: permits that are held stay held, and none is \
given until there is room. At 0 none is given.

A client that takes a permit with --limit and without --resizable has to name the limit in force.

Example:
  lockkit run --limit 5 --resizable importers -- ./import
  lockkit resize importers 2")]
pub(crate) struct ResizeArgs {
    /// The semaphore
    pub(crate) name: String,

    /// How many permits it has from now on
    pub(crate) limit: u32,
}

/// `get`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints the bytes as they are; on a terminal, a line break follows.

Example:
  from=$(lockkit get cursor) || from=0")]
pub(crate) struct GetArgs {
    /// Print JSON: the version and the highest token as well; a value that is not UTF-8 as `hex`
    #[arg(long)]
    pub(crate) json: bool,

    /// The register
    pub(crate) name: String,
}

/// `put`.
#[derive(Args, Debug)]
#[command(after_help = PUT_EXAMPLE, after_long_help = format!("\
Prints the version that was stored. With --fenced, in a command of `run` or `elect`, the value goes \
along with the token of that lock: once a later holder of the lock has stored, or when the lock is not \
held any more, this ends with 74 and stores nothing. So a command that was paused cannot undo what its successor did. The register has to \
be in the backend and namespace of the lock, as it is unless --url or --namespace say otherwise, \
and the lock must be exclusive: tokens of other backends, of readers and of permits do not fence.

{PUT_EXAMPLE}"))]
pub(crate) struct PutArgs {
    /// Only over this version, as `get --json` prints it; otherwise end with 1
    #[arg(long, value_name = "V", conflicts_with = "if_absent")]
    pub(crate) if_version: Option<u64>,

    /// Only if there is no value; otherwise end with 1
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// Refuse if a later holder has stored, of the lock that this command runs under
    #[arg(long)]
    pub(crate) fenced: bool,

    /// Store an empty value instead of refusing it
    #[arg(long)]
    pub(crate) allow_empty: bool,

    /// Forget the value after this time [default: never]
    #[arg(long, value_name = "DUR", value_parser = positive_duration)]
    pub(crate) keep: Option<Duration>,

    /// The register: 1 to 512 bytes, anything but control characters
    pub(crate) name: String,

    /// The value, 64 KiB at most; `-` reads it from stdin
    pub(crate) value: Option<OsString>,
}

const PUT_EXAMPLE: &str = "\
Example:
  lockkit run consumer -c 'from=$(lockkit get cursor); ...; lockkit put --fenced cursor 42'";

/// `delete`.
#[derive(Args, Debug)]
#[command(after_help = "\
The highest token that a fenced write bore is remembered: a stale holder is still refused.

Example:
  lockkit delete cursor")]
pub(crate) struct DeleteArgs {
    /// Only if it has this version, as `get --json` prints it; otherwise end with 1
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<u64>,

    /// The register
    pub(crate) name: String,
}
