//! One contended lock within a driver, for drivers whose queue is an order that the server keeps (etcd,
//! ZooKeeper): what a hand-over costs, and what becomes of its waiters when claims of the queue end in other
//! ways, or answers are lost. Each scene panics where it does not end as it should.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, BreakMode, ClaimId, Grant, LeaseStart, LockDriver, Patience,
    Released,
};
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Error, Key, LossReason, Mode, Name, Namespace, Space,
};
use tokio::task::JoinHandle;

use crate::proxy::{Counts, Proxy, ProxyFault, When};

/// Long enough for a machine that stalls; never waited out.
const PATIENCE: Duration = Duration::from_secs(40);
/// How many hand-overs are counted within a process.
const ROUNDS: u64 = 200;

/// A lock that no other test has, and a driver behind a proxy.
#[derive(Debug)]
pub struct ContendedLock {
    /// The driver.
    pub driver: Arc<dyn LockDriver>,
    /// What it is connected through.
    pub proxy: Proxy,
    key: Key,
    ttl: Duration,
    wait_ttl: Duration,
}

/// A claim, and the task that waits until it holds.
#[derive(Debug)]
pub struct WaitingClaim {
    /// The claim.
    pub claim: Arc<Claim>,
    /// The task.
    pub granted: JoinHandle<Result<Grant, Error>>,
}

/// What the future gives, which has to end.
pub async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

fn expected<T, E: fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// When the request was sent from which a lease counts.
fn sent(grant: &Grant) -> Moment {
    match grant.start {
        LeaseStart::Sent(moment) => moment,
        LeaseStart::LastAnswered => panic!("the lease is shared"),
    }
}

impl WaitingClaim {
    /// The task of a claim that was queued; returns when it has begun to wait.
    async fn of(driver: &Arc<dyn LockDriver>, claim: Arc<Claim>) -> Self {
        let (driver, waits) = (driver.clone(), claim.clone());
        // As core does it.
        let granted = tokio::spawn(async move {
            loop {
                match driver.granted(&waits).await {
                    Err(error) if error.is_retryable() => tokio::task::yield_now().await,
                    answer => return answer,
                }
            }
        });
        tokio::task::yield_now().await;
        Self { claim, granted }
    }

    /// Waits until it holds.
    pub async fn until_granted(self) -> (Arc<Claim>, Grant) {
        let granted = expected(soon("its grant", self.granted).await);
        (self.claim, granted.expect("it holds"))
    }

    /// Waits until it is lost.
    pub async fn until_lost(self) -> Option<LossReason> {
        let ended = expected(soon("its loss", self.granted).await);
        ended.expect_err("it ended").loss().cloned()
    }
}

impl ContendedLock {
    /// A lock of this driver, for claims with these lifetimes.
    pub fn new(
        driver: Arc<dyn LockDriver>,
        proxy: Proxy,
        ttl: Duration,
        wait_ttl: Duration,
    ) -> Self {
        let unique = &ClaimId::random().to_hex()[..8];
        let namespace = expected(Namespace::new(format!("handover-{unique}")));
        let key = Key::new(namespace, Space::Lock, expected(Name::new("a")));
        Self { driver, proxy, key, ttl, wait_ttl }
    }

    fn claim(&self) -> Arc<Claim> {
        let me = Arc::new(ClientIdentity::of_this_process());
        let key = self.key.clone();
        Arc::new(Claim::new(key, Mode::Exclusive, self.ttl, self.wait_ttl, me))
    }

    /// A claim of the driver that holds.
    pub async fn hold(&self) -> Arc<Claim> {
        let claim = self.claim();
        let granted = expected(self.driver.acquire(&claim, Patience::Wait).await).result;
        assert!(matches!(granted, Acquisition::Granted(_)), "{granted:?}");
        claim
    }

    /// A claim of the driver that is queued.
    pub async fn wait(&self) -> WaitingClaim {
        self.wait_with(&self.driver).await
    }

