//! Who comes first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::Claim;
use lockkit_core::driver::Renewal;
use tokio::task::JoinSet;

use super::contention::finish;
use crate::context::{CaseContext, LONG, MustSucceed, undisturbed};

pub async fn order_01_waiters_are_granted_in_the_order_of_the_queue(context: CaseContext) {
    const WAITERS: usize = 20;
    let drivers = [context.driver().await, context.driver().await];
    let holder = context.exclusive("a");
    drivers[0].grant(&holder).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..WAITERS {
        let (driver, claim) = (drivers[i % 2].clone(), context.exclusive("a"));
        assert_eq!(driver.queue(&claim).await as usize, i + 1);
        let order = order.clone();
        tasks.spawn(async move {
            driver.turn(&claim).await;
            order.lock().unwrap().push(i);
            driver.let_go(&claim).await;
        });
    }
    drivers[0].let_go(&holder).await;
    finish(tasks).await;
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted(), "granted in the order {order:?}");
}

pub async fn order_02_a_try_never_overtakes_a_queue(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    // A reader holds, a writer waits: another reader would fit beside the first.
    let (reader, writer) = (context.shared("a"), context.exclusive("a"));
    ours.grant(&reader).await;
    ours.queue(&writer).await;
    theirs.refuse(&context.shared("a")).await;
    // The writer's turn has come although it has not looked yet.
    ours.let_go(&reader).await;
    theirs.refuse(&context.shared("a")).await;
    theirs.refuse(&context.exclusive("a")).await;
    ours.turn(&writer).await;

    if context.capabilities().permits {
        let (small, large) = (context.permits("s", 1, 2), context.permits("s", 2, 2));
        ours.grant(&small).await;
        ours.queue(&large).await;
        theirs.refuse(&context.permits("s", 1, 2)).await;
    }
}

pub async fn order_03_a_waiter_that_gave_up_is_skipped(context: CaseContext) {
    let driver = context.driver().await;
    let claims = [0; 4].map(|_| context.exclusive("a"));
    driver.grant(&claims[0]).await;
    for claim in &claims[1..] {
        driver.queue(claim).await;
    }
    driver.let_go(&claims[1]).await;
    driver.let_go(&claims[0]).await;
    driver.turn(&claims[2]).await;
    // One that gives up while it is the next, the holder still being there.
    let last = context.exclusive("a");
    driver.queue(&last).await;
    driver.let_go(&claims[3]).await;
    driver.let_go(&claims[2]).await;
    driver.turn(&last).await;

    if !context.has_line() {
        return;
    }
    // A writer that gives up lets the readers behind it in, beside the reader that holds.
    let (reader, writer, next) = (context.shared("b"), context.exclusive("b"), context.shared("b"));
    driver.grant(&reader).await;
    driver.queue(&writer).await;
    driver.queue(&next).await;
    let turn = tokio::spawn({
        let (driver, next) = (driver.clone(), next.clone());
        async move { driver.turn(&next).await }
    });
    driver.let_go(&writer).await;
    turn.await.expect("the reader behind the writer that left gets in");

    // One of another process that gives up between the holder and a waiter does not let the waiter in.
    let theirs = context.driver().await;
    let [holder, between, last] = [0; 3].map(|_| context.exclusive("c"));
    theirs.grant(&holder).await;
    theirs.queue(&between).await;
    driver.queue(&last).await;
    let mut turn = tokio::spawn({
        let (driver, last) = (driver.clone(), last.clone());
        async move { driver.turn(&last).await }
    });
    theirs.let_go(&between).await;
    let early = tokio::time::timeout(Duration::from_millis(300), &mut turn).await;
    assert!(early.is_err(), "the holder is still there: {early:?}");
    theirs.let_go(&holder).await;
    turn.await.expect("the waiter behind the holder gets in");
}

