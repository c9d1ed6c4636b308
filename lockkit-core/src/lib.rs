//! The model, the driver trait and every primitive of lockkit: distributed locks with fencing
//! tokens, the same on every backend.
//!
//! Programs depend on the crate `lockkit`, which re-exports this one; authors of drivers depend on
//! this one. It knows no backend but the [`memory`] one.
//!
//! > **A lock is its queue.** A lock is an ordered list of live *claims*. A claim *holds* when
//! > nothing ahead of it conflicts with it. The number that orders it is its *fencing token*.
//!
//! # Where to begin reading
//! 1. `claim.rs`, `client.rs`, `queue.rs`: the claim, and the rule that says which claims of a queue hold. Pure.
//! 2. `driver.rs`, `batch.rs`, `answers.rs`: what a backend does for lockkit, and with which answers.
//!    Drivers share `url.rs` and `server_url.rs`, `registers.rs`, `claim_data.rs`, `defects.rs`, `swap.rs`,
//!    `bases.rs`, and `waiting.rs` (how queued claims learn that they hold).
//! 3. `claim_list.rs`: one queue as a state machine, for backends that leave the rule to the client. `memory.rs`
//!    is a driver around it, and the reference for all others.
//! 4. `deadline.rs` and `clock.rs`: from which moment a lease counts, and how long it is trusted.
//! 5. One lock on its way: `sync/mutex.rs` → `sync/handle.rs` → `acquire.rs` → `batcher.rs` → the driver;
//!    its state is a record (`record.rs`), held by a guard (`guard.rs`, `held_lock.rs`).
//! 6. In the background: `registry.rs` has the records of a manager, `renewer.rs` renews and releases.
//!    How a renewal decides that a lock is lost, and why, is `record/loss.rs`; `evidence.rs` says what an
//!    answer tells of its server.
//! 7. Exclusion beside locks of other libraries, in every driver that offers it: `gate.rs`.
//! 8. The other primitives in `sync/`, each in one file: they use only locks and registers.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod admin;
mod answers;
mod background;
mod bases;
mod batch;
mod batcher;
mod break_record;
pub mod capabilities;
mod checks;
mod claim;
mod claim_data;
pub mod claim_list;
mod client;
pub mod clock;
mod concurrency;
mod deadline;
mod defects;
pub mod driver;
mod error;
mod evidence;
mod fresh;
mod gate;
mod guard;
mod held_lock;
mod inspection;
mod manager;
pub mod memory;
mod name;
mod observe;
mod outage;
mod probe;
pub mod promises;
pub mod queue;
mod recent;
mod record;
mod registers;
mod registry;
mod renewer;
mod resume;
mod runtimes;
mod server_url;
mod settings;
mod shared;
pub mod state;
mod successors;
mod swap;
pub mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod ticket;
mod token;
mod unique;
mod url;
pub mod waiting;
mod writes;

pub use admin::LockAdmin;
pub use break_record::BreakRecord;
pub use capabilities::Capabilities;
pub use claim::{Claim, Lifetime, Mode};
pub use client::ClientIdentity;
pub use deadline::Margin;
pub use driver::{MAX_REGISTER_BYTES, Precondition, RegisterEntry, Version};
pub use error::{Cause, Error, FromLock, LossReason, Result};
pub use gate::NeighbourWait;
pub use guard::{Guard, WriteGuard};
pub use held_lock::{Anchor, Fence, HeldLock};
pub use manager::LockManager;
pub use memory::MemoryDriver;
pub use name::{Key, Name, Namespace, Space};
pub use outage::Outage;
pub use settings::Settings;
pub use ticket::Ticket;
pub use token::{InvalidToken, Token};
pub use url::{BackendUrl, parse_duration, without_password};
