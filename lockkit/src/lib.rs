//! Distributed locks with fencing tokens: one API, with one meaning, over SQLite, PostgreSQL, MySQL
//! and MariaDB, Redis and Valkey, ZooKeeper, etcd, NATS, buckets of S3, Azure and Google,
//! and the memory of a process.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit::Error> {
//! let locks = lockkit::connect("memory:").await?;
//! locks.mutex("invoice/42").run(async |lock| {
//!     let token = lock.token()?; // give it along with every write
//!     Ok::<_, lockkit::Error>(())
//! }).await
//! # }
//! ```
//!
//! The backend is chosen by a URL; each but `memory:` is a cargo feature of this crate:
//!
//! | URL | feature | reaches |
//! | --- | --- | --- |
//! | `memory:` | always there | this process |
//! | `sqlite:PATH` | `sqlite` | the processes of one host |
//! | `postgres://…`, `postgresql://…` | `postgres` | a fleet |
//! | `mysql://…`, `mariadb://…` | `mysql` | a fleet |
//! | `redis://…`, `rediss://…`, `redis+sentinel://…`, `redis+cluster://…` | `redis` | a fleet |
//! | `zk://H:P,H:P/CHROOT`, `zks://…` | `zookeeper`, for TLS `zookeeper-tls` (not in `full`) | a fleet |
//! | `etcd://H:P,H:P/ROOT`, `etcds://…` | `etcd` (may need `protoc` to build, and is not in `full`) | a fleet |
//! | `nats://H:P,H:P/BUCKET`, `nats+tls://…` | `nats` | a fleet |
//! | `s3://BUCKET/PREFIX` | `s3` | a fleet |
//! | `az://CONTAINER/PREFIX` | `azure` | a fleet |
//! | `gs://BUCKET/PREFIX` | `gcs` | a fleet |
//! | `http://HOST:PORT`, `https://HOST:PORT`, `http+unix:/PATH` | `http` | the backend of a lock service |
//! | `quorum:URL,URL,URL`, `mirror:OLD,NEW` | `compose` | its members' |
//!
//! Options of lockkit itself go into the query, whatever the backend: `?namespace=shop&ttl=10s`. The
//! rest of the query is the driver's.
//!
//! More features: `metrics`; `blocking` for programs without async (`lockkit::blocking`); `testing` for
//! tests that lose a lock (`lockkit::testing`). `full` has all of these but `etcd`,
//! `zookeeper-tls` and `testing`. `docs/library.md` in the repository says how the parts fit into a program.
//!
//! # Stability
//! Everything here is stable within the minor versions of 0.x, except for what driver authors use (the
//! modules `driver`, `queue`, `line` and `waiting`) and for the modules that are a driver crate of their
//! own (`compose`, `etcd`, `http`, `redis`, `sql`, `store`, `zookeeper`): their client crates' types are
//! public, so a new major version of a client is a new minor version of lockkit. CONTRIBUTING.md in the
//! repository has the whole promise.
//!
//! What a lock means here, and what not, is described in `docs/semantics.md` of the repository.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
pub mod blocking;
mod connect;

pub use connect::{connect, connect_with, members, missing_feature, schema};
pub use lockkit_core::*;

/// Drivers made of drivers: a quorum of independent backends, and a mirror of two.
#[cfg(feature = "compose")]
pub use lockkit_compose as compose;

/// The etcd driver, for clients that a URL cannot name, and for fencing inside of etcd.
#[cfg(feature = "etcd")]
pub use lockkit_etcd as etcd;
/// The driver for a lock service over HTTP, and the types of its JSON API.
#[cfg(feature = "http")]
pub use lockkit_http as http;
/// The Redis driver, with the options that its URL has as methods.
#[cfg(feature = "redis")]
pub use lockkit_redis as redis;
/// The drivers for SQL databases, with the options that their URLs have as methods, and transactions
/// that are fenced.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use lockkit_sql as sql;

/// The driver over any store with compare-and-swap, and the stores that are compiled in.
#[cfg(any(feature = "azure", feature = "gcs", feature = "nats", feature = "s3"))]
pub use lockkit_store as store;
/// The ZooKeeper driver, for options and clients that a URL cannot name.
#[cfg(feature = "zookeeper")]
pub use lockkit_zk as zookeeper;
