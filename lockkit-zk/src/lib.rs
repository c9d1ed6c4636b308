//! The ZooKeeper driver of [lockkit](https://docs.rs/lockkit): one ephemeral sequential node per
//! claim, one round trip to acquire, one to release, and a watch on the one node that matters.
//!
//! ```no_run
//! # async fn f() -> Result<(), lockkit_core::Error> {
//! let driver = lockkit_zk::ZkDriver::connect("zk://zk1:2181,zk2:2181,zk3:2181/shop").await?;
//! let locks = lockkit_core::LockManager::new(driver);
//! let guard = locks.mutex("invoice/42").lock().await?;
//! # Ok(()) }
//! ```
//!
//! Logins and TLS are part of the URL as well: [`ZkOptions::parse`] has the grammar.
//!
//! What surprises: **claims of one ttl share a session, and end with it**. There is one for the
//! driver's ttl ([`ZkOptions::ttl`]) and one for each other ttl that locks ask for, while there are
//! such locks. The servers bound what a session may last, and a guard reports what it got. Locks that
//! outlive their process do not exist here.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod batch;
mod breaking;
mod capabilities;
mod claim_cache;
mod cleanup;
mod create;
mod driver;
mod errors;
pub mod fence;
mod fixed_limit;
mod format;
mod inspect;
mod lists;
mod locks;
mod options;
mod paths;
mod queue_ends;
mod queue_snapshot;
mod register_record;
mod registers;
mod renew;
mod resize;
mod session;
mod sessions;
mod unused_folders;
mod url;
mod versions;
mod wait;

pub use driver::ZkDriver;
pub use lockkit_core::Fence;
pub use options::ZkOptions;
pub use paths::Neighbours;
/// The client underneath, for [`ZkDriver::from_client`] and [`ZkOptions::connector`].
pub use zookeeper_client;
