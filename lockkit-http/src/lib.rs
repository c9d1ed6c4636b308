//! Locks of a lock service over HTTP: the driver for it, and the types that travel.
//!
//! The service is `lockkit-server`, over whatever backend it was given. Programs connect by
//! [`lockkit::connect`](https://docs.rs/lockkit) with a URL; other languages speak [`wire`] by
//! themselves.
//!
//! | URL | reaches |
//! | --- | --- |
//! | `http://HOST:PORT` | a server; several with commas, which are one service |
//! | `https://HOST:PORT` | the same with TLS |
//! | `http+unix:/PATH` | a server's Unix socket |
//!
//! | option | |
//! | --- | --- |
//! | `timeout=5s` | how long a request may take before its fate counts as unknown |
//! | `token_file=FILE` | the bearer token; [`HttpDriver::connect`] also reads `LOCKKIT_HTTP_TOKEN` |
//! | `ca=FILE` | with `https`: the authorities to trust, instead of the system's |
//! | `cert=FILE&key=FILE` | with `https`: the certificate to show, and its key |
//!
//! A token is sent over TLS and within the host only. Files are read when a driver connects.

#![forbid(unsafe_code)]

mod access;
mod connector;
mod driver;
mod options;
mod transport;
mod transport_error;
pub mod wire;

pub use access::Secret;
pub use driver::HttpDriver;
pub use options::{HttpOptions, PORT};

/// This backend's name in capabilities, errors and metrics.
pub(crate) const BACKEND: &str = "http";
