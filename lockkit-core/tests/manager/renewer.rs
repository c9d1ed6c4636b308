//! What core does behind the user's back, seen from the driver: how often it renews, what it does
//! when that fails, and how it cleans up. On the memory driver under a paused clock.

use std::time::Duration;

use super::moody::{Mood, Moody};
use super::{SECOND, claims, locks};
use lockkit_core::driver::{BatchLimits, BreakMode};
use lockkit_core::{Error, LockManager, LossReason, MemoryDriver, Space};
use tokio::time::{Instant, advance, sleep};

async fn is_free(locks: &LockManager, name: &str) -> bool {
    locks.inspect(Space::Lock, name).await.unwrap().is_free()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_locks_are_renewed_in_one_call_a_third_of_the_ttl_apart() {
    let (driver, locks) = locks();
    let mut guards = Vec::new();
    for i in 0..1000 {
        guards.push(locks.mutex(format!("a{i}")).lock().await.unwrap());
        advance(Duration::from_millis(2)).await; // they are not taken at the same time
    }
    sleep(31 * SECOND).await;
    assert_eq!(driver.calls("renew"), [1000, 1000, 1000]);
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_inside_the_ttl() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..10 {
        driver.next("renew", Mood::FailBefore);
    }
    sleep(40 * SECOND).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    assert!(driver.calls("renew").len() > 11);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_never_answered_does_not_hold_up_the_next() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    driver.next("renew", Mood::Silent);
    sleep(40 * SECOND).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
}

#[tokio::test(start_paused = true)]
async fn a_backend_out_of_reach_ends_the_guard_before_the_lease_with_its_reason() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let taken = Instant::now();
    for _ in 0..1000 {
        driver.next("renew", Mood::FailBefore);
    }
    assert!(matches!(guard.lost().await, LossReason::Unreachable(_)));
    let held = taken.elapsed();
    assert!(held < 30 * SECOND && held > 29 * SECOND, "{held:?}");
    assert!(!is_free(&locks, "a").await, "the lease at the backend lasts longer than the guard");
    assert!(matches!(guard.token(), Err(Error::Lost { reason: LossReason::Unreachable(_), .. })));
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_answer_got_lost_is_given_back() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::FailAfter);
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert!(error.is_retryable());
    sleep(SECOND / 10).await;
    assert!(is_free(&locks, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_lock_whose_answer_got_lost_is_asked_for_again_with_the_same_claim() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::FailAfter);
    driver.next("acquire", Mood::FailBefore);
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(locks.inspect(Space::Lock, "a").await.unwrap().queue.len(), 1);
    guard.release().await.unwrap();
    assert!(is_free(&locks, "a").await);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_arrives_after_its_release_leaves_no_ghost() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::StuckFor(9 * SECOND));
    assert!(locks.mutex("a").try_lock().await.is_err());
    sleep(11 * SECOND).await;
    assert!(is_free(&locks, "a").await, "its claim was released long before its ttl was over");
    let next = locks.mutex("a").lock().await.unwrap();
    assert_eq!(next.token().unwrap().get(), 2, "the stuck request had arrived by then");
}

