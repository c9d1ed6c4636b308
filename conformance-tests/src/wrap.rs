//! A driver around a driver, through which a case sees and disturbs what core asks of it: counts
//! calls, hears answers, delays them, loses them. It changes no answer.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{
    Acquisition, Anchored, Attempted, Batch, BatchError, BatchOutcome, BreakMode, Gate, Grant,
    LockDriver, RegisterEntry, RegisterKey, Registers, Renewal, SetLimit, Version, Write,
    WriteResult,
};
use lockkit_core::promises::Promises;
use lockkit_core::state::{
    Finding, Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Namespace, Token};

pub mod tampers;

/// Now, in nanoseconds on the boot clock, which all processes of a machine share.
pub fn now() -> u64 {
    BootClock.now().as_nanos()
}

/// What was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DriverMethod {
    Acquire,
    Granted,
    Renew,
    Release,
    Shorten,
    Downgrade,
    Break,
    Inspect,
    List,
    Namespaces,
    Changed,
    Raise,
    Anchor,
    Resize,
    TokenBase,
    RaiseTokenBase,
    Health,
    Load,
    Write,
    RegisterChanged,
    RegisterPage,
}

/// What happens around the calls of a [`Tampered`] driver.
#[async_trait]
pub trait Tamper: fmt::Debug + Send + Sync + 'static {
    /// Before the driver acts; an error is what the caller gets, and the driver does not act.
    async fn before(&self, method: DriverMethod) -> Result<(), Error> {
        let _ = method;
        Ok(())
    }

    /// After the driver acted; an error is what the caller gets in the place of the answer.
    async fn after(&self, method: DriverMethod) -> Result<(), Error> {
        let _ = method;
        Ok(())
    }

    /// What the driver answered to a request that was sent then, in nanoseconds on the boot clock.
    fn observed(&self, answer: ObservedAnswer<'_>, sent: u64) {
        let _ = (answer, sent);
    }

    /// After how many polls the call is dropped, its caller getting an error; `None` to let it be.
    fn cut_after_polls(&self, method: DriverMethod) -> Option<u32> {
        let _ = method;
        None
    }

    /// Whether a call goes on when its caller drops it, as a request does that has left already.
    fn continues(&self, method: DriverMethod) -> bool {
        let _ = method;
        false
    }
}

/// An answer of the driver, as it was before anything was done to it.
#[derive(Clone, Copy, Debug)]
pub enum ObservedAnswer<'a> {
    /// An acquire was answered.
    Acquired(&'a Claim, &'a Acquisition),
    /// A renewal was answered for this claim.
    Renewed(&'a Claim, &'a Renewal),
    /// A call failed.
    Failed(DriverMethod, &'a Error),
}

/// A driver with something between it and its caller. Clones share it.
pub struct Tampered<T> {
    inner: Arc<dyn LockDriver>,
    tamper: Arc<T>,
}

impl<T> Clone for Tampered<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), tamper: self.tamper.clone() }
    }
}

impl<T: Tamper> fmt::Debug for Tampered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tampered")
            .field("inner", &self.inner)
            .field("tamper", &self.tamper)
            .finish()
    }
}

impl<T: Tamper> Tampered<T> {
    /// Puts `tamper` in front of a driver.
    pub fn new(inner: Arc<dyn LockDriver>, tamper: Arc<T>) -> Self {
        Self { inner, tamper }
    }

    async fn around<R>(
        &self,
        method: DriverMethod,
        call: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let call = async { call.await.map_err(BatchError::refused) };
        self.around_batch(method, call).await.map_err(|failed| failed.error)
    }

    async fn around_batch<R>(
        &self,
        method: DriverMethod,
        call: impl Future<Output = Result<R, BatchError>>,
    ) -> Result<R, BatchError> {
        self.tamper.before(method).await.map_err(BatchError::refused)?;
        let call = async {
            let answer = call.await;
            if let Err(failed) = &answer {
                self.tamper.observed(ObservedAnswer::Failed(method, &failed.error), now());
            }
            answer
        };
        let cut =
            || Err(BatchError::unknown(Error::retryable("tampered", "the connection was cut")));
        let answer = match self.tamper.cut_after_polls(method) {
            None => call.await,
            Some(polls) => some_polls(polls, call).await.unwrap_or_else(cut),
        };
        // Without an answer it is not known what the driver did.
        self.tamper.after(method).await.map_err(BatchError::unknown)?;
        answer
    }

