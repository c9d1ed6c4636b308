//! Locks of lockkit on etcd.
//!
//! A lock is the list of the keys under one prefix, in the order of their creation: the create
//! revision is the place in line and the fencing token. A lease keeps each key alive, and a watch
//! wakes the next. Programs use it through the crate `lockkit` with its feature `etcd` and a URL,
//! or hand an [`EtcdDriver`] over a client of their own to a `LockManager`.
//!
//! **Building it needs `protoc`**, because etcd's client library does: on Debian that is
//! `protobuf-compiler` and `libprotobuf-dev`.
//!
//! | file | what |
//! | --- | --- |
//! | `driver.rs` `fence.rs` | the outside |
//! | `acquire.rs` `wait.rs` `renew.rs` `release.rs` `breaking.rs` `show.rs` `registers.rs` `admin.rs` | the verbs |
//! | `flight.rs` | acquires and releases that travel together |
//! | `moves.rs` `leases.rs` `keepalive.rs` `watches.rs` `calls.rs` | what they share of etcd |
//! | `keys.rs` `tails.rs` `value.rs` `line.rs` `url.rs` `version.rs` | what has no I/O |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod admin;
mod breaking;
mod calls;
mod driver;
pub mod fence;
mod flight;
mod given;
mod inner;
mod keepalive;
mod keys;
mod leases;
mod line;
mod listing;
mod moves;
mod registers;
mod release;
mod renew;
mod resize;
mod show;
mod tails;
mod url;
mod value;
mod version;
mod wait;
mod watches;

pub use driver::EtcdDriver;
pub use etcd_client;
pub use lockkit_core::Fence;
