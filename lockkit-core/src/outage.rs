//! A backend that does not answer: said once after two seconds, again every 30 s, and when it is over.
//! One of these a manager, so that a thousand waiters do not say it a thousand times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::concurrency::locked;
use crate::{Error, observe};

/// No answer for less than this is a lost packet, or a failover.
pub(crate) const NOTABLE: Duration = Duration::from_secs(2);
/// Between two warnings.
const AGAIN: Duration = Duration::from_secs(30);

/// A backend has not answered the requests of a manager for a while.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// if let Some(outage) = locks.outage() {
///     eprintln!("no answer for {:?}", outage.lasted);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outage {
    /// How long: since the first request without an answer was sent, or failed.
    pub lasted: Duration,
    /// The text of the last error; `None` while nothing has failed yet.
    pub error: Option<String>,
}

/// Watches whether requests are answered.
pub(crate) struct Outages {
    backend: &'static str,
    clock: Arc<dyn Clock>,
    /// How many requests were answered.
    answers: AtomicU64,
    /// Whether there is an outage: then an answer is news.
    going_on: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Default)]
struct OutageState {
    current: Option<Current>,
    /// The answers at the last failure.
    answers: u64,
}

struct Current {
    since: Moment,
    warned: Option<Moment>,
    error: Option<String>,
}

impl Outages {
    pub(crate) fn new(backend: &'static str, clock: Arc<dyn Clock>) -> Self {
        let (answers, going_on) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { backend, clock, answers, going_on, state: Mutex::default() }
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        if self.going_on.load(Ordering::Relaxed) {
            self.end();
        }
    }

    /// A request that was sent at `sent` failed, and is repeated.
    pub(crate) fn failed(
        &self,
        operation: &'static str,
        sent: Moment,
        error: &Error,
        waiting: impl FnOnce() -> usize,
    ) {
        observe::retried(self.backend, operation, error);
        if !error.is_retryable() {
            return self.answered(); // by a refusal
        }
        let answers = self.answers();
        let others_were_answered = std::mem::replace(&mut self.state().answers, answers) != answers;
        let since = if others_were_answered { self.clock.now() } else { sent };
        self.goes_on(since, Some(error), waiting);
    }

    /// A request that was sent at `sent` has no answer yet, and neither has any other since then.
    pub(crate) fn silent(&self, sent: Moment, waiting: impl FnOnce() -> usize) {
        self.goes_on(sent, None, waiting);
    }

    /// How many requests were answered until now.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// The one that goes on.
    pub(crate) fn current(&self) -> Option<Outage> {
        let now = self.clock.now();
        let state = self.state();
        let current = state.current.as_ref()?;
        Some(Outage { lasted: now.since(current.since), error: current.error.clone() })
    }

    fn state(&self) -> MutexGuard<'_, OutageState> {
        locked(&self.state)
    }

    fn goes_on(&self, since: Moment, error: Option<&Error>, waiting: impl FnOnce() -> usize) {
        let now = self.clock.now();
        let (lasted, error) = {
            let mut state = self.state();
            let current = state.current.get_or_insert(Current { since, warned: None, error: None });
            self.going_on.store(true, Ordering::Relaxed);
            if let Some(error) = error {
                current.error = Some(error.to_string());
            }
            let lasted = now.since(current.since);
            let due = current.warned.is_none_or(|warned| now.since(warned) >= AGAIN);
            if lasted < NOTABLE || !due {
                return;
            }
            current.warned = Some(now);
            (lasted, current.error.clone())
        };
        observe::silent(self.backend, lasted, waiting(), error.as_deref());
    }

    fn end(&self) {
        let now = self.clock.now();
        let ended = {
            let mut state = self.state();
            self.going_on.store(false, Ordering::Relaxed);
            state.current.take()
        };
        if let Some(Current { since, warned: Some(_), .. }) = ended {
            observe::answers_again(self.backend, now.since(since));
        }
    }
}
