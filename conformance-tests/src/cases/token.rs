//! Fencing tokens grow.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use lockkit_core::driver::{BreakMode, Renewal};
use lockkit_core::{Mode, Token};
use tokio::task::JoinSet;

use super::contention::finish;
use crate::context::{CaseContext, MustSucceed};
use crate::listing::record;

pub async fn token_01_a_grant_has_a_token(context: CaseContext) {
    let manager = context.manager().await;
    let guard = manager.mutex("a").lock().await.expect("it is free");
    let token = guard.token().expect("it holds");
    let state = manager.inspect(lockkit_core::Space::Lock, "a").await.expect("it works");
    assert_eq!(state.queue[0].token, token, "what is shown is what was given");
    let reader = manager.rwlock("b").read().await.expect("it is free");
    reader.token().expect("readers have one as well");
    if context.capabilities().permits {
        let permit = manager.semaphore("s", 2).acquire().await.expect("it is free");
        permit.token().expect("permits have one as well");
    }
}

pub async fn token_02_every_conflicting_holder_has_a_greater_one(context: CaseContext) {
    let drivers = [context.driver().await, context.driver().await];
    let mut highest = None;
    for i in 0..20 {
        let mode = if i % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
        let driver = &drivers[i % 2];
        let claim = context.claim("a", mode);
        let token = driver.grant(&claim).await.token;
        assert!(Some(token) > highest, "holder {i}: {token} after {highest:?}");
        highest = Some(token);
        driver.let_go(&claim).await;
    }
    // Along a queue too.
    let claims = [0; 6].map(|_| context.exclusive("a"));
    for (i, claim) in claims.iter().enumerate() {
        match i {
            0 => drop(drivers[0].grant(claim).await),
            _ => drop(drivers[i % 2].queue(claim).await),
        }
    }
    for (i, claim) in claims.iter().enumerate() {
        let token = drivers[i % 2].turn(claim).await.token;
        assert!(Some(token) > highest, "{token} after {highest:?}");
        highest = Some(token);
        drivers[i % 2].let_go(claim).await;
    }
}

pub async fn token_03_renewal_and_re_entry_keep_it(context: CaseContext) {
    let driver = context.driver().await;
    let claim = context.exclusive("a");
    let token = driver.grant(&claim).await.token;
    for _ in 0..3 {
        assert_eq!(driver.holds(&claim).await.token, token);
    }
    let waiter = context.exclusive("a");
    driver.queue(&waiter).await;
    let place = context.queue(&driver, &claim.key).await.get(1).map(|waits| waits.token);
    driver.renew_one(&waiter).await;
    driver.let_go(&claim).await;
    let next = driver.turn(&waiter).await.token;
    assert!(next > token);
    assert!(place == Some(next) || !context.has_line(), "the place in line is the token");

    let manager = context.manager().await;
    let owner = manager.reentrant("owner");
    let outer = owner.mutex("b").lock().await.expect("it is free");
    let inner = owner.mutex("b").lock().await.expect("it re-enters");
    let token = outer.token().expect("it holds");
    assert_eq!(inner.token().expect("it holds"), token);
    assert_eq!(outer.verify().await.expect("it holds"), token);
}

pub async fn token_04_it_grows_across_release_expiry_and_break(context: CaseContext) {
    let driver = context.driver().await;
    let mut highest = None;
    let mut higher = |token: Token, after: &str| {
        assert!(Some(token) > highest, "{token} after {highest:?} and a {after}");
        highest = Some(token);
    };
    let first = context.exclusive("a");
    higher(driver.grant(&first).await.token, "start");
    driver.let_go(&first).await;

    let second = context.claim_for("a", Mode::Exclusive, context.short());
    higher(driver.grant(&second).await.token, "release");
    context.free(&driver, &second.key, context.after(context.short())).await;

    let third = context.exclusive("a");
    let token = driver.grant(&third).await.token;
    higher(token, "expiry");
    let why = record("the case says so", true);
    let broken = driver.break_claim(&third.key, token, BreakMode::Forced, &why).await;
    assert!(broken.expect("it works"));

    let fourth = context.exclusive("a");
    higher(driver.grant(&fourth).await.token, "break");
    // One that waited and left: no claim gets its token again.
    let fifth = context.exclusive("a");
    driver.queue(&fifth).await;
    let place = context.queue(&driver, &fifth.key).await.get(1).map(|waits| waits.token);
    driver.let_go(&fifth).await;
    driver.let_go(&fourth).await;
    match place {
        Some(place) => higher(place, "wait"),
        None => assert!(!context.has_line(), "it waited"),
    }
    higher(driver.grant(&context.exclusive("a")).await.token, "waiter that left");
}

pub async fn token_05_it_grows_across_the_clean_up_of_the_name(context: CaseContext) {
    let driver = context.driver().await;
    let mut highest = None;
    for round in 0..5 {
        let claim = context.claim_for("a", Mode::Exclusive, context.short());
        let token = driver.grant(&claim).await.token;
        assert!(Some(token) > highest, "round {round}: {token} after {highest:?}");
        highest = Some(token);
        match round % 2 {
            0 => drop(driver.let_go(&claim).await),
            _ => context.free(&driver, &claim.key, context.after(context.short())).await,
        }
        // Others come and go, and the name is not used: now it may be cleaned up.
        for i in 0..20 {
            let other = context.exclusive(&format!("other {round} {i}"));
            driver.grant(&other).await;
            driver.let_go(&other).await;
        }
        driver.renew_one(&claim).await;
        assert!(context.queue(&driver, &claim.key).await.is_empty());
    }
    let later = context.driver().await;
    let token = later.grant(&context.exclusive("a")).await.token;
    assert!(Some(token) > highest, "on another connection: {token} after {highest:?}");
}

