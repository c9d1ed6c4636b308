//! Acquires and releases of many claims in one request. A driver that carries one step at a time
//! shows the same.

use std::sync::Arc;

use lockkit_core::driver::{
    Acquisition, Attempted, Grant, LockDriver, Patience, Released, Replies, Reply, Step,
};
use lockkit_core::{Claim, Error};

use crate::bench::{Bench, MustSucceed};

pub async fn flight_01_every_step_is_answered_in_its_order(bench: Bench) {
    let driver = bench.driver().await;
    let [a, b, c, d, reader] = ["a", "b", "c", "d", "e"].map(|name| match name {
        "e" => bench.shared(name),
        name => bench.exclusive(name),
    });
    for held in [&a, &b, &c, &reader] {
        driver.grant(held).await;
    }
    let (refused, queued, stranger) =
        (bench.exclusive("c"), bench.exclusive("e"), bench.exclusive("unheard of"));
    let replies = carried(
        &driver,
        &[
            release(&a),
            release(&stranger),
            release(&b),
            acquire(&refused, Patience::Try),
            acquire(&d, Patience::Try),
            acquire(&queued, Patience::Wait),
        ],
    )
    .await;
    assert_eq!(reply(&replies[0]), Reply::Released(Released::Removed));
    assert_eq!(reply(&replies[1]), Reply::Released(Released::NoSuchLock));
    assert_eq!(reply(&replies[2]), Reply::Released(Released::Removed));
    assert_eq!(reply(&replies[3]), Reply::Acquired(Acquisition::Busy));
    let token = grant(&replies[4]).token;
    assert!(matches!(reply(&replies[5]), Reply::Acquired(Acquisition::Queued { .. })));
    assert_eq!(driver.holds(&d).await.token, token, "the token is that of its own claim");
    driver.holds(&c).await;
    driver.let_go(&reader).await;
    driver.turn(&queued).await;
    for name in ["a", "b", "unheard of"] {
        assert!(bench.line(&driver, &bench.key(name)).await.is_empty(), "{name} is free");
    }
}

pub async fn flight_02_a_step_that_fails_fails_alone(bench: Bench) {
    let driver = bench.driver().await;
    driver.grant(&bench.permits("s", 1, 3)).await;
    let [a, b] = ["a", "b"].map(|name| bench.exclusive(name));
    let (other, fits) = (bench.permits("s", 1, 4), bench.permits("t", 2, 3));
    let replies =
        carried(&driver, &[&a, &other, &fits, &b].map(|claim| acquire(claim, Patience::Try))).await;
    for at in [0, 2, 3] {
        grant(&replies[at]);
    }
    let error = replies[1].as_ref().expect_err("the semaphore has another limit");
    assert!(matches!(error, Error::LimitMismatch { in_use: 3, asked: 4, .. }), "{error}");
    for held in [&a, &fits, &b] {
        driver.holds(held).await;
    }
}

pub async fn flight_03_a_flight_that_is_repeated_changes_nothing(bench: Bench) {
    let driver = bench.driver().await;
    let claims = ["a", "b", "c"].map(|name| bench.exclusive(name));
    let waiters = ["a", "b", "c"].map(|name| bench.exclusive(name));
    let tries = claims.each_ref().map(|claim| acquire(claim, Patience::Try));
    let waits = waiters.each_ref().map(|claim| acquire(claim, Patience::Wait));
    let first: Vec<_> = carried(&driver, &tries).await.iter().map(|r| grant(r).token).collect();
    let again: Vec<_> = carried(&driver, &tries).await.iter().map(|r| grant(r).token).collect();
    assert_eq!(first, again);
    for _ in 0..2 {
        for answer in carried(&driver, &waits).await {
            let answer = reply(&answer);
            let Reply::Acquired(Acquisition::Queued { ahead }) = answer else {
                panic!("it should have been queued, not {answer:?}");
            };
            assert!(ahead == 1 || !bench.has_line(), "{ahead} stand ahead");
        }
    }
    let releases = claims.each_ref().map(release);
    for answer in carried(&driver, &releases).await {
        assert_eq!(reply(&answer), Reply::Released(Released::Removed));
    }
    for answer in carried(&driver, &releases).await {
        let answer = reply(&answer);
        let expected = match bench.has_line() {
            true => answer == Reply::Released(Released::NotFound),
            false => answer != Reply::Released(Released::Removed),
        };
        assert!(expected, "it was released already: {answer:?}");
    }
    for waiter in &waiters {
        driver.turn(waiter).await;
    }
}

