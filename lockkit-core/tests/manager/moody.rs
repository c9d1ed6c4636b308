//! A driver in front of the memory driver that counts calls and, when told to, fails before it
//! acts, after it acted, or not at all but late.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::{Capabilities, LeaseScope};
use lockkit_core::clock::Clock;
use lockkit_core::driver::*;
use lockkit_core::state::{
    Health, ListPage, ListRequest, LockState, Page, RegisterRequest, RegisterState,
};
use lockkit_core::{BreakRecord, Claim, Error, Key, MemoryDriver, Namespace, Token};
use tokio::sync::watch;

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    /// It fails, and nothing was done.
    FailBefore,
    /// It is refused for good, and nothing was done.
    Refused,
    /// The same, so much later.
    FailAfterWaiting(Duration),
    /// It is done, and the answer gets lost.
    FailAfter,
    /// It is done so much later; the caller is told at once that there was no answer.
    StuckFor(Duration),
    /// The driver panics.
    Panic,
    /// Never answers, never acts.
    Silent,
    /// It is done at once, and the answer comes so much later.
    Late(Duration),
    /// It is done so much later, if somebody still waits for it by then.
    Slow(Duration),
}

/// The calls of one verb that are under way: how many there are, and were at most.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    now: usize,
    most: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Moody {
    inner: MemoryDriver,
    moods: Arc<Mutex<VecDeque<(&'static str, Mood)>>>,
    always: Arc<Mutex<HashMap<&'static str, Mood>>>,
    calls: Arc<Mutex<Vec<(&'static str, usize)>>>,
    under_way: Arc<Mutex<HashMap<&'static str, UnderWay>>>,
    twice: Arc<AtomicBool>,
    capabilities: Capabilities,
    batches: Arc<Mutex<Vec<Vec<Sent>>>>,
    /// A batch with an operation of this name fails as a whole, for good.
    poison: Option<&'static str>,
    /// Names that another client has locked: see [`lock`](Self::lock).
    locked: Arc<watch::Sender<HashSet<&'static str>>>,
    gate: Option<super::fake_gate::FakeGate>,
}

impl Moody {
    pub(crate) fn new(inner: MemoryDriver) -> Self {
        let capabilities = *inner.capabilities();
        Self {
            inner,
            capabilities,
            batches: Arc::default(),
            poison: None,
            locked: Arc::default(),
            gate: None,
            moods: Arc::default(),
            always: Arc::default(),
            calls: Arc::default(),
            under_way: Arc::default(),
            twice: Arc::default(),
        }
    }

    /// The same, and takes batches of several operations, by the verb `batch`.
    pub(crate) fn batching(batches: BatchLimits) -> Self {
        let mut driver = Self::new(MemoryDriver::new());
        driver.capabilities.batches = batches;
        driver
    }

    /// The same, whose claims of one ttl live and end together.
    pub(crate) fn in_sessions(mut self) -> Self {
        self.capabilities.lease_scope = LeaseScope::Session;
        self
    }

    /// The same, with this gate.
    pub(crate) fn with_gate(mut self, gate: super::fake_gate::FakeGate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// The same, and refuses batches with an operation of this name.
    pub(crate) fn refusing(mut self, name: &'static str) -> Self {
        self.poison = Some(name);
        self
    }

    /// From now on a batch of one operation of this name waits, and one of several leaves it out.
    pub(crate) fn lock(&self, name: &'static str) {
        self.locked.send_if_modified(|locked| locked.insert(name));
    }

    pub(crate) fn unlock(&self, name: &'static str) {
        self.locked.send_if_modified(|locked| locked.remove(name));
    }

    /// Submits what is not locked.
    async fn submit_free(&self, sent: &[Sent]) -> Result<BatchOutcome, Error> {
        let locked = match sent {
            [one] => {
                let mut locked = self.locked.subscribe();
                let _ = locked.wait_for(|locked| !locked.contains(one.name())).await;
                HashSet::new()
            }
            _ => self.locked.borrow().clone(),
        };
        let free = sent.iter().filter(|it| !locked.contains(it.name()));
        let releases: Vec<_> = free.clone().filter_map(Sent::release).collect();
        let acquires: Vec<_> = free.filter_map(Sent::acquire).collect();
        let batch = Batch { releases: &releases, acquires: &acquires };
        let free = self.inner.submit(batch).await.map_err(|failed| failed.error)?;
        let (mut released, mut acquired) = (free.released.into_iter(), free.acquired.into_iter());
        let mut outcome = BatchOutcome::default();
        for it in sent {
            let is_locked = locked.contains(it.name());
            let blocks = || BatchError::would_block("moody");
            match it.patience {
                None if is_locked => outcome.released.push(Err(blocks())),
                None => outcome.released.extend(released.next()),
                Some(_) if is_locked => outcome.acquired.push(Err(blocks())),
                Some(_) => outcome.acquired.extend(acquired.next()),
            }
        }
        Ok(outcome)
    }

    /// The batches that were submitted, in their order.
    pub(crate) fn batches(&self) -> Vec<Vec<Sent>> {
        self.batches.lock().unwrap().clone()
    }

    /// The ids of the claims with which this name was acquired, each once.
    pub(crate) fn claims_of(&self, name: &str) -> Vec<ClaimId> {
        let batches = self.batches();
        let acquires = batches.iter().flatten().filter(|it| it.is_acquire() && it.name() == name);
        let mut ids: Vec<_> = acquires.map(|it| it.claim.id).collect();
        ids.dedup();
        ids
    }

    /// From now on it sends twice what it sends, as after a connection that broke before the first
    /// answer, and says so.
    pub(crate) fn send_twice(&self) {
        self.twice.store(true, Ordering::Relaxed);
    }

    fn sends_twice(&self) -> bool {
        self.twice.load(Ordering::Relaxed)
    }

    /// The store behind it, for who must not meet its moods.
    pub(crate) fn store(&self) -> &MemoryDriver {
        &self.inner
    }

    /// The next call of this verb meets this mood; moods of one verb queue up.
    pub(crate) fn next(&self, verb: &'static str, mood: Mood) {
        self.moods.lock().unwrap().push_back((verb, mood));
    }

    /// Every call of this verb meets this mood from now on, unless another is next.
    pub(crate) fn always(&self, verb: &'static str, mood: Mood) {
        self.always.lock().unwrap().insert(verb, mood);
    }

    /// This verb is answered again.
    pub(crate) fn recovers(&self, verb: &'static str) {
        self.always.lock().unwrap().remove(verb);
    }

    /// The same, and cannot end a lease early.
    pub(crate) fn without_shorten(mut self) -> Self {
        self.capabilities.shorten = false;
        self
    }

    /// From now on nothing is asked successfully, and nothing is done.
    pub(crate) fn cut_off(&self) {
        for verb in ["acquire", "granted", "renew", "release", "shorten", "downgrade", "inspect"] {
            self.always(verb, Mood::FailBefore);
        }
    }

    /// How many calls of this verb were under way at once, at most.
    pub(crate) fn most_at_once(&self, verb: &str) -> usize {
        self.under_way.lock().unwrap().get(verb).copied().unwrap_or_default().most
    }

    /// How many calls of this verb are under way.
    pub(crate) fn at_once(&self, verb: &str) -> usize {
        self.under_way.lock().unwrap().get(verb).copied().unwrap_or_default().now
    }

    /// How many claims each call of this verb was about.
    pub(crate) fn calls(&self, verb: &str) -> Vec<usize> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(v, _)| *v == verb).map(|(_, n)| *n).collect()
    }

    async fn call<T, F>(&self, verb: &'static str, claims: usize, act: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.calls.lock().unwrap().push((verb, claims));
        let _counted = Counted::new(self, verb);
        let mood = {
            let mut moods = self.moods.lock().unwrap();
            let at = moods.iter().position(|(v, _)| *v == verb);
            at.and_then(|at| moods.remove(at)).map(|(_, mood)| mood)
        };
        let mood = mood.or_else(|| self.always.lock().unwrap().get(verb).copied());
        match mood {
            None => act.await,
            Some(Mood::FailBefore) => Err(lost_answer()),
            Some(Mood::Refused) => Err(Error::permanent("moody", "the right was withdrawn")),
            Some(Mood::FailAfterWaiting(d)) => {
                tokio::time::sleep(d).await;
                Err(lost_answer())
            }
            Some(Mood::FailAfter) => {
                act.await?;
                Err(lost_answer())
            }
            Some(Mood::StuckFor(d)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(d).await;
                    let _ = act.await;
                });
                Err(lost_answer())
            }
            Some(Mood::Panic) => panic!("a test wants this"),
            Some(Mood::Silent) => std::future::pending().await,
            Some(Mood::Late(d)) => {
                let answer = act.await;
                tokio::time::sleep(d).await;
                answer
            }
            Some(Mood::Slow(d)) => {
                tokio::time::sleep(d).await;
                act.await
            }
        }
    }
}