pub async fn token_08_the_order_of_64_clients_grants_is_that_of_their_tokens(context: CaseContext) {
    let mut managers = Vec::new();
    for _ in 0..4 {
        managers.push(context.manager().await);
    }
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..64 {
        let (mutex, order) = (managers[i % 4].mutex("a"), order.clone());
        tasks.spawn(async move {
            let guard = mutex.lock().await.expect("it gets in");
            let token = guard.token().expect("it holds");
            order.lock().unwrap().push(token);
            guard.release().await.expect("it was held");
        });
    }
    finish(tasks).await;
    let order = order.lock().unwrap().clone();
    let distinct: HashSet<_> = order.iter().collect();
    assert_eq!(distinct.len(), 64, "all are distinct: {order:?}");
    assert!(order.is_sorted(), "tokens in the order of the grants: {order:?}");
}

pub async fn token_09_it_fits_into_a_signed_64_bit_column(context: CaseContext) {
    let driver = context.driver().await;
    let claim = context.exclusive("a");
    let token = driver.grant(&claim).await.token;
    assert!(token.as_i64() > 0);
    // Room is left for a few centuries of use.
    assert!(token.get() < 1 << 60, "{token} leaves little room");
    if !context.capabilities().raise {
        return;
    }
    let high = Token::new((1 << 60) + 1).expect("it fits");
    match driver.raise(&claim, high).await.expect("it works") {
        Renewal::Holds(grant) => assert_eq!(grant.token, high, "large tokens are exact"),
        other => panic!("it holds, so: {other:?}"),
    }
    driver.let_go(&claim).await;
    let next = driver.grant(&context.exclusive("a")).await.token;
    assert!(next > high && next.as_i64() > 0, "{next} after {high}");
}

pub async fn token_10_a_raise_applies_to_this_token_and_all_later_ones(context: CaseContext) {
    let driver = context.driver().await;
    let (holder, waiter) = (context.exclusive("a"), context.exclusive("a"));
    let token = driver.grant(&holder).await.token;
    let high = Token::new(token.get() + 1_000_000).expect("it fits");
    for asked in [high, token, high] {
        match driver.raise(&holder, asked).await.expect("it works") {
            Renewal::Holds(grant) => assert_eq!(grant.token, high, "raised to {asked}"),
            other => panic!("it holds, so: {other:?}"),
        }
    }
    assert_eq!(driver.holds(&holder).await.token, high);
    assert_eq!(context.queue(&driver, &holder.key).await[0].token, high);
    driver.queue(&waiter).await;
    driver.let_go(&holder).await;
    let next = driver.turn(&waiter).await.token;
    assert!(next > high, "{next} after {high}");
    let gone = driver.raise(&holder, high).await.expect("it works");
    assert!(matches!(gone, Renewal::Ended(_)), "only while it is live: {gone:?}");
}

pub async fn token_11_a_raise_applies_to_claims_that_already_wait(context: CaseContext) {
    let (driver, other) = (context.driver().await, context.driver().await);
    let holder = context.exclusive("a");
    let token = driver.grant(&holder).await.token;
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Exclusive];
    let waiters = modes.map(|mode| context.claim("a", mode));
    for waiter in &waiters {
        other.queue(waiter).await;
    }
    if context.has_line() {
        // To the token of the first waiter, which gets a greater one, and so do those behind it.
        let first = context.queue(&driver, &holder.key).await[1].token;
        let raised = driver.raise(&holder, first).await.expect("it works");
        assert!(matches!(raised, Renewal::Holds(grant) if grant.token == first), "{raised:?}");
        let shown = context.queue(&driver, &holder.key).await;
        let tokens: Vec<_> = shown.iter().map(|claim| claim.token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "in the order of the queue: {tokens:?}");
    }
    // Beyond what a counter that follows a clock has given to the waiters.
    let high = Token::new(token.get() + 1_000_000_000_000).expect("it fits");
    match driver.raise(&holder, high).await.expect("it works") {
        Renewal::Holds(grant) => assert_eq!(grant.token, high),
        other => panic!("it holds, so: {other:?}"),
    }
    if context.has_line() {
        let shown = context.queue(&driver, &holder.key).await;
        let tokens: Vec<_> = shown.iter().map(|claim| claim.token).collect();
        assert_eq!(tokens.len(), 5, "all are in line: {tokens:?}");
        assert!(tokens.is_sorted_by(|a, b| a < b), "in the order of the queue: {tokens:?}");
    }
    driver.let_go(&holder).await;
    let first = other.turn(&waiters[0]).await.token;
    assert!(first > high, "the next holder: {first} after {high}");
    other.let_go(&waiters[0]).await;
    let readers = [other.turn(&waiters[1]).await.token, other.turn(&waiters[2]).await.token];
    for reader in readers {
        assert!(reader > first, "a reader: {reader} after {first}");
    }
    // One of those who share: only who waits is behind it.
    let higher = Token::new(high.get() + 2_000_000_000_000).expect("it fits");
    let raised = other.raise(&waiters[1], higher).await.expect("it works");
    assert!(matches!(raised, Renewal::Holds(grant) if grant.token == higher), "{raised:?}");
    other.let_go(&waiters[1]).await;
    other.let_go(&waiters[2]).await;
    let last = other.turn(&waiters[3]).await.token;
    assert!(last > higher, "the last one: {last} after {higher}");
    other.let_go(&waiters[3]).await;
    let next = driver.grant(&context.exclusive("a")).await.token;
    assert!(next > last, "a later one: {next} after {last}");
}