#[tokio::test(start_paused = true)]
async fn a_ghost_of_a_lock_that_was_held_and_released_is_removed_too() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::StuckFor(5 * SECOND));
    let guard = locks.mutex("a").lock().await.unwrap();
    guard.release().await.unwrap();
    sleep(8 * SECOND).await;
    assert!(is_free(&locks, "a").await);
    assert!(driver.calls("release").len() > 2);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_repeated_until_it_is_answered() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..3 {
        driver.next("release", Mood::FailBefore);
    }
    assert!(guard.release().await.unwrap_err().is_retryable());
    sleep(5 * SECOND).await;
    assert!(is_free(&locks, "a").await);
    assert_eq!(driver.calls("release").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn when_everything_is_dropped_what_was_held_is_still_released() {
    let store = MemoryDriver::new();
    let locks = LockManager::new(store.clone());
    let guard = locks.mutex("a").lock().await.unwrap();
    drop(locks);
    drop(guard);
    let others = LockManager::new(store);
    let next = others.mutex("a").try_lock_for(SECOND).await.unwrap();
    assert!(next.is_some(), "released in the background");
}

#[test]
fn a_guard_dropped_outside_a_runtime_neither_panics_nor_outlives_its_ttl() {
    let store = MemoryDriver::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let locks = LockManager::new(store.clone());
    let guard = first.block_on(async { locks.mutex("a").ttl(SECOND / 2).lock().await.unwrap() });
    drop(first);
    drop(guard);
    let others = LockManager::new(store);
    let second = runtime();
    let got = second.block_on(others.mutex("a").try_lock_for(10 * SECOND)).unwrap();
    assert!(got.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_manager_survives_the_runtime_of_its_first_use() {
    let locks = LockManager::new(MemoryDriver::new());
    let first = locks.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { first.mutex("a").lock().await.unwrap().release().await.unwrap() });
    })
    .join()
    .unwrap();
    let guard = locks.mutex("b").lock().await.unwrap();
    sleep(100 * SECOND).await;
    assert!(guard.is_valid(), "it is renewed by a new task");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_holder_loses_its_lock_at_max_hold_and_the_next_has_it_at_once() {
    let (_, locks) = locks();
    let begun = Instant::now();
    let guard = locks.mutex("a").max_hold(60 * SECOND).lock().await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= 60 * SECOND && waited < 61 * SECOND, "{waited:?}");
    assert_eq!(guard.loss(), Some(LossReason::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_lasts_its_ttl_in_full_for_others() {
    let (driver, locks) = locks();
    let begun = Instant::now();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Expired);
    let trusted = begun.elapsed();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let lasted = begun.elapsed();
    assert!(trusted < 30 * SECOND && lasted >= 30 * SECOND, "{trusted:?}, {lasted:?}");
    assert!(lasted < 31 * SECOND, "{lasted:?}");
    assert!(driver.calls("renew").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_loss_says_so() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    sleep(31 * SECOND).await;
    assert!(matches!(guard.release().await, Err(Error::Lost { reason: LossReason::Expired, .. })));
}

#[tokio::test(start_paused = true)]
async fn shortening_ends_the_lease_early_here_and_at_the_backend() {
    let (_, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let begun = Instant::now();
    guard.shorten(2 * SECOND).await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= 2 * SECOND - SECOND / 10 && waited < 3 * SECOND, "{waited:?}");
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_release_in_the_background_goes_on_after_a_refusal() {
    for mood in [Mood::Refused, Mood::FailBefore] {
        let (driver, locks) = locks();
        let guard = locks.mutex("a").lock().await.unwrap();
        for _ in 0..3 {
            driver.next("release", mood);
        }
        drop(guard);
        sleep(5 * SECOND).await;
        assert!(is_free(&locks, "a").await, "{mood:?}");
        assert_eq!(driver.calls("release").len(), 4, "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_goes_on_after_a_refusal() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..10 {
        driver.next("renew", Mood::Refused);
    }
    sleep(40 * SECOND).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_always_refused_ends_with_the_lease() {
    let (driver, locks) = locks();
    drop(locks.mutex("a").lock().await.unwrap());
    driver.always("release", Mood::Refused);
    let begun = Instant::now();
    locks.shutdown().await;
    let took = begun.elapsed();
    assert!(took >= 29 * SECOND && took <= 32 * SECOND, "{took:?}");
}

/// A refusal moves no deadline, and says more than silence.
#[tokio::test(start_paused = true)]
async fn a_guard_whose_renewals_fail_says_how_they_failed_last() {
    for (mood, reason, text) in [
        (Mood::Refused, "refused", "the right was withdrawn"),
        (Mood::FailBefore, "unreachable", "the connection was cut"),
        (Mood::Silent, "unreachable", "did not answer in time"),
    ] {
        let (driver, locks) = locks();
        let begun = Instant::now();
        let guard = locks.mutex("a").lock().await.unwrap();
        driver.always("renew", mood);
        let why = guard.lost().await;
        assert_eq!(why.as_str(), reason, "{mood:?}");
        assert!(why.to_string().contains(text), "{why}");
        assert!(begun.elapsed() > 29 * SECOND, "{mood:?}: {:?}", begun.elapsed());
        let error = guard.release().await.expect_err("it was lost");
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_passes_is_forgotten() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").auto_renew(false).lock().await.unwrap();
    driver.next("renew", Mood::Refused);
    assert!(guard.renew().await.is_err());
    guard.renew().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_a_broken_lock_says_who_broke_it_and_asks_only_then() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let others = super::manager_of(&driver);
    assert!(
        others
            .admin()
            .break_lock(Space::Lock, "a", token, BreakMode::Forced, Some("deploy"))
            .await
            .unwrap()
    );
    let error = guard.release().await.expect_err("it was broken");
    let Some(LossReason::Broken(record)) = error.loss() else { panic!("{error}") };
    assert_eq!(record.reason.as_deref(), Some("deploy"));
    assert_eq!(driver.calls("renew"), [1]);

    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    assert_eq!(driver.calls("renew"), [1], "what was there is released in one request");
}

/// An acquire that gets no answer arrives late, when its repetition was answered and the claim was given back.
#[tokio::test(start_paused = true)]
async fn a_ghost_of_a_claim_that_was_given_back_in_the_background_is_removed_too() {
    for kind in ["a guard", "a guard in a shutdown", "a waiting claim"] {
        let (driver, locks) = locks();
        let holder = match kind {
            "a waiting claim" => Some(locks.mutex("a").lock().await.unwrap()),
            _ => None,
        };
        driver.next("acquire", Mood::StuckFor(5 * SECOND));
        let others = usize::from(holder.is_some());
        match tokio::time::timeout(SECOND, locks.mutex("a").lock()).await {
            Ok(guard) if kind == "a guard" => drop(guard.unwrap()),
            Ok(guard) => {
                locks.shutdown().await;
                drop(guard.unwrap());
            }
            Err(_) => assert_eq!(others, 1, "{kind}"),
        }
        sleep(3 * SECOND).await;
        assert_eq!(claims(&driver, "a").await, others, "{kind}, before it arrives");
        sleep(4 * SECOND).await;
        assert_eq!(claims(&driver, "a").await, others, "{kind}, after it has arrived");
        drop(holder);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_released_until_its_ghost_was_removed_and_not_for_longer() {
    for dropped in [true, false] {
        let (driver, locks) = locks();
        driver.next("acquire", Mood::StuckFor(5 * SECOND));
        let guard = locks.mutex("a").lock().await.unwrap();
        match dropped {
            true => drop(guard),
            false => guard.release().await.unwrap(),
        }
        sleep(8 * SECOND).await;
        let releases = driver.calls("release").len();
        assert!(releases > 2, "{releases}");
        sleep(20 * SECOND).await;
        assert_eq!(driver.calls("release").len(), releases, "dropped: {dropped}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_arrive_any_more_is_not_waited_for() {
    let (driver, locks) = locks();
    driver.next("acquire", Mood::FailBefore);
    let guard = locks.mutex("a").lock().await.unwrap();
    sleep(31 * SECOND).await;
    drop(guard);
    sleep(31 * SECOND).await;
    assert_eq!(driver.calls("release").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_sent_twice_and_found_nothing_has_removed_no_ghost() {
    let driver = Moody::batching(BatchLimits::of(32, 8));
    let locks = super::manager_of(&driver);
    driver.next("batch", Mood::StuckFor(5 * SECOND));
    locks.mutex("a").try_lock().await.unwrap_err();
    driver.send_twice();
    sleep(8 * SECOND).await;
    assert_eq!(claims(&driver, "a").await, 0);
}
