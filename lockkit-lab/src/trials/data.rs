//! Clocks that jump, servers that refuse, data that is taken away.

use std::time::{Duration, Instant};

use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::{Error, LockManager};

use super::scene::{Held, Tokens, answered, guarantee, its_turn, wait_in_line, works_again};
use super::stage::staged;
use super::{NotApplicable, TrialResult, TrialSetup};
use crate::site::{Concerns, Deletion, RefusalMode};
use crate::{Clock, Shift};
use lockkit_conformance::context::{CaseContext, PATIENCE};
use lockkit_conformance::worker::Crew;

const LOCK: &str = "a";
const HOUR: Duration = Duration::from_secs(3_600);

pub async fn robust_08_the_clock_of_the_server_jumps(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    let kept = stage.guarantee(Fault::ServerClockSteps)?;
    if !stage.site().kind().has_movable_clock() {
        return NotApplicable::because("the lab cannot move the clock of this server");
    }
    let mut tokens = Tokens::new(kept);
    let (ours, theirs) = (context.manager().await, impatient(context).await);
    // The way back from each is a jump, too.
    for shift in [Shift::Ahead(HOUR), Shift::NONE, Shift::Behind(HOUR), Shift::NONE] {
        let lock = ours.mutex(LOCK);
        let guard = context.soon("it is locked", lock.lock()).await.expect("it is free");
        let token = tokens.next(&guard, "before the jump");
        let waiting = wait_in_line(context, &theirs, LOCK).await;
        let held = Held::by(&guard, token);
        staged(stage.server().move_clock(shift));
        let verified = answered(context, "the server says", || guard.verify()).await;
        if kept == Guarantee::All {
            held.still(&verified, !waiting.is_finished());
        }
        drop(guard);
        let next = its_turn(context, waiting, context.after(Duration::ZERO), None).await;
        tokens.next(&next, &format!("{shift:?}"));
        drop(next);
        works_again(context, &[&ours, &theirs], LOCK, &mut tokens, PATIENCE).await;
    }
    Ok(())
}

pub async fn robust_08_the_wall_clock_of_a_client_jumps(stage: TrialSetup) -> TrialResult {
    let context = stage.context();
    let kept = guarantee(context, Fault::ClientClockSteps)?;
    if context.harness().worker().is_none() {
        return NotApplicable::because("the site has no worker process whose clock could be moved");
    }
    let crew = Crew::of(context);
    let clock = staged(Clock::create(crew.folder()).await);
    let ttl = context.lively();
    let args = ["hold", LOCK, &ttl.as_millis().to_string()];
    let mut worker = crew.start_in(&args, &crew.folder().join("log"), &clock.environment());
    let token = context.soon("the process holds the lock", worker.says("wrote")).await;
    let manager = context.manager().await;
    for shift in [Shift::Ahead(HOUR), Shift::Behind(HOUR), Shift::NONE] {
        staged(clock.set(shift));
        // It is renewed at every third of its ttl.
        let since = std::time::Instant::now();
        while kept == Guarantee::All && since.elapsed() < ttl / 2 {
            let line = context.soon("the process says what it sees", worker.read_line()).await;
            assert_eq!(line, format!("wrote {token}"), "{shift:?}: it holds as before");
        }
        let other = manager.mutex(LOCK).try_lock().await.expect("it is answered");
        assert!(other.is_none() || kept < Guarantee::All, "{shift:?}: two hold");
    }
    drop(worker);
    works_again(context, &[&manager], LOCK, &mut Tokens::new(kept), context.after(ttl)).await;
    Ok(())
}

pub async fn robust_09_a_refusal_is_a_clear_error(stage: TrialSetup) -> TrialResult {
    let refusals = stage.site().refusals();
    if refusals.is_empty() {
        return NotApplicable::because("the site names no way in which the server can refuse");
    }
    for refusal in refusals {
        refused(&stage, &refusal).await;
    }
    Ok(())
}

