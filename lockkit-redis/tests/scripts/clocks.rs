//! A server whose clock has fewer digits than today's, that of a board without a battery; and one whose
//! clock is ahead of what a client knows of it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkit_core::driver::{Acquire, Acquisition, Batch, LockDriver, Patience, Released};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Token};
use lockkit_lab::raw::resp::RespReply as Answer;
use lockkit_lab::{Server, ServerKind, Shift};
use lockkit_redis::redis::Client;
use lockkit_redis::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use lockkit_redis::{RedisDriver, RedisOptions};

use super::{LONG, ask, claim, connect, granted, holds, named, queue, start, take, waits};

/// The server's clock shows so much since 1970.
fn set_clock(server: &Server, since_1970: Duration) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    server.move_clock(Shift::Behind(now - since_1970)).unwrap();
}

/// A driver over a connection of the user's own.
async fn over_a_manager(server: &Server) -> RedisDriver {
    let client = Client::open(server.url()).unwrap();
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(LONG))
        .set_response_timeout(Some(LONG));
    let manager = ConnectionManager::new_with_config(client.clone(), config).await.unwrap();
    RedisOptions::default().timeout(LONG).connection_manager(manager, client).await.unwrap()
}

#[tokio::test]
async fn in_1970_leases_are_renewed_and_locks_handed_over() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    set_clock(&server, Duration::from_secs(5));
    for driver in [connect(&server).await, over_a_manager(&server).await] {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let (first, second) = (claim(mode), claim(Mode::Exclusive));
            let token = take(&driver, &first).await;
            assert_eq!(holds(&driver, &first).await, token);
            queue(&driver, &second).await;
            assert_eq!(holds(&driver, &first).await, token);
            waits(&driver, &second).await;
            let line = driver.inspect(&first.key).await.unwrap().queue;
            assert_eq!(line[0].token, token, "{line:?}");
            assert_eq!(driver.release(&first).await.unwrap(), Released::Removed);
            let next = granted(&driver, &second).await.token;
            assert!(next > token, "{next} after {token}");
            assert_eq!(holds(&driver, &second).await, next);
            assert_eq!(driver.release(&second).await.unwrap(), Released::Removed);
        }
    }
}

#[tokio::test]
async fn tokens_grow_when_the_clock_goes_back_to_where_it_has_fewer_digits() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    let driver = over_a_manager(&server).await;
    let mut last = None;
    let day = Duration::from_secs(86_400);
    // 1970, 1973, before and after September 2001, and 1970 again.
    for days in [20_000, 0, 1_100, 11_570, 11_580, 0] {
        set_clock(&server, day * days + Duration::from_secs(200));
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Exclusive] {
            let claim = claim(mode);
            let token = Some(take(&driver, &claim).await);
            assert!(token > last, "{token:?} after {last:?} on day {days}");
            last = token;
            driver.release(&claim).await.unwrap();
        }
    }
}

fn acquires(claims: &[Arc<Claim>]) -> Vec<Acquire> {
    let acquire = |it: &Arc<Claim>| Acquire { claim: it.clone(), patience: Patience::Wait };
    claims.iter().map(acquire).collect()
}

/// Locks a hundred names in one flight, of which some have the same bucket.
async fn take_many(driver: &RedisDriver) -> Vec<Token> {
    let claim = |i| {
        let name = Name::new(format!("invoice/{i}")).unwrap();
        let key = Key::new(Namespace::default(), Mode::Exclusive.space(), name);
        let identity = Arc::new(ClientIdentity::of_this_process());
        Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
    };
    let claims: Vec<_> = (0..100).map(claim).collect();
    let acquires = acquires(&claims);
    let taken = driver.submit(Batch { releases: &[], acquires: &acquires }).await.unwrap().acquired;
    driver.submit(Batch { releases: &claims, acquires: &[] }).await.unwrap();
    let token = |acquisition| match acquisition {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("it is free: {other:?}"),
    };
    taken.into_iter().map(|acquired| token(acquired.unwrap().result)).collect()
}

