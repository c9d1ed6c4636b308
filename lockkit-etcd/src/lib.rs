//! Locks of lockkit on etcd.
//!
//! A lock is the list of the keys under one prefix, in the order of their creation: the create
//! revision is the position in the queue and the fencing token. A lease keeps each key alive, and a
//! watch wakes the next. Programs use it through the crate `lockkit` with its feature `etcd` and a
//! URL, or hand an [`EtcdDriver`] over a client of their own to a `LockManager`.
//!
//! **Building it needs `protoc`**, because etcd's client library does: on Debian that is
//! `protobuf-compiler` and `libprotobuf-dev`. In a clone of lockkit's repository it does not.
//!
//! | file | what |
//! | --- | --- |
//! | `driver.rs` `capabilities.rs` `fence.rs` | the public driver, and what it can do |
//! | `batch.rs` `acquire.rs` `release.rs` | a batch: from claims to one transaction, and from its response to outcomes |
//! | `wait.rs` `renew.rs` `breaking.rs` `resize.rs` `inspect.rs` `listing.rs` `registers.rs` `admin.rs` `format.rs` | the other operations |
//! | `locks.rs` `claim_cache.rs` `key_suffixes.rs` | what they share, and what this process knows of its claims |
//! | `lease_moves.rs` `leases.rs` `keepalive.rs` `watches.rs` `client.rs` `terms.rs` | what they use of etcd |
//! | `keys.rs` `value.rs` `queue_snapshot.rs` `requests.rs` `watchers.rs` `url.rs` | data without I/O |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod admin;
mod batch;
mod breaking;
mod capabilities;
mod claim_cache;
mod client;
mod driver;
pub mod fence;
mod format;
mod heir;
mod inspect;
mod keepalive;
mod key_suffixes;
mod keys;
mod lease_moves;
mod leases;
mod listing;
mod locks;
mod queue_snapshot;
mod registers;
mod release;
mod renew;
mod requests;
mod resize;
mod terms;
mod url;
mod value;
mod wait;
mod watchers;
mod watches;

pub use driver::EtcdDriver;
pub use etcd_client;
pub use lockkit_core::Fence;
