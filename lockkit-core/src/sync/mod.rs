//! The primitives: what users lock. One file each; none of them knows a backend.

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
pub(crate) use owner::{Entrances, Owner};
pub use reentrant::Reentrant;
pub use register::Register;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use slots::{SlotGuard, SlotLease, Slots};
