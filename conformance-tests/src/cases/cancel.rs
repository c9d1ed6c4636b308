//! Futures that are dropped, at every place where they can be, leave nothing behind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::capabilities::WakeUp;
use lockkit_core::driver::{Acquisition, Attempted, BreakMode, LockDriver, Patience, Released};
use lockkit_core::{Claim, Error, Mode};

use crate::context::{CaseContext, LONG, MustSucceed, PATIENCE};
use crate::listing::record;
use crate::wrap::tampers::{Severed, Stuck};
use crate::wrap::{self, Tampered};

pub async fn cancel_01_a_lock_dropped_while_queued_leaves_nothing(context: CaseContext) {
    let manager = context.manager().await;
    let driver = context.driver().await;
    let held = manager.mutex("a").lock().await.expect("it is free");
    for _ in 0..3 {
        let waiting = tokio::spawn({
            let mutex = manager.mutex("a");
            async move { mutex.lock().await }
        });
        context.waiters(&driver, &context.key("a"), 1).await;
        waiting.abort();
        let _ = waiting.await;
        context.waiters(&driver, &context.key("a"), 0).await;
    }
    assert!(held.is_valid());
    held.release().await.expect("it was held");
    driver.grant(&context.exclusive("a")).await;
}

pub async fn cancel_02_a_lock_dropped_while_being_granted_leaves_nothing(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let driver = context.driver().await;
    for round in 0..20_u32 {
        let held = ours.mutex("a").lock().await.expect("it is free again");
        let waiting = tokio::spawn({
            let mutex = theirs.mutex("a");
            async move { mutex.lock().await.map(drop) }
        });
        context.waiters(&driver, &context.key("a"), 1).await;
        let releasing = tokio::spawn(held.release());
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        let _ = waiting.await;
        releasing.await.expect("no panic").expect("it was held");
        // Its lease would last far longer than this waits.
        context.free(&driver, &context.key("a"), PATIENCE).await;
    }
}

pub async fn cancel_03_an_operation_dropped_at_any_await_point_leaves_nothing(
    context: CaseContext,
) {
    for verb in Dropped::ALL {
        let mut polls = 0;
        loop {
            polls += 1;
            assert!(polls < 10_000, "{verb:?} never ends");
            if verb.dropped_after(&context, polls).await {
                break;
            }
        }
    }
    lock_dropped_everywhere(&context).await;
}

/// A verb to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    AcquireFree,
    AcquireQueued,
    Granted,
    RenewHolder,
    RenewWaiter,
    Release,
    Downgrade,
    Break,
    Inspect,
}

impl Dropped {
    const ALL: [Self; 9] = [
        Self::AcquireFree,
        Self::AcquireQueued,
        Self::Granted,
        Self::RenewHolder,
        Self::RenewWaiter,
        Self::Release,
        Self::Downgrade,
        Self::Break,
        Self::Inspect,
    ];

