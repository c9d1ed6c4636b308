//! The thread behind a manager that blocks: it has the runtime, and so everything that goes on in the
//! background.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::{Error, LockManager};

/// How long the end of a guard, or of the thread, waits for the backend.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Engine {
    runtime: Handle,
    locks: LockManager,
    /// Dropped to end the thread.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(super) fn start<F>(make: F) -> Result<Arc<Self>, Error>
    where
        F: AsyncFnOnce() -> Result<LockManager, Error> + Send + 'static,
    {
        let no_thread = |error| Error::config(format!("the thread for locks: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        let (tell, made) = oneshot::channel();
        let body = async move || {
            let locks = make().await;
            let kept = locks.as_ref().ok().cloned();
            let _ = tell.send(locks);
            let _ = ended.await;
            if let Some(locks) = kept {
                let _ = tokio::time::timeout(LIMIT, locks.shutdown()).await;
            }
        };
        let thread = thread::Builder::new().name("lockkit".to_owned());
        let thread = thread.spawn(move || runtime.block_on(body())).map_err(no_thread)?;
        let made = handle.block_on(made);
        let locks = made.unwrap_or_else(|_| Err(Error::config("making the manager panicked")))?;
        Ok(Arc::new(Self { runtime: handle, locks, running: Some(running), thread: Some(thread) }))
    }

    pub(super) fn locks(&self) -> &LockManager {
        &self.locks
    }

    /// Waits for a future, which is polled by the calling thread; timers and connections are the
    /// other thread's. Panics inside an async context.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Has something done in the background and waits for it a while, but not in an async context,
    /// where that would be in the way of others.
    pub(super) fn finish<F>(&self, future: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (tell, done) = mpsc::channel();
        self.runtime.spawn(async move { tell.send(future.await) });
        if Handle::try_current().is_err() {
            let _ = done.recv_timeout(LIMIT);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.running.take());
        let thread = self.thread.take();
        if Handle::try_current().is_err()
            && let Some(thread) = thread
        {
            // It ends in bounded time, and a panic in it was reported by then.
            let _ = thread.join();
        }
    }
}
