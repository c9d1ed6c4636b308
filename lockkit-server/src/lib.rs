//! A lock service over HTTP, on any backend of lockkit: for programs in any language.
//!
//! # What the service keeps
//! Nothing. A client makes the id of its claim, renews it, and releases it; the service carries that
//! to the backend and the answer back. It renews nothing and releases nothing by itself. So any
//! number of servers over one backend are one service, any of them may end at any moment, and a
//! client goes on at another one with the same token. A client that vanishes costs its ttl.
//!
//! Claims are detached ones of the backend, so backends without these (ZooKeeper, quorums, mirrors)
//! are refused.
//!
//! The requests and answers are the types of [`lockkit_http::wire`].
//!
//! ```
//! # async fn example(driver: std::sync::Arc<dyn lockkit_core::driver::LockDriver>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let service = lockkit_server::Service::new(driver)?;
//! let listener = "127.0.0.1:7411".parse::<lockkit_server::Listen>()?.open().await?;
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! lockkit_server::serve(listener, service, stop).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod api;
mod body;
mod caller;
mod connections;
mod guard;
mod linger;
mod listen;
mod metrics;
mod new_token;
mod quota;
mod response;
mod service;
mod settings;
mod stall;
mod state_name;
mod terraform;
mod tls;
mod tokens;
mod unread;

use std::future::Future;
use std::io;

pub use listen::{Listen, Listener};
pub use new_token::NewToken;
pub use service::Service;
pub use settings::{Limits, ServiceSettings, TerraformSettings};
pub use tls::Tls;
pub use tokens::AccessTokens;

/// Serves until `stop` is ready, and then answers what is under way, for 10 s at most: a request
/// that waits gets the answer that nothing has happened yet, so that its client asks again, at another
/// server. No lock is released.
///
/// # Errors
/// [`PermissionDenied`](io::ErrorKind::PermissionDenied) for an address that other hosts reach,
/// unless the listener has [TLS](Listener::with_tls) and the service has [`AccessTokens`]: a client that
/// reaches a service without tokens can take, see and break every lock.
///
/// # Cancel safety
/// Dropping it closes the connections. Every claim stays as it is.
pub async fn serve(
    listener: Listener,
    service: Service,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let guarded = listener.has_tls() && service.tokens().is_some();
    if listener.address()?.is_remote() && !guarded {
        let what = "other hosts reach this address: serve it with TLS and tokens, \
                    or listen on 127.0.0.1 or a Unix socket";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    connections::serve(listener, service, stop).await
}
