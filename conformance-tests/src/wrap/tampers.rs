//! Things to put in front of a driver.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::Error;
use tokio::sync::Semaphore;

use super::{DriverMethod, ObservedAnswer, Tamper};

/// Writes down the errors that may pass. Callers try again after one, so only this shows them.
#[derive(Debug, Default)]
pub struct Noting {
    passing: Mutex<Vec<String>>,
}

impl Noting {
    /// Each of them, in words.
    pub fn passing(&self) -> Vec<String> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes an error, if it is one that may pass.
    pub fn note(&self, what: &str, error: &Error) {
        if error.is_retryable() {
            let mut passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
            passing.push(format!("{what}: {error}"));
        }
    }
}

impl Tamper for Noting {
    fn observed(&self, answer: ObservedAnswer<'_>, _: u64) {
        if let ObservedAnswer::Failed(method, error) = answer {
            self.note(&format!("{method:?}"), error);
        }
    }
}

/// Counts calls.
#[derive(Debug, Default)]
pub struct Counting {
    calls: AtomicU64,
}

impl Counting {
    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Tamper for Counting {
    async fn before(&self, _: DriverMethod) -> Result<(), Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Lets everything pass until it is cut; from then on every call fails.
#[derive(Debug)]
pub struct Severed {
    cut: AtomicBool,
    retryable: bool,
}

impl Severed {
    /// A connection that will fail in a way that may pass.
    pub fn passing() -> Self {
        Self { cut: AtomicBool::new(false), retryable: true }
    }

    /// A connection that will fail for good.
    pub fn for_good() -> Self {
        Self { cut: AtomicBool::new(false), retryable: false }
    }

    /// Cuts it.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    /// Lets everything through again.
    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl Tamper for Severed {
    async fn before(&self, _: DriverMethod) -> Result<(), Error> {
        match (self.cut.load(Ordering::SeqCst), self.retryable) {
            (false, _) => Ok(()),
            (true, true) => Err(Error::retryable("severed", "the connection was cut")),
            (true, false) => Err(Error::permanent("severed", "the login was refused")),
        }
    }
}

/// Lets answers to one verb arrive late.
#[derive(Debug)]
pub struct Late {
    /// Which answers.
    pub method: DriverMethod,
    /// How late.
    pub by: Duration,
}

#[async_trait]
impl Tamper for Late {
    async fn after(&self, method: DriverMethod) -> Result<(), Error> {
        if method == self.method {
            tokio::time::sleep(self.by).await;
        }
        Ok(())
    }
}

/// A connection that sticks: an acquire has left, but reaches the backend only when it is let
/// through, whether the caller still waits for the answer or not.
#[derive(Debug)]
pub struct Stuck {
    gate: Semaphore,
    sent: AtomicU64,
    arrived: AtomicU64,
    released: AtomicU64,
}

impl Default for Stuck {
    fn default() -> Self {
        let [sent, arrived, released] = [const { AtomicU64::new(0) }; 3];
        Self { gate: Semaphore::new(0), sent, arrived, released }
    }
}

impl Stuck {
    /// Lets everything through from now on.
    pub fn let_through(&self) {
        self.gate.add_permits(1_000_000);
    }

    /// How many acquires have left.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// How many acquires were answered by the backend.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    /// How many releases were answered by the backend.
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Tamper for Stuck {
    async fn before(&self, method: DriverMethod) -> Result<(), Error> {
        if method == DriverMethod::Acquire {
            self.sent.fetch_add(1, Ordering::SeqCst);
            let passed = self.gate.acquire().await;
            passed.expect("the gate is never closed").forget();
        }
        Ok(())
    }

    async fn after(&self, method: DriverMethod) -> Result<(), Error> {
        match method {
            DriverMethod::Acquire => _ = self.arrived.fetch_add(1, Ordering::SeqCst),
            DriverMethod::Release => _ = self.released.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
        Ok(())
    }

    fn continues(&self, method: DriverMethod) -> bool {
        method == DriverMethod::Acquire
    }
}
