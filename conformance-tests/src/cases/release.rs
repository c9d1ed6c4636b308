//! How locks are given back, and by whom.

use std::time::Duration;

use lockkit_core::driver::{ClaimEnd, Patience, Released, Renewal};
use lockkit_core::{Error, LossReason, Mode, Settings};

use crate::context::{CaseContext, MustSucceed, PATIENCE};

pub async fn release_01_releasing_twice_is_harmless(context: CaseContext) {
    let driver = context.driver().await;
    let claim = context.exclusive("a");
    driver.grant(&claim).await;
    assert_eq!(driver.let_go(&claim).await, Released::Removed);
    for _ in 0..3 {
        assert_eq!(driver.let_go(&claim).await, Released::NoSuchLock);
    }
    let next = context.exclusive("a");
    driver.grant(&next).await;
    for _ in 0..3 {
        assert_eq!(driver.let_go(&claim).await, Released::NotFound);
    }
    driver.holds(&next).await;
    let waiting = context.exclusive("a");
    driver.queue(&waiting).await;
    assert_eq!(driver.let_go(&waiting).await, Released::Removed);
    assert_eq!(driver.let_go(&waiting).await, Released::NotFound);
    driver.holds(&next).await;
}

pub async fn release_02_releasing_an_ended_claim_says_so(context: CaseContext) {
    let driver = context.driver().await;
    let claim = context.claim_for("a", Mode::Exclusive, context.short());
    driver.grant(&claim).await;
    context.free(&driver, &claim.key, context.after(context.short())).await;
    assert_eq!(driver.let_go(&claim).await, Released::NoSuchLock);

    let manager = context.manager().await;
    let guard = manager.mutex("b").ttl(context.short()).auto_renew(false).lock().await;
    let guard = guard.expect("it is free");
    context.within(context.after(context.short()), "it expires", guard.lost()).await;
    let error = guard.release().await.expect_err("it was not held to the end");
    assert_eq!(error.loss(), Some(&LossReason::Expired), "{error}");
}

pub async fn release_03_an_old_guard_never_frees_its_successor(context: CaseContext) {
    let driver = context.driver().await;
    let old = context.claim_for("a", Mode::Exclusive, context.short());
    driver.grant(&old).await;
    context.free(&driver, &old.key, context.after(context.short())).await;
    let successor = context.exclusive("a");
    driver.grant(&successor).await;
    assert_eq!(driver.let_go(&old).await, Released::NotFound);
    driver.holds(&successor).await;
    context.driver().await.refuse(&context.exclusive("a")).await;

    let manager = context.manager().await;
    let guard = manager.mutex("b").ttl(context.short()).auto_renew(false).lock().await;
    let guard = guard.expect("it is free");
    let successor = context.exclusive("b");
    let limit = context.after(context.short());
    if let lockkit_core::driver::Acquisition::Queued { .. } =
        driver.acquire(&successor, Patience::Wait).await.expect("it works").result
    {
        let granted = context.within(limit, "its turn comes", driver.granted(&successor)).await;
        granted.expect("its turn");
    }
    let released = guard.release().await;
    assert!(released.is_err(), "an old guard says that it was lost");
    manager.shutdown().await;
    driver.holds(&successor).await;
}

pub async fn release_04_only_the_id_releases_or_renews(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    let (holder, waiter) = (context.exclusive("a"), context.exclusive("a"));
    ours.grant(&holder).await;
    ours.queue(&waiter).await;
    let stranger = context.exclusive("a");
    assert_eq!(theirs.let_go(&stranger).await, Released::NotFound, "it is another's");
    let answer = theirs.renew_one(&stranger).await;
    assert_eq!(answer, Renewal::Ended(ClaimEnd::NotFound));
    let answer = theirs.downgrade(&stranger).await.expect("it works");
    assert!(matches!(answer, Renewal::Ended(_)), "{answer:?}");
    let line = context.queue(&ours, &holder.key).await;
    let roles: Vec<_> = line.iter().map(|s| (s.mode, s.holds())).collect();
    assert_eq!(roles[..1], [(Mode::Exclusive, true)]);
    if context.has_line() {
        assert_eq!(roles[1..], [(Mode::Exclusive, false)]);
    }
    let nothing = context.exclusive("nobody");
    assert_eq!(theirs.let_go(&nothing).await, Released::NoSuchLock, "there is no such lock");
    // What is shown of a claim does not contain what releases it.
    let shown = format!("{:?}", context.state(&theirs, &holder.key).await);
    assert!(!shown.contains(&holder.id.to_hex()), "the id is secret");
}

