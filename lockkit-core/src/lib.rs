//! The model, the driver trait and every primitive of lockkit: distributed locks with fencing
//! tokens, the same on every backend.
//!
//! Programs depend on the crate `lockkit`, which re-exports this one; authors of drivers depend on
//! this one. It knows no backend but the [`memory`] one.
//!
//! > **A lock is its queue.** A lock is an ordered list of live *claims*. A claim *holds* when
//! > nothing ahead of it conflicts with it. Its place in the order is its *fencing token*.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod answers;
mod background;
mod bases;
mod batch;
mod batcher;
pub mod capabilities;
mod claim;
mod claim_data;
pub mod clock;
mod concurrency;
mod deadline;
mod defects;
pub mod driver;
mod error;
mod evidence;
mod flight;
mod fresh;
mod guard;
mod held_lock;
pub mod line;
mod looking;
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
mod runtimes;
mod server_url;
mod settings;
mod shared;
pub mod state;
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

pub use capabilities::Capabilities;
pub use claim::{Claim, ClientIdentity, Lifetime, Mode};
pub use deadline::Margin;
pub use driver::{Entry, MAX_REGISTER_BYTES, Precondition, Version};
pub use error::{BreakRecord, Cause, Error, FromLock, LossReason, Result};
pub use guard::{Guard, WriteGuard};
pub use held_lock::{Anchor, Fence, HeldLock};
pub use manager::LockManager;
pub use memory::MemoryDriver;
pub use name::{Key, Name, Namespace, Space};
pub use outage::Outage;
pub use settings::Settings;
pub use ticket::Ticket;
pub use token::Token;
pub use url::{BackendUrl, parse_duration, without_password};
