//! Every verb of the SQLite driver, straight against the trait.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, BreakMode, ClaimEnd, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::state::ListRequest;
use lockkit_core::{BreakRecord, ClientIdentity, Error, LossReason, Mode, Namespace, Space, Token};
use support::*;

fn record(forced: bool) -> BreakRecord {
    BreakRecord::from_parts(ClientIdentity::of_this_process(), 1, Some("stuck".to_owned()), forced)
}

#[tokio::test]
async fn a_free_lock_is_granted_and_a_held_one_is_busy_or_queued() {
    let folder = folder();
    let (a, b) = (open(&folder).await, open(&folder).await);
    let (first, second) = (exclusive("a"), exclusive("a"));
    let grant = take(&a, &first).await;
    assert_eq!(grant.ttl, TTL);
    let busy = b.acquire(&second, Patience::Try).await.unwrap().result;
    assert_eq!(busy, Acquisition::Busy);
    assert_eq!(b.release(&second).await.unwrap(), Released::NotFound);
    assert_eq!(queue(&b, &second).await, 1);
    assert_eq!(queue(&b, &second).await, 1, "asking twice is asking once");
    assert_eq!(take(&a, &first).await.token, grant.token);
    assert_eq!(a.release(&first).await.unwrap(), Released::Removed);
    let next = b.granted(&second).await.unwrap();
    assert!(next.token > grant.token);
    assert_eq!(a.release(&first).await.unwrap(), Released::NotFound);
    assert_eq!(b.release(&second).await.unwrap(), Released::Removed);
    assert_eq!(b.release(&second).await.unwrap(), Released::NoSuchLock);
}

#[tokio::test]
async fn waiters_are_granted_in_the_order_in_which_they_were_queued() {
    let folder = folder();
    let (a, b) = (open(&folder).await, open(&folder).await);
    let holder = exclusive("a");
    let mut last = take(&a, &holder).await.token;
    let mut waiters = Vec::new();
    for i in 0..20 {
        let waiter = exclusive("a");
        let driver = if i % 2 == 0 { &a } else { &b };
        assert_eq!(queue(driver, &waiter).await, i + 1);
        waiters.push((driver.clone(), waiter));
    }
    // One gives up, and is skipped.
    let (driver, gone) = waiters.remove(7);
    driver.release(&gone).await.unwrap();
    a.release(&holder).await.unwrap();
    for (driver, waiter) in waiters {
        let token = driver.granted(&waiter).await.unwrap().token;
        assert!(token > last);
        last = token;
        driver.release(&waiter).await.unwrap();
    }
}

#[tokio::test]
async fn readers_share_and_a_waiting_writer_is_not_overtaken() {
    let folder = folder();
    let d = open(&folder).await;
    let (r1, r2, r3) =
        (claim("a", Mode::Shared), claim("a", Mode::Shared), claim("a", Mode::Shared));
    let writer = exclusive("a");
    take(&d, &r1).await;
    take(&d, &r2).await;
    assert_eq!(queue(&d, &writer).await, 2);
    assert_eq!(d.acquire(&r3, Patience::Try).await.unwrap().result, Acquisition::Busy);
    assert_eq!(queue(&d, &r3).await, 3);
    d.release(&r1).await.unwrap();
    assert_eq!(d.inspect(&writer.key).await.unwrap().holders().count(), 1);
    d.release(&r2).await.unwrap();
    d.granted(&writer).await.unwrap();
    let down = d.downgrade(&writer).await.unwrap();
    assert!(matches!(down, Renewal::Holds(_)));
    d.granted(&r3).await.unwrap();
    assert_eq!(d.inspect(&writer.key).await.unwrap().holders().count(), 2);
    assert!(matches!(d.downgrade(&writer).await.unwrap(), Renewal::Holds(_)));
}