#[tokio::test]
async fn tokens_of_a_batch_grow_although_its_client_is_behind_the_clock_and_others_were_there() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    set_clock(&server, Duration::from_secs(3_600) * 480_000);
    for (hour, data_lost) in [(1, false), (2, true)] {
        let behind = connect(&server).await;
        take(&behind, &claim(Mode::Exclusive)).await; // it has read the clock
        set_clock(&server, Duration::from_secs(3_600) * (480_000 + hour));
        let before = take_many(&connect(&server).await).await;
        if data_lost {
            ask(&server, &["FLUSHALL"]).await;
        }
        for (i, (token, before)) in take_many(&behind).await.iter().zip(&before).enumerate() {
            assert!(token > before, "invoice/{i}: {token} after {before}, data lost: {data_lost}");
        }
        ask(&server, &["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn tokens_of_a_batch_grow_although_the_clock_went_back() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    let hour = Duration::from_secs(3_600);
    set_clock(&server, hour * 480_001);
    let mut before = take_many(&connect(&server).await).await;
    set_clock(&server, hour * 480_000);
    let driver = connect(&server).await;
    for _ in 0..2 {
        let now = take_many(&driver).await;
        for (i, (token, before)) in now.iter().zip(&before).enumerate() {
            assert!(token > before, "invoice/{i}: {token} after {before}");
        }
        before = now;
    }
}

/// Puts back the counters of tokens that were kept before.
async fn put_back(server: &Server, counters: &[(String, String)]) {
    for (key, value) in counters {
        ask(server, &["SET", key, value]).await;
    }
}

async fn counters(server: &Server) -> Vec<(String, String)> {
    let Answer::Array(keys) = ask(server, &["KEYS", "lockkit:tokens:*"]).await else { panic!() };
    let mut counters = Vec::new();
    for key in keys.iter().map(Answer::text) {
        counters.push((key.to_owned(), ask(server, &["GET", key]).await.text().to_owned()));
    }
    counters
}

/// Only the counter knows of the tokens of other clients: when it is older than they are, the clock is
/// what keeps the order, and not what a client has known of it for an hour.
#[tokio::test]
async fn no_token_is_below_the_clock_when_older_counters_come_back_behind_an_idle_client() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    let hour = Duration::from_secs(3_600);
    set_clock(&server, hour * 480_000);
    let idle = connect(&server).await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { permits: 1, limit: 2 }] {
        let first = claim(mode);
        take(&idle, &first).await;
        idle.release(&first).await.unwrap();
    }
    let old = counters(&server).await;
    set_clock(&server, hour * 480_001);
    let other = connect(&server).await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { permits: 1, limit: 2 }] {
        let theirs = claim(mode);
        let before = take(&other, &theirs).await;
        other.release(&theirs).await.unwrap();
        put_back(&server, &old).await;
        let (holder, waiter) = (claim(mode), claim(mode));
        let token = take(&idle, &holder).await;
        assert!(token > before, "{mode:?}: {token} after {before}");
        put_back(&server, &old).await;
        let last = match idle.acquire(&waiter, Patience::Wait).await.unwrap().result {
            Acquisition::Granted(grant) => grant.token,
            _ => idle.inspect(&waiter.key).await.unwrap().queue[1].token,
        };
        assert!(last > before, "{mode:?}: {last}, in line, after {before}");
        idle.release(&waiter).await.unwrap();
        idle.release(&holder).await.unwrap();
    }
}

#[tokio::test]
async fn who_is_lifted_with_a_raise_gets_a_token_by_the_clock_too() {
    let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
    let then = Duration::from_secs(3_600) * 480_000;
    set_clock(&server, then);
    let driver = connect(&server).await;
    let (holder, waiter) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
    let token = take(&driver, &holder).await;
    queue(&driver, &waiter).await;
    let old = counters(&server).await;
    set_clock(&server, then + LONG / 2);
    // Somebody else, whose tokens the counter knows no more.
    let other = named("other", Mode::Exclusive);
    let clocked = take(&connect(&server).await, &other).await;
    put_back(&server, &old).await;
    let raised = Token::new(token.get() + 1_000_000).unwrap();
    driver.raise(&holder, raised).await.unwrap();
    let lifted = driver.inspect(&holder.key).await.unwrap().queue[1].token;
    assert!(lifted > clocked, "{lifted} after {clocked}");
}

/// What Redis says a key of this lock lasts for yet, the longest of them.
async fn keys_last(server: &Server) -> Duration {
    let Answer::Array(keys) = ask(server, &["KEYS", "lockkit:lock*"]).await else { panic!() };
    let mut longest = 0;
    for key in keys.iter().map(Answer::text) {
        let Answer::Number(left) = ask(server, &["PTTL", key]).await else { panic!("{key}") };
        longest = longest.max(left);
    }
    Duration::from_millis(longest.try_into().unwrap())
}

/// How long the first of the list is to be waited for.
async fn first_ends_in(driver: &RedisDriver, of: &Claim) -> Duration {
    driver.inspect(&of.key).await.unwrap().queue[0].expires_in
}

