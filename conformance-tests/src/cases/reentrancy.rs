//! Owners enter again what they hold, and no other owner does.

use std::sync::Arc;

use lockkit_core::driver::{BreakMode, Released};
use lockkit_core::{Error, Space, Ticket};

use crate::context::{CaseContext, MustSucceed};
use crate::wrap::Tampered;
use crate::wrap::tampers::Counting;

pub async fn reentrancy_01_an_owner_re_enters_without_a_round_trip(context: CaseContext) {
    let counting = Arc::new(Counting::default());
    let driver = Tampered::new(context.driver().await, counting.clone());
    let manager = context.manager_over(Arc::new(driver));
    let owner = manager.reentrant("job");
    let outer = owner.mutex("a").lock().await.expect("it is free");
    let before = counting.calls();
    let mut inner = Vec::new();
    for _ in 0..5 {
        inner.push(owner.mutex("a").lock().await.expect("it re-enters"));
        inner.push(owner.mutex("a").try_lock().await.expect("it works").expect("it re-enters"));
    }
    inner.push(manager.clone().reentrant("job").mutex("a").lock().await.expect("the same owner"));
    for guard in inner {
        assert_eq!(guard.token().expect("it holds"), outer.token().expect("it holds"));
        guard.release().await.expect("it was held");
    }
    assert_eq!(counting.calls(), before, "re-entry and its end ask the backend nothing");
    assert!(outer.is_valid());
}

pub async fn reentrancy_02_it_is_held_until_the_last_guard_goes(context: CaseContext) {
    let manager = context.manager().await;
    let driver = context.driver().await;
    let owner = manager.reentrant("job");
    let outer = owner.mutex("a").lock().await.expect("it is free");
    let middle = owner.mutex("a").lock().await.expect("it re-enters");
    let inner = owner.mutex("a").lock().await.expect("it re-enters");
    outer.release().await.expect("it was held");
    driver.refuse(&context.exclusive("a")).await;
    drop(inner);
    driver.refuse(&context.exclusive("a")).await;
    assert!(middle.is_valid());
    middle.release().await.expect("it was held");
    driver.grant(&context.exclusive("a")).await;
}

pub async fn reentrancy_03_other_owners_stay_out(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let _held = ours.reentrant("job").mutex("a").lock().await.expect("it is free");
    let other = ours.reentrant("another job").mutex("a").try_lock().await;
    assert!(other.expect("it works").is_none(), "another owner");
    let other = theirs.reentrant("job").mutex("a").try_lock().await;
    assert!(other.expect("it works").is_none(), "the same name for an owner elsewhere");
    let other = ours.reentrant("job").mutex("b").try_lock().await;
    assert!(other.expect("it works").is_some(), "another lock");
}

pub async fn reentrancy_04_plain_handles_do_not_re_enter(context: CaseContext) {
    let manager = context.manager().await;
    let mutex = manager.mutex("a");
    let guard = mutex.lock().await.expect("it is free");
    assert!(mutex.try_lock().await.expect("it works").is_none(), "the same handle");
    assert!(manager.mutex("a").try_lock().await.expect("it works").is_none(), "another");
    let owner = manager.reentrant("job").mutex("a").try_lock().await;
    assert!(owner.expect("it works").is_none(), "an owner that does not hold it");
    guard.release().await.expect("it was held");
}

pub async fn reentrancy_05_what_cannot_be_re_entered_is_an_error(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let owner = ours.reentrant("job");
    let reading = owner.rwlock("a").read().await.expect("it is free");
    let writing = context.soon("an answer", owner.rwlock("a").write()).await;
    assert!(matches!(writing, Err(Error::WouldDeadlock { .. })), "{writing:?}");
    drop(owner.rwlock("a").read().await.expect("reading again is fine"));
    reading.release().await.expect("it was held");

    let writing = owner.rwlock("b").write().await.expect("it is free");
    let reading = context.soon("an answer", owner.rwlock("b").read()).await;
    drop(reading.expect("who writes may read"));
    writing.release().await.expect("it was held");

    let held = owner.mutex("c").ttl(context.lively()).lock().await.expect("it is free");
    let token = held.token().expect("it holds");
    let broken = theirs.admin().break_lock(Space::Lock, "c", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"));
    context.soon("the owner is told", held.lost()).await;
    let again = owner.mutex("c").lock().await;
    assert!(matches!(again, Err(Error::Lost { .. })), "what was lost is not entered: {again:?}");
    drop(held);
    let anew = context.soon("an answer", owner.mutex("c").lock()).await;
    drop(anew.expect("once it has let go, it can lock anew"));
}

pub async fn reentrancy_06_a_detached_claim_is_resumed_from_its_ticket(context: CaseContext) {
    let first = context.manager().await;
    let guard = first.mutex("a").detached().lock().await.expect("it is free");
    let token = guard.token().expect("it holds");
    let ticket = guard.detach().expect("it was made for this");
    let hidden = format!("{ticket:?}");
    let word = ticket.to_string();
    assert!(!word.contains(char::is_whitespace), "a ticket is one word: {word:?}");
    assert!(!hidden.contains(&word), "Debug hides what releases");
    first.shutdown().await;

    let driver = context.driver().await;
    driver.refuse(&context.exclusive("a")).await;
    let second = context.manager().await;
    let ticket: Ticket = word.parse().expect("it is read back");
    let guard = second.resume(&ticket).await.expect("it is still held");
    assert_eq!(guard.token().expect("it holds"), token, "the same claim, the same token");
    let ticket = guard.detach().expect("it can be detached again");
    assert_eq!(second.release_ticket(&ticket).await.expect("it works"), Released::Removed);
    let gone = second.resume(&ticket).await;
    assert!(matches!(gone, Err(Error::Lost { .. })), "{gone:?}");
    driver.grant(&context.exclusive("a")).await;

    let plain = second.mutex("b").lock().await.expect("it is free");
    assert!(plain.detach().is_err(), "only what was made with .detached()");
    context.free(&driver, &context.key("b"), crate::context::PATIENCE).await;
}
