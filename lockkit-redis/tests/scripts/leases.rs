//! The leases of lists in which somebody waits or shares, with ttls for waiting and holding that
//! differ, as the defaults do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Mode};
use lockkit_lab::raw::resp::{RespConnection, RespReply};
use lockkit_redis::RedisDriver;

use super::{PERMIT, ask, claim, connect, granted, holds, queue, start, take, waits, with_ttls};

const WAIT: Duration = Duration::from_secs(100);
const HOLD: Duration = Duration::from_secs(300);
/// Between the two, by more than any machine stands still.
const BETWEEN: Duration = Duration::from_secs(200);
/// A hand-over is not so late.
const LATE: Duration = Duration::from_secs(3);

fn patient(mode: Mode) -> Arc<Claim> {
    with_ttls(mode, HOLD, WAIT)
}

/// How long the leases of the list last from now, in their order.
async fn left(driver: &RedisDriver, of: &Claim) -> Vec<Duration> {
    let state = driver.inspect(&of.key).await.unwrap();
    state.queue.iter().map(|standing| standing.expires_in).collect()
}

#[tokio::test]
async fn a_waiter_that_begins_to_hold_gets_the_lease_of_a_holder() {
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let (_server, driver) = start().await;
        let holder = match mode {
            Mode::Permits { limit, .. } => claim(Mode::Permits { permits: limit, limit }),
            _ => claim(Mode::Exclusive),
        };
        let waiter = patient(mode);
        take(&driver, &holder).await;
        queue(&driver, &waiter).await;
        let waiting = left(&driver, &waiter).await[1];
        assert!(waiting <= WAIT + Duration::from_secs(1), "{mode:?}: {waiting:?}");
        driver.release(&holder).await.unwrap();
        let grant = granted(&driver, &waiter).await;
        assert_eq!(grant.ttl, HOLD);
        let holding = left(&driver, &waiter).await[0];
        assert!(holding > BETWEEN && holding <= HOLD + Duration::from_secs(1), "{holding:?}");
    }
}

/// It polls, and learns who broke it. The one behind it does, too: what is left of that lease is less than the
/// time until it renews.
#[tokio::test]
async fn a_waiter_that_was_broken_is_not_told_that_it_holds() {
    let (server, driver) = start().await;
    let (theirs, operator) = (connect(&server).await, connect(&server).await);
    let (holder, behind) = (claim(Mode::Exclusive), with_ttls(Mode::Exclusive, HOLD, 2 * HOLD));
    let waiter = with_ttls(Mode::Exclusive, HOLD, WAIT);
    take(&driver, &holder).await;
    queue(&theirs, &waiter).await;
    queue(&theirs, &behind).await;
    let token = driver.inspect(&waiter.key).await.unwrap().queue[1].token;
    let mut messages = RespConnection::open(server.addr()).await.unwrap();
    messages.call(&["PSUBSCRIBE", "lockkit:wake:*"]).await.unwrap();
    let mode = BreakMode::Graceful;
    let record = BreakRecord::from_parts(ClientIdentity::of_this_process(), 0, None, false);
    assert!(operator.break_claim(&waiter.key, token, mode, &record).await.unwrap());
    driver.release(&holder).await.unwrap();
    let [waiter, behind] = [waiter, behind].map(|claim| claim.id.to_hex());
    for expected in [&waiter, &waiter, &behind] {
        let message = loop {
            let RespReply::Array(message) = messages.read().await.unwrap() else { panic!("one") };
            let text = message[3].text().to_owned();
            if text.contains(&waiter) || text.contains(&behind) {
                break text;
            }
        };
        assert_eq!(message, format!("poll {expected}"));
    }
}

#[tokio::test]
async fn a_renewal_never_shortens_a_lease_of_a_list() {
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let (_server, driver) = start().await;
        let holder = patient(mode);
        let full = match mode {
            Mode::Permits { limit, .. } => claim(Mode::Permits { permits: limit, limit }),
            _ => claim(Mode::Exclusive),
        };
        let waiter = with_ttls(full.mode, WAIT, HOLD);
        take(&driver, &holder).await;
        queue(&driver, &waiter).await;
        // The same claims, asked about with ttls that are shorter.
        let mut shorter = [Claim::clone(&holder), Claim::clone(&waiter)];
        for claim in &mut shorter {
            (claim.hold_ttl, claim.wait_ttl) = (WAIT, WAIT);
        }
        let [holder, waiter] = shorter.map(Arc::new);
        holds(&driver, &holder).await;
        waits(&driver, &waiter).await;
        queue(&driver, &waiter).await;
        for left in left(&driver, &holder).await {
            assert!(left > BETWEEN, "{mode:?}: {left:?}");
        }
    }
}

#[tokio::test]
async fn a_renewal_of_a_list_counts_with_the_ttl_of_the_claims_state() {
    let (_server, driver) = start().await;
    let holder = with_ttls(Mode::Shared, WAIT, WAIT);
    let waiter = with_ttls(Mode::Exclusive, WAIT, WAIT);
    take(&driver, &holder).await;
    queue(&driver, &waiter).await;
    let mut longer = [Claim::clone(&holder), Claim::clone(&waiter)];
    longer[0].hold_ttl = HOLD;
    longer[1].wait_ttl = HOLD;
    let [holder, waiter] = longer.map(Arc::new);
    holds(&driver, &holder).await;
    waits(&driver, &waiter).await;
    for left in left(&driver, &holder).await {
        assert!(left > BETWEEN && left <= HOLD + Duration::from_secs(1), "{left:?}");
    }
}

#[tokio::test]
async fn the_key_of_a_queue_lasts_as_long_as_its_longest_lease() {
    let (server, driver) = start().await;
    let (holder, waiter) = (with_ttls(Mode::Exclusive, HOLD, WAIT), patient(Mode::Exclusive));
    take(&driver, &holder).await;
    queue(&driver, &waiter).await;
    let RespReply::Array(keys) = ask(&server, &["KEYS", "lockkit:lock*"]).await else {
        panic!("KEYS")
    };
    assert_eq!(keys.len(), 1, "{keys:?}");
    for key in keys {
        let RespReply::Number(left) = ask(&server, &["PTTL", key.text()]).await else {
            panic!("PTTL")
        };
        assert!(left > BETWEEN.as_millis() as i64, "{}: {left}", key.text());
    }
}

/// Nobody says a word when a lease ends: the next in line knows when to look.
#[tokio::test]
async fn a_lock_whose_holder_died_is_handed_on_when_its_lease_ends() {
    let ttl = Duration::from_millis(500);
    for mode in [Mode::Exclusive, Mode::Shared, PERMIT] {
        let (_server, driver) = start().await;
        let full = match mode {
            Mode::Permits { limit, .. } => Mode::Permits { permits: limit, limit },
            _ => Mode::Exclusive,
        };
        let (holder, next, last) =
            (with_ttls(full, ttl, ttl), with_ttls(full, ttl, HOLD), claim(mode));
        let begun = Instant::now();
        take(&driver, &holder).await;
        queue(&driver, &next).await;
        queue(&driver, &last).await;
        granted(&driver, &next).await;
        let first = begun.elapsed();
        assert!(first >= ttl && first < ttl + LATE, "{mode:?}: {first:?}");
        // It dies as well. The last one was told that it is the next.
        granted(&driver, &last).await;
        let second = begun.elapsed() - first;
        assert!(second < ttl + LATE, "{mode:?}: {second:?}");
    }
}
