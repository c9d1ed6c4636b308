//! The mirror between two of its own requests: what is released, dropped or renewed meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_compose::MirrorDriver;
use lockkit_conformance::wrap::{DriverMethod, Tamper, Tampered};
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, Renewal};
use lockkit_core::{Claim, ClientIdentity, Error, Key, MemoryDriver, Mode, Name, Namespace, Space};
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Longer than a test takes: nothing ends because its lease does.
const TTL: Duration = Duration::from_secs(600);

fn claim() -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
    let client = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, client))
}

/// Stops calls of one method until they are let through, or has them fail.
#[derive(Debug)]
struct Stops {
    method: DriverMethod,
    /// Stopped after they were carried out, not before.
    after: bool,
    armed: AtomicBool,
    fails: AtomicBool,
    arrived: Semaphore,
    through: Semaphore,
}

impl Stops {
    async fn stop(&self, method: DriverMethod) {
        if method == self.method && self.armed.load(Ordering::SeqCst) {
            self.arrived.add_permits(1);
            self.through.acquire().await.unwrap().forget();
        }
    }

    async fn arrival(&self) {
        self.arrived.acquire().await.unwrap().forget();
    }
}

#[async_trait]
impl Tamper for Stops {
    async fn before(&self, method: DriverMethod) -> Result<(), Error> {
        if !self.after {
            self.stop(method).await;
        }
        match method == self.method && self.fails.load(Ordering::SeqCst) {
            true => Err(Error::retryable("tampered", "no answer came")),
            false => Ok(()),
        }
    }

    async fn after(&self, method: DriverMethod) -> Result<(), Error> {
        if self.after {
            self.stop(method).await;
        }
        Ok(())
    }

    /// A request that was sent arrives although its caller has gone.
    fn continues(&self, method: DriverMethod) -> bool {
        method == DriverMethod::Acquire
    }
}

/// A mirror whose requests to the new backend can be stopped.
struct Stage {
    old: MemoryDriver,
    new: MemoryDriver,
    stops: Arc<Stops>,
    mirror: Arc<MirrorDriver>,
}

impl Stage {
    fn new(method: DriverMethod, after: bool) -> Self {
        let (old, new) = (MemoryDriver::new(), MemoryDriver::new());
        let stops = Arc::new(Stops {
            method,
            after,
            armed: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            arrived: Semaphore::new(0),
            through: Semaphore::new(0),
        });
        let slow = Arc::new(Tampered::new(Arc::new(new.clone()), stops.clone()));
        let mirror = Arc::new(MirrorDriver::new(Arc::new(old.clone()), slow));
        Self { old, new, stops, mirror }
    }

    /// A claim that waits at one of the two for another, which then lets go.
    async fn about_to_hold(&self, at: &MemoryDriver) -> Arc<Claim> {
        let (first, mine) = (claim(), claim());
        at.acquire(&first, Patience::Try).await.unwrap();
        let answer = self.mirror.acquire(&mine, Patience::Wait).await.unwrap().result;
        assert!(matches!(answer, Acquisition::Queued { .. }), "{answer:?}");
        self.stops.armed.store(true, Ordering::SeqCst);
        at.release(&first).await.unwrap();
        mine
    }

    fn renewal(&self, claim: &Arc<Claim>) -> tokio::task::JoinHandle<Renewal> {
        let (mirror, claim) = (self.mirror.clone(), claim.clone());
        tokio::spawn(async move { mirror.renew_single(&claim).await.unwrap() })
    }

    /// After the release of the only claim, and the time in which what is late is taken back.
    async fn nothing_is_left(&self) {
        self.stops.armed.store(false, Ordering::SeqCst);
        self.stops.through.add_permits(8);
        sleep(Duration::from_secs(5)).await;
        for (name, driver) in [("old", &self.old), ("new", &self.new)] {
            let queue = driver.inspect(&claim().key).await.unwrap().queue;
            assert!(queue.is_empty(), "{name}: {queue:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_released_while_a_renewal_takes_it_to_the_new_backend_is_not_left_there() {
    let stage = Stage::new(DriverMethod::Acquire, false);
    let claim = stage.about_to_hold(&stage.old).await;
    let renewal = stage.renewal(&claim);
    stage.stops.arrival().await;
    assert_eq!(stage.mirror.release(&claim).await.unwrap(), Released::Removed);
    stage.stops.through.add_permits(1);
    assert!(matches!(renewal.await.unwrap(), Renewal::Ended(_)));
    stage.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_on_its_way_to_the_new_backend_leaves_nothing_there() {
    let stage = Stage::new(DriverMethod::Acquire, false);
    let claim = stage.about_to_hold(&stage.old).await;
    let (mirror, waiting) = (stage.mirror.clone(), claim.clone());
    let waiting = tokio::spawn(async move { mirror.granted(&waiting).await });
    stage.stops.arrival().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(stage.mirror.release(&claim).await.unwrap(), Released::Removed);
    stage.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_renewal_that_arrives_after_the_release_leaves_nothing() {
    let stage = Stage::new(DriverMethod::Acquire, false);
    let claim = stage.about_to_hold(&stage.old).await;
    stage.stops.armed.store(false, Ordering::SeqCst);
    stage.stops.fails.store(true, Ordering::SeqCst);
    assert!(matches!(stage.renewal(&claim).await.unwrap(), Renewal::Waits { .. }));
    stage.stops.fails.store(false, Ordering::SeqCst);
    assert_eq!(stage.mirror.release(&claim).await.unwrap(), Released::Removed);
    // The request of which no answer came.
    stage.new.acquire(&claim, Patience::Wait).await.unwrap();
    stage.nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_beside_a_grant_does_not_take_the_claim_out_of_the_new_queue() {
    let stage = Stage::new(DriverMethod::TokenBase, true);
    let claim = stage.about_to_hold(&stage.new).await;
    let (mirror, waiting) = (stage.mirror.clone(), claim.clone());
    let granted = tokio::spawn(async move { mirror.granted(&waiting).await });
    // It has read the base of now.
    stage.stops.arrival().await;
    stage.new.raise_namespace_counter(&claim.key.namespace, 1 << 60).await.unwrap();
    let mut renewal = stage.renewal(&claim);
    let renewed = tokio::select! {
        renewed = &mut renewal => Some(renewed.unwrap()),
        () = stage.stops.arrival() => None,
    };
    stage.stops.through.add_permits(1);
    let grant = granted.await.unwrap().unwrap();
    assert!(grant.token.get() < 1 << 60, "the guard has the token of the old one");
    stage.stops.armed.store(false, Ordering::SeqCst);
    stage.stops.through.add_permits(8);
    if renewed.is_none() {
        renewal.await.unwrap();
    }
    let queue = stage.new.inspect(&claim.key).await.unwrap().queue;
    assert!(queue.iter().any(|claim| claim.holds()), "{queue:?}");
    let next = stage.mirror.renew_single(&claim).await.unwrap();
    assert!(matches!(next, Renewal::Holds(held) if held.token == grant.token), "{next:?}");
}
