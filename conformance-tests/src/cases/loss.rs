//! Who loses a lock finds out, in time and with the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit_core::driver::{BreakMode, Patience, Renewal};
use lockkit_core::{Error, Guard, LockManager, LossReason, Mode, Space};

use crate::context::{CaseContext, MustSucceed, undisturbed};
use crate::worker::Crew;
use crate::wrap::tampers::{Late, Severed};
use crate::wrap::{DriverMethod, Tampered};

pub async fn loss_01_lost_fires_on_a_break(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let guard = ours.mutex("a").ttl(context.lively()).lock().await.expect("it is free");
    break_it(&theirs, "a", &guard).await;
    context.soon("the holder is told", guard.lost()).await;
    assert!(!guard.is_valid());
    assert!(guard.token().is_err(), "no token for who has lost");
    assert!(guard.verify().await.is_err());
    let error = guard.release().await.expect_err("it was lost");
    assert!(error.loss().is_some(), "{error}");
}

pub async fn loss_02_lost_fires_on_expiry(context: CaseContext) {
    let manager = context.manager().await;
    let ttl = context.short();
    let clock = manager.driver().clock();
    let asked = clock.now();
    let guard = manager.mutex("a").ttl(ttl).auto_renew(false).lock().await;
    let guard = guard.expect("it is free");
    let reason = context.within(context.after(ttl), "it is told", guard.lost()).await;
    let passed = clock.now().since(asked);
    assert_eq!(reason, LossReason::Expired);
    assert!(passed >= ttl.mul_f64(0.8), "told {passed:?} after {ttl:?} were asked for");
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert!(matches!(guard.token(), Err(Error::Lost { .. })));
}

pub async fn loss_03_a_guard_ends_by_itself_when_the_backend_is_gone(context: CaseContext) {
    let context = &context;
    undisturbed(context.short() * 3, |ttl, name| cut_off(context, ttl, name)).await;
}

async fn cut_off(context: &CaseContext, ttl: Duration, name: String) {
    let severed = Arc::new(Severed::passing());
    let driver = Tampered::new(context.driver().await, severed.clone());
    let manager = context.manager_with(Arc::new(driver), |s| s.ttl(ttl).wait_ttl(ttl));
    let guard = manager.mutex(&name).lock().await.expect("it is free");
    let other = context.driver().await;
    let waiter = context.exclusive(&name);
    other.queue(&waiter).await;
    severed.cut();
    let told = context.within(context.after(ttl), "the holder knows", guard.lost());
    let granted = context.within(context.after(ttl), "the next gets it", other.granted(&waiter));
    let valid_at_handover = async {
        granted.await.expect("its turn");
        guard.is_valid()
    };
    let (reason, valid) = tokio::join!(told, valid_at_handover);
    assert!(!valid, "the guard was still valid when the next got the lock");
    assert!(matches!(reason, LossReason::Unreachable(_)), "{reason:?}");
}

pub async fn loss_04_lost_is_true_at_once_for_who_asks_late(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let guard = ours.mutex("a").ttl(context.lively()).lock().await.expect("it is free");
    break_it(&theirs, "a", &guard).await;
    let reason = context
        .until(context.after(context.lively()), "the loss is noticed unasked", || async {
            guard.loss()
        })
        .await;
    let told = futures_util::FutureExt::now_or_never(guard.lost());
    assert_eq!(told, Some(reason), "told at once, and the same");
    let lease = guard.lease();
    drop(guard);
    assert!(lease.loss().is_some(), "the lease knows when the guard is gone");
}

pub async fn loss_05_lost_never_fires_on_an_orderly_release(context: CaseContext) {
    let manager = context.manager().await;
    let ttl = context.short();
    let guard = manager.mutex("a").ttl(ttl).lock().await.expect("it is free");
    let lease = guard.lease();
    guard.release().await.expect("it was held");
    let quiet = tokio::time::timeout(ttl * 2, lease.lost()).await;
    assert!(quiet.is_err(), "lost() fired after a release: {quiet:?}");
    assert_eq!(lease.loss(), None);
    assert!(!lease.is_valid(), "what was released is not valid either");
    assert!(lease.token().is_err());
}

