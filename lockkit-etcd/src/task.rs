//! A task that is told what to do, over a channel. Knows nothing of what that is.

use std::sync::Mutex;

use lockkit_core::driver::locked;
use tokio::sync::mpsc;

/// The way to the task, which is started when it is first needed, ends with its runtime, and is
/// started again then.
#[derive(Debug)]
pub(crate) struct Task<T>(Mutex<Option<mpsc::UnboundedSender<T>>>);

impl<T> Default for Task<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Task<T> {
    /// The way to the task; `run` makes it, if there is none.
    pub(crate) fn reach<F>(
        &self,
        run: impl FnOnce(mpsc::UnboundedReceiver<T>) -> F,
    ) -> mpsc::UnboundedSender<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut open = locked(&self.0);
        if let Some(to) = open.as_ref().filter(|to| !to.is_closed()) {
            return to.clone();
        }
        let (to, from) = mpsc::unbounded_channel();
        tokio::spawn(run(from));
        open.insert(to).clone()
    }
}
