//! Locks of a lock service over HTTP: the driver for it, and the types that travel.
//!
//! The service is `lockkit-server`, over whatever backend it was given. Programs connect by
//! [`lockkit::connect`](https://docs.rs/lockkit) with a URL; other languages speak [`wire`] by
//! themselves.
//!
//! | URL | reaches |
//! | --- | --- |
//! | `http://HOST:PORT` | a server; several with commas, which are one service |
//! | `http+unix:/PATH` | a server's Unix socket |
//!
//! `?timeout=5s` is the only option: how long a request may take before its fate counts as unknown.

#![forbid(unsafe_code)]

mod driver;
mod faults;
mod options;
mod transport;
pub mod wire;

pub use driver::HttpDriver;
pub use options::{HttpOptions, PORT};

/// This backend's name in capabilities, errors and metrics.
pub(crate) const BACKEND: &str = "http";
