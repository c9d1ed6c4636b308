//! Memory members behind a network that misbehaves by a seed. A message that was sent goes its way
//! whatever becomes of who sent it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::driver::{Acquisition, Answered, Force, Grant, LockDriver, Patience, Released, Renewal};
use crate::state::{Health, ListRequest, LockState, Page};
use crate::{BreakRecord, Capabilities, Claim, Error, Key, MemoryDriver, Namespace, Token};

/// A member: a memory driver that can be down, and that can be exchanged for an empty one.
#[derive(Debug)]
pub(super) struct Server {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    driver: MemoryDriver,
    up: bool,
    mute: bool,
}

impl Server {
    pub(super) fn new() -> Arc<Self> {
        let state = State { driver: MemoryDriver::new(), up: true, mute: false };
        Arc::new(Self { state: Mutex::new(state) })
    }

    pub(super) fn driver(&self) -> MemoryDriver {
        self.state.lock().unwrap().driver.clone()
    }

    pub(super) fn set_up(&self, up: bool) {
        self.state.lock().unwrap().up = up;
    }

    /// From now on it acts, and nobody hears its answers.
    pub(super) fn set_mute(&self, mute: bool) {
        self.state.lock().unwrap().mute = mute;
    }

    fn is_mute(&self) -> bool {
        self.state.lock().unwrap().mute
    }

    pub(super) fn lose_data(&self) {
        self.state.lock().unwrap().driver = MemoryDriver::new();
    }

    fn reached(&self) -> Option<MemoryDriver> {
        let state = self.state.lock().unwrap();
        state.up.then(|| state.driver.clone())
    }
}

/// One client's way to one member.
#[derive(Debug)]
pub(super) struct Link {
    server: Arc<Server>,
    rng: Mutex<StdRng>,
    /// Of a hundred messages this many have bad luck.
    trouble: u32,
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
    pub(super) fn between(server: &Arc<Server>, seed: u64, trouble: u32) -> Arc<dyn LockDriver> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { server: server.clone(), rng, trouble })
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
        let (there, back) = (time(slow_there), time(slow_back));
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
            let Some(driver) = server.reached().filter(|_| !fate.lost) else {
                return;
            };
            let answer = ask(driver).await;
            let server = server.clone();
            if let Some(later) = fate.again_after {
                let server = server.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(later).await;
                    if let Some(driver) = server.reached() {
                        let _ = ask(driver).await;
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

#[async_trait]
impl LockDriver for Link {
    fn capabilities(&self) -> &Capabilities {
        // All memory drivers say the same.
        static SAID: std::sync::OnceLock<Capabilities> = std::sync::OnceLock::new();
        SAID.get_or_init(|| *MemoryDriver::new().capabilities())
    }

    fn clock(&self) -> Arc<dyn crate::clock::Clock> {
        crate::clock::TokioClock::shared()
    }

    async fn acquire(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Answered<Acquisition>, Error> {
        let claim = claim.clone();
        self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.acquire(&claim, patience).await }
        })
        .await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let claim = claim.clone();
        self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.granted(&claim).await }
        })
        .await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let claims = claims.to_vec();
        self.send(move |driver| {
            let claims = claims.clone();
            async move { driver.renew(&claims).await }
        })
        .await
    }

    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        let claim = claim.clone();
        self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.release(&claim).await }
        })
        .await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        let claim = claim.clone();
        self.send(move |driver| {
            let claim = claim.clone();
            async move { driver.raise(&claim, token).await }
        })
        .await
    }

    async fn downgrade(&self, _: &Arc<Claim>) -> Result<Renewal, Error> {
        Err(self.unsupported("downgrades in this search"))
    }

    async fn break_claim(
        &self,
        _: &Key,
        _: Token,
        _: Force,
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

    async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let namespace = namespace.clone();
        self.send(move |driver| {
            let namespace = namespace.clone();
            async move { driver.token_base(&namespace).await }
        })
        .await
    }

    async fn raise_token_base(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let namespace = namespace.clone();
        self.send(move |driver| {
            let namespace = namespace.clone();
            async move { driver.raise_token_base(&namespace, base).await }
        })
        .await
    }

    async fn health(&self) -> Result<Health, Error> {
        Ok(Health::well("a memory member"))
    }
}