pub async fn loss_06_lost_says_why(context: CaseContext) {
    let context = &context;
    for how in [BreakMode::Forced, BreakMode::Graceful] {
        undisturbed(context.lively(), |ttl, name| broken(context, how, ttl, name)).await;
    }
    undisturbed(context.short(), |ttl, name| async move {
        let name = format!("expiring {name}");
        let manager = context.manager().await;
        let expiring = manager.mutex(&name).ttl(ttl).auto_renew(false).lock().await;
        let expiring = expiring.expect("it is free");
        let reason = context.within(context.after(ttl), "it is told", expiring.lost()).await;
        assert_eq!(reason, LossReason::Expired);
    })
    .await;
}

/// One that is broken in this way hears of it before its lease ends, and why.
async fn broken(context: &CaseContext, how: BreakMode, ttl: Duration, name: String) {
    let name = format!("{how:?} {name}");
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let guard = ours.mutex(&name).ttl(ttl).lock().await.expect("it is free");
    let token = guard.token().expect("it holds");
    let broken = theirs.admin().break_lock(Space::Lock, &name, token, how, Some("it hangs")).await;
    assert!(broken.expect("it works"));
    match context.within(context.after(ttl), "the holder is told", guard.lost()).await {
        LossReason::Broken(record) => {
            assert_eq!(record.reason.as_deref(), Some("it hangs"));
            assert_eq!(record.by.pid, std::process::id());
            assert_eq!(record.forced, how == BreakMode::Forced);
            assert!(record.at_unix_ms > 0);
        }
        other => panic!("it was broken, not {other:?}"),
    }
    drop(guard);
    let driver = context.driver().await;
    context.free(&driver, &context.key(&name), context.after(ttl)).await;
}

pub async fn loss_07_run_stops_its_future(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = SetOnDrop(stopped.clone());
    let mutex = ours.mutex("a").ttl(context.lively());
    let (tell, told) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let work = move |lock: lockkit_core::HeldLock| async move {
            let _flag = flag;
            let _ = tell.send(lock.token());
            std::future::pending::<Result<(), Error>>().await
        };
        mutex.run(work).await
    });
    let token = context.soon("the work begins", told).await.expect("it began").expect("it holds");
    let broken = theirs.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"));
    let ended = context.soon("run ends", running).await.expect("no panic");
    let error = ended.expect_err("it was lost");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(stopped.load(Ordering::SeqCst), "the work was dropped");

    let value = ours.mutex("b").run(async |lock| lock.token()).await;
    value.expect("work that ends is not lost");
    let free = theirs.mutex("b").try_lock().await.expect("it works");
    assert!(free.is_some(), "and the lock was released at its end");
}

pub async fn loss_08_a_stopped_process_finds_out_on_waking(context: CaseContext) {
    let crew = Crew::of(&context);
    let ttl = context.short() * 3;
    let file = crew.folder().join("log");
    let mut worker = crew.start(&["hold", "a", &ttl.as_millis().to_string()], &file);
    let first: u64 = context.soon("the process holds the lock", worker.says("wrote")).await;
    let asleep = worker.stopped();
    let manager = context.manager().await;
    let limit = context.after(ttl);
    let guard = context.within(limit, "the lock is handed on", manager.mutex("a").lock()).await;
    let token = guard.expect("its turn").token().expect("it holds").get();
    assert!(token > first);
    asleep.go_on();
    // At most the one write that it was about to do when it was stopped, and that one bears the
    // old token.
    let mut late_writes = 0;
    loop {
        let word = context.soon("the process says what it sees", worker.read_line()).await;
        if word == "lost" {
            break;
        }
        let old: u64 = word.trim_start_matches("wrote ").parse().expect("a token");
        assert!(old < token, "a write under the old lock bears the old token");
        late_writes += 1;
        let pipe = 1_000; // what it had written before it was stopped, and was not read yet
        assert!(late_writes < pipe, "it goes on writing after it woke");
    }
}