/// An operation of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) claim: Arc<Claim>,
    /// `None` for a release.
    patience: Option<Patience>,
}

impl Sent {
    fn all(batch: Batch<'_>) -> Vec<Self> {
        let release = |claim: &Arc<Claim>| Self { claim: claim.clone(), patience: None };
        let acquire = |it: &Acquire| Self { claim: it.claim.clone(), patience: Some(it.patience) };
        let releases = batch.releases.iter().map(release);
        releases.chain(batch.acquires.iter().map(acquire)).collect()
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.patience.is_some()
    }

    pub(crate) fn name(&self) -> &str {
        self.claim.key.name.as_str()
    }

    fn release(&self) -> Option<Arc<Claim>> {
        (!self.is_acquire()).then(|| self.claim.clone())
    }

    fn acquire(&self) -> Option<Acquire> {
        Some(Acquire { claim: self.claim.clone(), patience: self.patience? })
    }
}

/// Counts a call for as long as it is under way.
struct Counted(Moody, &'static str);

impl Counted {
    fn new(moody: &Moody, verb: &'static str) -> Self {
        let mut under_way = moody.under_way.lock().unwrap();
        let calls = under_way.entry(verb).or_default();
        calls.now += 1;
        calls.most = calls.most.max(calls.now);
        drop(under_way);
        Self(moody.clone(), verb)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.under_way.lock().unwrap().entry(self.1).or_default().now -= 1;
    }
}

/// The result after one more attempt without an answer.
fn once_more<T>(result: Result<Attempted<T>, BatchError>) -> Result<Attempted<T>, BatchError> {
    match result {
        Ok(it) => Ok(Attempted::after(it.ambiguous + 1, it.result)),
        Err(error) => Err(error.after(1)),
    }
}

fn lost_answer() -> Error {
    Error::retryable("moody", "the connection was cut")
}

#[async_trait]
impl LockDriver for Moody {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let (inner, key) = (self.inner.clone(), key.clone());
        self.call("resize", 0, async move { inner.resize(&key, limit).await }).await
    }

    fn gate(&self) -> Option<&dyn Gate> {
        self.gate.as_ref().map(|gate| gate as &dyn Gate)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let verb = match (batch.releases, batch.acquires) {
            _ if self.capabilities.batches.operations > 1 => "batch",
            ([_], []) => "release",
            _ => "acquire",
        };
        let sent = Sent::all(batch);
        self.batches.lock().unwrap().push(sent.clone());
        let is_poison = |it: &Sent| Some(it.name()) == self.poison;
        if sent.iter().any(is_poison) {
            // The others may be carried out all the same.
            let others: Vec<_> = sent.into_iter().filter(|it| !is_poison(it)).collect();
            let _ = self.submit_free(&others).await;
            return Err(BatchError::unknown(Error::permanent("moody", "one of them is too much")));
        }
        let (this, twice) = (self.clone(), self.sends_twice());
        let act = async move {
            let mut outcome = this.submit_free(&sent).await?;
            if twice && verb != "release" {
                outcome = this.submit_free(&sent).await?;
                outcome.released = outcome.released.into_iter().map(once_more).collect();
                outcome.acquired = outcome.acquired.into_iter().map(once_more).collect();
            }
            Ok(outcome)
        };
        self.call(verb, 1, act).await.map_err(|error| match error.is_retryable() {
            true => BatchError::unknown(error),
            false => BatchError::refused(error),
        })
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("granted", 1, async move { inner.granted(&claim).await }).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let (inner, claims) = (self.inner.clone(), claims.to_vec());
        self.call("renew", claims.len(), async move { inner.renew(&claims).await }).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("downgrade", 1, async move { inner.downgrade(&claim).await }).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let broken = self.inner.break_claim(key, token, force, record).await?;
        match self.sends_twice() {
            true => self.inner.break_claim(key, token, force, record).await,
            false => Ok(broken),
        }
    }

    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored, Error> {
        Ok(match self.inner.renew_single(claim).await? {
            Renewal::Ended(why) => Anchored::Ended(why),
            _ => Anchored::At(b"where the claim is".to_vec()),
        })
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let (inner, claim) = (self.inner.clone(), claim.clone());
        self.call("shorten", 1, async move { inner.shorten(&claim, ttl).await }).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let (inner, key) = (self.inner.clone(), key.clone());
        self.call("inspect", 1, async move { inner.inspect(&key).await }).await
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        let (inner, key, seen) = (self.inner.clone(), key.clone(), seen.clone());
        self.call("changed", 1, async move { LockDriver::changed(&inner, &key, &seen).await }).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.call("list", 1, async move { inner.list(&request).await }).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.inner.namespace_counter(namespace).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.inner.health().await
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }
}

#[async_trait]
impl Registers for Moody {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        let (inner, at) = (self.inner.clone(), at.clone());
        self.call("load", 1, async move { inner.load(&at).await }).await
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        if write.value.is_none() {
            return self.inner.write(at, write).await;
        }
        let (inner, at, mut write) = (self.inner.clone(), at.clone(), write.clone());
        let twice = self.sends_twice();
        let act = async move {
            let answered = inner.write(&at, &write).await?;
            write.repeated = true;
            match twice {
                true => Ok(Attempted::after(1, inner.write(&at, &write).await?.result)),
                false => Ok(answered),
            }
        };
        self.call("store", 1, act).await
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        Registers::changed(&self.inner, at, after).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        self.inner.page(request).await
    }
}
