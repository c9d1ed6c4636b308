//! Memory members behind a network that misbehaves by a seed. A message that was sent goes its way
//! whatever becomes of who sent it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, ClaimId, Grant,
    LeaseStart, LockDriver, Patience, Released, Renewal, ServerRun, submit_each,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, MemoryDriver, Namespace, Token};

use super::world::{RUNS, SIGN, TTL};

/// What a member does wrong, so that a guard of the quorum has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A try waits in line until it is granted. (Members are tried, never queued at.)
    Queues,
    /// A raise is answered, and not carried out. (A majority, and a member that is repaired, is
    /// raised to the greatest token it gave.)
    RaisesNothing,
    /// A raise of a claim that is gone is answered as one of a live claim. (A raise counts only
    /// when the claim was still live.)
    RaisesTheDead,
    /// It shows a sign although it lost its data. (A member that came back empty does not count for
    /// the longest ttl.)
    HidesLoss,
    /// It says that it is the same run although it came back with old data. (Such a member does not
    /// count for the longest ttl.)
    HidesRuns,
    /// Its tokens begin with 1 when it lost its data. (They follow its clock.)
    NoClock,
    /// It knows the claims of all rounds by one id. (Each round has a claim id of its own.)
    OneId,
    /// A release is answered, and not carried out. (A claim that was granted without being heard
    /// is taken back.)
    KeepsGhosts,
}

/// A member: a memory driver that can be down, and that can be exchanged for an empty one.
#[derive(Debug)]
pub(crate) struct Server {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    driver: MemoryDriver,
    up: bool,
    mute: bool,
    /// How much longer a message takes on its way here.
    slow: Duration,
    last: Option<Arc<Claim>>,
    /// What is on its disk, while it saves what it does.
    disk: MemoryDriver,
    saves: bool,
    /// How often it was started; `None` if it tells no run.
    run: Option<u32>,
    keeps_writes: bool,
    /// Where a quorum keeps which of its runs counts.
    admitted_at: Option<Namespace>,
    made: Moment,
    /// Its clock when its data began, in µs since it was made, and the least of its tokens: by then no
    /// member has counted as far.
    began: u64,
}

impl State {
    fn begin_data(&mut self) {
        self.began = 1 + TokioClock.now().since(self.made).as_micros() as u64;
    }
}

impl Server {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            driver: MemoryDriver::new(),
            up: true,
            mute: false,
            slow: Duration::ZERO,
            last: None,
            disk: MemoryDriver::new(),
            saves: true,
            run: Some(0),
            keeps_writes: false,
            admitted_at: None,
            made: TokioClock.now(),
            began: 1,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    pub(crate) fn driver(&self) -> MemoryDriver {
        self.state.lock().unwrap().driver.clone()
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.state.lock().unwrap().up = up;
    }

    /// From now on it acts, and nobody hears its answers.
    pub(crate) fn set_mute(&self, mute: bool) {
        self.state.lock().unwrap().mute = mute;
    }

    /// What is sent from now on arrives here so much later.
    pub(crate) fn set_slow(&self, slow: Duration) {
        self.state.lock().unwrap().slow = slow;
    }

    fn slow(&self) -> Duration {
        self.state.lock().unwrap().slow
    }

    fn is_mute(&self) -> bool {
        self.state.lock().unwrap().mute
    }

    /// Lets go of the claim that was put in line here last.
    pub(crate) async fn release_last(&self) {
        let last = self.state.lock().unwrap().last.clone();
        self.driver().release(&last.expect("there was a claim")).await.unwrap();
    }

    fn remember(&self, claim: &Arc<Claim>) {
        self.state.lock().unwrap().last = Some(claim.clone());
    }

    pub(crate) fn lose_data(&self) {
        let mut state = self.state.lock().unwrap();
        (state.driver, state.disk) = (MemoryDriver::new(), MemoryDriver::new());
        state.saves = true;
        state.begin_data();
    }

    /// From now on nothing more is saved. Says whether it had saved everything until now.
    pub(crate) fn stop_saving(&self) -> bool {
        std::mem::replace(&mut self.state.lock().unwrap().saves, false)
    }

    /// It is started again, with the data that it had saved.
    pub(crate) fn bring_back_old_data(&self) {
        let mut state = self.state.lock().unwrap();
        assert!(!state.saves, "everything was saved");
        state.driver = state.disk.clone();
        state.begin_data();
        state.run = state.run.map(|run| run + 1);
    }

