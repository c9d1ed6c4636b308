//! Readers, writers, permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkit_core::driver::{BreakMode, Patience, Renewal};
use lockkit_core::{Error, Mode, Space};
use tokio::task::JoinSet;

use super::contention::finish;
use crate::context::{CaseContext, LONG, MustSucceed};
use crate::listing::record;

pub async fn modes_01_many_readers_hold_together(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let mut guards = Vec::new();
    for i in 0..10 {
        let manager = if i % 2 == 0 { &ours } else { &theirs };
        let guard = manager.rwlock("a").try_read().await.expect("it works");
        guards.push(guard.expect("a reader enters beside readers"));
    }
    assert!(guards.iter().all(|g| g.is_valid()));
    let state = ours.inspect(Space::Lock, "a").await.expect("it works");
    assert_eq!(state.holders().count(), 10);
}

pub async fn modes_02_a_writer_excludes_readers_and_writers(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let writer = ours.rwlock("a").write().await.expect("it is free");
    let lock = theirs.rwlock("a");
    assert!(lock.try_read().await.expect("it works").is_none());
    assert!(lock.try_write().await.expect("it works").is_none());
    let mutex = theirs.mutex("a").try_lock().await.expect("it works");
    assert!(mutex.is_none(), "a mutex of this name is kept out as well");
    writer.release().await.expect("it was held");
    let reader = lock.try_read().await.expect("it works").expect("it is free");
    let writer = ours.rwlock("a").try_write().await.expect("it works");
    assert!(writer.is_none(), "a reader keeps writers out");
    reader.release().await.expect("it was held");
}

pub async fn modes_03_a_downgrade_keeps_other_writers_out_all_the_way(context: CaseContext) {
    let driver = context.driver().await;
    let writer = context.exclusive("a");
    let token = driver.grant(&writer).await.token;
    let (reader, other) = (context.shared("a"), context.exclusive("a"));
    driver.queue(&reader).await;
    driver.queue(&other).await;
    for _ in 0..2 {
        match driver.downgrade(&writer).await.expect("it works") {
            Renewal::Holds(grant) => assert_eq!(grant.token, token, "its place, its token"),
            other => panic!("the downgraded claim should hold: {other:?}"),
        }
    }
    driver.turn(&reader).await;
    driver.refuse(&context.exclusive("a")).await;
    let line = context.queue(&driver, &writer.key).await;
    let roles: Vec<_> = line.iter().map(|s| (s.mode, s.holds())).collect();
    let reads = (Mode::Shared, true);
    assert_eq!(roles[..2], [reads, reads]);
    if context.has_line() {
        assert_eq!(roles[2..], [(Mode::Exclusive, false)], "the writer still waits");
    }
    let downgraded = Arc::new((*writer).clone().with_mode(Mode::Shared));
    driver.let_go(&downgraded).await;
    driver.let_go(&reader).await;
    driver.turn(&other).await;
    let answer = driver.downgrade(&writer).await.expect("it works");
    assert!(matches!(answer, Renewal::Ended(_)), "what is gone is not downgraded");

    let manager = context.manager().await;
    let guard = manager.rwlock("b").write().await.expect("it is free");
    let token = guard.token().expect("it holds");
    let guard = guard.downgrade().await.expect("it works");
    assert_eq!(guard.token().expect("it holds"), token);
    assert_eq!(guard.mode(), Mode::Shared);
    let beside = manager.rwlock("b").try_read().await.expect("it works");
    assert!(beside.is_some(), "readers enter beside it");
    assert!(manager.rwlock("b").try_write().await.expect("it works").is_none());
}

pub async fn modes_04_a_semaphore_never_gives_more_than_its_limit(context: CaseContext) {
    const LIMIT: u32 = 3;
    let managers = [context.manager().await, context.manager().await];
    let out = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for i in 0..9 {
        let semaphore = managers[i % 2].semaphore("s", LIMIT);
        let out = out.clone();
        tasks.spawn(async move {
            for _ in 0..8 {
                let permit = semaphore.acquire().await.expect("it gets a permit");
                let before = out.fetch_add(1, Ordering::SeqCst);
                assert!(before < LIMIT, "{} permits were out", before + 1);
                tokio::task::yield_now().await;
                out.fetch_sub(1, Ordering::SeqCst);
                permit.release().await.expect("it was held");
            }
        });
    }
    finish(tasks).await;
    let semaphore = managers[0].semaphore("t", LIMIT);
    let mut permits = Vec::new();
    while let Some(permit) = semaphore.try_acquire().await.expect("it works") {
        permits.push(permit);
        assert!(permits.len() <= LIMIT as usize, "more permits than {LIMIT}");
    }
    assert_eq!(permits.len(), LIMIT as usize);
    assert_eq!(semaphore.available_permits().await.expect("it works"), 0);
}

pub async fn modes_05_several_permits_are_taken_at_once(context: CaseContext) {
    let manager = context.manager().await;
    let semaphore = manager.semaphore("s", 5);
    let three = semaphore.acquire_many(3).await.expect("it is free");
    assert_eq!(semaphore.available_permits().await.expect("it works"), 2);
    assert!(semaphore.try_acquire_many(3).await.expect("it works").is_none());
    let two = semaphore.try_acquire_many(2).await.expect("it works").expect("two are left");
    assert_eq!(semaphore.available_permits().await.expect("it works"), 0);
    three.release().await.expect("it was held");
    assert_eq!(semaphore.available_permits().await.expect("it works"), 3);
    two.release().await.expect("it was held");
}

