//! The tasks of a driver that run in the background.

use tokio::task::{AbortHandle, JoinHandle};

/// Tasks that end when this is dropped, or with their runtime.
#[derive(Debug)]
pub(crate) struct BackgroundTasks(Vec<AbortHandle>);

impl BackgroundTasks {
    pub(crate) fn of(tasks: impl IntoIterator<Item = JoinHandle<()>>) -> Self {
        Self(tasks.into_iter().map(|task| task.abort_handle()).collect())
    }

    /// Whether one of them has ended, as they do with their runtime.
    pub(crate) fn have_ended(&self) -> bool {
        self.0.iter().any(AbortHandle::is_finished)
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}
