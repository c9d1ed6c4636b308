//! Tasks that a driver runs in the background and that its `close` waits for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

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
    running: Arc<watch::Sender<usize>>,
}

impl Background {
    /// Runs a task in the runtime in which this is called; outside of any runtime, not at all.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let running = Running::begin(&self.running);
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
        let mut running = self.running.subscribe();
        let ended = running.wait_for(|running| *running == 0);
        tokio::time::timeout(limit, ended).await.is_ok()
    }
}

/// Counts a task for as long as its future exists, also one that is aborted.
struct Running(Arc<watch::Sender<usize>>);

impl Running {
    fn begin(running: &Arc<watch::Sender<usize>>) -> Self {
        running.send_modify(|running| *running += 1);
        Self(running.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
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
