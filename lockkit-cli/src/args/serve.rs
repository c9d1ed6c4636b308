//! The arguments of `serve`, and the help for it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockkit_server::Listen;

use super::duration;

/// `serve`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The server keeps nothing: clients renew their locks, and any number of servers over one backend are \
one service. Stop it with SIGTERM; no lock is released by that. A browser shows the locks at the \
server's address.

TOKENS has one line for each token: its name, its SHA-256, and its rights, VERBS@NAMESPACE[:NAMES], \
with the verbs read, lock, break and terraform, and * for every namespace. A lock belongs to the \
name, so that a token can be replaced by a second line. SIGHUP reads the tokens and certificates again; files with an \
error change nothing. `lockkit serve token` makes a token and its line.

Examples:
  lockkit serve --local
  lockkit serve --url redis://db.example:6379 --listen unix:/run/lockkit/lockkit.sock
  lockkit serve --local --listen 0.0.0.0:7411 --host locks.example --tokens TOKENS \\
       --tls-cert chain.pem --tls-key key.pem
  lockkit run --url http://127.0.0.1:7411 nightly -- ./backup.sh
  lockkit run --url 'https://locks.example:7411?token_file=billing.token' nightly -- ./backup.sh
  curl http://127.0.0.1:7411/v1/inspect -H 'content-type: application/json' \\
       -d '{\"name\": \"nightly\"}'"
)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ServeVerb>,

    /// Where to listen: ADDRESS:PORT or unix:/PATH. May be repeated
    ///
    /// A socket is created with mode 0600. Without --tokens, every process that reaches the server
    /// may take, see and break every lock; an address that other hosts reach is therefore refused
    /// without --tokens and --tls-cert.
    #[arg(long, value_name = "PLACE", default_value = "127.0.0.1:7411", value_parser = listen_address)]
    pub(crate) listen: Vec<Listen>,

    /// A host name by which clients reach the server, beside those of this host. May be repeated
    ///
    /// Requests for other names are refused, since a web page can have a name of its own resolve to
    /// any address. An address of --listen needs no --host.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// Answer callers with one of the tokens in this file only
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,

    /// Speak TLS with this certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Answer clients with a certificate of these authorities only (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,

    /// End locks of Terraform after this time, as 12h
    ///
    /// By default they end with `terraform force-unlock` or `lockkit break` only. Terraform is not
    /// notified: its next write of the state is refused, and it may change infrastructure until then.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) terraform_longest: Option<Duration>,

    /// Write states of Terraform without a lock, too (`-lock=false`), under one that lives for the
    /// request
    #[arg(long)]
    pub(crate) terraform_unlocked_writes: bool,

    /// The largest state of Terraform, in MiB
    #[arg(long, value_name = "MIB", default_value = "32")]
    pub(crate) terraform_body: u16,

    /// The largest state as it is stored, compressed, in MB; by default 4 on etcd
    ///
    /// etcd keeps every version of a state until it is compacted.
    #[arg(long, value_name = "MB")]
    pub(crate) terraform_stored: Option<u16>,
}

/// What `serve` does beside serving.
#[derive(Debug, Subcommand)]
pub(crate) enum ServeVerb {
    /// Make a token for callers, and its line for a file of tokens; prints the token
    Token(TokenArgs),
}

/// `serve token`.
#[derive(Args, Debug)]
#[command(after_help = "\
The token is printed this once, and is nowhere else: the file has its hash. Without --tokens, its line \
is printed after it.

A right is VERBS@NAMESPACE[:NAMES]: the verbs read, lock, break and terraform, separated by commas; \
the namespace of the locks, * for every namespace, nothing for locks without one; and what their \
names begin with. Spaces, `:`, `*` and `%` are written as %20 and the like.

Examples:
  umask 077; lockkit serve token billing --may read,lock@billing --tokens TOKENS >billing.token
  lockkit serve token operator --may read,break@* --tokens TOKENS
  lockkit serve token reports --may read@ --may lock@:report/
  lockkit serve token platform --may terraform@:network --tokens TOKENS")]
pub(crate) struct TokenArgs {
    /// Who uses it: locks belong to this name, whichever of its tokens took them
    pub(crate) name: String,

    /// What it allows: VERBS@NAMESPACE[:NAMES]. May be repeated
    #[arg(long, value_name = "RIGHT", required = true)]
    pub(crate) may: Vec<String>,

    /// Add the line to this file, which is made with mode 0600 if there is none
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
}

fn listen_address(text: &str) -> Result<Listen, String> {
    text.parse().map_err(|error: lockkit::Error| error.to_string())
}
