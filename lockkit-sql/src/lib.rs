//! lockkit on SQL databases: distributed locks with fencing tokens, as rows with expiry columns.
//!
//! SQLite, PostgreSQL, and MySQL and MariaDB: a cargo feature and a module each, `sqlite`, `postgres`
//! and `mysql`; see there.
//!
//! `sqlx` is re-exported, since a pool of the caller's may be handed over.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod fence;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
mod rows;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod server;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod waiters;

pub use fence::{Fenced, FencedWrite, WorkError};
pub use lockkit_core::Fence;
#[cfg(feature = "mysql")]
pub use mysql::MySqlDriver;
#[cfg(feature = "postgres")]
pub use postgres::PostgresDriver;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use server::{ServerDurability, ServerOptions, SqlNeighbours};
#[cfg(feature = "sqlite")]
pub use sqlite::{Durability, SqliteDriver, SqliteOptions};
pub use sqlx;
