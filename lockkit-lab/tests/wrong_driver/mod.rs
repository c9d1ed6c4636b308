//! A driver that does one thing wrong, around one that does it right. It is what shows that the
//! trials catch it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, Grant, LockDriver,
    RegisterEntry, RegisterKey, Registers, Released, Renewal, SetLimit, Version, Write, WriteId,
    WriteResult, submit_each,
};
use lockkit_core::state::{
    Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, Namespace, Token};

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedBug {
    /// It looks before it acquires.
    LooksFirst,
    /// It renews fifty claims, waits, and renews the next fifty.
    RenewsInTurns,
    /// Its waiters ask again and again.
    WaitersAsk,
    /// It makes up a new id each time that it is asked to acquire.
    ForgetsIds,
    /// Once a call has failed, all do.
    NeverReconnects,
    /// It says that nothing will help when trying again would.
    Despairs,
    /// It believes that leases last twice as long as they do.
    TrustsTooLong,
    /// Its tokens begin again with each connection.
    CountsAnew,
    /// A repeated store is another write.
    ForgetsWrites,
    /// Each step takes longer the more claims wait, whatever they wait for.
    SlowInCrowds,
}

/// See [`InjectedBug`].
#[derive(Debug)]
pub(crate) struct Wrong {
    bug: InjectedBug,
    inner: Arc<dyn LockDriver>,
    failed: AtomicBool,
    base: AtomicU64,
    /// The claims that are in line, and neither hold nor were released.
    waiting: Mutex<HashSet<ClaimId>>,
    /// The claims by which the inner driver knows those of the caller.
    known: Mutex<HashMap<ClaimId, Arc<Claim>>>,
}

impl Wrong {
    pub(crate) fn new(bug: InjectedBug, inner: Arc<dyn LockDriver>) -> Self {
        let (failed, base) = (AtomicBool::new(false), AtomicU64::new(0));
        let (waiting, known) = Default::default();
        Self { bug, inner, failed, base, waiting, known }
    }

    fn is(&self, bug: InjectedBug) -> bool {
        self.bug == bug
    }

    fn known(&self, claim: &Arc<Claim>) -> Arc<Claim> {
        let known = self.known.lock().unwrap();
        known.get(&claim.id).cloned().unwrap_or_else(|| claim.clone())
    }

    async fn passed<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let call = async { call.await.map_err(BatchError::refused) };
        self.passed_batch(call).await.map_err(|failed| failed.error)
    }

    async fn passed_batch<T>(
        &self,
        call: impl Future<Output = Result<T, BatchError>>,
    ) -> Result<T, BatchError> {
        if self.is(InjectedBug::NeverReconnects) && self.failed.load(Ordering::SeqCst) {
            return Err(BatchError::refused(Error::retryable("wrong", "no connection any more")));
        }
        let mut answer = call.await;
        if let Err(failed) = &mut answer
            && failed.error.is_retryable()
        {
            self.failed.store(true, Ordering::SeqCst);
            if self.is(InjectedBug::Despairs) {
                failed.error = Error::permanent("wrong", failed.error.to_string());
            }
        }
        answer
    }

    fn told(&self, grant: Grant) -> Grant {
        match self.bug {
            InjectedBug::TrustsTooLong => Grant { ttl: grant.ttl * 2, ..grant },
            InjectedBug::CountsAnew => Grant { token: self.counted(grant.token), ..grant },
            _ => grant,
        }
    }

    fn counted(&self, token: Token) -> Token {
        let first = token.get() - 1;
        let begun = self.base.compare_exchange(0, first, Ordering::SeqCst, Ordering::SeqCst);
        let base = begun.map_or_else(|base| base, |_| first);
        Token::new(token.get().saturating_sub(base).max(1)).unwrap()
    }

    fn told_of(&self, renewal: Renewal) -> Renewal {
        match renewal {
            Renewal::Holds(grant) => Renewal::Holds(self.told(grant)),
            other => other,
        }
    }

    fn registers_within(&self) -> &dyn Registers {
        self.inner.registers().unwrap()
    }
}

