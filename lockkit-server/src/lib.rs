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
mod guard;
mod listen;
mod service;

use std::future::Future;
use std::io;

pub use listen::{Listen, Listener};
pub use service::Service;

/// Serves until `stop` is ready, and then answers what is under way: a request that waits is told
/// that nothing has happened yet, so that its client asks again, at another server.
///
/// A client that reaches the listener can take, see and break every lock.
///
/// # Cancel safety
/// Dropping it closes the connections. Every claim stays as it is.
pub async fn serve(
    listener: Listener,
    service: Service,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = service.router();
    let stop = async move {
        stop.await;
        service.stop();
    };
    match listener {
        Listener::Tcp(listener) => {
            // An answer is one small packet, which must not wait for the next.
            let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
                let _ = stream.set_nodelay(true);
            });
            axum::serve(listener, router).with_graceful_shutdown(stop).await
        }
        Listener::Unix(listener, path) => {
            let served = axum::serve(listener, router).with_graceful_shutdown(stop).await;
            let _ = std::fs::remove_file(path);
            served
        }
    }
}
