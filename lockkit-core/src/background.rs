//! What is not done yet and waited for at the end: tasks that a driver runs in the background, and what a
//! manager has asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::concurrency::once_there;

/// The background tasks of a driver, counted so that [`close`](super::driver::LockDriver::close) can
/// wait for them: a program may end its runtime right after, which aborts whatever still runs.
///
/// Clones share the count.
///
/// ```
/// use std::time::Duration;
/// use lockkit_core::driver::Background;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let background = Background::default();
/// background.spawn(async { /* revokes a lease */ });
/// assert!(background.ended_within(Duration::from_secs(1)).await);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Background {
    running: Arc<PendingCounter>,
}

impl Background {
    /// Runs a task in the runtime in which this is called; outside of any runtime, not at all.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        // For as long as its future exists: also where the task is aborted.
        let running = PendingGuard::new(&self.running);
        runtime.spawn(async move {
            let _running = running;
            task.await;
        });
    }

    /// Returns `true` once no task runs, and `false` after `limit`.
    ///
    /// # Cancel safety
    /// It only waits.
    pub async fn ended_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.running.done()).await.is_ok()
    }
}

/// How much is not done yet of what is waited for at the end.
#[derive(Debug, Default)]
pub(crate) struct PendingCounter {
    count: AtomicUsize,
    /// Whether a task waits until there is none: none does before the end.
    awaited: AtomicBool,
    none: Notify,
}

impl PendingCounter {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns when nothing is left.
    pub(crate) async fn done(&self) {
        self.awaited.store(true, Ordering::SeqCst);
        once_there(&self.none, || (self.count() == 0).then_some(())).await;
    }
}

/// Counts as not done for as long as it lives.
pub(crate) struct PendingGuard(Arc<PendingCounter>);

impl PendingGuard {
    pub(crate) fn new(open: &Arc<PendingCounter>) -> Self {
        open.count.fetch_add(1, Ordering::SeqCst);
        Self(open.clone())
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        let last = self.0.count.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.awaited.load(Ordering::SeqCst) {
            self.0.none.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_all_tasks_also_for_those_that_were_aborted_but_not_for_ever() {
        let background = Background::default();
        assert!(background.ended_within(Duration::ZERO).await);
        background.spawn(tokio::time::sleep(Duration::from_millis(900)));
        background.clone().spawn(tokio::time::sleep(Duration::from_millis(500)));
        assert!(!background.ended_within(Duration::from_millis(600)).await);
        assert!(background.ended_within(Duration::from_secs(1)).await);
    }

    #[test]
    fn a_task_that_its_runtime_aborted_does_not_run() {
        let background = Background::default();
        background.spawn(async { unreachable!("there is no runtime") });
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let first = runtime().unwrap();
        first.block_on(async { background.spawn(std::future::pending()) });
        drop(first);
        assert!(runtime().unwrap().block_on(background.ended_within(Duration::from_secs(60))));
    }
}