    /// It is started again, with all its data.
    pub(crate) fn restart(&self) {
        let mut state = self.state.lock().unwrap();
        state.run = state.run.map(|run| run + 1);
    }

    /// Says that its settings keep every write.
    pub(crate) fn set_keeps_writes(&self) {
        self.state.lock().unwrap().keeps_writes = true;
    }

    /// Whether it tells its runs.
    pub(crate) fn set_tells_run(&self, tells: bool) {
        self.state.lock().unwrap().run = tells.then_some(0);
    }

    /// What it keeps of the run that counts.
    pub(crate) async fn admitted(&self) -> u64 {
        let place = self.state.lock().unwrap().admitted_at.clone();
        match place {
            Some(place) => self.driver().namespace_counter(&place).await.unwrap(),
            None => 0,
        }
    }

    fn reached(&self) -> Option<(MemoryDriver, Option<MemoryDriver>)> {
        let state = self.state.lock().unwrap();
        let disk = state.saves.then(|| state.disk.clone());
        state.up.then(|| (state.driver.clone(), disk))
    }
}

/// One client's way to one member.
#[derive(Debug)]
pub(crate) struct Link {
    server: Arc<Server>,
    rng: Mutex<StdRng>,
    /// Of a hundred messages this many have bad luck.
    trouble: u32,
    flaws: &'static [Flaw],
    capabilities: Capabilities,
}

/// What the network does with one request.
struct Fate {
    there: Duration,
    back: Duration,
    lost: bool,
    answer_lost: bool,
    again_after: Option<Duration>,
}

impl Link {
    pub(crate) fn between(
        server: &Arc<Server>,
        seed: u64,
        trouble: u32,
        flaws: &'static [Flaw],
    ) -> Arc<dyn LockDriver> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        let capabilities = *server.driver().capabilities();
        Arc::new(Self { server: server.clone(), rng, trouble, flaws, capabilities })
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }

    /// The claim as the member knows it.
    fn there(&self, claim: &Arc<Claim>) -> Arc<Claim> {
        let first = claim.note.as_deref().and_then(ClaimId::from_hex);
        match first.filter(|_| self.has(Flaw::OneId)) {
            Some(id) => Arc::new(Claim::clone(claim).with_id(id)),
            None => claim.clone(),
        }
    }

    fn fate(&self) -> Fate {
        let mut rng = self.rng.lock().unwrap();
        let mut bad = || rng.random_range(0..100) < self.trouble;
        let (lost, answer_lost, again) = (bad(), bad(), bad());
        let (slow_there, slow_back) = (bad(), bad());
        let mut time = |slow| {
            Duration::from_millis(match slow {
                true => rng.random_range(20..1_500),
                false => rng.random_range(1..8),
            })
        };
        let (there, back) = (time(slow_there) + self.server.slow(), time(slow_back));
        let again_after = again.then(|| time(true));
        Fate { there, back, lost, answer_lost, again_after }
    }

    /// Sends a request to the server and returns its answer, or fails, or never returns.
    async fn send<T, F>(&self, ask: impl Fn(MemoryDriver) -> F + Send + 'static) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let fate = self.fate();
        let server = self.server.clone();
        let (tell, told) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(fate.there).await;
            let Some((driver, disk)) = server.reached().filter(|_| !fate.lost) else {
                return;
            };
            let answer = ask(driver).await;
            if let Some(disk) = disk {
                tokio::spawn(ask(disk));
            }
            let server = server.clone();
            if let Some(later) = fate.again_after {
                let server = server.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(later).await;
                    if let Some((driver, disk)) = server.reached() {
                        let _ = ask(driver).await;
                        if let Some(disk) = disk {
                            tokio::spawn(ask(disk));
                        }
                    }
                });
            }
            tokio::time::sleep(fate.back).await;
            if !fate.answer_lost && !server.is_mute() {
                let _ = tell.send(answer);
            }
        });
        match told.await {
            Ok(answer) => answer,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(Error::retryable("memory", "no answer"))
            }
        }
    }
}