pub async fn order_04_a_waiter_that_died_is_skipped_after_its_lease(context: CaseContext) {
    let driver = context.driver().await;
    let holder = context.exclusive("a");
    let mut dead = Claim::clone(&context.exclusive("a"));
    dead.wait_ttl = context.short();
    let (dead, alive) = (Arc::new(dead), context.exclusive("a"));
    driver.grant(&holder).await;
    driver.queue(&dead).await;
    driver.queue(&alive).await;
    let limit = context.after(context.short());
    context
        .until(limit, "the dead waiter is no longer behind the holder", || async {
            let answer = driver.renew_one(&alive).await;
            matches!(answer, Renewal::Waits { ahead: 1 }).then_some(())
        })
        .await;
    driver.let_go(&holder).await;
    driver.turn(&alive).await;
}

pub async fn order_05_readers_that_come_after_a_waiting_writer_wait(context: CaseContext) {
    let driver = context.driver().await;
    let (early, writer, late) = (context.shared("a"), context.exclusive("a"), context.shared("a"));
    driver.grant(&early).await;
    driver.queue(&writer).await;
    assert_eq!(driver.queue(&late).await, 2);
    driver.let_go(&early).await;
    let first = driver.turn(&writer).await;
    let line = context.queue(&driver, &late.key).await;
    assert!(!line[1].holds(), "the late reader still waits: {line:?}");
    driver.let_go(&writer).await;
    let second = driver.turn(&late).await;
    assert!(second.token > first.token);
}

pub async fn order_06_readers_at_the_front_enter_together(context: CaseContext) {
    let driver = context.driver().await;
    let writer = context.exclusive("a");
    driver.grant(&writer).await;
    let readers = [0; 5].map(|_| context.shared("a"));
    for reader in &readers {
        driver.queue(reader).await;
    }
    let next_writer = context.exclusive("a");
    driver.queue(&next_writer).await;
    driver.let_go(&writer).await;
    for reader in &readers {
        driver.turn(reader).await;
    }
    let line = context.queue(&driver, &writer.key).await;
    let holding = line.iter().filter(|s| s.holds()).count();
    assert_eq!(holding, 5, "all five readers hold, and the writer waits: {line:?}");
    for reader in &readers {
        driver.let_go(reader).await;
    }
    driver.turn(&next_writer).await;
}

pub async fn order_07_no_claim_starves_under_a_mix_of_readers_and_writers(context: CaseContext) {
    let rounds = 10;
    let mut tasks = JoinSet::new();
    // Two managers with short waiting leases, so that the waiters have to be renewed as well.
    for _ in 0..2 {
        let wait_ttl = context.lively();
        let manager =
            context.manager_with(context.driver().await, |s| s.ttl(LONG).wait_ttl(wait_ttl));
        for reads in [true, true, false] {
            let lock = manager.rwlock("a");
            tasks.spawn(async move {
                for _ in 0..rounds {
                    if reads {
                        let guard = lock.read().await.expect("a reader gets in");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        guard.release().await.expect("it was held");
                    } else {
                        let guard = lock.write().await.expect("a writer gets in");
                        guard.release().await.expect("it was held");
                    }
                }
            });
        }
    }
    finish(tasks).await;
    undisturbed(context.lively(), |ttl, name| kept_queued_by_renewal(&context, ttl, name)).await;
}

/// A waiter outlasts its waiting lease by being renewed, and keeps its place.
async fn kept_queued_by_renewal(context: &CaseContext, wait_ttl: Duration, name: String) {
    let driver = context.driver().await;
    let holder = context.exclusive(&name);
    driver.grant(&holder).await;
    let manager = context.manager_with(context.driver().await, |s| s.wait_ttl(wait_ttl));
    let waiter = tokio::spawn(async move { manager.mutex(&name).lock().await });
    context.waiters(&driver, &holder.key, 1).await;
    let token = context.queue(&driver, &holder.key).await[1].token;
    tokio::time::sleep(wait_ttl.mul_f64(1.2)).await;
    let line = context.queue(&driver, &holder.key).await;
    assert_eq!(line.len(), 2, "the waiter was renewed: {line:?}");
    assert_eq!(line[1].token, token, "it kept its place");
    driver.let_go(&holder).await;
    let guard = context.soon("the waiter gets it", waiter).await;
    let guard = guard.expect("no panic").expect("it is its turn");
    assert_eq!(guard.token().expect("it holds"), token);
}
