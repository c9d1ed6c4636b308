//! The arguments of `compare`, and the help for it.

use std::path::PathBuf;

use clap::Args;

/// `compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
Takes and releases locks for a minute or two, in namespaces of its own which it cleans up. It \
touches no other lock, and does nothing to a server but locking: run it against a test server all \
the same, since it measures how much the server can do. Ends with 0 when everything that was shown \
is as the drivers state it, with 1 otherwise.

Examples:
  lockkit compare redis://127.0.0.1 zk://127.0.0.1
  lockkit compare old=redis://127.0.0.1 new=zk://127.0.0.1 --from old --to new
  lockkit compare sqlite:/tmp/a.db redis://127.0.0.1 --html compare.html --markdown -")]
pub(crate) struct CompareArgs {
    /// The backends, with the names that they get in the tables: [NAME=]URL
    #[arg(value_name = "[NAME=]URL")]
    pub(crate) subjects: Vec<String>,

    /// Start servers on this host and compare those: all that lockkit's lab can start, or the named
    /// ones
    ///
    /// Also counts messages, and shows by faults what each promises under them, which takes some ten
    /// minutes for all of them (--verbose tells each step). Servers are those of Debian's packages, in
    /// temporary folders. Stores take part when they are named (nats, dynamodb-local, s3): their servers
    /// are fetched by `cargo xtask install`, or are emulators, whose figures are not those of the services.
    #[cfg(feature = "lab")]
    #[arg(long)]
    pub(crate) lab: bool,

    /// Print the differences only: what changes for who moves from this one …
    #[arg(long, value_name = "NAME", requires = "to")]
    pub(crate) from: Option<String>,

    /// … to this one
    #[arg(long, value_name = "NAME", requires = "from")]
    pub(crate) to: Option<String>,

    /// Write Markdown to this file; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,

    /// Write JSON to this file; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write a page with charts to this file; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Run every case of the conformance suite, not only those that show an answer
    #[arg(long)]
    pub(crate) whole_suite: bool,

    /// How often each measurement is taken; medians count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
}
