//! The memory driver behind a server that can be another one, have older data, or a clock of its own.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    BreakMode, ClaimEnd, Evidence, Grant, LockDriver, Renewal, Renewed, Replies, Step, no_answer,
};
use lockkit_core::state::{Health, ListRequest, LockState, Page};
use lockkit_core::{BreakRecord, Capabilities, Claim, Error, Key, MemoryDriver, Token};
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Server {
    store: MemoryDriver,
    script: Arc<Mutex<Script>>,
}

#[derive(Debug)]
struct Script {
    run: &'static str,
    position: u64,
    /// What its clock showed when, and how fast it runs.
    shown: (Duration, Instant),
    rate: f64,
    /// Names that it does not have, and names for which it gives no answer.
    without: HashSet<&'static str>,
    silent: HashSet<&'static str>,
    renewals: Vec<(Instant, Vec<String>)>,
}

impl Script {
    fn time(&self) -> Duration {
        self.shown.0 + self.shown.1.elapsed().mul_f64(self.rate)
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        let script = Script {
            run: "one",
            position: 1,
            shown: (Duration::from_secs(1_000_000), Instant::now()),
            rate: 1.0,
            without: HashSet::new(),
            silent: HashSet::new(),
            renewals: Vec::new(),
        };
        Self { store: MemoryDriver::new(), script: Arc::new(Mutex::new(script)) }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Another run answers from now on.
    pub(crate) fn becomes(&self, run: &'static str) {
        self.script().run = run;
    }

    /// Its data are as they were at this position.
    pub(crate) fn goes_back_to(&self, position: u64) {
        self.script().position = position;
    }

    pub(crate) fn runs_at(&self, rate: f64) {
        let mut script = self.script();
        (script.shown, script.rate) = ((script.time(), Instant::now()), rate);
    }

    /// Its clock is moved by so many seconds.
    pub(crate) fn steps(&self, seconds: i64) {
        let mut script = self.script();
        let by = Duration::from_secs(seconds.unsigned_abs());
        let time = script.time();
        let time = if seconds < 0 { time - by } else { time + by };
        script.shown = (time, Instant::now());
    }

    /// It does not have this lock.
    pub(crate) fn lacks(&self, name: &'static str) {
        self.script().without.insert(name);
    }

    /// It does not answer for this lock, or does again.
    pub(crate) fn answers(&self, name: &'static str, does: bool) {
        match does {
            true => self.script().silent.remove(name),
            false => self.script().silent.insert(name),
        };
    }

    /// When it was asked to renew what, since it was asked last.
    pub(crate) fn renewals(&self) -> Vec<(Instant, Vec<String>)> {
        std::mem::take(&mut self.script().renewals)
    }
}

#[async_trait]
impl LockDriver for Server {
    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        self.store.submit(batch).await
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.store.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        Ok(Renewed::without_evidence(self.renew_with_evidence(claims).await?))
    }

    async fn renew_with_evidence(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewed, Error>>, Error> {
        let name = |claim: &Arc<Claim>| claim.key.name.as_str().to_owned();
        let (evidence, without, silent) = {
            let mut script = self.script();
            let names = claims.iter().map(name).collect();
            script.renewals.push((Instant::now(), names));
            script.position += u64::from(script.position > 1);
            let evidence = Evidence::new(script.run, 1);
            let evidence = evidence.with_position(script.position).with_time(script.time());
            (Arc::new(evidence), script.without.clone(), script.silent.clone())
        };
        let mut answers = Vec::new();
        for claim in claims {
            let answer = match name(claim) {
                name if silent.contains(&*name) => Err(no_answer("memory")),
                name if without.contains(&*name) => Ok(Renewal::Ended(ClaimEnd::NotFound)),
                _ => self.store.renew_single(claim).await,
            };
            let evidence = Some(evidence.clone());
            answers.push(answer.map(|renewal| Renewed { renewal, evidence }));
        }
        Ok(answers)
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.store.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.store.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.store.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.store.list(request).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.store.health().await
    }
}
