//! Locks of lockkit on etcd.
//!
//! A lock is the list of the keys under one prefix, in the order of their creation: the create
//! revision is the place in line and the fencing token. A lease keeps each key alive, and a watch
//! wakes the next. Programs use it through the crate `lockkit` with its feature `etcd` and a URL,
//! or hand an [`EtcdDriver`] over a client of their own to a `LockManager`.
//!
//! **Building it needs `protoc`**, because etcd's client library does: on Debian that is
//! `protobuf-compiler` and `libprotobuf-dev`. In a clone of lockkit's repository it does not.
//!
//! | file | what |
//! | --- | --- |
//! | `driver.rs` `fence.rs` | the outside |
//! | `acquire.rs` `wait.rs` `renew.rs` `release.rs` `breaking.rs` `resize.rs` `show.rs` `listing.rs` `registers.rs` `admin.rs` `format.rs` | the verbs |
//! | `locks.rs` `place.rs` `tails.rs` | what they share, and what this process knows of its claims |
//! | `batch.rs` | acquires and releases that share a request |
//! | `look.rs` `moves.rs` `leases.rs` `keepalive.rs` `watches.rs` `calls.rs` `terms.rs` | what they share of etcd |
//! | `keys.rs` `value.rs` `line.rs` `requests.rs` `watchers.rs` `url.rs` `version.rs` | what has no I/O |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod admin;
mod batch;
mod breaking;
mod calls;
mod capabilities;
mod claim_cache;
mod driver;
pub mod fence;
mod format;
mod inspect;
mod keepalive;
mod keys;
mod leases;
mod line;
mod listing;
mod locks;
mod moves;
mod registers;
mod release;
mod renew;
mod requests;
mod resize;
mod tails;
mod terms;
mod url;
mod value;
mod wait;
mod watchers;
mod watches;

pub use driver::EtcdDriver;
pub use etcd_client;
pub use lockkit_core::Fence;
