//! The primitives: what users lock. One file each; none of them knows a backend.

mod handle;
mod mutex;
mod reentrant;
mod rwlock;
mod semaphore;

pub use mutex::Mutex;
pub use reentrant::Reentrant;
pub(crate) use reentrant::{Entrance, Slot};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
