//! What a case has in its hands: drivers and managers onto the backend, a namespace of its own,
//! and ways to wait for events with a limit. It decides nothing about locks.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lockkit_core::driver::{
    Acquisition, Attempted, Grant, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::state::{ClaimState, LockState};
use lockkit_core::{
    Capabilities, Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings,
    Space,
};

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Harness;
use crate::wrap::Tampered;
use crate::wrap::tampers::Noting;

/// A ttl that no case outlives.
pub const LONG: Duration = Duration::from_secs(300);

/// How long an event that must come may take on a machine that is busy with other things. Never
/// waited out by a driver that passes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The workbench of one case. Cheap to clone.
#[derive(Clone)]
pub struct CaseContext {
    harness: Arc<dyn Harness>,
    namespace: Namespace,
    capabilities: Capabilities,
    managers: Arc<Mutex<Vec<LockManager>>>,
    passing: Arc<Noting>,
}

impl CaseContext {
    /// A workbench with a random namespace.
    ///
    /// # Errors
    /// When the harness cannot make a driver.
    pub async fn new(harness: Arc<dyn Harness>) -> Result<Self, Error> {
        let passing = Arc::new(Noting::default());
        let capabilities = *made(&*harness, &passing).await?.capabilities();
        let unique = lockkit_core::driver::ClaimId::random().to_hex();
        Ok(Self {
            harness,
            namespace: Namespace::new(format!("conformance-{}", &unique[..12]))?,
            capabilities,
            managers: Arc::default(),
            passing,
        })
    }

    /// What the driver says that it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The harness.
    pub fn harness(&self) -> &dyn Harness {
        &*self.harness
    }

    /// The namespace of this case.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// A lease whose end a case waits for: as short as the backend allows, and long enough that a
    /// few calls fit into it.
    pub fn short(&self) -> Duration {
        (self.capabilities.min_ttl * 2).max(Duration::from_millis(400))
    }

    /// A lease within which a manager's renewals come soon, without expiring on a busy machine.
    pub fn lively(&self) -> Duration {
        (self.capabilities.min_ttl * 3).max(Duration::from_secs(3))
    }

    /// What is granted, at least, to a claim that asks for this ttl.
    pub fn given(&self, ttl: Duration) -> Duration {
        ttl.min(self.capabilities.max_ttl)
    }

    /// How long to wait for what must come once leases of `ttl` have ended.
    pub fn after(&self, ttl: Duration) -> Duration {
        PATIENCE + ttl + self.capabilities.expiry_slack + self.capabilities.granularity
    }

    /// A driver of its own.
    pub async fn driver(&self) -> Arc<dyn LockDriver> {
        let driver = made(&*self.harness, &self.passing).await.expect("the harness gives a driver");
        Arc::new(Tampered::new(driver, self.passing.clone()))
    }

    /// The errors of the backend that may pass, after which a caller tried again. Those that a case
    /// stages between the driver and itself are not among them.
    pub fn passing_errors(&self) -> Vec<String> {
        self.passing.passing()
    }

    /// A manager of its own, over a driver of its own, with long leases.
    pub async fn manager(&self) -> LockManager {
        self.manager_over(self.driver().await)
    }

    /// A manager over this driver, with long leases.
    pub fn manager_over(&self, driver: Arc<dyn LockDriver>) -> LockManager {
        self.manager_with(driver, |settings| settings)
    }

    /// A manager over this driver, with the settings changed.
    pub fn manager_with(
        &self,
        driver: Arc<dyn LockDriver>,
        change: impl FnOnce(Settings) -> Settings,
    ) -> LockManager {
        let settings =
            Settings::default().namespace(self.namespace.as_str()).ttl(LONG).wait_ttl(LONG);
        let manager =
            LockManager::with(driver, change(settings)).expect("these settings are valid");
        self.managers.lock().unwrap().push(manager.clone());
        manager
    }

    /// The key of a lock (not semaphore) in this case's namespace.
    pub fn key(&self, name: &str) -> Key {
        self.key_in(Space::Lock, name)
    }