    /// Polls the verb so many times and drops it; says whether it had ended by then. Panics when
    /// the lock is not as it must be afterwards.
    async fn dropped_after(self, context: &CaseContext, polls: u32) -> bool {
        let name = format!("{self:?} {polls}");
        let (driver, other) = (context.driver().await, context.driver().await);
        let (claim, holder) = (context.exclusive(&name), context.exclusive(&name));
        let waits = matches!(self, Self::AcquireQueued | Self::Granted | Self::RenewWaiter);
        if waits {
            other.grant(&holder).await;
        }
        match self {
            Self::AcquireFree | Self::AcquireQueued => {}
            Self::Granted | Self::RenewWaiter => drop(driver.queue(&claim).await),
            _ => drop(driver.grant(&claim).await),
        }
        let ended = self.poll(context, &driver, &claim, polls).await;
        if self == Self::Granted && context.has_line() {
            // Dropping it leaves the claim in the queue.
            let line = context.queue(&other, &claim.key).await;
            assert_eq!(line.len(), 2, "{name}: the wait was dropped, not the place: {line:?}");
        }
        let what = format!("{name}: everything can be released");
        context
            .until(PATIENCE, &what, || async {
                // Again and again, as core does when it does not know what became of a request.
                let ours = driver.release(&claim).await;
                let theirs = other.release(&holder).await;
                let gone = |r: &Result<Released, Error>| matches!(r, Ok(Released::NoSuchLock));
                (gone(&ours) && gone(&theirs)).then_some(())
            })
            .await;
        // What was dropped may act for a moment longer, but then it must let go as well.
        let probe = context.exclusive(&name);
        context
            .until(PATIENCE, &format!("{name}: the lock is free"), || async {
                let answer = other.acquire(&probe, Patience::Try).await;
                matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. }))
                    .then_some(())
            })
            .await;
        assert_eq!(other.let_go(&probe).await, Released::Removed, "{name}");
        let line = context.queue(&other, &claim.key).await;
        assert!(line.is_empty(), "{name}: something was left behind: {line:?}");
        // Waits end only when their lock is released, so a few polls of them are enough.
        ended || (self == Self::Granted && polls >= 3)
    }

    async fn poll(
        self,
        context: &CaseContext,
        driver: &Arc<dyn LockDriver>,
        claim: &Arc<Claim>,
        polls: u32,
    ) -> bool {
        let ours = std::slice::from_ref(claim);
        match self {
            Self::AcquireFree => some_polls(polls, driver.acquire(claim, Patience::Try)).await,
            Self::AcquireQueued => some_polls(polls, driver.acquire(claim, Patience::Wait)).await,
            Self::Granted => some_polls(polls, driver.granted(claim)).await,
            Self::RenewHolder | Self::RenewWaiter => some_polls(polls, driver.renew(ours)).await,
            Self::Release => some_polls(polls, driver.release(claim)).await,
            Self::Downgrade => some_polls(polls, driver.downgrade(claim)).await,
            Self::Inspect => some_polls(polls, driver.inspect(&claim.key)).await,
            Self::Break => {
                let token = context.queue(driver, &claim.key).await[0].token;
                let why = record("the case says so", true);
                let breaking = driver.break_claim(&claim.key, token, BreakMode::Forced, &why);
                some_polls(polls, breaking).await
            }
        }
    }
}

/// The same for what users drop, at each of its await points.
async fn lock_dropped_everywhere(context: &CaseContext) {
    let driver = context.driver().await;
    let manager = context.manager().await;
    for polls in 1..10_000 {
        let name = format!("lock {polls}");
        let ended = some_polls(polls, manager.mutex(&name).lock()).await;
        let what = context.key(&name);
        context.free(&driver, &what, PATIENCE).await;
        if ended {
            break;
        }
    }
    for polls in 1..6 {
        let name = format!("queued {polls}");
        let holder = context.exclusive(&name);
        driver.grant(&holder).await;
        let mutex = manager.mutex(&name);
        let mut waiting = Box::pin(mutex.lock());
        // Into the line first, then released while it is polled on.
        let in_line = context.waiters(&driver, &holder.key, 1);
        tokio::select! {
            _ = &mut waiting => panic!("it is held by another"),
            () = in_line => {}
        }
        driver.let_go(&holder).await;
        some_polls(polls, waiting).await;
        context.free(&driver, &holder.key, PATIENCE).await;
    }
}

/// Polls a future so many times and drops it; says whether it ended. One that waits for what does
/// not come counts as having had all its polls.
async fn some_polls<F: Future>(polls: u32, future: F) -> bool {
    let quiet = Duration::from_millis(250);
    let polled = tokio::time::timeout(quiet, wrap::some_polls(polls, future)).await;
    matches!(polled, Ok(Some(_)))
}