    async fn submit_now(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let sent = now();
        let call = async {
            let outcome = self.inner.submit(batch).await?;
            // An operation that would block is submitted again: it has not failed.
            let released = outcome.released.iter().filter_map(|released| released.as_ref().err());
            for failed in released.filter(|failed| !failed.would_block) {
                self.tamper
                    .observed(ObservedAnswer::Failed(DriverMethod::Release, &failed.error), sent);
            }
            for (acquire, acquired) in batch.acquires.iter().zip(&outcome.acquired) {
                let observed = match acquired {
                    Ok(answer) => ObservedAnswer::Acquired(&acquire.claim, &answer.result),
                    Err(failed) if failed.would_block => continue,
                    Err(failed) => ObservedAnswer::Failed(DriverMethod::Acquire, &failed.error),
                };
                self.tamper.observed(observed, sent);
            }
            Ok(outcome)
        };
        self.around_batch(first(batch), call).await
    }

    fn own_registers(&self) -> &dyn Registers {
        let registers = self.inner.registers();
        registers.expect("asked only when the driver has registers")
    }
}

/// The method that a batch counts as: that of its first operation.
fn first(batch: Batch<'_>) -> DriverMethod {
    if batch.releases.is_empty() { DriverMethod::Acquire } else { DriverMethod::Release }
}

/// Polls a future so many times, each time when it asked for that; `None` if it had not ended by
/// then.
pub async fn some_polls<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        left = left.saturating_sub(1);
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[async_trait]
impl<T: Tamper> LockDriver for Tampered<T> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.inner.registers().is_some().then_some(self)
    }

    fn gate(&self) -> Option<&dyn Gate> {
        self.inner.gate()
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        if !self.tamper.continues(first(batch)) {
            return self.submit_now(batch).await;
        }
        let (this, releases, acquires) =
            (self.clone(), batch.releases.to_vec(), batch.acquires.to_vec());
        let going_on = tokio::spawn(async move {
            this.submit_now(Batch { releases: &releases, acquires: &acquires }).await
        });
        let failed = |error| Err(BatchError::unknown(Error::retryable("tampered", error)));
        going_on.await.unwrap_or_else(failed)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.around(DriverMethod::Granted, self.inner.granted(claim)).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let sent = now();
        let call = async {
            let answers = self.inner.renew(claims).await?;
            for (claim, answer) in claims.iter().zip(&answers) {
                self.tamper.observed(
                    match answer {
                        Ok(answer) => ObservedAnswer::Renewed(claim, answer),
                        Err(error) => ObservedAnswer::Failed(DriverMethod::Renew, error),
                    },
                    sent,
                );
            }
            Ok(answers)
        };
        self.around(DriverMethod::Renew, call).await
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.around(DriverMethod::Shorten, self.inner.shorten(claim, ttl)).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.around(DriverMethod::Downgrade, self.inner.downgrade(claim)).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let call = self.inner.break_claim(key, token, force, record);
        self.around(DriverMethod::Break, call).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.around(DriverMethod::Inspect, self.inner.inspect(key)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.around(DriverMethod::List, self.inner.list(request)).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        self.around(DriverMethod::Namespaces, self.inner.namespaces(after, limit)).await
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        self.around(DriverMethod::Changed, self.inner.changed(key, seen)).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        self.around(DriverMethod::Raise, self.inner.raise(claim, token)).await
    }

    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored, Error> {
        self.around(DriverMethod::Anchor, self.inner.anchor(claim)).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        self.around(DriverMethod::Resize, self.inner.resize(key, limit)).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let call = self.inner.namespace_counter(namespace);
        self.around(DriverMethod::TokenBase, call).await
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let call = self.inner.raise_namespace_counter(namespace, base);
        self.around(DriverMethod::RaiseTokenBase, call).await
    }

    async fn promises(&self) -> Result<Promises, Error> {
        self.inner.promises().await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.around(DriverMethod::Health, self.inner.health()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.inner.examine().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl<T: Tamper> Registers for Tampered<T> {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        let call = self.own_registers().load(at);
        self.around(DriverMethod::Load, call).await
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        let call = self.own_registers().write(at, write);
        self.around(DriverMethod::Write, call).await
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        let call = self.own_registers().changed(at, after);
        self.around(DriverMethod::RegisterChanged, call).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        let call = self.own_registers().page(request);
        self.around(DriverMethod::RegisterPage, call).await
    }
}