pub async fn release_05_a_release_meets_a_renewal_in_flight(context: CaseContext) {
    let (ours, theirs) = (context.driver().await, context.driver().await);
    for _ in 0..25 {
        let claim = context.exclusive("a");
        ours.grant(&claim).await;
        let (released, _) = tokio::join!(ours.let_go(&claim), theirs.renew_one(&claim));
        assert_eq!(released, Released::Removed);
        let answer = theirs.renew_one(&claim).await;
        assert!(matches!(answer, Renewal::Ended(_)), "released, then renewed: {answer:?}");
        assert!(context.queue(&ours, &claim.key).await.is_empty(), "nothing is left");
    }
}

pub async fn release_06_dropping_a_guard_releases_soon(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    for _ in 0..3 {
        let guard = ours.mutex("a").lock().await.expect("it is free");
        drop(guard);
        // Its lease would last far longer than anybody is ready to wait here.
        let next = context.soon("the next gets it", theirs.mutex("a").lock()).await;
        next.expect("its turn").release().await.expect("it was held");
    }
}

pub async fn release_07_a_guard_dropped_outside_a_runtime_does_not_leak(context: CaseContext) {
    let ttl = context.short() * 2;
    let inner = context.clone();
    let outside = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be started");
        let (first, second, manager) = runtime.block_on(async {
            let settings =
                Settings::default().namespace(inner.namespace().as_str()).ttl(ttl).wait_ttl(ttl);
            let manager = lockkit_core::LockManager::with(inner.driver().await, settings)
                .expect("these settings are valid");
            let first = manager.mutex("a").lock().await.expect("it is free");
            let second = manager.mutex("b").lock().await.expect("it is free");
            // One more guard lives in a task, and is dropped while the runtime shuts down.
            let third = manager.mutex("c").lock().await.expect("it is free");
            tokio::spawn(async move {
                let _third = third;
                std::future::pending::<()>().await;
            });
            (first, second, manager)
        });
        drop(first);
        runtime.shutdown_timeout(Duration::from_secs(5));
        drop(second);
        drop(manager);
    });
    let ended = tokio::task::spawn_blocking(move || outside.join()).await;
    ended.expect("it was waited for").expect("dropping guards anywhere does not panic");
    let driver = context.driver().await;
    for name in ["a", "b", "c"] {
        context.free(&driver, &context.key(name), context.after(ttl)).await;
    }
}

pub async fn release_08_shutdown_releases_everything_and_waits(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let mut guards = Vec::new();
    for i in 0..10 {
        guards.push(ours.mutex(format!("n{i}")).lock().await.expect("it is free"));
    }
    drop(guards.split_off(5));
    let held = theirs.mutex("held").lock().await.expect("it is free");
    let waiting = tokio::spawn({
        let mutex = ours.mutex("held");
        async move { mutex.lock().await }
    });
    let driver = context.driver().await;
    context.waiters(&driver, &context.key("held"), 1).await;
    context.soon("the manager shuts down", ours.shutdown()).await;
    for i in 0..10 {
        let guard = theirs.mutex(format!("n{i}")).try_lock().await.expect("it works");
        assert!(guard.is_some(), "n{i} was released before shutdown() returned");
    }
    let waited = tokio::time::timeout(PATIENCE, waiting).await.expect("it ends");
    let waited = waited.expect("no panic");
    assert!(matches!(waited, Err(Error::Closed)), "who waits is told: {waited:?}");
    assert!(guards.iter().all(|g| !g.is_valid()), "what was shut down is not held");
    let late = ours.mutex("late").lock().await;
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    let late = ours.inspect(lockkit_core::Space::Lock, "late").await;
    assert!(matches!(late, Err(Error::Closed)), "{late:?}");
    held.release().await.expect("others are not touched");
    context.free(&driver, &context.key("held"), PATIENCE).await;
}
