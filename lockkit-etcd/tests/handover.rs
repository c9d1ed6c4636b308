//! One contended lock within a driver: what a hand-over costs, and what becomes of its waiters when
//! claims of the queue end in other ways, or answers are lost.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, BreakMode, Grant, LeaseStart, LockDriver, Patience, Released,
};
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Error, Key, LossReason, Mode, Name, Namespace, Space,
};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::proxy::{Fault, Protocol, When};
use lockkit_lab::{Kind, Proxy, Server};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(300);
/// Long enough for a machine that stalls; never waited out.
const PATIENCE: Duration = Duration::from_secs(40);

fn claim() -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG / 2, me))
}

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

/// A server, and a driver behind a proxy.
async fn proxied() -> (Server, Proxy, Arc<EtcdDriver>) {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let driver = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    (server, proxy, Arc::new(driver))
}

/// A claim that waits for its turn in a task.
struct Waiter {
    claim: Arc<Claim>,
    granted: JoinHandle<Result<Grant, Error>>,
}

impl Waiter {
    /// Queued, with a task that waits.
    async fn new(driver: &Arc<EtcdDriver>) -> Self {
        let claim = claim();
        let queued = driver.acquire(&claim, Patience::Wait).await.unwrap().result;
        assert!(matches!(queued, Acquisition::Queued { .. }), "{queued:?}");
        Self::of(driver, claim).await
    }

    /// The task of a claim that was queued; returns when it has begun to wait.
    async fn of(driver: &Arc<EtcdDriver>, claim: Arc<Claim>) -> Self {
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

    async fn turn(self) -> (Arc<Claim>, Grant) {
        let granted = soon("its turn", self.granted).await.unwrap();
        (self.claim, granted.expect("it holds"))
    }

    async fn loss(self) -> Option<LossReason> {
        soon("word of its end", self.granted).await.unwrap().expect_err("it ended").loss().cloned()
    }
}

async fn hold(driver: &EtcdDriver) -> Arc<Claim> {
    let claim = claim();
    let granted = driver.acquire(&claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(granted, Acquisition::Granted(_)), "{granted:?}");
    claim
}

fn sent(grant: &Grant) -> Moment {
    match grant.start {
        LeaseStart::Sent(moment) => moment,
        LeaseStart::LastAnswered => panic!("the lease is shared"),
    }
}

fn record(mode: BreakMode) -> BreakRecord {
    BreakRecord::new(ClientIdentity::of_this_process(), mode, None)
}

/// One request: the holder leaves, and another claim comes.
async fn hand_over(driver: &Arc<EtcdDriver>, holder: &Arc<Claim>) -> Waiter {
    let acquires = [Acquire { claim: claim(), patience: Patience::Wait }];
    let batch = Batch { releases: std::slice::from_ref(holder), acquires: &acquires };
    let outcome = driver.submit(batch).await.unwrap();
    assert_eq!(outcome.released[0].as_ref().unwrap().result, Released::Removed);
    let acquired = &outcome.acquired[0].as_ref().unwrap().result;
    assert!(matches!(acquired, Acquisition::Queued { .. }), "{acquired:?}");
    Waiter::of(driver, acquires[0].claim.clone()).await
}

#[tokio::test]
async fn a_hand_over_within_a_process_is_one_request_and_no_message() {
    const ROUNDS: u32 = 200;
    let (_server, proxy, driver) = proxied().await;
    let mut holder = hold(&driver).await;
    let mut queue = std::collections::VecDeque::new();
    for _ in 0..63 {
        queue.push_back(Waiter::new(&driver).await);
    }
    // The first hand-over may read, since the first waiter may watch by now.
    let mut before = None;
    proxy.reset();
    for round in 0..=ROUNDS {
        queue.push_back(hand_over(&driver, &holder).await);
        let (next, grant) = queue.pop_front().unwrap().turn().await;
        assert!(before < Some(grant.token), "in order: {before:?}, {:?}", grant.token);
        (holder, before) = (next, Some(grant.token));
        if round == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.reset();
        }
    }
    let counts = proxy.counts();
    println!("{ROUNDS} hand-overs: {counts:?}");
    assert!(counts.requests <= u64::from(ROUNDS) + u64::from(ROUNDS) / 5, "{counts:?}");
    assert!(counts.pushes <= u64::from(ROUNDS) / 10, "{counts:?}");
}