    /// The key of a name in this case's namespace.
    pub fn key_in(&self, space: Space, name: &str) -> Key {
        let name = Name::new(name).expect("a case uses valid names");
        Key::new(self.namespace.clone(), space, name)
    }

    /// A claim with long leases.
    pub fn claim(&self, name: &str, mode: Mode) -> Arc<Claim> {
        self.claim_for(name, mode, LONG)
    }

    /// A claim that holds for `ttl` and waits for long.
    pub fn claim_for(&self, name: &str, mode: Mode, ttl: Duration) -> Arc<Claim> {
        let identity = Arc::new(ClientIdentity::of_this_process());
        let key = self.key_in(mode.space(), name);
        let claim = Claim::new(key, mode, ttl, LONG, identity);
        // As that of a resizable semaphore: cases count on it that such a claim is queued.
        let above_limit = matches!(mode, Mode::Permits { permits, limit } if permits > limit);
        Arc::new(claim.with_resizable(above_limit))
    }

    /// An exclusive claim with long leases.
    pub fn exclusive(&self, name: &str) -> Arc<Claim> {
        self.claim(name, Mode::Exclusive)
    }

    /// A shared claim with long leases.
    pub fn shared(&self, name: &str) -> Arc<Claim> {
        self.claim(name, Mode::Shared)
    }

    /// A claim for permits with long leases.
    pub fn permits(&self, name: &str, permits: u32, limit: u32) -> Arc<Claim> {
        self.claim(name, Mode::Permits { permits, limit })
    }

    /// Returns what the future gives; panics, naming `what`, if that takes longer than
    /// [`PATIENCE`].
    pub async fn soon<F: Future>(&self, what: &str, future: F) -> F::Output {
        self.within(PATIENCE, what, future).await
    }

    /// Returns what the future gives; panics, naming `what`, if that takes longer than `limit`.
    pub async fn within<F: Future>(&self, limit: Duration, what: &str, future: F) -> F::Output {
        match tokio::time::timeout(limit, future).await {
            Ok(value) => value,
            Err(_) => panic!("did not happen within {limit:?}: {what}"),
        }
    }

