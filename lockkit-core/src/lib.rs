//! The model, the driver trait and every primitive of lockkit: distributed locks with fencing
//! tokens, the same on every backend.
//!
//! Programs depend on the crate `lockkit`, which re-exports this one; authors of drivers depend on
//! this one. It knows no backend but the [`memory`] one.
//!
//! > **A lock is its queue.** A lock is an ordered list of live *claims*. A claim *holds* when
//! > nothing ahead of it conflicts with it. Its place in the order is its *fencing token*.

pub mod capabilities;
mod claim;
pub mod clock;
pub mod driver;
mod error;
pub mod memory;
mod name;
pub mod queue;
pub mod state;

pub use capabilities::Capabilities;
pub use claim::{Claim, ClaimId, Identity, Lifetime, Mode, Token};
pub use error::{BreakRecord, Error, LossReason};
pub use name::{Key, Name, Namespace, Space};
