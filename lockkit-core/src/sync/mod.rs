//! The primitives: what users lock. One file each; none of them knows a backend.

mod handle;
mod latch;
mod mutex;
mod once;
mod reentrant;
mod register;
mod rwlock;
mod semaphore;

pub use latch::Latch;
pub use mutex::Mutex;
pub use once::{Decision, Once};
pub use reentrant::Reentrant;
pub(crate) use reentrant::{Entrance, Slot};
pub use register::Register;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
