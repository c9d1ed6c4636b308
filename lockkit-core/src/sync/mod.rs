//! The primitives that users call, a file for each; none of them knows a backend.
//!
//! | | as in | keeps its state in |
//! | --- | --- | --- |
//! | `mutex`, `rwlock`, `semaphore` | tokio | a queue of claims |
//! | `reentrant` | a mutex that one owner may lock again | the claim of a mutex, and a table of this process |
//! | `multi` | several locks, all or none | their queues |
//! | `slots` | numbered permits | a semaphore, and a mutex for each number |
//! | `election`, `barrier` | etcd's election, tokio's barrier | a queue, and a register |
//! | `latch`, `once` | a count-down latch, tokio's `OnceCell` | a register |
//! | `register` | a key of etcd with a version, and with a fence | itself |
//!
//! Shared by them: `handle` (name and options), `owner` (reentrancy), `working` (runs work under a lock).

mod barrier;
mod election;
mod handle;
mod latch;
mod multi;
mod mutex;
mod once;
mod owner;
mod reentrant;
mod register;
mod rwlock;
mod semaphore;
mod slots;
mod working;

pub use barrier::Barrier;
pub use election::{Election, Leader, Leadership};
pub use latch::Latch;
pub use multi::{MultiGuard, MultiLease, MultiLock};
pub use mutex::Mutex;
pub use once::{Decision, Once};
pub(crate) use owner::{Owner, ReentryTable};
pub use reentrant::Reentrant;
pub use register::Register;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use slots::{SlotGuard, SlotLease, Slots};
