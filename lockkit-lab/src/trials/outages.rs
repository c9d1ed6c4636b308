//! A server that dies, comes back, stands still, or is out of reach; and clients that stand still.

use std::time::Duration;

use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::{LockManager, LossReason};

use super::members::{Absence, goes_unnoticed};
use super::scene::{Held, Tokens, answered, guarantee, its_turn, wait_in_line, works_again};
use super::stage::staged;
use super::{NotApplicable, TrialResult, TrialSetup};
use crate::Data;
use crate::proxy::{ProxyFault as Network, When};
use lockkit_conformance::context::{CaseContext, LONG, PATIENCE};

const LOCK: &str = "a";

pub async fn robust_03_the_server_is_killed_and_restarted(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    let kept = stage.guarantee(Fault::ServerRestarts)?;
    if stage.site().is_member() {
        return goes_unnoticed(&stage, Absence::Killed).await;
    }
    let mut tokens = Tokens::new(kept);
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    let token = tokens.next(&guard, "before");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    let held = Held::by(&guard, token);
    stage.server().kill().await;
    fails_in_time(context, &ours).await;
    staged(stage.server().restart(Data::Keep).await);
    if kept == Guarantee::All {
        let verified = answered(context, "the server knows the lock", || guard.verify()).await;
        held.still(&verified, !waiting.is_finished());
    }
    drop(guard);
    let next = its_turn(context, waiting, context.after(Duration::ZERO), None).await;
    tokens.next(&next, "after the restart");
    drop(next);
    works_again(context, &[&ours, &theirs], LOCK, &mut tokens, PATIENCE).await;
    Ok(())
}

pub async fn robust_04_the_server_is_paused(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    let kept = stage.guarantee(Fault::ServerPaused)?;
    if stage.site().is_member() {
        return goes_unnoticed(&stage, Absence::Paused).await;
    }
    let mut tokens = Tokens::new(kept);
    let ttl = context.lively();
    let (ours, theirs) = (lively(context, ttl).await, context.manager().await);
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    tokens.next(&guard, "before");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    stage.server().freeze().await;
    let told = context.within(context.after(ttl), "the holder knows", guard.lost()).await;
    assert!(matches!(told, LossReason::Unreachable(_)), "{told:?}");
    assert!(!guard.is_valid() && guard.token().is_err());
    fails_in_time(context, &ours).await;
    stage.server().thaw();
    let next = its_turn(context, waiting, context.after(ttl), Some((&guard, kept))).await;
    tokens.next(&next, "after the server woke");
    drop((guard, next));
    works_again(context, &[&ours, &theirs], LOCK, &mut tokens, context.after(ttl)).await;
    Ok(())
}

pub async fn robust_05_a_client_is_paused(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    guarantee(context, Fault::ClientPaused)?;
    if context.harness().worker().is_none() {
        return NotApplicable::because("the site has no worker process that could be stopped");
    }
    lockkit_conformance::cases::loss::loss_08_a_stopped_process_finds_out_on_waking(
        context.clone(),
    )
    .await;
    let manager = context.manager().await;
    let mut tokens = Tokens::new(Guarantee::All);
    works_again(context, &[&manager], LOCK, &mut tokens, context.after(context.short() * 3)).await;
    Ok(())
}

pub async fn robust_06_a_client_is_cut_off_for_longer_than_its_lease(
    stage: TrialSetup,
) -> TrialResult {
    let context = stage.context();
    let kept = guarantee(context, Fault::Partition)?;
    if stage.site().is_member() {
        return goes_unnoticed(&stage, Absence::CutOff).await;
    }
    let mut tokens = Tokens::new(kept);
    let ttl = context.lively();
    let proxy = stage.proxy().await;
    let driver = stage.through(&proxy).await;
    let ours = context.manager_with(driver, |s| s.ttl(ttl).wait_ttl(ttl));
    let theirs = context.manager().await;
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    tokens.next(&guard, "before");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    proxy.fault(Network::BlackHole, When::Now);
    // One that wants the lock meanwhile; what it sends arrives when the network is back.
    let mutex = ours.mutex(LOCK);
    let late = tokio::spawn(async move { mutex.lock().await });
    let next = its_turn(context, waiting, context.after(ttl), Some((&guard, kept))).await;
    let token = tokens.next(&next, "who could reach the server");
    let told = context.soon("the one who is cut off knows", guard.lost()).await;
    assert!(matches!(told, LossReason::Unreachable(_)), "{told:?}");
    staged(proxy.heal().await);
    drop(guard);
    // Neither the late release nor the late renewals touch the one who holds now.
    assert_eq!(next.verify().await.expect("it holds still"), token);
    drop(next);
    let late = its_turn(context, late, context.after(ttl), None).await;
    tokens.next(&late, "who was cut off");
    drop(late);
    works_again(context, &[&ours, &theirs], LOCK, &mut tokens, context.after(ttl)).await;
    Ok(())
}