pub async fn modes_06_a_large_request_in_front_is_not_overtaken_by_small_ones(
    context: CaseContext,
) {
    let driver = context.driver().await;
    let (first, large) = (context.permits("s", 2, 4), context.permits("s", 3, 4));
    let small = context.permits("s", 1, 4);
    driver.grant(&first).await;
    driver.queue(&large).await;
    assert_eq!(driver.queue(&small).await, 2, "one permit would be free, but it waits");
    driver.let_go(&first).await;
    driver.turn(&large).await;
    driver.turn(&small).await;
}

pub async fn modes_07_more_permits_than_the_limit_is_an_error_at_once(context: CaseContext) {
    let manager = context.manager().await;
    for (permits, limit) in [(4, 3), (0, 3), (1, 0), (0, 0), (u32::MAX, 3)] {
        let semaphore = manager.semaphore("s", limit);
        let error = context.soon("an answer", semaphore.acquire_many(permits)).await;
        let error = error.expect_err("it can never be had");
        assert!(matches!(error, Error::Config(_)), "{permits} of {limit}: {error}");
        assert!(semaphore.try_acquire_many(permits).await.is_err());
    }
    let state = manager.inspect(Space::Semaphore, "s").await.expect("it works");
    assert!(state.is_free(), "nothing was left: {state:?}");
}

pub async fn modes_08_a_permit_expires_by_itself(context: CaseContext) {
    let driver = context.driver().await;
    let mode = Mode::Permits { permits: 2, limit: 2 };
    let (dead, waiter) =
        (context.claim_for("s", mode, context.short()), context.permits("s", 1, 2));
    let asked = driver.clock().now();
    let grant = driver.grant(&dead).await;
    driver.queue(&waiter).await;
    let limit = context.after(grant.ttl);
    context.within(limit, "the permits expire", driver.granted(&waiter)).await.expect("its turn");
    let passed = driver.clock().now().since(asked);
    assert!(passed >= context.short(), "it was held for {passed:?} only");
    driver.grant(&context.permits("s", 1, 2)).await;
}

pub async fn modes_09_ten_thousand_permits_are_counted(context: CaseContext) {
    let manager = context.manager().await;
    let semaphore = manager.semaphore("s", 10_000);
    let most = semaphore.acquire_many(9_998).await.expect("it is free");
    let one = semaphore.try_acquire().await.expect("it works").expect("two are left");
    assert_eq!(semaphore.available_permits().await.expect("it works"), 1);
    assert!(semaphore.try_acquire_many(2).await.expect("it works").is_none());
    let last = semaphore.try_acquire().await.expect("it works").expect("one is left");
    assert!(semaphore.try_acquire().await.expect("it works").is_none());
    for permit in [most, one, last] {
        permit.release().await.expect("it was held");
    }
    // As large as a limit can be: sums must not overflow.
    let huge = manager.semaphore("huge", u32::MAX);
    let all = huge.acquire_many(u32::MAX).await.expect("it is free");
    assert!(huge.try_acquire().await.expect("it works").is_none());
    all.release().await.expect("it was held");
    let one = huge.try_acquire().await.expect("it works");
    assert!(one.is_some(), "it is free again");
}

pub async fn modes_10_another_limit_is_refused_while_the_semaphore_is_in_use(context: CaseContext) {
    let driver = context.driver().await;
    let holder = context.permits("s", 1, 2);
    driver.grant(&holder).await;
    for limit in [1, 3] {
        for patience in [Patience::Try, Patience::Wait] {
            let other = context.permits("s", 1, limit);
            match driver.acquire(&other, patience).await {
                Err(Error::LimitMismatch { in_use: 2, asked, .. }) => assert_eq!(asked, limit),
                answer => panic!("a limit of {limit} beside 2, {patience:?}: {answer:?}"),
            }
        }
    }
    let line = context.queue(&driver, &holder.key).await;
    assert_eq!(line.len(), 1, "nothing was left: {line:?}");
    driver.let_go(&holder).await;
    driver.grant(&context.permits("s", 1, 3)).await;
}

pub async fn modes_11_any_holder_that_leaves_wakes_the_next(context: CaseContext) {
    let driver = context.driver().await;
    let two = |ttl| {
        let mode = Mode::Permits { permits: 1, limit: 2 };
        [context.claim("s", mode), context.claim_for("s", mode, ttl)]
    };
    // The second holder releases.
    let [first, second] = two(LONG);
    let waiter = context.permits("s", 1, 2);
    driver.grant(&first).await;
    driver.grant(&second).await;
    driver.queue(&waiter).await;
    driver.let_go(&second).await;
    driver.turn(&waiter).await;
    // The second is broken.
    let next = context.permits("s", 1, 2);
    driver.queue(&next).await;
    let token = context.queue(&driver, &waiter.key).await[1].token;
    let why = record("the case says so", true);
    let broken = driver.break_claim(&waiter.key, token, BreakMode::Forced, &why).await;
    assert!(broken.expect("it works"));
    driver.turn(&next).await;
    driver.let_go(&next).await;
    // The second expires.
    let [_, dying] = two(context.short());
    let last = context.permits("s", 1, 2);
    driver.grant(&dying).await;
    driver.queue(&last).await;
    let limit = context.after(context.short());
    let granted = context.within(limit, "the next gets it", driver.granted(&last)).await;
    granted.expect("its turn");
}
