//! The lab of lockkit's own tests: real servers and a proxy that misbehave on purpose, and what runs
//! and judges drivers on them. Linux only.
//!
//! - Servers, and groups of them, that can be killed, frozen, robbed of their data and of the right
//!   time; a [`proxy`] that counts what passes and lets the network misbehave. These know nothing of
//!   locks: they hand out URLs and handles.
//! - [`trials`](mod@trials): the cases that count messages on the wire, and those in which a server or the network
//!   misbehaves. A [`Deployment`] says how a driver and its server take part.
//! - [`storm`]s: clients and faults under a random but seeded plan; a [`history`] of what happened, and
//!   its judge.
//! - [`handover`]: scenes of one contended lock within a driver.
//! - [`neighbours`]: storms of lockkit's clients and those of another library at one lock.
//! - [`worker`]: the program that tests start as other processes.
//!
//! ```no_run
//! use lockkit_lab::{Data, ServerKind, Server};
//!
//! # async fn demo() -> Result<(), lockkit_lab::LabError> {
//! let redis = Server::start(ServerKind::Redis).await?;
//! println!("{}", redis.url());
//! redis.freeze().await; // connections stay open, nothing answers
//! redis.thaw();
//! redis.restart(Data::Lose).await?; // killed, and started again without its data
//! # Ok(())
//! # }
//! ```
//!
//! Servers are child processes on ports of the loopback address, in a temporary
//! folder. They end and the folder goes when the value is dropped, and also when
//! the process that holds it panics, is interrupted or is killed: a small shell
//! process watches over each folder.
//!
//! Servers take real time: nothing of this works under tokio's paused clock.
//!
//! | | clock that moves | freeze | restart without data |
//! | --- | --- | --- | --- |
//! | Redis, PostgreSQL, MariaDB, ZooKeeper | yes | all processes | empty |
//! | etcd | no: it asks the kernel itself | yes | empty; in a cluster as a new member |
//! | NATS | no | yes | empty |
//! | DynamoDB Local | no | yes | empty, also with its data: it has it in memory |
//! | Redis under sentinels | if asked for | each | empty, but knows its master |
//! | Redis Cluster | if asked for | each | empty, but keeps its place and slots |
//! | ZooKeeper ensemble | no | each | empty, then follows its leader |

mod browser;
mod clock;
mod divisible;
mod division;
mod error;
mod folder;
mod galera;
mod group;
pub mod handover;
pub mod history;
mod kind;
pub mod neighbours;
mod pair;
mod port;
mod program;
pub mod promise_tests;
pub mod proxy;
pub mod raw;
pub mod s3;
mod server;
mod server_dir;
mod servers;
pub mod service;
pub mod set_ups;
pub mod shared;
mod site;
mod slots;
mod socks;
pub mod storm;
mod tls;
pub mod trials;
pub mod worker;

pub use browser::Browser;
pub(crate) use clock::Clock;
pub use clock::Shift;
pub use division::Rift;
pub use error::{LabError, Result};
pub use folder::processes_in;
pub use galera::Galera;
pub use group::Group;
pub use kind::{Layout, ServerKind};
pub use pair::{Pair, Replication};
pub use program::terraform;
pub use proxy::Proxy;
pub use server::{Data, Server, missing_valkey};
pub use servers::dynamodb::create_table;
pub use servers::etcd::EtcdDemands;
pub use servers::zookeeper::ZooKeeperDemands;
pub use shared::SharedServer;
pub use site::{Act, Concerns, Costs, Deletion, Deployment, RefusalMode};
pub use slots::SlotMove;
pub use tls::{Clients, TestCertificates};
