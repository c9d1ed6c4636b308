//! Times that a driver declares are upper bounds. A machine that is busy with other things makes
//! everything late now and then, so a bound must hold in one of several attempts; what is late by
//! design is late in each.

use std::time::Duration;

use lockkit_core::capabilities::WakeUp;
use lockkit_core::driver::BreakMode;
use lockkit_core::{Mode, Space};
use tokio::time::Instant;

use crate::context::{CaseContext, MustSucceed};

/// What the way from the server to the one who waits may take where the server tells it.
const PUSH: Duration = Duration::from_millis(500);

/// What a machine with other things to do adds.
const MARGIN: Duration = Duration::from_millis(250);

const ATTEMPTS: u32 = 5;

/// Hand-overs in a row that are all in time: who polls too seldom is in time by luck at times.
const IN_A_ROW: u32 = 5;

pub async fn time_01_a_release_hands_over_within_the_declared_time(context: CaseContext) {
    let declared = declared(&context);
    let mut worst = Vec::new();
    for series in 0..ATTEMPTS {
        let mut slowest = Duration::ZERO;
        for i in 0..IN_A_ROW {
            // At any moment between two looks of one who polls.
            let after = declared * i / IN_A_ROW;
            slowest = slowest.max(handed_over(&context, &format!("{series}.{i}"), after).await);
        }
        if slowest <= declared + MARGIN {
            return;
        }
        worst.push(slowest);
    }
    panic!("declared: {declared:?}; the slowest of {IN_A_ROW}, time and again: {worst:?}");
}

/// How long after a release the next one has the lock.
async fn handed_over(context: &CaseContext, name: &str, after: Duration) -> Duration {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let guard = ours.mutex(name).lock().await.expect("it is free");
    let waiting = tokio::spawn({
        let mutex = theirs.mutex(name);
        async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) }
    });
    context.waiters(ours.driver(), &context.key(name), 1).await;
    tokio::time::sleep(after).await;
    let released = Instant::now();
    guard.release().await.expect("it was held");
    let next = context.soon("the next gets it", waiting).await.expect("no panic");
    let (at, guard) = next.expect("its turn");
    drop(guard);
    at.saturating_duration_since(released)
}

pub async fn time_02_a_dead_holder_s_lock_is_handed_over_within_the_declared_time(
    context: CaseContext,
) {
    let driver = context.driver().await;
    let ttl = context.short();
    let mut late = Vec::new();
    for attempt in 0..ATTEMPTS {
        let dead = context.claim_for(&format!("{attempt}"), Mode::Exclusive, ttl);
        let asked = Instant::now();
        let granted = driver.grant(&dead).await.ttl;
        let bound = granted + context.capabilities().expiry_slack + declared(&context) + MARGIN;
        let waiter = context.manager().await;
        let mutex = waiter.mutex(dead.key.name.as_str());
        let next = context.within(context.after(granted), "the next gets it", mutex.lock()).await;
        let passed = asked.elapsed();
        drop(next.expect("its turn"));
        if passed <= bound {
            return;
        }
        late.push((passed, bound));
    }
    panic!("handed over, and when it should have been at the latest: {late:?}");
}

pub async fn time_03_a_holder_learns_of_a_break_within_a_renewal_interval(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let ttl = context.lively();
    let bound = ttl / 3 + PUSH + MARGIN;
    let mut late = Vec::new();
    for attempt in 0..ATTEMPTS {
        let name = format!("{attempt}");
        let guard = ours.mutex(&name).ttl(ttl).lock().await.expect("it is free");
        let token = guard.token().expect("it holds");
        let broken =
            theirs.admin().break_lock(Space::Lock, &name, token, BreakMode::Forced, None).await;
        let broken_at = Instant::now();
        assert!(broken.expect("it works"), "there was somebody to break");
        context.within(context.after(ttl), "the holder is told", guard.lost()).await;
        let took = broken_at.elapsed();
        if took <= bound {
            return;
        }
        late.push(took);
    }
    panic!("a lease of {ttl:?} is renewed after {:?}; its holder was told after {late:?}", ttl / 3);
}

/// The time between a release and the next one's knowing of it, at worst.
fn declared(context: &CaseContext) -> Duration {
    match context.capabilities().wake_up {
        WakeUp::Poll { within } => within,
        _ => PUSH,
    }
}
