//! What waits in the memory driver: who is woken, when, and what dropping leaves. On tokio's
//! paused clock, so that hours pass at once and nothing depends on the machine's speed.

mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use lockkit_core::driver::{BreakMode, ClaimEnd, LockDriver, Patience, Released, Renewal};
use lockkit_core::memory::MemoryDriver;
use lockkit_core::state::ListRequest;
use lockkit_core::{LossReason, Mode, Namespace, Space, Token};
use tokio::time::Instant;
use waiting::{HOLD, MS, WAIT, Waiter, claim, claim_for, queue, record, settle, take};

#[tokio::test(start_paused = true)]
async fn twenty_waiters_are_granted_in_the_order_in_which_they_were_queued() {
    let driver = MemoryDriver::new();
    let first = claim("a", Mode::Exclusive);
    let mut last = take(&driver, &first).await.token;
    let mut holder = first;
    let mut waiters = Vec::new();
    for ahead in 0..20 {
        let waiting = claim("a", Mode::Exclusive);
        waiters.push(Waiter::new(&driver, waiting.clone()).await);
        let renewals = driver.renew_single(&waiting).await.unwrap();
        assert_eq!(renewals, Renewal::Waits { ahead: ahead + 1 });
    }
    for waiter in waiters {
        driver.release(&holder).await.unwrap();
        let token = waiter.task.await.unwrap().unwrap().token;
        assert!(token > last);
        (last, holder) = (token, waiter.claim);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_the_new_holders_and_at_most_one_other() {
    let driver = MemoryDriver::new();
    let writer = claim("a", Mode::Exclusive);
    take(&driver, &writer).await;
    let modes = [Mode::Shared, Mode::Shared, Mode::Exclusive];
    let mut waiters = Vec::new();
    for at in 0..60 {
        let mode = *modes.get(at).unwrap_or(&Mode::Exclusive);
        waiters.push(Waiter::new(&driver, claim("a", mode)).await);
    }
    let before: Vec<usize> = waiters.iter().map(Waiter::polls).collect();
    driver.release(&writer).await.unwrap();
    settle().await;
    let woken = |from: usize| {
        let later = waiters.iter().zip(&before).skip(from);
        later.filter(|(w, polls)| w.polls() > **polls).count()
    };
    assert!(waiters[..2].iter().all(|w| w.task.is_finished()));
    assert_eq!(woken(0), 3, "two readers, and the writer that keeps the time now");
    let in_the_middle = waiters[30].claim.clone();
    driver.release(&in_the_middle).await.unwrap();
    settle().await;
    assert_eq!(woken(3), 1, "only the one that was taken out hears of it");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_is_noticed_by_the_waiter_alone() {
    let driver = MemoryDriver::new();
    let start = Instant::now();
    take(&driver, &claim("a", Mode::Exclusive)).await;
    let waiting = claim_for("a", Mode::Exclusive, HOLD, HOLD * 2);
    let waiter = Waiter::new(&driver, waiting).await;
    waiter.task.await.unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited >= HOLD && waited <= HOLD + 5 * MS, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn when_holder_and_first_waiter_are_dead_the_second_gets_it() {
    let driver = MemoryDriver::new();
    let start = Instant::now();
    take(&driver, &claim_for("a", Mode::Exclusive, 3 * WAIT, WAIT)).await;
    // In line, but nobody waits for it: it is promoted when the holder's lease ends.
    queue(&driver, &claim_for("a", Mode::Exclusive, WAIT, 4 * WAIT)).await;
    let alive = claim_for("a", Mode::Exclusive, HOLD, 10 * WAIT);
    let waiter = Waiter::new(&driver, alive).await;
    waiter.task.await.unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited >= 4 * WAIT && waited <= 4 * WAIT + 5 * MS, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn when_the_timekeeper_gives_up_the_next_one_keeps_the_time() {
    let driver = MemoryDriver::new();
    let start = Instant::now();
    take(&driver, &claim("a", Mode::Exclusive)).await;
    let first = claim_for("a", Mode::Exclusive, HOLD, HOLD + 2 * MS);
    let first = Waiter::new(&driver, first).await;
    let second = claim_for("a", Mode::Exclusive, HOLD, 4 * HOLD);
    let second = Waiter::new(&driver, second).await;
    // Its claim stays in line: the second sees to it that it begins to hold, and that it ends.
    first.task.abort();
    let granted = tokio::time::timeout(10 * HOLD, second.task).await;
    granted.expect("somebody keeps the time").unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited >= 2 * HOLD && waited <= 2 * HOLD + 5 * MS, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_shortened_while_others_wait_ends_in_time() {
    let driver = MemoryDriver::new();
    let start = Instant::now();
    let holder = claim("a", Mode::Exclusive);
    take(&driver, &holder).await;
    let waiter = Waiter::new(&driver, claim("a", Mode::Exclusive)).await;
    let second = Duration::from_secs(1);
    let Renewal::Holds(grant) = driver.shorten(&holder, second).await.unwrap() else {
        panic!("it holds")
    };
    assert_eq!(grant.ttl, second);
    waiter.task.await.unwrap().unwrap();
    let waited = start.elapsed();
    assert!(waited >= second && waited <= second + 5 * MS, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_renews_learns_that_its_lease_ended() {
    let driver = MemoryDriver::new();
    take(&driver, &claim("a", Mode::Exclusive)).await;
    let waiter = Waiter::new(&driver, claim("a", Mode::Exclusive)).await;
    let error = waiter.task.await.unwrap().unwrap_err();
    assert_eq!(error.loss(), Some(&LossReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn dropping_granted_leaves_the_claim_in_line_and_a_later_call_gets_the_grant() {
    let driver = MemoryDriver::new();
    let holder = claim("a", Mode::Exclusive);
    take(&driver, &holder).await;
    let waiting = claim("a", Mode::Exclusive);
    queue(&driver, &waiting).await;
    assert!(driver.granted(&waiting).now_or_never().is_none());
    assert!(driver.granted(&waiting).now_or_never().is_none());
    assert_eq!(driver.renew_single(&waiting).await.unwrap(), Renewal::Waits { ahead: 1 });
    // Dropped at the moment when it was granted.
    let waiter = Waiter::new(&driver, waiting.clone()).await;
    driver.release(&holder).await.unwrap();
    waiter.task.abort();
    settle().await;
    let grant = driver.granted(&waiting).await.unwrap();
    assert!(grant.token.get() > 1);
    assert_eq!(driver.release(&waiting).await.unwrap(), Released::Removed);
    assert_eq!(driver.release(&waiting).await.unwrap(), Released::NoSuchLock);
}

#[tokio::test(start_paused = true)]
async fn an_ended_claim_never_revives_and_its_id_begins_anew_with_a_greater_token() {
    let driver = MemoryDriver::new();
    let one = claim("a", Mode::Exclusive);
    let first = take(&driver, &one).await;
    assert_eq!(take(&driver, &one).await, first, "asked twice, done once");
    tokio::time::advance(HOLD).await;
    let renewals = driver.renew_single(&one).await.unwrap();
    assert_eq!(renewals, Renewal::Ended(ClaimEnd::NotFound));
    let again = take(&driver, &one).await;
    assert!(again.token > first.token);
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_with_a_short_ttl_does_not_shorten() {
    let driver = MemoryDriver::new();
    let long = claim("a", Mode::Exclusive);
    take(&driver, &long).await;
    let mut short = (*long).clone();
    short.hold_ttl = Duration::from_secs(1);
    driver.renew(&[Arc::new(short)]).await.unwrap();
    tokio::time::advance(HOLD - MS).await;
    let state = driver.inspect(&long.key).await.unwrap();
    assert_eq!(state.queue[0].expires_in, MS);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_lets_the_readers_behind_it_in_and_no_writer() {
    let driver = MemoryDriver::new();
    let writer = claim("a", Mode::Exclusive);
    let token = take(&driver, &writer).await.token;
    let reader = Waiter::new(&driver, claim("a", Mode::Shared)).await;
    let other = Waiter::new(&driver, claim("a", Mode::Exclusive)).await;
    let late = Waiter::new(&driver, claim("a", Mode::Shared)).await;
    for _ in 0..2 {
        match driver.downgrade(&writer).await.unwrap() {
            Renewal::Holds(grant) => assert_eq!(grant.token, token),
            renewal => panic!("{renewal:?}"),
        }
    }
    reader.task.await.unwrap().unwrap();
    settle().await;
    assert!(!other.task.is_finished() && !late.task.is_finished());
    driver.release(&writer).await.unwrap();
    driver.release(&reader.claim).await.unwrap();
    other.task.await.unwrap().unwrap();
    let gone = driver.downgrade(&writer).await.unwrap();
    assert_eq!(gone, Renewal::Ended(ClaimEnd::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_graceful_break_hands_on_only_when_the_holder_lets_go_or_its_lease_ends() {
    let driver = MemoryDriver::new();
    for lets_go in [true, false] {
        let holder = claim("a", Mode::Exclusive);
        let token = take(&driver, &holder).await.token;
        let long = claim_for("a", Mode::Exclusive, HOLD, 2 * HOLD);
        let waiter = Waiter::new(&driver, long).await;
        let record = record(false);
        let key = &holder.key;
        let broke = driver.break_claim(key, token, BreakMode::Graceful, &record).await;
        assert!(broke.unwrap());
        let told = Renewal::Ended(ClaimEnd::Broken(record.clone()));
        assert_eq!(driver.renew_single(&holder).await.unwrap(), told);
        settle().await;
        assert!(!waiter.task.is_finished(), "exclusion holds");
        let state = driver.inspect(key).await.unwrap();
        assert!(state.queue[0].broken && state.last_break.as_ref() == Some(&record));
        let begun = Instant::now();
        if lets_go {
            driver.release(&holder).await.unwrap();
        }
        waiter.task.await.unwrap().unwrap();
        assert_eq!(begun.elapsed() >= HOLD, !lets_go);
        if lets_go {
            assert_eq!(driver.renew_single(&holder).await.unwrap(), told);
        }
        driver.release(&waiter.claim).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_forced_break_frees_at_once_and_is_told_for_a_ttl_and_an_old_token_touches_nobody() {
    let driver = MemoryDriver::new();
    let holder = claim("a", Mode::Exclusive);
    let token = take(&driver, &holder).await.token;
    let waiter = Waiter::new(&driver, claim("a", Mode::Exclusive)).await;
    let record = record(true);
    let force = BreakMode::Forced;
    let key = &holder.key;
    assert!(driver.break_claim(key, token, force, &record).await.unwrap());
    let next = waiter.task.await.unwrap().unwrap().token;
    assert!(!driver.break_claim(key, token, force, &record).await.unwrap());
    assert!(next > token);
    driver.release(&waiter.claim).await.unwrap();
    tokio::time::advance(HOLD - MS).await;
    let told = Renewal::Ended(ClaimEnd::Broken(record.clone()));
    assert_eq!(driver.renew_single(&holder).await.unwrap(), told);
    assert_eq!(driver.inspect(key).await.unwrap().last_break, Some(record));
    tokio::time::advance(Duration::from_secs(60)).await;
    let forgotten = Renewal::Ended(ClaimEnd::NotFound);
    assert_eq!(driver.renew_single(&holder).await.unwrap(), forgotten);
    assert_eq!(driver.inspect(key).await.unwrap().last_break, None);
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_is_told_at_once_that_its_claim_was_broken() {
    let driver = MemoryDriver::new();
    let holder = claim("a", Mode::Exclusive);
    take(&driver, &holder).await;
    for force in [BreakMode::Graceful, BreakMode::Forced] {
        let waiter = Waiter::new(&driver, claim("a", Mode::Exclusive)).await;
        let state = driver.inspect(&holder.key).await.unwrap();
        let token = state.queue.last().unwrap().token;
        let record = record(force == BreakMode::Forced);
        driver.break_claim(&holder.key, token, force, &record).await.unwrap();
        settle().await;
        let error = waiter.task.now_or_never().unwrap().unwrap().unwrap_err();
        assert_eq!(error.loss(), Some(&LossReason::Broken(record)));
    }
}

#[tokio::test(start_paused = true)]
async fn changed_returns_on_every_change_of_the_line_and_on_the_end_of_a_lease() {
    let driver = MemoryDriver::new();
    let holder = claim("a", Mode::Exclusive);
    let key = holder.key.clone();
    let watch = |seen| {
        let (driver, key) = (driver.clone(), key.clone());
        tokio::spawn(async move { LockDriver::changed(&driver, &key, &seen).await.unwrap() })
    };
    let free = driver.inspect(&key).await.unwrap();
    let watching = watch(free.clone());
    settle().await;
    take(&driver, &holder).await;
    let held = watching.await.unwrap();
    assert_eq!(held.holders().count(), 1);
    let watching = watch(held);
    settle().await;
    driver.renew_single(&holder).await.unwrap();
    settle().await;
    assert!(!watching.is_finished(), "a renewal changes nobody's place");
    queue(&driver, &claim("a", Mode::Exclusive)).await;
    let mut state = watching.await.unwrap();
    assert_eq!(state.waiters().count(), 1);
    let begun = Instant::now();
    while !state.is_free() {
        state = watch(state).await.unwrap();
    }
    assert!(begun.elapsed() >= HOLD);
    let watching = watch(free);
    settle().await;
    assert!(!watching.is_finished(), "nothing differs");
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn raised_tokens_grow_for_those_who_wait_and_for_those_who_come() {
    let driver = MemoryDriver::new();
    let holder = claim("a", Mode::Exclusive);
    take(&driver, &holder).await;
    let waiter = Waiter::new(&driver, claim("a", Mode::Exclusive)).await;
    let high = Token::new(1000).unwrap();
    match driver.raise(&holder, high).await.unwrap() {
        Renewal::Holds(grant) => assert_eq!(grant.token, high),
        renewal => panic!("{renewal:?}"),
    }
    driver.release(&holder).await.unwrap();
    let waited = waiter.task.await.unwrap().unwrap().token;
    assert!(waited > high);
    driver.release(&waiter.claim).await.unwrap();
    assert!(take(&driver, &claim("a", Mode::Exclusive)).await.token > waited);
    let gone = driver.raise(&holder, Token::new(2000).unwrap()).await.unwrap();
    assert_eq!(gone, Renewal::Ended(ClaimEnd::NotFound));
    // The end of all tokens is an error, never a token that goes back.
    let last = claim("b", Mode::Exclusive);
    take(&driver, &last).await;
    driver.raise(&last, Token::new(i64::MAX as u64).unwrap()).await.unwrap();
    let none_left = driver.acquire(&claim("c", Mode::Exclusive), Patience::Try).await;
    assert!(!none_left.unwrap_err().is_retryable());
}

#[tokio::test(start_paused = true)]
async fn a_listing_shows_every_lock_in_use_once_page_by_page_and_takes_prefixes_literally() {
    let driver = MemoryDriver::new();
    let permit = Mode::Permits { permits: 1, limit: 1 };
    let mut names: Vec<String> = (0..250).map(|n| format!("a%/{n}")).collect();
    names.push("aX/0".to_owned());
    names.push("a".to_owned());
    for name in &names {
        take(&driver, &claim(name, Mode::Shared)).await;
        take(&driver, &claim(name, permit)).await;
    }
    take(&driver, &claim_for("a%/ended", Mode::Shared, MS, MS)).await;
    tokio::time::advance(MS).await;
    for (prefix, space, expected) in [
        ("", None, 504),
        ("a%", None, 500),
        ("a%", Some(Space::Lock), 250),
        ("a%", Some(Space::Semaphore), 250),
        ("%", None, 0),
        ("a\n", None, 0),
    ] {
        let mut request = ListRequest {
            namespace: Namespace::default(),
            space,
            prefix: prefix.to_owned(),
            after: None,
            limit: 50,
        };
        let mut shown = Vec::new();
        loop {
            let page = driver.list(&request).await.unwrap();
            assert!(page.states.len() <= 50);
            shown.extend(page.states.into_iter().map(|s| s.key));
            request.after = page.next;
            if request.after.is_none() {
                break;
            }
        }
        assert_eq!(shown.len(), expected, "{prefix:?} {space:?}");
        assert!(shown.is_sorted_by(|a, b| a < b));
    }
}

#[tokio::test]
async fn ten_thousand_waiters_are_served_one_by_one_on_the_real_clock() {
    let driver = MemoryDriver::new();
    let long = || claim_for("a", Mode::Exclusive, 10 * HOLD, 10 * HOLD);
    let holder = long();
    take(&driver, &holder).await;
    let claims: Vec<_> = (0..10_000).map(|_| long()).collect();
    for (at, claim) in claims.iter().enumerate() {
        assert_eq!(queue(&driver, claim).await, at as u32 + 1);
    }
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for (at, claim) in claims.into_iter().enumerate() {
        let (driver, served) = (driver.clone(), served.clone());
        tasks.push(tokio::spawn(async move {
            driver.granted(&claim).await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), at);
            assert_eq!(driver.release(&claim).await.unwrap(), Released::Removed);
        }));
    }
    driver.release(&holder).await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(driver.inspect(&holder.key).await.unwrap().is_free());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_keeps_its_raised_token_base() {
    let driver = MemoryDriver::new();
    let (one, other) = (Namespace::new("one").unwrap(), Namespace::default());
    driver.raise_namespace_counter(&one, 7).await.unwrap();
    driver.raise_namespace_counter(&one, 3).await.unwrap();
    assert_eq!(driver.clone().namespace_counter(&one).await.unwrap(), 7);
    assert_eq!(driver.namespace_counter(&other).await.unwrap(), 0);
}