pub async fn loss_03_a_guard_ends_by_itself_when_the_server_is_gone(
    stage: TrialSetup,
) -> TrialResult {
    let context = stage.context();
    if stage.site().is_member() {
        return NotApplicable::because("the others go on without it: see robust_03");
    }
    let ttl = context.lively();
    let manager = lively(context, ttl).await;
    let clock = manager.driver().clock();
    let guard = manager.mutex(LOCK).lock().await.expect("it is free");
    let gone_after = clock.now();
    stage.server().kill().await;
    let gone = clock.now();
    let why = context.within(context.after(ttl), "the holder knows", guard.lost()).await;
    assert!(matches!(why, LossReason::Unreachable(_)), "{why:?}");
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    let (least, took) = (clock.now().since(gone_after), clock.now().since(gone));
    let late = ttl + Duration::from_secs(10);
    assert!(took < late, "its lease of {ttl:?} was over long ago: {took:?}, {least:?}");
    let released = context.soon("its release ends", guard.release()).await;
    assert!(released.is_err(), "nobody was there to hear of its release");
    staged(stage.server().restart(Data::Keep).await);
    let mut tokens = Tokens::new(context.capabilities().guarantee(Fault::ServerRestarts));
    works_again(context, &[&manager], LOCK, &mut tokens, context.after(ttl)).await;
    Ok(())
}

pub async fn token_06_tokens_grow_across_a_restart(stage: TrialSetup) -> TrialResult {
    grows_across(&stage, Fault::ServerRestarts, Data::Keep).await
}

pub async fn token_07_tokens_grow_although_all_data_was_lost(stage: TrialSetup) -> TrialResult {
    grows_across(&stage, Fault::DataLost, Data::Lose).await
}

/// Restarts the server several times, and has old and new clients take the lock in between.
async fn grows_across(stage: &TrialSetup, fault: Fault, data: Data) -> TrialResult {
    let context = stage.context();
    if guarantee(context, fault)? < Guarantee::Tokens {
        return NotApplicable::because("the table of faults: tokens may begin again");
    }
    let mut tokens = Tokens::new(Guarantee::Tokens);
    let old = context.manager().await;
    for round in 0..3 {
        for _ in 0..20 {
            let lock = old.mutex(LOCK);
            let guard = context.soon("an old client gets it", lock.lock()).await;
            let guard = guard.expect("it is free");
            tokens.next(&guard, "an old client");
            guard.release().await.expect("it was held");
        }
        staged(stage.server().restart(data).await);
        // One that has seen nothing of it all comes first.
        let connected = answered(context, "it connects", || context.harness().driver()).await;
        let new = context.manager_over(connected.expect("a new client connects"));
        let guard = context.soon("a new client gets it", new.mutex(LOCK).lock()).await;
        tokens.next(&guard.expect("it is free"), &format!("a new client, restart {round}"));
    }
    works_again(context, &[&old], LOCK, &mut tokens, PATIENCE).await;
    Ok(())
}

/// While the server does not answer, a try ends by itself, with an error that may pass.
async fn fails_in_time(context: &CaseContext, manager: &LockManager) {
    let tried = context.soon("a try ends although nothing answers", async {
        manager.mutex("another").ttl(LONG).try_lock().await
    });
    match tried.await {
        Err(error) => assert!(error.is_retryable(), "it may help to try again: {error}"),
        Ok(guard) => panic!("no server answered, yet it is {guard:?}"),
    }
}

/// A manager with short leases, which renews often.
async fn lively(context: &CaseContext, ttl: Duration) -> LockManager {
    context.manager_with(context.driver().await, |s| s.ttl(ttl).wait_ttl(ttl))
}
