//! Elections: one leader, known to all, followed at once or after its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, LossReason, Space, Token};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::context::{CaseContext, PATIENCE};
use crate::wrap::Tampered;
use crate::wrap::tampers::Severed;

pub async fn election_01_there_is_one_leader_and_its_tokens_grow(context: CaseContext) {
    let leading = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut candidates = JoinSet::new();
    for i in 0..4 {
        let election = context.manager().await.election("e").value(format!("candidate {i}"));
        let (leading, tokens) = (leading.clone(), tokens.clone());
        candidates.spawn(async move {
            for _ in 0..3 {
                let leadership = election.campaign().await.expect("it is elected");
                assert!(!leading.swap(true, Ordering::SeqCst), "two lead");
                tokens.lock().await.push(leadership.token().expect("it leads"));
                leading.store(false, Ordering::SeqCst);
                leadership.resign().await.expect("it led until now");
            }
        });
    }
    context.within(PATIENCE * 3, "all have led", candidates.join_all()).await;
    let tokens = tokens.lock().await;
    assert_eq!(tokens.len(), 12);
    assert!(tokens.is_sorted_by(|a, b| a < b), "they grow from leader to leader: {tokens:?}");
}

pub async fn election_02_observers_see_the_leaders_in_order(context: CaseContext) {
    let candidates = [context.manager().await, context.manager().await, context.manager().await];
    let mut observers = Vec::new();
    for _ in 0..2 {
        observers.push(Box::pin(context.manager().await.election("e").observe()));
    }
    let election = candidates[0].election("e");
    assert!(election.leader().await.expect("it works").is_none(), "nobody yet");
    let mut last: Option<Token> = None;
    for (i, locks) in candidates.iter().enumerate() {
        let value = format!("host-{i}:4000");
        let leadership = locks.election("e").value(&value).campaign().await.expect("it is free");
        let token = leadership.token().expect("it leads");
        for observer in &mut observers {
            let seen = context.soon("the leader is seen", observer.next()).await;
            let seen = seen.expect("it goes on").expect("it works");
            assert_eq!((seen.value.as_deref(), seen.token), (Some(value.as_str()), token));
            assert!(last < Some(seen.token), "in order");
        }
        let leader = election.leader().await.expect("it works").expect("there is one");
        assert_eq!((leader.value, leader.token), (Some(value), token));
        last = Some(token);
        leadership.resign().await.expect("it led until now");
    }
    let none = || async { election.leader().await.expect("it works").is_none().then_some(()) };
    context.until(PATIENCE, "nobody leads any more", none).await;
}

pub async fn election_03_resigning_hands_over_at_once(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let first = ours.election("e").campaign().await.expect("it is free");
    let next = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.election("e").value("next").campaign().await }
    });
    let busy = theirs.election("e").try_campaign().await.expect("it works");
    assert!(busy.is_none(), "somebody leads");
    if context.capabilities().fifo {
        let driver = context.driver().await;
        context.waiters(&driver, &context.key("e"), 1).await;
    }
    let token = first.token().expect("it leads");
    first.resign().await.expect("it led until now");
    // The leases are long: this is no expiry.
    let second = context.soon("the next leads", next).await.expect("no panic").expect("elected");
    assert!(second.token().expect("it leads") > token);
}

pub async fn election_04_a_leader_that_is_cut_off_knows_and_is_followed(context: CaseContext) {
    let line = Arc::new(Severed::passing());
    let ours = context.manager_over(Arc::new(Tampered::new(context.driver().await, line.clone())));
    let theirs = context.manager().await;
    let ttl = context.lively() * 2;
    let stalled = ours.election("e").ttl(ttl).campaign().await.expect("it is free");
    let token = stalled.token().expect("it leads");
    let campaign = tokio::spawn({
        let election = theirs.election("e");
        async move { election.campaign().await }
    });
    line.cut();
    let next = context.within(context.after(ttl), "it is followed", campaign).await;
    assert!(!stalled.is_valid(), "it does not believe to lead beside the next");
    let next = next.expect("no panic").expect("it is elected");
    assert!(next.token().expect("it leads") > token);
    let why = context.soon("it knows why", stalled.lost()).await;
    assert!(matches!(why, LossReason::Unreachable(_) | LossReason::Expired), "{why:?}");
}

pub async fn election_05_run_campaigns_again_after_a_loss(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let (tell, mut told) = mpsc::unbounded_channel();
    let ttl = context.lively() * 3;
    let election = ours.election("e").ttl(ttl);
    let running = tokio::spawn(async move {
        let mut terms = 0;
        let work = |leadership: lockkit_core::HeldLock| {
            terms += 1;
            let (term, tell) = (terms, tell.clone());
            async move {
                tell.send(leadership.token()?).expect("the case listens");
                match term {
                    1 => std::future::pending().await,
                    _ => Ok::<_, Error>(term),
                }
            }
        };
        election.run(work).await
    });
    let first = context.soon("it leads", told.recv()).await.expect("it was told");
    let broken = theirs.admin().break_lock(Space::Lock, "e", first, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"), "it is deposed");
    let second = context.within(context.after(ttl), "it leads again", told.recv()).await;
    assert!(second.expect("it was told") > first, "with a greater token");
    let terms = context.soon("its work ends", running).await.expect("no panic");
    assert_eq!(terms.expect("it led until the end"), 2);
    let leader = theirs.election("e").leader().await.expect("it works");
    assert!(leader.is_none(), "it resigned: {leader:?}");
}
