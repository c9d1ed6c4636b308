//! State that several tasks of this process share: how it is locked, and how a task waits for a change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Locks a mutex in whose critical sections nothing panics, so that a poisoned one is sound.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a value once `look` finds it: looks at once, and after each notification of all waiters.
pub(crate) async fn once_there<T>(bell: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        // Listening begins before looking, so that nothing falls in between.
        let mut rung = std::pin::pin!(bell.notified());
        rung.as_mut().enable();
        if let Some(there) = look() {
            return there;
        }
        rung.await;
    }
}