impl Wrong {
    async fn acquire_one(&self, one: Acquire) -> Result<Attempted<Acquisition>, BatchError> {
        let claim = &one.claim;
        if self.is(InjectedBug::LooksFirst) {
            self.inner.inspect(&claim.key).await.map_err(BatchError::refused)?;
        }
        let mut known = claim.clone();
        if self.is(InjectedBug::ForgetsIds) {
            known = Arc::new(Claim::clone(claim).with_id(ClaimId::random()));
            self.known.lock().unwrap().insert(claim.id, known.clone());
        }
        let acquires = [Acquire { claim: known, ..one.clone() }];
        let call = async {
            let mut outcome =
                self.inner.submit(Batch { releases: &[], acquires: &acquires }).await?;
            outcome.acquired.remove(0)
        };
        let answer = self.passed_batch(call).await?;
        if matches!(answer.result, Acquisition::Queued { .. }) {
            self.waiting.lock().unwrap().insert(claim.id);
        }
        Ok(answer.map(|answer| match answer {
            Acquisition::Granted(grant) => Acquisition::Granted(self.told(grant)),
            other => other,
        }))
    }

    async fn release_one(&self, claim: Arc<Claim>) -> Result<Attempted<Released>, BatchError> {
        self.waiting.lock().unwrap().remove(&claim.id);
        let releases = [self.known(&claim)];
        let call = async {
            let mut outcome =
                self.inner.submit(Batch { releases: &releases, acquires: &[] }).await?;
            outcome.released.remove(0)
        };
        self.passed_batch(call).await
    }
}

#[async_trait]
impl LockDriver for Wrong {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.inner.registers().is_some().then_some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        if self.is(InjectedBug::SlowInCrowds) {
            let waiting = self.waiting.lock().unwrap().len() as u32;
            tokio::time::sleep(Duration::from_micros(100) * waiting).await;
        }
        let acquire = |one| async move { self.acquire_one(one).await };
        let release = |claim| async move { self.release_one(claim).await };
        Ok(submit_each(batch, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let claim = self.known(claim);
        while self.is(InjectedBug::WaitersAsk) {
            let answer = self.inner.renew_single(&claim).await?;
            if let Renewal::Holds(grant) = answer {
                return Ok(grant);
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        self.passed(self.inner.granted(&claim)).await.map(|grant| self.told(grant))
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let claims: Vec<_> = claims.iter().map(|claim| self.known(claim)).collect();
        if self.is(InjectedBug::RenewsInTurns) {
            let mut answers = Vec::new();
            for some in claims.chunks(50) {
                answers.append(&mut self.inner.renew(some).await?);
            }
            return Ok(answers);
        }
        let answers = self.passed(self.inner.renew(&claims)).await?;
        Ok(answers.into_iter().map(|answer| answer.map(|answer| self.told_of(answer))).collect())
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.passed(self.inner.shorten(&self.known(claim), ttl)).await.map(|r| self.told_of(r))
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.passed(self.inner.downgrade(&self.known(claim))).await.map(|r| self.told_of(r))
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.passed(self.inner.break_claim(key, token, force, record)).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.passed(self.inner.inspect(key)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.passed(self.inner.list(request)).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        self.passed(self.inner.raise(&self.known(claim), token)).await.map(|r| self.told_of(r))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        self.passed(self.inner.resize(key, limit)).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.passed(self.inner.namespace_counter(namespace)).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.passed(self.inner.health()).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl Registers for Wrong {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        self.passed(self.registers_within().load(at)).await
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        let mut write = write.clone();
        if self.is(InjectedBug::ForgetsWrites) && write.value.is_some() {
            write.write_id = WriteId::random();
        }
        self.passed(self.registers_within().write(at, &write)).await
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        self.passed(self.registers_within().changed(at, after)).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        self.passed(self.registers_within().page(request)).await
    }
}
