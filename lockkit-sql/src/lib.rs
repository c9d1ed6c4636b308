//! lockkit on SQL databases: distributed locks with fencing tokens, as rows with expiry columns.
//!
//! This version has [SQLite](sqlite); see there.
//!
//! `sqlx` is re-exported, since a pool of the caller's may be handed over.

mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::{Durability, SqliteDriver, SqliteOptions};
pub use sqlx;