async fn refused(stage: &TrialSetup, refusal: &RefusalMode) {
    let (context, servers, what) = (stage.context(), stage.server(), refusal.what);
    let mut tokens = Tokens::new(Guarantee::All);
    let ours = context.manager().await;
    let guard = context.soon("it is locked", ours.mutex(LOCK).lock()).await.expect("it is free");
    tokens.next(&guard, "before");
    let begun = servers.act(refusal.begin).await;
    begun.unwrap_or_else(|e| panic!("{what} could not be staged: {e}"));
    let error = refuse(context, &ours, refusal).await;
    remark!("{what}: {error}");
    let clear = matches!(error, Error::Backend { .. } | Error::Config(_));
    assert!(clear, "{what}: {error:?}");
    assert_eq!(error.is_retryable(), refusal.retryable, "{what}: may trying again help? {error}");
    assert!(guard.is_valid(), "{what}: a lock that is held stays so");
    // Who waits outlasts what may pass, and hears at once of what will not.
    let waiting = tokio::spawn({
        let lock = ours.mutex("another");
        async move { lock.lock().await }
    });
    let lasting = refusal.concerns == Concerns::Claims && !refusal.retryable;
    let early = match lasting {
        true => Some(context.soon("who would wait hears of it", waiting).await.expect("no panic")),
        false => {
            let ended = servers.act(refusal.end).await;
            ended.unwrap_or_else(|e| panic!("{what} does not end: {e}"));
            let guard = context.soon("who waits gets it", waiting).await.expect("no panic");
            drop(guard.unwrap_or_else(|e| panic!("{what}: a wait outlasts it: {e}")));
            None
        }
    };
    if let Some(early) = early {
        assert!(early.is_err(), "{what}: it is refused for good");
        let ended = servers.act(refusal.end).await;
        ended.unwrap_or_else(|e| panic!("{what} does not end: {e}"));
    }
    drop(guard);
    works_again(context, &[&ours], LOCK, &mut tokens, PATIENCE).await;
}

/// The error that the clients concerned get, once the server has begun to refuse: it may hear of that
/// a moment late, and a machine that stands still for a while gives another error, of no answer.
async fn refuse(context: &CaseContext, ours: &LockManager, refusal: &RefusalMode) -> Error {
    let since = Instant::now();
    for attempt in 0.. {
        let answer = match refusal.concerns {
            Concerns::Claims => {
                // What was given a moment too early may not be taken back now.
                let lock = ours.mutex(format!("attempt {attempt}"));
                let guard = context.soon("a try ends", lock.try_lock()).await;
                guard.map(|guard| assert!(guard.is_some(), "it is free"))
            }
            Concerns::Newcomers => {
                context.soon("connecting ends", context.harness().driver()).await.map(drop)
            }
        };
        match answer {
            Err(error) if error.is_retryable() == refusal.retryable => return error,
            Err(error) if since.elapsed() > PATIENCE => return error,
            Ok(()) if since.elapsed() > PATIENCE => panic!("{}: nothing is refused", refusal.what),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    unreachable!("there is an answer, or no patience left")
}

pub async fn robust_10_data_is_deleted_under_a_lock(stage: TrialSetup) -> TrialResult {
    let deletions = stage.site().deletions();
    if deletions.is_empty() {
        return NotApplicable::because("the site names no way to delete its data");
    }
    for deletion in deletions {
        deleted(&stage, &deletion).await;
    }
    Ok(())
}

async fn deleted(stage: &TrialSetup, deletion: &Deletion) {
    let (context, what) = (stage.context(), deletion.what);
    let kept =
        deletion.fault.map_or(Guarantee::All, |fault| context.capabilities().guarantee(fault));
    let mut tokens = Tokens::new(kept);
    let (ours, theirs) = (impatient(context).await, impatient(context).await);
    let ttl = context.lively();
    let lock = ours.mutex(LOCK).ttl(ttl);
    let guard = context.soon("it is locked", lock.lock()).await.expect("it is free");
    let token = tokens.next(&guard, "before");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    let held = Held::by(&guard, token);
    let done = stage.server().act(deletion.act).await;
    done.unwrap_or_else(|e| panic!("{what} could not be staged: {e}"));
    if kept == Guarantee::All {
        let verified = answered(context, "the lock is known", || guard.verify()).await;
        held.still(&verified, !waiting.is_finished());
        drop(guard);
    } else {
        // By renewing, long before it would ask anyway: no message said so.
        context.within(context.after(ttl), "the holder finds out", guard.lost()).await;
        assert!(guard.token().is_err(), "{what}");
        drop(guard);
    }
    let next = its_turn(context, waiting, context.after(ttl), None).await;
    tokens.next(&next, what);
    drop(next);
    works_again(context, &[&ours, &theirs], LOCK, &mut tokens, context.after(ttl)).await;
}

/// A manager that finds out soon when its place in the queue was lost.
async fn impatient(context: &CaseContext) -> LockManager {
    let wait = context.lively();
    context.manager_with(context.driver().await, |s| s.wait_ttl(wait))
}