#[tokio::test]
async fn a_hand_over_between_two_processes_is_six_requests_and_two_messages_at_most() {
    const ROUNDS: u64 = 100;
    let (server, proxy, ours) = proxied().await;
    let theirs = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let (drivers, mut queue) = ([ours, Arc::new(theirs)], std::collections::VecDeque::new());
    let mut holder = (0, hold(&drivers[0]).await);
    for n in 1..64 {
        queue.push_back((n % 2, Waiter::new(&drivers[n % 2]).await));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.reset();
    for _ in 0..ROUNDS {
        let (process, claim) = holder;
        queue.push_back((process, hand_over(&drivers[process], &claim).await));
        let (process, next) = queue.pop_front().unwrap();
        holder = (process, next.turn().await.0);
    }
    let counts = proxy.counts();
    println!("{ROUNDS} hand-overs between two: {counts:?}");
    // The hand-over, the move to the lease of a holder, and four changes of watches: two begin and two end.
    // (At times a waiter watches earlier than it would have to.)
    assert!((6 * ROUNDS - 5..=6 * ROUNDS + ROUNDS / 2).contains(&counts.requests), "{counts:?}");
    // That the key ahead has gone; and that the next one holds now, to a waiter that watches it already.
    assert!((ROUNDS..=2 * ROUNDS).contains(&counts.pushes), "{counts:?}");
}

#[tokio::test]
async fn a_release_by_itself_lets_the_next_claim_hold_with_its_own_answer() {
    let (_server, proxy, driver) = proxied().await;
    let holder = hold(&driver).await;
    let [first, second] = [Waiter::new(&driver).await, Waiter::new(&driver).await];
    driver.release(&holder).await.unwrap();
    let (holder, _) = first.turn().await;
    proxy.latency(Duration::from_millis(10));
    proxy.reset();
    let asked = SteadyClock.now();
    driver.release(&holder).await.unwrap();
    let (_, grant) = second.turn().await;
    let counts = proxy.counts();
    assert_eq!((counts.requests, counts.round_trips, counts.pushes), (1, 1, 0), "{counts:?}");
    assert!(sent(&grant) <= SteadyClock.now() && sent(&grant) < asked.after(LONG / 10));
}

#[tokio::test]
async fn a_waiter_that_gives_up_with_the_holder_is_passed_over() {
    let (_server, _proxy, driver) = proxied().await;
    let holder = hold(&driver).await;
    let [heir, last] = [Waiter::new(&driver).await, Waiter::new(&driver).await];
    let leaving = [holder, heir.claim.clone()];
    heir.granted.abort();
    let outcome = driver.submit(Batch { releases: &leaving, acquires: &[] }).await.unwrap();
    for released in outcome.released {
        assert_eq!(released.unwrap().result, Released::Removed);
    }
    last.turn().await;
}

#[tokio::test]
async fn a_waiter_behind_one_that_gives_up_waits_for_the_holder() {
    let (_server, _proxy, driver) = proxied().await;
    let holder = hold(&driver).await;
    let [leaves, mut stays] = [Waiter::new(&driver).await, Waiter::new(&driver).await];
    driver.release(&leaves.claim).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), &mut stays.granted).await;
    assert!(early.is_err(), "it holds beside another: {early:?}");
    driver.release(&holder).await.unwrap();
    stays.turn().await;
}

#[tokio::test]
async fn whoever_breaks_a_claim_of_the_chain_breaks_that_claim_only() {
    let (server, _proxy, driver) = proxied().await;
    let other = EtcdDriver::connect(&server.url()).await.unwrap();
    for mode in [BreakMode::Forced, BreakMode::Graceful] {
        let record = record(mode);
        let holder = hold(&driver).await;
        let [broken, last] = [Waiter::new(&driver).await, Waiter::new(&driver).await];
        let line = other.inspect(&holder.key).await.unwrap().queue;
        let done = other.break_claim(&holder.key, line[1].token, mode, &record).await;
        assert!(done.unwrap());
        driver.release(&holder).await.unwrap();
        let loss = broken.loss().await;
        assert!(matches!(loss, Some(LossReason::Broken(_))), "{mode:?}: {loss:?}");
        if mode == BreakMode::Graceful {
            continue; // its key stays until its lease ends
        }
        let (next, _) = last.turn().await;
        driver.release(&next).await.unwrap();
    }
}

/// Nothing renews these claims: the waiter has to hear of it.
#[tokio::test]
async fn a_holder_that_others_end_is_missed_by_the_waiter_of_its_own_driver() {
    let (server, _proxy, driver) = proxied().await;
    let other = EtcdDriver::connect(&server.url()).await.unwrap();
    let holder = hold(&driver).await;
    let waiter = Waiter::new(&driver).await;
    let line = other.inspect(&holder.key).await.unwrap().queue;
    let record = record(BreakMode::Forced);
    let broken = other.break_claim(&holder.key, line[0].token, BreakMode::Forced, &record).await;
    assert!(broken.unwrap());
    waiter.turn().await;
}

/// The answer was the message: without it the waiter has to look.
#[tokio::test]
async fn a_waiter_looks_when_the_answer_that_would_have_granted_it_is_lost() {
    let (_server, proxy, driver) = proxied().await;
    for fault in [Fault::Cut, Fault::Mute] {
        let holder = hold(&driver).await;
        let [first, second] = [Waiter::new(&driver).await, Waiter::new(&driver).await];
        driver.release(&holder).await.unwrap();
        let (holder, _) = first.turn().await;
        let mut struck = match fault {
            Fault::Cut => proxy.fault(fault, When::Answer(1)),
            _ => proxy.fault(fault, When::Request(1)),
        };
        let releasing = tokio::spawn({
            let (driver, holder) = (driver.clone(), holder.clone());
            async move { driver.release(&holder).await }
        });
        soon("the fault", struck.struck()).await;
        let (next, grant) = second.turn().await;
        assert!(sent(&grant) <= SteadyClock.now());
        let _ = releasing.await.unwrap();
        proxy.heal().await.unwrap();
        soon("a release", async { while driver.release(&next).await.is_err() {} }).await;
    }
}

/// The claim ahead gave up, and no answer says that it did. (Core releases it again, which is not to be
/// relied on: a waiter that waits for a claim that is gone waits for ever.)
#[tokio::test]
async fn a_waiter_does_not_rely_on_a_claim_whose_release_got_no_answer() {
    let (_server, proxy, driver) = proxied().await;
    let holder = hold(&driver).await;
    let [gives_up, last] = [Waiter::new(&driver).await, Waiter::new(&driver).await];
    gives_up.granted.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut struck = proxy.fault(Fault::Mute, When::Request(1));
    let released = driver.release(&gives_up.claim);
    let (released, ()) = tokio::join!(released, soon("the fault", struck.struck()));
    assert!(released.is_err(), "it was answered: {released:?}");
    proxy.heal().await.unwrap();
    soon("a release", async { while driver.release(&holder).await.is_err() {} }).await;
    last.turn().await;
}
