//! Several locks as one: all or none, and never a deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit_core::driver::BreakMode;
use lockkit_core::sync::MultiLock;
use lockkit_core::{Error, Space};
use tokio::task::JoinSet;

use crate::context::{CaseContext, MustSucceed, PATIENCE};
use crate::wrap::Tampered;
use crate::wrap::tampers::Stuck;

pub async fn multi_01_it_gets_all_or_none(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let driver = context.driver().await;
    let held = theirs.mutex("b").lock().await.expect("it is free");
    let multi = ours.multi(["c", "b", "a", "b"]);
    assert!(multi.try_lock().await.expect("it works").is_none(), "b is taken");
    let waited = multi.try_lock_for(Duration::from_millis(300)).await;
    assert!(waited.expect("it works").is_none(), "still");
    for name in ["a", "c"] {
        context.free(&driver, &context.key(name), PATIENCE).await;
    }
    held.release().await.expect("it was held");
    let all = context.soon("all are free", multi.lock()).await.expect("it works");
    for name in ["a", "b", "c"] {
        driver.refuse(&context.exclusive(name)).await;
    }
    let tokens = all.tokens().expect("all are held");
    assert_eq!(tokens.len(), 4, "one for each name, as given");
    assert_eq!(tokens[1], tokens[3], "a name given twice is one lock");
    for (name, token) in ["c", "b", "a"].into_iter().zip(tokens) {
        let line = context.queue(&driver, &context.key(name)).await;
        assert_eq!(line.iter().map(|s| s.token).collect::<Vec<_>>(), [token], "{name}");
    }
    all.release().await.expect("all were held");
    for name in ["a", "b", "c"] {
        context.free(&driver, &context.key(name), PATIENCE).await;
    }
    let none = ours.multi(Vec::<String>::new()).lock().await;
    assert!(matches!(none, Err(Error::Config(_))), "{none:?}");
    let bad = ours.multi(["a", ""]).lock().await;
    assert!(matches!(bad, Err(Error::InvalidName { .. })), "{bad:?}");
}

pub async fn multi_02_crossing_callers_never_deadlock(context: CaseContext) {
    let managers = [context.manager().await, context.manager().await];
    let inside = Arc::new([const { AtomicBool::new(false) }; 3]);
    let mut callers = JoinSet::new();
    for (i, wanted) in [[0, 1], [1, 0], [1, 2], [2, 0]].into_iter().enumerate() {
        let (locks, inside) = (managers[i % 2].clone(), inside.clone());
        callers.spawn(async move {
            for _ in 0..4 {
                let names = wanted.map(|lock| ["a", "b", "c"][lock]);
                let work = |lease: lockkit_core::sync::MultiLease| {
                    let inside = inside.clone();
                    async move {
                        lease.tokens()?;
                        for lock in wanted {
                            assert!(!inside[lock].swap(true, Ordering::SeqCst), "two in {lock}");
                        }
                        tokio::task::yield_now().await;
                        for lock in wanted {
                            inside[lock].store(false, Ordering::SeqCst);
                        }
                        Ok::<_, Error>(())
                    }
                };
                locks.multi(names).run(work).await.expect("all are held");
            }
        });
    }
    context.within(PATIENCE * 3, "all have their turns", callers.join_all()).await;
}

pub async fn multi_03_it_is_lost_when_one_is_lost(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let ttl = context.lively() * 3;
    let both = ours.multi(["b", "a"]).ttl(ttl).lock().await.expect("they are free");
    let token = both.tokens().expect("both are held")[0];
    let broken = theirs.admin().break_lock(Space::Lock, "b", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"));
    let (name, _) = context.soon("the loss is told", both.lost()).await;
    assert_eq!(name.as_str(), "b");
    assert!(!both.is_valid());
    assert!(matches!(both.tokens(), Err(Error::Lost { .. })));
    let released = both.release().await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    let driver = context.driver().await;
    context.free(&driver, &context.key("a"), context.after(ttl)).await;
}

pub async fn multi_04_dropped_while_it_waits_it_leaves_nothing(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let driver = context.driver().await;
    let held = theirs.mutex("b").lock().await.expect("it is free");
    let waiting = tokio::spawn({
        let ours = ours.clone();
        async move { ours.multi(["a", "b", "c"]).lock().await }
    });
    let takes_a = || async {
        let line = context.queue(&driver, &context.key("a")).await;
        line.iter().any(|s| s.holds()).then_some(())
    };
    context.until(PATIENCE, "it holds the first", takes_a).await;
    // It may have found this one free before it found the other one taken, but does not keep it.
    let last = theirs.mutex("c");
    let last = context.soon("nothing is held beyond what is waited for", last.lock()).await;
    last.expect("it works").release().await.expect("it was held");
    waiting.abort();
    context.free(&driver, &context.key("a"), PATIENCE).await;
    held.release().await.expect("it was held");
    context.free(&driver, &context.key("b"), PATIENCE).await;
}

pub async fn multi_05_several_managers_are_taken_in_the_order_of_their_ids(context: CaseContext) {
    let with_id = async |id: &str| {
        let driver = context.driver().await;
        context.manager_with(driver, |settings| settings.id(id))
    };
    let (one, two) = (with_id("one").await, with_id("two").await);
    let without = context.manager().await;
    for pair in [[&one, &without], [&without, &context.manager().await]] {
        let refused = MultiLock::new([pair[0].mutex("a"), pair[1].mutex("b")]);
        assert!(matches!(refused, Err(Error::Config(_))), "an id is missing: {refused:?}");
    }
    let same = MultiLock::new([one.mutex("a"), with_id("one").await.mutex("b")]);
    assert!(matches!(same, Err(Error::Config(_))), "two have one id: {same:?}");
    MultiLock::new([without.mutex("a"), without.clone().mutex("b")]).expect("one needs none");

    // By names alone, these would be taken crosswise.
    let forth = MultiLock::new([one.mutex("z"), two.mutex("a")]).expect("both have ids");
    let back = MultiLock::new([two.mutex("a"), one.mutex("z")]).expect("both have ids");
    let mut callers = JoinSet::new();
    for multi in [forth, back] {
        callers.spawn(async move {
            for _ in 0..5 {
                let both = multi.lock().await.expect("they get free");
                assert_eq!(both.tokens().expect("both are held").len(), 2);
                both.release().await.expect("both were held");
            }
        });
    }
    context.within(PATIENCE * 3, "both have their turns", callers.join_all()).await;
}

pub async fn multi_06_free_ones_are_asked_for_at_once_together(context: CaseContext) {
    let stuck = Arc::new(Stuck::default());
    let ours = context.manager_over(Arc::new(Tampered::new(context.driver().await, stuck.clone())));
    let taking = tokio::spawn(async move { ours.multi(["a", "b", "c"]).lock().await });
    // Where a batch has room for them, one request asks for all.
    let requests = if context.capabilities().batches.operations >= 3 { 1 } else { 3 };
    let asked = async || (stuck.sent() == requests).then_some(());
    context.until(PATIENCE, "all are asked for", asked).await;
    stuck.let_through();
    let all = context.soon("all are free", taking).await.expect("it ran").expect("it works");
    assert_eq!(stuck.sent(), requests, "none is asked for twice");
    all.release().await.expect("all were held");
}