    async fn wait_with(&self, driver: &Arc<dyn LockDriver>) -> WaitingClaim {
        let claim = self.claim();
        let queued = expected(driver.acquire(&claim, Patience::Wait).await).result;
        assert!(matches!(queued, Acquisition::Queued { .. }), "{queued:?}");
        WaitingClaim::of(driver, claim).await
    }

    /// One request: the holder leaves, and another claim comes.
    async fn hand_over(&self, driver: &Arc<dyn LockDriver>, holder: &Arc<Claim>) -> WaitingClaim {
        let acquires = [Acquire { claim: self.claim(), patience: Patience::Wait }];
        let batch = Batch { releases: std::slice::from_ref(holder), acquires: &acquires };
        let outcome = expected(driver.submit(batch).await.map_err(|failed| failed.error));
        let released = outcome.released[0].as_ref().expect("it is released");
        assert_eq!(released.result, Released::Removed);
        let acquired = &outcome.acquired[0].as_ref().expect("it is queued").result;
        assert!(matches!(acquired, Acquisition::Queued { .. }), "{acquired:?}");
        WaitingClaim::of(driver, acquires[0].claim.clone()).await
    }

    /// A hand-over within a process is one request and no message.
    pub async fn costs_one_request_within_a_process(&self) {
        let Self { driver, proxy, .. } = self;
        let mut holder = self.hold().await;
        let mut queue = VecDeque::new();
        for _ in 0..63 {
            queue.push_back(self.wait().await);
        }
        // The first hand-over may read, since the first waiter may watch by now.
        let mut before = None;
        proxy.reset();
        for round in 0..=ROUNDS {
            queue.push_back(self.hand_over(driver, &holder).await);
            let next = queue.pop_front().expect("claims wait");
            let (next, grant) = next.until_granted().await;
            assert!(before < Some(grant.token), "in order: {before:?}, {:?}", grant.token);
            (holder, before) = (next, Some(grant.token));
            if round == 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                proxy.reset();
            }
        }
        let counts = proxy.counts();
        println!("{ROUNDS} hand-overs: {counts:?}");
        assert!(counts.requests <= ROUNDS + ROUNDS / 5, "{counts:?}");
        assert!(counts.pushes <= ROUNDS / 10, "{counts:?}");
    }

    /// Counts so many hand-overs between the process of the driver and that of another one, which is
    /// connected through the same proxy.
    pub async fn between_two_processes(&self, other: Arc<dyn LockDriver>, rounds: u64) -> Counts {
        let drivers = [self.driver.clone(), other];
        let mut queue = VecDeque::new();
        let mut holder = (0, self.hold().await);
        for n in 1..64 {
            queue.push_back((n % 2, self.wait_with(&drivers[n % 2]).await));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.proxy.reset();
        for _ in 0..rounds {
            let (process, claim) = holder;
            queue.push_back((process, self.hand_over(&drivers[process], &claim).await));
            let (process, next) = queue.pop_front().expect("claims wait");
            holder = (process, next.until_granted().await.0);
        }
        let counts = self.proxy.counts();
        println!("{rounds} hand-overs between two: {counts:?}");
        counts
    }

    /// A release by itself lets the next claim hold with its own answer.
    pub async fn a_release_grants_with_its_answer(&self) {
        let Self { driver, proxy, .. } = self;
        let holder = self.hold().await;
        let [first, second] = [self.wait().await, self.wait().await];
        expected(driver.release(&holder).await);
        let (holder, _) = first.until_granted().await;
        proxy.latency(Duration::from_millis(10));
        proxy.reset();
        let asked = SteadyClock.now();
        expected(driver.release(&holder).await);
        let (_, grant) = second.until_granted().await;
        let counts = proxy.counts();
        assert_eq!((counts.requests, counts.round_trips, counts.pushes), (1, 1, 0), "{counts:?}");
        assert!(sent(&grant) <= SteadyClock.now() && sent(&grant) < asked.after(self.ttl / 10));
    }

    /// A waiter that gives up in the request of the holder's release is passed over.
    pub async fn a_waiter_that_leaves_with_the_holder_is_passed_over(&self) {
        let holder = self.hold().await;
        let [next, last] = [self.wait().await, self.wait().await];
        let leaving = [holder, next.claim.clone()];
        next.granted.abort();
        let batch = Batch { releases: &leaving, acquires: &[] };
        let outcome = expected(self.driver.submit(batch).await.map_err(|failed| failed.error));
        for released in outcome.released {
            assert_eq!(released.expect("it is released").result, Released::Removed);
        }
        last.until_granted().await;
    }

    /// A waiter behind one that gives up waits for the holder.
    pub async fn a_waiter_behind_one_that_leaves_waits_for_the_holder(&self) {
        let holder = self.hold().await;
        let [leaves, mut stays] = [self.wait().await, self.wait().await];
        expected(self.driver.release(&leaves.claim).await);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut stays.granted).await;
        assert!(early.is_err(), "it holds together with another: {early:?}");
        expected(self.driver.release(&holder).await);
        stays.until_granted().await;
    }

    /// A break of a claim, by another driver, ends that claim only. (After a graceful one the key stays until
    /// its lease ends.)
    pub async fn a_break_ends_that_claim_only(&self, other: &dyn LockDriver, modes: &[BreakMode]) {
        for mode in modes.iter().copied() {
            let holder = self.hold().await;
            let [broken, last] = [self.wait().await, self.wait().await];
            self.break_with(other, 1, mode).await;
            expected(self.driver.release(&holder).await);
            let loss = broken.until_lost().await;
            assert!(matches!(loss, Some(LossReason::Broken(_))), "{mode:?}: {loss:?}");
            if mode == BreakMode::Forced {
                let (next, _) = last.until_granted().await;
                expected(self.driver.release(&next).await);
            }
        }
    }

    /// A waiter notices that another driver has ended the holder of its own driver, although nothing renews
    /// these claims.
    pub async fn a_holder_that_others_end_is_missed(&self, other: &dyn LockDriver) {
        let _holder = self.hold().await;
        let waiter = self.wait().await;
        self.break_with(other, 0, BreakMode::Forced).await;
        waiter.until_granted().await;
    }

    async fn break_with(&self, other: &dyn LockDriver, at: usize, mode: BreakMode) {
        let queue = expected(other.inspect(&self.key).await).queue;
        let record = BreakRecord::new(ClientIdentity::of_this_process(), mode, None);
        let broken = other.break_claim(&self.key, queue[at].token, mode, &record).await;
        assert!(expected(broken), "it is there");
    }

    /// A waiter reads the queue when the answer is lost that would have granted it: it was the only message.
    pub async fn a_lost_answer_is_made_up_for(&self) {
        let Self { driver, proxy, .. } = self;
        for fault in [ProxyFault::Cut, ProxyFault::Mute] {
            let holder = self.hold().await;
            let [first, second] = [self.wait().await, self.wait().await];
            expected(driver.release(&holder).await);
            let (holder, _) = first.until_granted().await;
            let mut struck = match fault {
                ProxyFault::Cut => proxy.fault(fault, When::Answer(1)),
                _ => proxy.fault(fault, When::Request(1)),
            };
            let releasing = tokio::spawn({
                let (driver, holder) = (driver.clone(), holder.clone());
                async move { driver.release(&holder).await }
            });
            soon("the fault", struck.struck()).await;
            let (next, grant) = second.until_granted().await;
            assert!(sent(&grant) <= SteadyClock.now());
            let _ = expected(releasing.await);
            expected(proxy.heal().await);
            self.release_soon(&next).await;
        }
    }

    /// Releases a claim, again while that fails.
    pub async fn release_soon(&self, claim: &Arc<Claim>) {
        soon("a release", async { while self.driver.release(claim).await.is_err() {} }).await;
    }
}