pub async fn loss_09_the_local_deadline_passes_before_the_server_s(context: CaseContext) {
    let manager = context.manager().await;
    let driver = context.driver().await;
    let ttl = context.short();
    let mutex = |name: &str| manager.mutex(name).ttl(ttl).wait_ttl(ttl * 50).auto_renew(false);
    // Granted at once.
    let guard = mutex("a").lock().await.expect("it is free");
    invalid_at_handover(&context, "a", guard).await;
    // Granted after waiting for a release.
    let holder = context.exclusive("b");
    driver.grant(&holder).await;
    let waiting = tokio::spawn({
        let mutex = mutex("b");
        async move { mutex.lock().await }
    });
    context.waiters(&driver, &holder.key, 1).await;
    tokio::time::sleep(ttl / 2).await;
    driver.let_go(&holder).await;
    let guard = context.soon("the waiter gets it", waiting).await.expect("no panic");
    invalid_at_handover(&context, "b", guard.expect("its turn")).await;
    // Granted after waiting for an expiry.
    let dying = context.claim_for("c", Mode::Exclusive, ttl);
    driver.grant(&dying).await;
    let guard = context.within(context.after(ttl), "the waiter gets it", mutex("c").lock()).await;
    invalid_at_handover(&context, "c", guard.expect("its turn")).await;
}

pub async fn loss_10_a_release_that_finds_a_broken_lock_says_who_broke_it(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let guard = ours.mutex("a").auto_renew(false).lock().await.expect("it is free");
    let token = guard.token().expect("it holds");
    let why = Some("it hangs");
    let broken = theirs.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, why).await;
    assert!(broken.expect("it works"), "there was somebody to break");
    let error = guard.release().await.expect_err("it was broken");
    match error.loss() {
        Some(LossReason::Broken(record)) => {
            assert_eq!(record.reason.as_deref(), Some("it hangs"));
            assert_eq!(record.by.pid, std::process::id());
            assert!(record.forced);
        }
        other => panic!("it was broken, not {other:?}"),
    }
    let driver = context.driver().await;
    context.free(&driver, &context.key("a"), context.after(context.lively())).await;
}

pub async fn loss_11_what_was_granted_late_is_renewed_before_its_guard(context: CaseContext) {
    let context = &context;
    undisturbed(context.short() * 3, |ttl, name| async move {
        let late = Late { method: DriverMethod::Acquire, by: ttl * 6 / 10 };
        let driver = Tampered::new(context.driver().await, Arc::new(late));
        let manager = context.manager_with(Arc::new(driver), |s| s.ttl(ttl).wait_ttl(ttl));
        let guard = manager.mutex(&name).auto_renew(false).lock().await.expect("it is free");
        let (left, granted) = (guard.remaining(), guard.granted_ttl());
        assert!(left > granted / 2, "{left:?} of {granted:?} are left");
        invalid_at_handover(context, &name, guard).await;
    })
    .await;
}

/// Stands behind a guard that is not renewed, and looks at it when the lock is handed on.
async fn invalid_at_handover(context: &CaseContext, name: &str, guard: Guard) {
    let driver = context.driver().await;
    let next = context.exclusive(name);
    driver.acquire(&next, Patience::Wait).await.expect("it works");
    let handed_on = async {
        // Asked for, and not waited for: a message may come late, and it is the server that counts.
        while !matches!(driver.renew_one(&next).await, Renewal::Holds(_)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let limit = context.after(guard.granted_ttl());
    context.within(limit, "the lock is handed on", handed_on).await;
    let left = guard.remaining();
    assert!(!guard.is_valid(), "{left:?} were left to the guard when the next got the lock");
    drop(guard);
    driver.let_go(&next).await;
}

/// Breaks, with force, the lock that the guard has.
async fn break_it(by: &LockManager, name: &str, guard: &Guard) {
    let token = guard.token().expect("it holds");
    let broken = by.admin().break_lock(Space::Lock, name, token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"), "there was somebody to break");
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
