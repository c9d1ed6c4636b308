//! State that several tasks of this process share: how it is locked, and how a task waits for a change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Locks a mutex in whose critical sections nothing panics, so that a poisoned one is sound.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a value once `look` finds it: looks at once, and after each notification of all waiters.
pub(crate) async fn once_there<T>(changed: &Notify, mut find: impl FnMut() -> Option<T>) -> T {
    loop {
        // Listening begins before looking, so that nothing falls in between.
        let mut notified = std::pin::pin!(changed.notified());
        notified.as_mut().enable();
        if let Some(there) = find() {
            return there;
        }
        notified.await;
    }
}
