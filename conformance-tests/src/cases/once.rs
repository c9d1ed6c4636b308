//! Once among many: one runs, the others learn what was decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, Mode, Space};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinSet;

use crate::context::{CaseContext, MustSucceed};

pub async fn once_01_of_many_one_runs_and_all_learn_the_decision(context: CaseContext) {
    const HOSTS: usize = 6;
    let runs = Arc::new(AtomicU32::new(0));
    let together = Arc::new(Barrier::new(HOSTS));
    let mut hosts = JoinSet::new();
    for host in 0..HOSTS {
        let (locks, runs) = (context.manager().await, runs.clone());
        let (context, driver, together) =
            (context.clone(), context.driver().await, together.clone());
        hosts.spawn(async move {
            let work = |lock: lockkit_core::HeldLock| async move {
                lock.token()?;
                runs.fetch_add(1, Ordering::SeqCst);
                // Nothing was decided when the others came: they read it again when it is their turn.
                context.waiters(&driver, &context.key("today/report"), HOSTS - 1).await;
                Ok::<_, Error>([host as u8])
            };
            together.wait().await;
            locks.once("today/report").run(work).await.expect("it works")
        });
    }
    let mut decisions = context.soon("all know", hosts.join_all()).await;
    decisions.dedup();
    assert_eq!(runs.load(Ordering::SeqCst), 1, "one ran");
    assert_eq!(decisions.len(), 1, "all know the same: {decisions:?}");
    let late = context.manager().await.once("today/report").decision().await;
    assert_eq!(late.expect("it works").as_ref(), decisions.first(), "and whoever comes later");
    let other = context.manager().await.once("tomorrow/report").decision().await;
    assert_eq!(other.expect("it works"), None, "another key");
}

pub async fn once_02_after_a_failure_the_next_begins_at_once(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let begun = Arc::new(Notify::new());
    let fail = Arc::new(Notify::new());
    let failing = tokio::spawn({
        let (begun, fail) = (begun.clone(), fail.clone());
        async move {
            let work = |_| async move {
                begun.notify_one();
                fail.notified().await;
                Err::<&str, _>(Error::Config("the work failed".to_owned()))
            };
            ours.once("job").run(work).await
        }
    });
    context.soon("it runs", begun.notified()).await;
    let busy = theirs.once("job").try_run(async |_| Ok::<_, Error>("not now")).await;
    assert_eq!(busy.expect("it works"), None, "another runs it");
    let next =
        tokio::spawn(
            async move { theirs.once("job").run(async |_| Ok::<_, Error>("second")).await },
        );
    let driver = context.driver().await;
    if context.capabilities().fifo {
        context.waiters(&driver, &context.key("job"), 1).await;
    }
    fail.notify_one();
    let failed = context.soon("the failure", failing).await.expect("no panic");
    assert!(matches!(failed, Err(Error::Config(_))), "the failure is its own: {failed:?}");
    let decision = context.soon("the next runs", next).await.expect("no panic").expect("it works");
    assert_eq!(decision.value, b"second");
}

pub async fn once_03_a_runner_that_died_is_followed_after_its_lease(context: CaseContext) {
    let driver = context.driver().await;
    // It took the lock, and is heard of no more.
    driver.grant(&context.claim_for("job", Mode::Exclusive, context.short())).await;
    let locks = context.manager().await;
    let job = locks.once("job");
    let running = job.run(async |_| Ok::<_, Error>("the follower"));
    let decision = context.within(context.after(context.short()), "it is followed", running).await;
    assert_eq!(decision.expect("it works").value, b"the follower");
}

pub async fn once_04_what_was_decided_is_kept_for_a_time(context: CaseContext) {
    let locks = context.manager().await;
    let brief = locks.once("job").keep(context.short());
    let first = brief.run(async |_| Ok::<_, Error>("first")).await.expect("it works");
    assert_eq!(first.value, b"first");
    let gone = || async { brief.decision().await.expect("it works").is_none().then_some(()) };
    context.until(context.after(context.short()), "it is forgotten", gone).await;
    let second = locks.once("job").run(async |_| Ok::<_, Error>("second")).await;
    assert_eq!(second.expect("it runs again").value, b"second");
    let third = locks.once("job").run(async |_| Ok::<_, Error>("third")).await;
    assert_eq!(third.expect("it works").value, b"second", "kept");
    locks.once("job").forget().await.expect("it works");
    assert_eq!(locks.once("job").decision().await.expect("it works"), None);
    // A lock of another name decides nothing.
    let other = locks.mutex("another").lock().await.expect("it is free");
    let decided = locks.once("job").decide(&other, "wrong").await;
    assert!(matches!(decided, Err(Error::Config(_))), "{decided:?}");
}

pub async fn once_05_work_is_stopped_when_its_lock_is_lost(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let begun = Arc::new(Notify::new());
    let running = tokio::spawn({
        let (job, begun) = (ours.once("job").ttl(context.lively()), begun.clone());
        async move {
            let work = |_| async move {
                begun.notify_one();
                std::future::pending::<Result<&str, Error>>().await
            };
            job.run(work).await
        }
    });
    context.soon("it runs", begun.notified()).await;
    let driver = context.driver().await;
    let token = context.queue(&driver, &context.key("job")).await[0].token;
    let broken =
        theirs.admin().break_lock(Space::Lock, "job", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"));
    let stopped = context.soon("it is stopped", running).await.expect("no panic");
    assert!(matches!(stopped, Err(Error::Lost { .. })), "{stopped:?}");
    let next = theirs.once("job").run(async |_| Ok::<_, Error>("second")).await;
    assert_eq!(next.expect("it works").value, b"second");
}

pub async fn once_06_who_decides_late_changes_nothing(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let job = ours.once("job");
    let late = job.lock().lock().await.expect("it is free");
    let token = late.token().expect("it holds");
    let broken =
        theirs.admin().break_lock(Space::Lock, "job", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"));
    let first = theirs.once("job").run(async |_| Ok::<_, Error>("first")).await;
    let first = first.expect("it works");
    // Its next renewal would tell it; it has finished its work before that.
    let told = job.decide(&late, "late").await.expect("it has not heard of it yet");
    assert_eq!(told, first);
    assert_eq!(job.decision().await.expect("it works"), Some(first));
}
