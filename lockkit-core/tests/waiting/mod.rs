//! Claims, and tasks that wait for them and count how often they are woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use lockkit_core::driver::{Acquisition, Grant, LockDriver, Patience};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Error, Key, Mode, Name, Namespace};
use tokio::task::JoinHandle;

pub(crate) const HOLD: Duration = Duration::from_secs(30);
pub(crate) const WAIT: Duration = Duration::from_secs(10);
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) fn identity() -> ClientIdentity {
    ClientIdentity::new("here", 1, "test")
}

pub(crate) fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    claim_for(name, mode, HOLD, WAIT)
}

pub(crate) fn claim_for(name: &str, mode: Mode, hold: Duration, wait: Duration) -> Arc<Claim> {
    let name = Name::new(name).unwrap();
    let key = Key::new(Namespace::default(), mode.space(), name);
    Arc::new(Claim::new(key, mode, hold, wait, Arc::new(identity())))
}

pub(crate) fn record(forced: bool) -> BreakRecord {
    BreakRecord::from_parts(identity(), 1, Some("test".to_owned()), forced)
}

pub(crate) async fn take(driver: &MemoryDriver, claim: &Arc<Claim>) -> Grant {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant,
        other => panic!("not granted but {other:?}"),
    }
}

pub(crate) async fn queue(driver: &MemoryDriver, claim: &Arc<Claim>) -> u32 {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Queued { ahead } => ahead,
        other => panic!("not queued but {other:?}"),
    }
}

/// Counts how often a future is polled.
struct Counted<F>(Pin<Box<F>>, Arc<AtomicUsize>);

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.as_mut().poll(context)
    }
}

/// A task that waits for its claim.
pub(crate) struct Waiter {
    pub(crate) claim: Arc<Claim>,
    polls: Arc<AtomicUsize>,
    pub(crate) task: JoinHandle<Result<Grant, Error>>,
}

impl Waiter {
    /// In line, and waiting.
    pub(crate) async fn new(driver: &MemoryDriver, claim: Arc<Claim>) -> Self {
        queue(driver, &claim).await;
        let polls = Arc::new(AtomicUsize::new(0));
        let (driver, waited, counter) = (driver.clone(), claim.clone(), polls.clone());
        let granted = async move { driver.granted(&waited).await };
        let task = tokio::spawn(Counted(Box::pin(granted), counter));
        let waiter = Self { claim, polls, task };
        settle().await;
        assert!(!waiter.task.is_finished(), "it waits");
        waiter
    }

    pub(crate) fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }
}

/// Lets every task run that can; no time passes.
pub(crate) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