    /// Asks again and again until `check` gives a value.
    pub async fn until<T, F: Future<Output = Option<T>>>(
        &self,
        limit: Duration,
        what: &str,
        mut check: impl FnMut() -> F,
    ) -> T {
        let asking = async {
            loop {
                if let Some(value) = check().await {
                    return value;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        self.within(limit, what, asking).await
    }

    /// The line of a lock.
    pub async fn queue(&self, driver: &Arc<dyn LockDriver>, key: &Key) -> Vec<ClaimState> {
        self.state(driver, key).await.queue
    }

    /// The state of a lock.
    pub async fn state(&self, driver: &Arc<dyn LockDriver>, key: &Key) -> LockState {
        driver.inspect(key).await.expect("a lock can be inspected")
    }

    /// Whether the backend keeps a line, in which those who wait can be seen. Where everybody looks
    /// after himself (`Capabilities::fifo` is false), no waiter is shown.
    pub fn has_line(&self) -> bool {
        self.capabilities.fifo
    }

    /// Returns once this many claims wait for the lock; where that cannot be seen, once they have
    /// had a moment to begin.
    pub async fn waiters(&self, driver: &Arc<dyn LockDriver>, key: &Key, count: usize) {
        if !self.has_line() {
            return tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let what = format!("{count} wait for {}", key.name);
        self.until(PATIENCE, &what, || async {
            let state = self.state(driver, key).await;
            (state.waiters().count() == count).then_some(())
        })
        .await;
    }

    /// Returns once no claim holds the lock or waits for it.
    pub async fn free(&self, driver: &Arc<dyn LockDriver>, key: &Key, limit: Duration) {
        let what = format!("{} is free", key.name);
        self.until(limit, &what, || async {
            self.state(driver, key).await.is_free().then_some(())
        })
        .await;
    }

    /// Takes out what the case left: shuts its managers down, breaks every claim that remains.
    pub async fn clean_up(&self) {
        let limit = Duration::from_secs(3);
        let managers = std::mem::take(&mut *self.managers.lock().unwrap());
        let shutdowns = managers.iter().map(LockManager::shutdown);
        let _ = tokio::time::timeout(limit, futures_util::future::join_all(shutdowns)).await;
        // A case about listings leaves hundreds of claims, which are broken one by one.
        let _ = tokio::time::timeout(PATIENCE, self.break_everything()).await;
        let _ = tokio::time::timeout(limit, self.harness.sweep(&self.namespace)).await;
    }

    async fn break_everything(&self) -> Result<(), Error> {
        let driver = self.harness.driver().await?;
        for state in crate::listing::whole(&driver, &self.namespace, None, "", 500).await? {
            for standing in &state.queue {
                crate::listing::break_by_force(&driver, &state.key, standing.token).await?;
            }
        }
        crate::listing::delete_registers(&driver, &self.namespace).await?;
        driver.close().await;
        Ok(())
    }

    /// Waits until the backend keeps at most `enough` things for this case's namespace, and returns
    /// how many it keeps then, or after `limit`; `None` where the harness does not count. Another lock
    /// is used meanwhile, since many backends remove what has ended as they go.
    ///
    /// # Errors
    /// The harness's.
    pub async fn settled(&self, enough: u64, limit: Duration) -> Result<Option<u64>, Error> {
        let deadline = Instant::now() + limit;
        let mut driver: Option<Arc<dyn LockDriver>> = None;
        loop {
            let now = self.harness.leftovers(&self.namespace).await?;
            if now.is_none_or(|now| now <= enough) || Instant::now() > deadline {
                if let Some(driver) = driver {
                    driver.close().await;
                }
                return Ok(now);
            }
            if driver.is_none() {
                driver = Some(self.driver().await);
            }
            for driver in driver.iter().cycle().take(100) {
                let claim = self.exclusive("sweeping");
                driver.grant(&claim).await;
                driver.let_go(&claim).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Comfort for driver calls that must succeed. Panics say which call did not.
#[allow(async_fn_in_trait, reason = "used within this crate's cases alone")]
pub trait MustSucceed {
    /// The claim must be granted at once.
    async fn grant(&self, claim: &Arc<Claim>) -> Grant;
    /// The claim must be queued and wait, behind so many.
    async fn queue(&self, claim: &Arc<Claim>) -> u32;
    /// A try must be refused.
    async fn refuse(&self, claim: &Arc<Claim>);
    /// The claim must get its turn.
    async fn turn(&self, claim: &Arc<Claim>) -> Grant;
    /// The release must be answered.
    async fn let_go(&self, claim: &Arc<Claim>) -> Released;
    /// The renewal of one claim must be answered.
    async fn renew_one(&self, claim: &Arc<Claim>) -> Renewal;
    /// The claim must hold, as its renewal says.
    async fn holds(&self, claim: &Arc<Claim>) -> Grant;
}

/// A driver, at the first attempt that succeeds.
async fn made(harness: &dyn Harness, passing: &Noting) -> Result<Arc<dyn LockDriver>, Error> {
    let connect = || async {
        let driver = harness.driver().await;
        driver.inspect_err(|error| passing.note("connecting", error))
    };
    asked(connect).await
}

/// Asks, and asks again while the answer is an error that may pass, as core does: on a machine that
/// stalls, a driver may run into a time limit of its own.
async fn asked<T, F: Future<Output = Result<T, Error>>>(
    mut ask: impl FnMut() -> F,
) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Err(e) if e.is_retryable() && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

impl MustSucceed for Arc<dyn LockDriver> {
    async fn grant(&self, claim: &Arc<Claim>) -> Grant {
        match asked(|| self.acquire(claim, Patience::Try)).await {
            Ok(Attempted { result: Acquisition::Granted(grant), .. }) => grant,
            other => panic!("{} should have been granted, not {other:?}", claim_label(claim)),
        }
    }

    async fn queue(&self, claim: &Arc<Claim>) -> u32 {
        match asked(|| self.acquire(claim, Patience::Wait)).await {
            Ok(Attempted { result: Acquisition::Queued { ahead }, .. }) => ahead,
            other => panic!("{} should have been queued, not {other:?}", claim_label(claim)),
        }
    }

    async fn refuse(&self, claim: &Arc<Claim>) {
        let answer = asked(|| self.acquire(claim, Patience::Try)).await;
        let busy = matches!(answer, Ok(Attempted { result: Acquisition::Busy, .. }));
        assert!(busy, "{} should be busy, not {answer:?}", claim_label(claim));
    }

    async fn turn(&self, claim: &Arc<Claim>) -> Grant {
        match tokio::time::timeout(PATIENCE, self.granted(claim)).await {
            Ok(Ok(grant)) => grant,
            Ok(other) => panic!("{} should have got its turn: {other:?}", claim_label(claim)),
            Err(_) => panic!("{} never got its turn", claim_label(claim)),
        }
    }

    async fn let_go(&self, claim: &Arc<Claim>) -> Released {
        let released = asked(|| self.release(claim)).await;
        released.unwrap_or_else(|e| panic!("the release of {} failed: {e}", claim_label(claim)))
    }

    async fn renew_one(&self, claim: &Arc<Claim>) -> Renewal {
        let renewed = asked(|| async {
            let mut answers = self.renew(std::slice::from_ref(claim)).await?;
            assert_eq!(answers.len(), 1, "one claim renewed, one answer");
            answers.remove(0)
        });
        renewed
            .await
            .unwrap_or_else(|e| panic!("the renewal of {} failed: {e}", claim_label(claim)))
    }

    async fn holds(&self, claim: &Arc<Claim>) -> Grant {
        match self.renew_one(claim).await {
            Renewal::Holds(grant) => grant,
            other => panic!("{} should hold: {other:?}", claim_label(claim)),
        }
    }
}

fn claim_label(claim: &Claim) -> String {
    format!("the {} claim on {:?}", claim.mode.as_str(), claim.key.name)
}

/// Tries something that depends on time, in which a failure counts only if the machine did not
/// stand still meanwhile; otherwise tries again with a longer ttl. `attempt` gets the ttl and a
/// name of its own.
pub async fn undisturbed<F>(first_ttl: Duration, mut attempt: impl FnMut(Duration, String) -> F)
where
    F: Future<Output = ()>,
{
    let mut ttl = first_ttl;
    for round in 1.. {
        let stalls = Stalls::watch();
        let ended = AssertUnwindSafe(attempt(ttl, format!("attempt {round}"))).catch_unwind().await;
        let Err(panic) = ended else { return };
        let stood_still = stalls.worst() > ttl / 4;
        if !stood_still || round == 5 {
            std::panic::resume_unwind(panic);
        }
        ttl *= 2;
    }
}

/// Notices when the machine stands still.
pub(crate) struct Stalls {
    worst: Arc<Mutex<(Duration, Instant)>>,
    ticker: JoinHandle<()>,
}

impl Stalls {
    const TICK: Duration = Duration::from_millis(20);

    pub(crate) fn watch() -> Self {
        let worst = Arc::new(Mutex::new((Duration::ZERO, Instant::now())));
        let noted = worst.clone();
        let ticker = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Self::TICK).await;
                Self::tick(&noted);
            }
        });
        Self { worst, ticker }
    }

    fn tick(noted: &Mutex<(Duration, Instant)>) {
        let mut noted = noted.lock().unwrap();
        let now = Instant::now();
        *noted = (noted.0.max(now.duration_since(noted.1)), now);
    }

    /// The longest time in which a task that wanted to run did not.
    pub(crate) fn worst(&self) -> Duration {
        Self::tick(&self.worst);
        self.worst.lock().unwrap().0
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.ticker.abort();
    }
}
