//! The arguments of `serve`, and the help for it.

use clap::Args;
use lockkit_server::Listen;

/// `serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
The server keeps nothing: clients renew their locks, and any number of servers over one backend are \
one service. Stop it with SIGTERM; no lock is released by that.

Examples:
  lockkit serve --local
  lockkit serve --url redis://db.example:6379 --listen unix:/run/lockkit/lockkit.sock
  lockkit run --url http://127.0.0.1:7411 nightly -- ./backup.sh
  curl http://127.0.0.1:7411/v1/inspect -H 'content-type: application/json' \\
       -d '{\"name\": \"nightly\"}'")]
pub(crate) struct ServeArgs {
    /// Where to listen: an address of the loopback interface, or unix:/PATH. May be repeated
    ///
    /// A socket is created with mode 0600. Every process that reaches the server may take, see and
    /// break every lock; an address that other hosts reach is therefore refused.
    #[arg(long, value_name = "PLACE", default_value = "127.0.0.1:7411", value_parser = place)]
    pub(crate) listen: Vec<Listen>,
}

fn place(text: &str) -> Result<Listen, String> {
    text.parse().map_err(|error: lockkit::Error| error.to_string())
}