pub async fn cancel_04_a_timeout_comes_in_time_and_leaves_nothing(context: CaseContext) {
    let manager = context.manager().await;
    let driver = context.driver().await;
    let _held = context.manager().await.mutex("a").lock().await.expect("it is free");
    let wait = Duration::from_millis(200);
    let late = match context.capabilities().wake_up {
        WakeUp::Poll { within } => Duration::from_millis(300).max(within),
        _ => Duration::from_millis(300),
    };
    let mut quickest = Duration::MAX;
    // Once in time is enough: a busy machine may be late, a driver that blocks always is.
    for _ in 0..10 {
        let start = tokio::time::Instant::now();
        let answer = manager.mutex("a").try_lock_for(wait).await.expect("it works");
        let took = start.elapsed();
        assert!(answer.is_none(), "another holds it");
        assert!(took >= wait, "it gave up after {took:?}");
        context.waiters(&driver, &context.key("a"), 0).await;
        quickest = quickest.min(took);
        if quickest <= wait + late {
            return;
        }
    }
    panic!("asked to wait {wait:?}, it took {quickest:?} at best");
}

pub async fn cancel_05_timeout_busy_and_failure_are_distinct(context: CaseContext) {
    let severed = Arc::new(Severed::for_good());
    let driver = Tampered::new(context.driver().await, severed.clone());
    let ttl = context.lively();
    let manager = context.manager_with(Arc::new(driver), |s| s.ttl(ttl).wait_ttl(ttl));
    let driver = context.driver().await;
    driver.grant(&context.exclusive("a")).await;
    let mutex = manager.mutex("a");
    let busy = context.soon("an answer", mutex.try_lock()).await;
    assert!(matches!(busy, Ok(None)), "busy is not an error: {busy:?}");
    let timed_out = context.soon("an answer", mutex.try_lock_for(Duration::from_millis(50))).await;
    assert!(matches!(timed_out, Ok(None)), "a timeout is not an error: {timed_out:?}");
    let free = context.soon("an answer", manager.mutex("b").try_lock_for(PATIENCE)).await;
    assert!(matches!(free, Ok(Some(_))), "{free:?}");
    severed.cut();
    let failed = context.soon("an answer", mutex.try_lock()).await;
    assert!(matches!(failed, Err(Error::Backend { .. })), "{failed:?}");
    let failed = context.soon("an answer", mutex.try_lock_for(PATIENCE)).await;
    assert!(matches!(failed, Err(Error::Backend { .. })), "{failed:?}");
}

pub async fn cancel_06_an_acquire_that_arrives_after_its_release_leaves_no_ghost(
    context: CaseContext,
) {
    let stuck = Arc::new(Stuck::default());
    let driver = Arc::new(Tampered::new(context.driver().await, stuck.clone()));
    let other = context.driver().await;
    let claim = context.exclusive("b");
    other.grant(&claim).await;
    for (i, name) in (0..).zip(["a", "b"]) {
        // One of its own for each: a release shares no request with the other's acquire.
        let manager = context.manager_over(driver.clone());
        let waiting = tokio::spawn({
            let mutex = manager.mutex(name);
            async move { mutex.lock().await.map(drop) }
        });
        let sent = || async { (stuck.sent() > i).then_some(()) };
        context.until(PATIENCE, "the request has left", sent).await;
        let releases = stuck.released();
        waiting.abort();
        let _ = waiting.await;
        // The queue is empty yet.
        let overtaken = || async { (stuck.released() > releases).then_some(()) };
        context.until(PATIENCE, "its release has overtaken it", overtaken).await;
    }
    stuck.let_through();
    let arrived = || async { (stuck.arrived() >= 2).then_some(()) };
    context.until(PATIENCE, "both requests have arrived", arrived).await;
    // Long before their leases of five minutes are over.
    context.free(&other, &context.key("a"), PATIENCE).await;
    context.waiters(&other, &claim.key, 0).await;
    other.holds(&claim).await;
    ghosts_end_by_themselves(&context).await;
}

/// And where a ghost is not released, because its process died, its lease ends it.
async fn ghosts_end_by_themselves(context: &CaseContext) {
    let driver = context.driver().await;
    let ttl = context.short();
    let claim = context.claim_for("c", Mode::Exclusive, ttl);
    assert_eq!(driver.let_go(&claim).await, Released::NoSuchLock);
    driver.grant(&claim).await;
    context.free(&driver, &claim.key, context.after(ttl)).await;
    assert!(ttl < LONG);
}
