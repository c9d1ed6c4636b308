//! lockkit on Redis and Valkey: distributed locks with fencing tokens. Every operation is one Lua script
//! and one round trip, which claims of one process share; waiters are notified by a message, or by the answer
//! to a request of their own process; nothing is left after a lock's use but a fixed number of counters.
//!
//! | URL | reaches |
//! | --- | --- |
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one server |
//! | `rediss://…` | the same over TLS |
//! | `redis+sentinel://[USER:PASSWORD@]HOST:PORT,…/MASTER[/DB]` | the master that sentinels name |
//! | `redis+cluster://[USER:PASSWORD@]HOST:PORT,…` | a cluster |
//!
//! `rediss+sentinel` and `rediss+cluster` speak TLS. Options in the query: `timeout=2s`, `strict`,
//! `min_replicas=N`, `neighbours=set-nx` or `redisson` ([`RedisOptions`] has them as methods),
//! `sentinel_login=USER:PASSWORD`.
//!
//! A failover to a replica that lags, lost data and a stepped clock may let two clients hold at once: the
//! later one has the greater token. `docs/redis.md` in the repository says what an operator sees.
//!
//! `redis` is re-exported, since clients and connections of the caller may be handed over.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod cluster;
mod connection;
mod decode;
mod driver;
mod error;
mod exchange;
mod format;
mod gate;
mod health;
mod inner;
mod keys;
mod listing;
mod locator;
mod neighbours;
mod notifications;
mod options;
mod peer;
mod promises;
mod publisher;
mod registers;
mod renewal;
mod replicas;
mod scan;
mod script;
mod sentinel;
mod server;
mod tokens;
mod transport;
mod waiters;

pub use driver::RedisDriver;
pub use neighbours::RedisNeighbours;
pub use options::RedisOptions;
pub use redis;

/// The backend's name in errors, capabilities and metrics.
const BACKEND: &str = "redis";