impl Link {
    async fn put_in(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Attempted<Acquisition>, Error> {
        let (claim, server, queues) =
            (self.there(claim), self.server.clone(), self.has(Flaw::Queues));
        let no_clock = self.has(Flaw::NoClock);
        self.send(move |driver| {
            let claim = claim.clone();
            server.remember(&claim);
            let began = if no_clock { 1 } else { server.state.lock().unwrap().began };
            let began = Token::new(began).expect("from 1 on");
            async move {
                if !queues {
                    let answer = driver.acquire(&claim, patience).await?;
                    let Acquisition::Granted(_) = answer.result else { return Ok(answer) };
                    // As of a counter that begins with the clock.
                    let Renewal::Holds(grant) = driver.raise(&claim, began).await? else {
                        return Ok(answer);
                    };
                    return Ok(Attempted::after(answer.ambiguous, Acquisition::Granted(grant)));
                }
                match driver.acquire(&claim, Patience::Wait).await? {
                    Attempted { result: Acquisition::Queued { .. }, .. } => {
                        let grant = driver.granted(&claim).await?;
                        Ok(Attempted::from(Acquisition::Granted(grant)))
                    }
                    other => Ok(other),
                }
            }
        })
        .await
    }

    async fn take_out(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        if self.has(Flaw::KeepsGhosts) {
            return Ok(Released::Removed);
        }
        let claim = self.there(claim);
        self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.release(&claim).await }
        })
        .await
    }
}

#[async_trait]
impl LockDriver for Link {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn clock(&self) -> Arc<dyn Clock> {
        TokioClock::shared()
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let acquire = |Acquire { claim, patience }| async move {
            self.put_in(&claim, patience).await.map_err(BatchError::unknown)
        };
        let release = |claim| async move {
            self.take_out(&claim).await.map(Attempted::from).map_err(BatchError::unknown)
        };
        Ok(submit_each(batch, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let claim = self.there(claim);
        self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.granted(&claim).await }
        })
        .await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let claims: Vec<_> = claims.iter().map(|claim| self.there(claim)).collect();
        self.send(move |driver| {
            let claims = claims.clone();
            async move { driver.renew(&claims).await }
        })
        .await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        let raised = Renewal::Holds(Grant {
            token,
            ttl: claim.hold_ttl,
            start: LeaseStart::LastAnswered,
            margin: Duration::ZERO,
        });
        if self.has(Flaw::RaisesNothing) {
            return Ok(raised);
        }
        let claim = self.there(claim);
        let answer = self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.raise(&claim, token).await }
        });
        match answer.await? {
            Renewal::Ended(_) if self.has(Flaw::RaisesTheDead) => Ok(raised),
            answer => Ok(answer),
        }
    }

    async fn downgrade(&self, _: &Arc<Claim>) -> Result<Renewal, Error> {
        Err(self.unsupported("downgrades in this search"))
    }

    async fn break_claim(
        &self,
        _: &Key,
        _: Token,
        _: BreakMode,
        _: &BreakRecord,
    ) -> Result<bool, Error> {
        Err(self.unsupported("breaks in this search"))
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let key = key.clone();
        self.send(move |driver| {
            let key = key.clone();
            async move { driver.inspect(&key).await }
        })
        .await
    }

    async fn list(&self, _: &ListRequest) -> Result<Page, Error> {
        Err(self.unsupported("listing in this search"))
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let hides_loss = self.has(Flaw::HidesLoss) && namespace.as_str() == SIGN;
        let namespace = namespace.clone();
        let base = self.send(move |driver| {
            let namespace = namespace.clone();
            async move { driver.namespace_counter(&namespace).await }
        });
        Ok(match hides_loss {
            true => base.await?.max(TTL.as_millis() as u64),
            false => base.await?,
        })
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let namespace = namespace.clone();
        if namespace.as_str().starts_with(RUNS) {
            self.server.state.lock().unwrap().admitted_at = Some(namespace.clone());
        }
        self.send(move |driver| {
            let namespace = namespace.clone();
            async move { driver.raise_namespace_counter(&namespace, base).await }
        })
        .await
    }

    async fn run_of(&self, _: &Key) -> Result<Option<ServerRun>, Error> {
        if self.has(Flaw::HidesLoss) {
            return Ok(None);
        }
        let (server, hides) = (self.server.clone(), self.has(Flaw::HidesRuns));
        self.send(move |_| {
            let run = server.state.lock().unwrap().run;
            let start = run.map(|run| if hides { 0 } else { run });
            async move { Ok(start.map(|start| ServerRun::new("memory", start.to_string()))) }
        })
        .await
    }

    async fn keeps_writes(&self) -> Result<bool, Error> {
        let server = self.server.clone();
        self.send(move |_| {
            let keeps = server.state.lock().unwrap().keeps_writes;
            async move { Ok(keeps) }
        })
        .await
    }

    async fn health(&self) -> Result<Health, Error> {
        Ok(Health::well("a memory member"))
    }
}