/// Its token is the name under which a waiter may be broken: given again, a late break would hit
/// somebody new.
#[tokio::test]
async fn the_place_of_a_last_waiter_that_gave_up_by_a_try_is_not_given_again() {
    let folder = folder();
    let d = open(&folder).await;
    let (holder, gave_up, next) = (exclusive("a"), exclusive("a"), exclusive("a"));
    take(&d, &holder).await;
    queue(&d, &gave_up).await;
    let last = async || d.inspect(&holder.key).await.unwrap().queue.last().unwrap().token;
    let place = last().await;
    assert_eq!(d.acquire(&gave_up, Patience::Try).await.unwrap().result, Acquisition::Busy);
    queue(&d, &next).await;
    assert!(last().await > place);
}

#[tokio::test]
async fn permits_are_counted_and_a_large_request_is_not_overtaken() {
    let folder = folder();
    let d = open(&folder).await;
    let (a, b, large, small) =
        (permits("s", 2, 5), permits("s", 2, 5), permits("s", 4, 5), permits("s", 1, 5));
    take(&d, &a).await;
    take(&d, &b).await;
    queue(&d, &large).await;
    queue(&d, &small).await;
    let other = permits("s", 1, 6);
    match d.acquire(&other, Patience::Try).await.unwrap_err() {
        Error::LimitMismatch { in_use, asked, .. } => assert_eq!((in_use, asked), (5, 6)),
        other => panic!("{other}"),
    }
    d.release(&a).await.unwrap();
    assert!(matches!(d.renew_single(&small).await.unwrap(), Renewal::Waits { ahead: 2 }));
    d.release(&b).await.unwrap();
    d.granted(&large).await.unwrap();
    d.granted(&small).await.unwrap();
    // The lock of the same name is another thing.
    take(&d, &exclusive("s")).await;
}

#[tokio::test]
async fn a_lease_ends_and_never_revives_whatever_a_stale_clock_says() {
    let folder = folder();
    let (fresh, stale) = (Hand::new(), Hand::new());
    let a = open_at(&folder, &fresh, "boot").await;
    let b = open_at(&folder, &stale, "boot").await;
    let (first, second) = (exclusive("a"), exclusive("a"));
    take(&b, &first).await;
    fresh.forward(TTL);
    // `a` concludes that it has ended, and takes it; `b` still thinks that it is early.
    take(&a, &second).await;
    let renewed = b.renew_single(&first).await.unwrap();
    assert_eq!(renewed, Renewal::Ended(ClaimEnd::NotFound));
    assert_eq!(b.acquire(&first, Patience::Try).await.unwrap().result, Acquisition::Busy);
    assert_eq!(b.release(&first).await.unwrap(), Released::NotFound);
}

#[tokio::test]
async fn a_promotion_by_a_stale_clock_never_ends_before_its_owner_believes() {
    let folder = folder();
    let (fresh, stale) = (Hand::new(), Hand::new());
    let a = open_at(&folder, &fresh, "boot").await;
    let b = open_at(&folder, &stale, "boot").await;
    let (first, second) = (exclusive("a"), exclusive("a"));
    take(&b, &first).await;
    fresh.forward(Duration::from_secs(5));
    queue(&a, &second).await;
    b.release(&first).await.unwrap();
    let state = a.inspect(&first.key).await.unwrap();
    // The owner counts its lease from its own request, on the fresh clock.
    assert_eq!(state.queue[0].expires_in, TTL);
}

#[tokio::test]
async fn renewing_never_shortens_and_tells_what_became_of_each() {
    let folder = folder();
    let clock = Hand::new();
    let d = open_at(&folder, &clock, "boot").await;
    let short = claim_for("a", Mode::Exclusive, Duration::from_secs(1), WAIT);
    let (holder, waiter) = (exclusive("b"), exclusive("b"));
    take(&d, &short).await;
    take(&d, &holder).await;
    queue(&d, &waiter).await;
    clock.forward(Duration::from_secs(2));
    let all = [short, holder.clone(), waiter.clone()];
    let answers = d.renew(&all).await.unwrap();
    assert!(matches!(answers[0], Ok(Renewal::Ended(ClaimEnd::NotFound))));
    assert!(matches!(answers[1], Ok(Renewal::Holds(_))));
    assert!(matches!(answers[2], Ok(Renewal::Waits { ahead: 1 })));
    clock.back(Duration::from_secs(1));
    d.renew(&all).await.unwrap();
    clock.forward(Duration::from_secs(1));
    let line = d.inspect(&holder.key).await.unwrap().queue;
    assert_eq!((line[0].expires_in, line[1].expires_in), (TTL, WAIT));
    // Holder and first waiter die: the renewal of the second moves the lock on.
    let second = exclusive("b");
    queue(&d, &second).await;
    clock.forward(Duration::from_secs(8));
    d.renew(std::slice::from_ref(&second)).await.unwrap();
    clock.forward(Duration::from_secs(4));
    d.release(&holder).await.unwrap();
    let answers = d.renew_single(&second).await.unwrap();
    assert!(matches!(answers, Renewal::Holds(_)), "{answers:?}");
}