/// The clock was an hour ahead when a lease was set, and is right again: the lease lasts for what it
/// was given, not for an hour more.
#[tokio::test]
async fn a_clock_that_was_ahead_locks_no_name_for_as_long_as_the_step_lasted() {
    let hour = Duration::from_secs(3_600);
    for (waits_too, mode) in
        [(false, Mode::Exclusive), (true, Mode::Exclusive), (true, Mode::Shared)]
    {
        let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
        server.move_clock(Shift::Ahead(hour)).unwrap();
        let driver = connect(&server).await;
        let (holder, waiter) = (claim(mode), claim(Mode::Exclusive));
        take(&driver, &holder).await;
        if waits_too {
            queue(&driver, &waiter).await;
        }
        server.move_clock(Shift::NONE).unwrap();
        assert!(first_ends_in(&driver, &holder).await <= LONG, "{mode:?}");
        let busy = driver.acquire(&claim(Mode::Exclusive), Patience::Try).await.unwrap().result;
        assert!(matches!(busy, Acquisition::Busy), "{mode:?}: {busy:?}");
        let (left, keys) = (first_ends_in(&driver, &holder).await, keys_last(&server).await);
        assert!(
            left <= LONG && keys <= LONG + Duration::from_millis(2),
            "{mode:?}: {left:?}, {keys:?}"
        );
        // The holder has its whole lease yet, and its renewal goes on as ever.
        assert!(left > LONG / 2, "{mode:?}: {left:?}");
        holds(&driver, &holder).await;
        if waits_too {
            waits(&driver, &waiter).await;
        }
        assert!(keys_last(&server).await <= LONG + Duration::from_millis(2), "{mode:?}");
    }
}

#[tokio::test]
async fn a_dead_holder_of_an_hour_that_never_was_is_freed_when_its_lease_is_over() {
    let hour = Duration::from_secs(3_600);
    for renewed in [false, true] {
        let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
        let driver = connect(&server).await;
        let short = Duration::from_secs(1);
        let dead = super::with_ttls(Mode::Exclusive, short, short);
        let next = claim(Mode::Exclusive);
        server.move_clock(Shift::Ahead(hour)).unwrap();
        take(&driver, &dead).await;
        if renewed {
            holds(&driver, &dead).await;
        }
        server.move_clock(Shift::NONE).unwrap();
        queue(&driver, &next).await;
        granted(&driver, &next).await;
    }
}

#[tokio::test]
async fn a_lease_that_was_extended_keeps_its_hour_when_the_clock_goes_back() {
    let hour = Duration::from_secs(3_600);
    for waits_too in [false, true] {
        let server = Server::start_with_clock(ServerKind::Redis).await.unwrap();
        server.move_clock(Shift::Ahead(2 * hour)).unwrap();
        let driver = connect(&server).await;
        let (holder, waiter) = (claim(Mode::Exclusive), claim(Mode::Exclusive));
        take(&driver, &holder).await;
        if waits_too {
            queue(&driver, &waiter).await;
        }
        let mut extended = Claim::clone(&holder);
        extended.hold_ttl = hour;
        holds(&driver, &Arc::new(extended)).await;
        server.move_clock(Shift::NONE).unwrap();
        // Its program renews it with its usual ttl, which shortens nothing.
        holds(&driver, &holder).await;
        let left = first_ends_in(&driver, &holder).await;
        assert!(left > hour - LONG && left <= hour, "in line: {waits_too}: {left:?}");
        let keys = keys_last(&server).await;
        assert!(keys > hour - LONG && keys <= hour + Duration::from_millis(2), "{keys:?}");
    }
}

#[tokio::test]
async fn one_call_asks_for_the_time_once_and_a_claim_costs_two_commands_more() {
    let (server, driver) = start().await;
    let claims: Vec<_> = (0..3).map(|i| named(&format!("n{i}"), Mode::Exclusive)).collect();
    let submit = async |claims: &[Arc<Claim>]| {
        driver.submit(Batch { releases: &[], acquires: &acquires(claims) }).await.unwrap()
    };
    submit(&claims[..1]).await; // the script is known
    driver.release(&claims[0]).await.unwrap();
    for count in [1, 3] {
        ask(&server, &["CONFIG", "RESETSTAT"]).await;
        submit(&claims[..count]).await;
        let stats = ask(&server, &["INFO", "commandstats"]).await.text().to_owned();
        let called = |name: &str| {
            let (_, rest) = stats.split_once(&format!("cmdstat_{name}:calls=")).unwrap_or_default();
            rest.split(',').next().unwrap().parse::<usize>().unwrap_or_default()
        };
        let names = ["evalsha", "time", "set", "getset", "get", "del"];
        let calls = names.map(called);
        assert_eq!(calls, [1, 1, count, count, 0, 0], "{stats}");
        for claim in &claims[..count] {
            driver.release(claim).await.unwrap();
        }
    }
}
