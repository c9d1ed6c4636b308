//! Barriers: no party passes early, all pass together, those that ended do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, Mode, Space};
use tokio::task::JoinSet;

use crate::context::{CaseContext, MustSucceed, PATIENCE};

pub async fn barrier_01_no_party_leaves_before_all_have_entered(context: CaseContext) {
    let managers = [context.manager().await, context.manager().await];
    let entered = Arc::new(AtomicU32::new(0));
    let mut participants = JoinSet::new();
    for i in 0..4 {
        let (barrier, entered) = (managers[i % 2].barrier("b", 4), entered.clone());
        participants.spawn(async move {
            for round in 1..=3 {
                entered.fetch_add(1, Ordering::SeqCst);
                barrier.wait().await.expect("it is let through");
                let all = entered.load(Ordering::SeqCst);
                assert!(all >= 4 * round, "round {round} ended when {all} had entered");
            }
        });
    }
    context.soon("all leave each round", participants.join_all()).await;
    let driver = context.driver().await;
    context.free(&driver, &context.key("b"), PATIENCE).await;
}

pub async fn barrier_02_one_too_few_wait_on(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let driver = context.driver().await;
    let gave_up = ours.barrier("b", 3).wait_timeout(Duration::from_millis(300)).await;
    assert!(!gave_up.expect("it works"), "alone");
    context.free(&driver, &context.key("b"), PATIENCE).await;
    let mut participants = JoinSet::new();
    for manager in [&ours, &theirs] {
        let barrier = manager.barrier("b", 3);
        participants.spawn(async move { barrier.wait().await });
    }
    let barrier = ours.barrier("b", 3);
    let two = || async { (barrier.waiting().await.expect("it works") == 2).then_some(()) };
    context.until(PATIENCE, "two are there", two).await;
    let early = tokio::time::timeout(Duration::from_millis(300), participants.join_next()).await;
    assert!(early.is_err(), "let through although one had given up: {early:?}");
    context.soon("the third completes it", barrier.wait()).await.expect("it is let through");
    for passed in context.soon("with the others", participants.join_all()).await {
        passed.expect("it is let through");
    }
    assert_eq!(barrier.waiting().await.expect("it works"), 0);
    for count in [0, 10_001] {
        let odd = ours.barrier("odd", count).wait().await;
        assert!(matches!(odd, Err(Error::Config(_))), "{count}: {odd:?}");
    }
}

pub async fn barrier_03_a_participant_that_died_does_not_count(context: CaseContext) {
    let locks = context.manager().await;
    let driver = context.driver().await;
    // It entered, and is heard of no more.
    driver.grant(&context.claim_for("b", Mode::Shared, context.short())).await;
    let gone = context.after(context.short());
    context.free(&driver, &context.key("b"), gone).await;
    let barrier = locks.barrier("b", 2);
    let first = tokio::spawn({
        let barrier = barrier.clone();
        async move { barrier.wait().await }
    });
    let one = || async { (barrier.waiting().await.expect("it works") == 1).then_some(()) };
    context.until(PATIENCE, "one is there", one).await;
    assert!(!first.is_finished(), "the dead one was not counted");
    context.soon("a living one completes it", barrier.wait()).await.expect("it is let through");
    context.soon("with the first", first).await.expect("no panic").expect("it is let through");
}

pub async fn barrier_04_who_lost_its_claim_is_not_let_through(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let driver = context.driver().await;
    let barrier = ours.barrier("b", 2);
    let broken = tokio::spawn({
        let barrier = barrier.clone();
        async move { barrier.wait().await }
    });
    let one = || async { (barrier.waiting().await.expect("it works") == 1).then_some(()) };
    context.until(PATIENCE, "one is there", one).await;
    let token = context.queue(&driver, &context.key("b")).await[0].token;
    let done = theirs.admin().break_lock(Space::Lock, "b", token, BreakMode::Forced, None).await;
    assert!(done.expect("it works"));
    let (one, other) = (theirs.barrier("b", 2), theirs.barrier("b", 2));
    let (one, other) = context
        .soon("two others make a round", async { tokio::join!(one.wait(), other.wait()) })
        .await;
    one.and(other).expect("they are let through");
    let told = context.soon("it learns that it was not one of them", broken).await;
    let told = told.expect("no panic");
    assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
}