#[tokio::test]
async fn a_lease_can_be_shortened() {
    let folder = folder();
    let clock = Hand::new();
    let d = open_at(&folder, &clock, "boot").await;
    let holder = exclusive("a");
    take(&d, &holder).await;
    let second = Duration::from_secs(1);
    assert!(
        matches!(d.shorten(&holder, second).await.unwrap(), Renewal::Holds(g) if g.ttl == second)
    );
    clock.forward(second);
    assert!(d.inspect(&holder.key).await.unwrap().is_free());
    assert_eq!(d.shorten(&holder, second).await.unwrap(), Renewal::Ended(ClaimEnd::NotFound));
    take(&d, &exclusive("a")).await;
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_its_holders_lease_ends() {
    let folder = folder();
    let d = open(&folder).await;
    let dying = claim_for("a", Mode::Exclusive, Duration::from_millis(200), WAIT);
    let waiter = exclusive("a");
    take(&d, &dying).await;
    queue(&d, &waiter).await;
    d.granted(&waiter).await.unwrap();
    assert_eq!(d.release(&dying).await.unwrap(), Released::NotFound);
}

#[tokio::test]
async fn a_graceful_break_lets_the_holder_finish_and_a_forced_one_does_not() {
    let folder = folder();
    let d = open(&folder).await;
    let (first, second, third) = (exclusive("a"), exclusive("a"), exclusive("a"));
    let token = take(&d, &first).await.token;
    queue(&d, &second).await;
    let key = &first.key;
    let wrong = Token::new(7).unwrap();
    assert!(!d.break_claim(key, wrong, BreakMode::Forced, &record(true)).await.unwrap());
    assert!(d.break_claim(key, token, BreakMode::Graceful, &record(false)).await.unwrap());
    let state = d.inspect(key).await.unwrap();
    assert!(state.queue[0].broken && state.queue[0].holds() && !state.queue[1].holds());
    assert_eq!(state.last_break, Some(record(false)));
    let told = Renewal::Ended(ClaimEnd::Broken(record(false)));
    assert_eq!(d.renew_single(&first).await.unwrap(), told);
    assert_eq!(d.release(&first).await.unwrap(), Released::Removed);
    let token = d.granted(&second).await.unwrap().token;
    queue(&d, &third).await;
    assert!(d.break_claim(key, token, BreakMode::Forced, &record(true)).await.unwrap());
    d.granted(&third).await.unwrap();
    let told = Renewal::Ended(ClaimEnd::Broken(record(true)));
    assert_eq!(d.renew_single(&second).await.unwrap(), told);
    match d.granted(&second).await.unwrap_err() {
        Error::Lost { reason, .. } => assert_eq!(reason, LossReason::Broken(record(true))),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_raise_lifts_the_claim_its_waiters_and_all_that_come() {
    let folder = folder();
    let d = open(&folder).await;
    let (first, second, third) = (exclusive("a"), exclusive("a"), exclusive("a"));
    let token = take(&d, &first).await.token.get();
    queue(&d, &second).await;
    let high = Token::new(token + 1_000_000_000).unwrap();
    match d.raise(&first, high).await.unwrap() {
        Renewal::Holds(grant) => assert_eq!(grant.token, high),
        other => panic!("{other:?}"),
    }
    match d.raise(&first, Token::new(1).unwrap()).await.unwrap() {
        Renewal::Holds(grant) => assert_eq!(grant.token, high),
        other => panic!("{other:?}"),
    }
    d.release(&first).await.unwrap();
    let next = d.granted(&second).await.unwrap().token;
    assert!(next > high);
    d.release(&second).await.unwrap();
    assert!(take(&d, &third).await.token > next);
    assert_eq!(d.raise(&first, high).await.unwrap(), Renewal::Ended(ClaimEnd::NotFound));
}

#[tokio::test]
async fn a_namespace_has_a_token_base_that_only_grows() {
    let folder = folder();
    let d = open(&folder).await;
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    d.raise_namespace_counter(&a, 10).await.unwrap();
    d.raise_namespace_counter(&a, 5).await.unwrap();
    let other = open(&folder).await;
    assert_eq!(other.namespace_counter(&a).await.unwrap(), 10);
    assert_eq!(other.namespace_counter(&b).await.unwrap(), 0);
}

#[tokio::test]
async fn names_are_listed_literally_and_page_by_page() {
    let folder = folder();
    let d = open(&folder).await;
    let names =
        ["a", "A", "a ", "á", "a\u{301}", "a/b", "a%", "a*", "a_b", "..", "{a}", "a\u{10ffff}"];
    for name in names {
        take(&d, &exclusive(name)).await;
    }
    take(&d, &permits("a", 1, 2)).await;
    let long = "x".repeat(512);
    take(&d, &exclusive(&long)).await;
    let mut request = ListRequest {
        namespace: Namespace::default(),
        space: None,
        prefix: "a".to_owned(),
        after: None,
        limit: 2,
    };
    let mut seen = Vec::new();
    loop {
        let page = d.list(&request).await.unwrap();
        seen.extend(page.states.iter().map(|s| (s.space(), s.name().as_str().to_owned())));
        request.after = page.next;
        if request.after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 9, "{seen:?}");
    assert!(seen.contains(&(Space::Semaphore, "a".to_owned())));
    request.prefix = "a%".to_owned();
    assert_eq!(d.list(&request).await.unwrap().states.len(), 1);
    request.prefix = long;
    request.space = Some(Space::Lock);
    assert_eq!(d.list(&request).await.unwrap().states.len(), 1);
}

#[tokio::test]
async fn another_boot_gives_every_claim_one_full_ttl_and_higher_tokens() {
    let folder = folder();
    let (before, after) = (Hand::new(), Hand::new());
    let a = open_at(&folder, &before, "boot 1").await;
    let (holder, waiter) = (exclusive("a"), exclusive("a"));
    let token = take(&a, &holder).await.token;
    before.forward(Duration::from_secs(29));
    after.back(Duration::from_secs(900));
    let b = open_at(&folder, &after, "boot 2").await;
    assert_eq!(b.inspect(&holder.key).await.unwrap().queue[0].expires_in, TTL);
    assert_eq!(b.acquire(&waiter, Patience::Try).await.unwrap().result, Acquisition::Busy);
    after.forward(TTL);
    assert!(take(&b, &waiter).await.token.get() > token.get() + 1000);
    // Who still lives in the old boot is on another machine.
    let error = a.renew(std::slice::from_ref(&holder)).await.unwrap_err();
    assert!(error.to_string().contains("one machine"), "{error}");
}

#[tokio::test]
async fn what_has_ended_is_swept_without_a_visit() {
    let folder = folder();
    let clock = Hand::new();
    let d = open_at(&folder, &clock, "boot").await;
    for i in 0..300 {
        take(&d, &exclusive(&format!("forgotten/{i}"))).await;
    }
    clock.forward(TTL);
    for _ in 0..1100 {
        let c = exclusive("busy");
        take(&d, &c).await;
        d.release(&c).await.unwrap();
    }
    let pool = lockkit_sql::sqlx::SqlitePool::connect_with(
        lockkit_sql::sqlx::sqlite::SqliteConnectOptions::new().filename(d.path()),
    )
    .await
    .unwrap();
    let rows: i64 =
        lockkit_sql::sqlx::query_scalar("SELECT count(*) FROM lockkit_claims WHERE name <> 'busy'")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn health_names_the_server() {
    let folder = folder();
    let health = open(&folder).await.health().await.unwrap();
    assert!(health.server.starts_with("SQLite 3."));
    assert!(health.findings.is_empty(), "{:?}", health.findings);
}