pub async fn flight_04_releases_that_travel_together_wake_every_next(bench: Bench) {
    let driver = bench.driver().await;
    let names: Vec<_> = (0..8).map(|i| format!("a{i}")).collect();
    let holders: Vec<_> = names.iter().map(|name| bench.exclusive(name)).collect();
    let waiters: Vec<_> = names.iter().map(|name| bench.exclusive(name)).collect();
    for (holder, waiter) in holders.iter().zip(&waiters) {
        driver.grant(holder).await;
        driver.queue(waiter).await;
    }
    let turns: Vec<_> = waiters
        .iter()
        .map(|waiter| {
            let (driver, waiter) = (driver.clone(), waiter.clone());
            tokio::spawn(async move { driver.turn(&waiter).await })
        })
        .collect();
    let releases: Vec<_> = holders.iter().map(release).collect();
    for answer in carried(&driver, &releases).await {
        assert_eq!(reply(&answer), Reply::Released(Released::Removed));
    }
    for turn in turns {
        bench.soon("the next holds", turn).await.expect("it does");
    }
}

pub async fn flight_05_a_flight_of_the_declared_size_is_carried(bench: Bench) {
    let driver = bench.driver().await;
    let steps = bench.capabilities().flights.steps.clamp(20, 500);
    let names: Vec<_> = (0..steps).map(|i| format!("{i:03}{}", "long".repeat(20))).collect();
    let mut before = vec![0; steps];
    for _ in 0..2 {
        let claims: Vec<_> = names.iter().map(|name| bench.exclusive(name)).collect();
        let tries: Vec<_> = claims.iter().map(|claim| acquire(claim, Patience::Try)).collect();
        let replies = carried(&driver, &tries).await;
        for (at, answer) in replies.iter().enumerate() {
            let token = grant(answer).token.get();
            assert!(token > before[at], "{token} comes after {}", before[at]);
            before[at] = token;
        }
        let releases: Vec<_> = claims.iter().map(release).collect();
        for answer in carried(&driver, &releases).await {
            assert_eq!(reply(&answer), Reply::Released(Released::Removed));
        }
    }
}

pub async fn flight_06_acquires_of_one_name_keep_their_order(bench: Bench) {
    let driver = bench.driver().await;
    let claims: Vec<_> = (0..5).map(|_| bench.exclusive("a")).collect();
    let waits: Vec<_> = claims.iter().map(|claim| acquire(claim, Patience::Wait)).collect();
    // One flight where it may have several acquires of a key, several where it may not.
    match bench.capabilities().flights.same_key {
        true => drop(carried(&driver, &waits).await),
        false => {
            for step in &waits {
                carried(&driver, std::slice::from_ref(step)).await;
            }
        }
    }
    let mut last = 0;
    for claim in &claims {
        let token = driver.turn(claim).await.token.get();
        assert!(token > last, "{token} comes after {last}");
        last = token;
        driver.let_go(claim).await;
    }
}

fn acquire(claim: &Arc<Claim>, patience: Patience) -> Step {
    Step::Acquire { claim: claim.clone(), patience }
}

fn release(claim: &Arc<Claim>) -> Step {
    Step::Release { claim: claim.clone() }
}

async fn carried(driver: &Arc<dyn LockDriver>, steps: &[Step]) -> Replies {
    let mut replies = asked(driver, steps).await;
    for (step, reply) in steps.iter().zip(&mut replies) {
        if let Ok(Attempted { result: Reply::SendAlone, .. }) = reply {
            assert!(steps.len() > 1, "a single step is carried out");
            *reply = asked(driver, std::slice::from_ref(step)).await.remove(0);
        }
    }
    replies
}

async fn asked(driver: &Arc<dyn LockDriver>, steps: &[Step]) -> Replies {
    let replies = driver.carry(steps).await.unwrap_or_else(|e| panic!("the flight failed: {e}"));
    assert_eq!(replies.len(), steps.len(), "each step is answered");
    replies
}

fn reply(answer: &Result<Attempted<Reply>, Error>) -> Reply {
    answer.as_ref().unwrap_or_else(|e| panic!("a step failed: {e}")).result
}

fn grant(answer: &Result<Attempted<Reply>, Error>) -> Grant {
    match reply(answer) {
        Reply::Acquired(Acquisition::Granted(grant)) => grant,
        other => panic!("it should have been granted, not {other:?}"),
    }
}
