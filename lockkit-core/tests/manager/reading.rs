//! What only looks rides over an outage, and what watches is told of every change.

use std::pin::pin;

use futures_util::StreamExt;
use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::state::ListRequest;
use lockkit_core::{Error, LockManager, MemoryDriver, Namespace, Space};
use tokio::time::{Instant, timeout};

use super::moody::Mood;
use super::{SECOND, locks, manager_of, settle};

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_an_outage_however_long() {
    let (driver, locks) = locks();
    let mut states = pin!(locks.watch(Space::Lock, "a"));
    driver.next("inspect", Mood::FailBefore);
    let first = states.next().await.unwrap().expect("a short outage is ridden over");
    assert!(first.is_free());
    for _ in 0..100 {
        driver.next("changed", Mood::FailBefore);
    }
    let guard = manager_of(&driver).mutex("a").lock().await.unwrap();
    let state = states.next().await.unwrap().expect("a long outage is ridden over");
    assert_eq!(state.holders().next().unwrap().token, guard.token().unwrap());
    assert!(driver.calls("changed").len() > 100);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_its_manager() {
    let (driver, locks) = locks();
    let mut states = pin!(locks.watch(Space::Lock, "a"));
    states.next().await.unwrap().unwrap();
    driver.always("changed", Mood::FailBefore);
    locks.shutdown().await;
    let told = timeout(60 * SECOND, states.next()).await.expect("it ends").unwrap();
    assert!(matches!(told, Err(Error::Closed)), "{told:?}");
    assert!(states.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_looked_at_once_rides_over_a_short_outage_and_not_over_a_long_one() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    for verb in ["inspect", "list"] {
        driver.next(verb, Mood::FailBefore);
        driver.next(verb, Mood::FailBefore);
    }
    assert!(!locks.inspect(Space::Lock, "a").await.unwrap().is_free());
    let listed: Vec<_> = locks.admin().list("").map(|state| state.unwrap()).collect().await;
    assert_eq!(listed.len(), 1);
    for verb in ["inspect", "list"] {
        driver.always(verb, Mood::FailBefore);
    }
    let begun = Instant::now();
    let looked = timeout(60 * SECOND, locks.inspect(Space::Lock, "a")).await.expect("it ends");
    assert!(looked.unwrap_err().is_retryable());
    let listed =
        timeout(60 * SECOND, locks.admin().list("").collect::<Vec<_>>()).await.expect("it ends");
    assert!(listed[0].as_ref().is_err_and(Error::is_retryable) && listed.len() == 1);
    assert!(begun.elapsed() < 15 * SECOND, "{:?}", begun.elapsed());
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_told_of_a_graceful_break() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    let mut states = pin!(locks.watch(Space::Lock, "a"));
    assert!(!states.next().await.unwrap().unwrap().queue[0].broken);
    let token = guard.token().unwrap();
    assert!(
        locks.admin().break_lock(Space::Lock, "a", token, BreakMode::Graceful, None).await.unwrap()
    );
    let told = timeout(SECOND, states.next()).await.expect("told at once").unwrap().unwrap();
    assert!(told.queue[0].broken);
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_a_leader_once() {
    let (_, locks) = locks();
    let election = locks.election("shard");
    let first = election.clone().value("first").campaign().await.unwrap();
    let mut leaders = pin!(election.observe());
    assert_eq!(leaders.next().await.unwrap().unwrap().value.as_deref(), Some("first"));
    let candidate = tokio::spawn({
        let second = election.clone().value("second");
        async move { second.campaign().await }
    });
    let told = timeout(SECOND, leaders.next()).await;
    assert!(told.is_err(), "a candidate came, and the leader is the same: {told:?}");
    first.resign().await.unwrap();
    let second = candidate.await.unwrap().unwrap();
    assert_eq!(leaders.next().await.unwrap().unwrap().token, second.token().unwrap());
}

/// The same names in both spaces, in pages of every size.
#[tokio::test(start_paused = true)]
async fn a_page_that_ends_where_a_space_ends_repeats_nothing() {
    let driver = MemoryDriver::new();
    let locks = LockManager::new(driver.clone());
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.mutex(name).lock().await.unwrap());
        guards.push(locks.semaphore(name, 2).acquire().await.unwrap());
    }
    for limit in 1..=7 {
        for space in [None, Some(Space::Lock), Some(Space::Semaphore)] {
            let (namespace, prefix) = (Namespace::default(), String::new());
            let mut request = ListRequest { namespace, space, prefix, after: None, limit };
            let mut seen = Vec::new();
            loop {
                let page = driver.list(&request).await.unwrap();
                assert!(page.states.len() <= limit);
                seen.extend(page.states.iter().map(|s| (s.space(), s.name().to_string())));
                assert!(seen.len() <= 6, "pages of {limit} repeat: {seen:?}");
                match page.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
            let count = seen.len();
            seen.sort_by_key(|(space, name)| (format!("{space:?}"), name.clone()));
            seen.dedup();
            assert_eq!(seen.len(), count, "pages of {limit} repeat: {seen:?}");
            assert_eq!(count, if space.is_none() { 6 } else { 3 }, "{seen:?}");
        }
    }
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn the_whole_listing_shows_each_list_once_over_many_pages() {
    let (_, locks) = locks();
    let mut guards = Vec::new();
    for i in 0..450 {
        guards.push(locks.mutex(format!("{i:03}")).lock().await.unwrap());
        guards.push(locks.semaphore(format!("{i:03}"), 1).acquire().await.unwrap());
    }
    let listed: Vec<_> =
        locks.admin().list("").map(|state| state.unwrap().key).take(2000).collect().await;
    assert_eq!(listed.len(), 900);
    let different: std::collections::HashSet<_> = listed.into_iter().collect();
    assert_eq!(different.len(), 900);
}
