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
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:7411").await?;
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! lockkit_server::serve(listener, service, stop).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod api;
mod body;
mod guard;
mod service;

use std::fmt;
use std::future::Future;
use std::io;

use axum::serve::Listener;

pub use service::Service;

/// Serves until `stop` is ready, and then answers what is under way: a request that waits is told
/// that nothing has happened yet, so that its client asks again, at another server.
///
/// Anybody who reaches the listener can lock, and see and break every lock: give it one that only
/// those reach who may, such as a Unix socket or the loopback address.
///
/// # Cancel safety
/// Dropping it closes the connections. Every claim stays as it is.
pub async fn serve<L>(
    listener: L,
    service: Service,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()>
where
    L: Listener,
    L::Addr: fmt::Debug,
{
    let stopping = service.clone();
    let stop = async move {
        stop.await;
        stopping.stop();
    };
    axum::serve(listener, service.router()).with_graceful_shutdown(stop).await
}
