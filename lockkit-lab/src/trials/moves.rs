//! Locks and registers that move to another server while they are in use: a resharding, half of
//! whose keys are here and half there for a while. A request for one of them meanwhile gets
//! a right answer or is asked to try again.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::capabilities::Guarantee;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    LockDriver, Precondition, RegisterKey, Registers, Write, WriteId, WriteResult,
};
use lockkit_core::{Error, Guard, LockManager, Name, Token};

use super::scene::{Tokens, answered, its_turn, wait_in_line, works_again};
use super::stage::staged;
use super::{NotApplicable, TrialResult, TrialSetup};
use crate::Group;
use lockkit_conformance::context::{CaseContext, MustSucceed, PATIENCE};

const LOCK: &str = "moving-lock";

fn divided(stage: &TrialSetup) -> Result<&Group, NotApplicable> {
    match stage.group().filter(|group| group.layout().divides_its_keys()) {
        Some(group) => Ok(group),
        None => NotApplicable::because("the site names no group that divides its keys"),
    }
}

pub async fn robust_07_a_lock_moves_to_another_server(stage: TrialSetup) -> TrialResult {
    let (group, context) = (divided(&stage)?, stage.context());
    let mut tokens = Tokens::new(Guarantee::All);
    let (ours, theirs) = (context.manager().await, context.manager().await);
    // A lock for which no claim waits, and one with a queue.
    for with_line in [false, true] {
        let guard = ours.mutex(LOCK).lock().await.expect("it is free");
        let token = tokens.next(&guard, "before the move");
        let waiting = match with_line {
            false => None,
            true => Some(wait_in_line(context, &theirs, LOCK).await),
        };
        let key = staged(group.key_with(LOCK).await).expect("the lock is in use");
        let moving = staged(group.begin_to_move(&key).await);
        while staged(moving.one_key().await) {
            still_held(context, &theirs, &guard, token).await;
        }
        still_held(context, &theirs, &guard, token).await;
        staged(moving.finish().await);
        let verified = answered(context, "the new server says", || guard.verify()).await;
        assert_eq!(verified.expect("it is held still"), token);
        assert!(waiting.as_ref().is_none_or(|w| !w.is_finished()), "two hold");
        drop(guard);
        if let Some(waiting) = waiting {
            let next = its_turn(context, waiting, context.after(Duration::ZERO), None).await;
            tokens.next(&next, "who waited through the move");
        }
        works_again(context, &[&ours, &theirs], LOCK, &mut tokens, PATIENCE).await;
    }
    Ok(())
}

/// Whatever is asked about a lock that is held, it is held.
async fn still_held(context: &CaseContext, theirs: &LockManager, guard: &Guard, token: Token) {
    if let Some(said) = may_fail(guard.verify().await) {
        assert_eq!(said, token);
    }
    if let Some(taken) = may_fail(theirs.mutex(LOCK).try_lock().await) {
        assert!(taken.is_none(), "two hold: {taken:?}");
    }
    let state = theirs.driver().inspect(&context.key(LOCK)).await;
    if let Some(state) = may_fail(state) {
        assert_eq!(state.queue.first().map(|first| first.token), Some(token), "{state:?}");
    }
}

pub async fn register_04_a_register_is_whole_while_it_moves(stage: TrialSetup) -> TrialResult {
    let (group, context) = (divided(&stage)?, stage.context());
    if !context.capabilities().registers {
        return NotApplicable::because("the driver has no registers");
    }
    let driver = context.driver().await;
    let claim = context.exclusive(LOCK);
    let token = driver.grant(&claim).await.token;
    let name = ClaimId::random().to_hex();
    let at = RegisterKey {
        namespace: context.namespace().clone(),
        name: Name::new(&name).expect("a valid name"),
    };
    let mut written = Vec::new();
    write(&driver, &at, token, &mut written).await.expect("it is stored");
    let key = staged(group.key_with(&name).await).expect("it was stored");
    let moving = staged(group.begin_to_move(&key).await);
    loop {
        for _ in 0..2 {
            let stored = write(&driver, &at, token, &mut written).await;
            may_fail(stored);
            may_fail(read(&driver, &at, token, &mut written).await);
        }
        if !staged(moving.one_key().await) {
            break;
        }
    }
    staged(moving.finish().await);
    let load = async || read(&driver, &at, token, &mut written.clone()).await;
    answered(context, "it is loaded", load).await.expect("it is loaded");
    driver.let_go(&claim).await;
    Ok(())
}

/// Writes the next number. `written` has those that may be found: the last that was acknowledged,
/// and those written since.
async fn write(
    driver: &Arc<dyn LockDriver>,
    at: &RegisterKey,
    token: Token,
    written: &mut Vec<u64>,
) -> Result<(), Error> {
    let next = written.last().map_or(1, |last| last + 1);
    written.push(next);
    let store = Write {
        value: Some(next.to_string().into_bytes()),
        expect: Precondition::Anything,
        token: Some(token),
        write_id: WriteId::random(),
        ttl: None,
        repeated: false,
    };
    match registers(driver).write(at, &store).await?.result {
        WriteResult::Stored(_) => written.retain(|value| *value == next),
        other => panic!("nobody else writes: {other:?}"),
    }
    Ok(())
}

async fn read(
    driver: &Arc<dyn LockDriver>,
    at: &RegisterKey,
    token: Token,
    written: &mut Vec<u64>,
) -> Result<(), Error> {
    let entry = registers(driver).load(at).await?.expect("a register does not vanish");
    let value = String::from_utf8(entry.value).ok().and_then(|text| text.parse().ok());
    let value: u64 = value.expect("a number was written");
    assert!(written.contains(&value), "{value} is none of {written:?}");
    assert_eq!(entry.token, Some(token), "the token is remembered");
    written.retain(|other| *other >= value);
    Ok(())
}

fn registers(driver: &Arc<dyn LockDriver>) -> &dyn Registers {
    driver.registers().expect("the driver says that it has registers")
}

/// What was answered, unless it is worth trying again.
fn may_fail<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert!(error.is_retryable(), "it works again after the move, yet: {error}");
            None
        }
    }
}
