//! What is said of a write whose answer was lost, and what somebody else writes before it is sent
//! again: nothing is applied twice over that, and nobody is told that nothing was stored.

use lockkit_core::driver::BreakMode;
use lockkit_core::{Error, Precondition, Space, Token};

use super::moody::Mood;
use super::{SECOND, claims, locks, manager_of, settle};

#[tokio::test(start_paused = true)]
async fn a_value_that_somebody_deleted_does_not_come_back() {
    let (driver, locks) = locks();
    let others = manager_of(&driver);
    driver.next("store", Mood::FailAfter);
    let register = locks.register("cursor");
    let storing =
        tokio::spawn(async move { register.compare_and_store(Precondition::Absent, "1").await });
    settle().await;
    others.register("cursor").delete().await.unwrap();
    let told = storing.await.unwrap();
    assert!(matches!(told, Err(Error::Conflict { maybe_applied: true, .. })), "{told:?}");
    assert_eq!(others.register("cursor").load().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_fenced_write_does_not_land_over_a_later_one() {
    let (driver, locks) = locks();
    let others = manager_of(&driver);
    for (later, stale) in [(None, false), (Token::new(1_000), true)] {
        let guard = locks.mutex("consumer").lock().await.unwrap();
        driver.next("store", Mood::FailAfter);
        let register = locks.register("cursor");
        let lease = guard.lease();
        let storing = tokio::spawn(async move { register.store_with(&lease, "mine").await });
        settle().await;
        let theirs = others.register("cursor");
        match later {
            Some(token) => theirs.store_with_token(token, Precondition::Anything, "theirs").await,
            None => theirs.store("theirs").await,
        }
        .unwrap();
        let told = storing.await.unwrap();
        match told {
            Err(Error::Stale { maybe_applied: true, .. }) if stale => {}
            Err(Error::Conflict { maybe_applied: true, .. }) if !stale => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(theirs.load().await.unwrap().unwrap().value, b"theirs");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_latch_is_reset_once_whatever_answers_get_lost() {
    let (driver, locks) = locks();
    let others = manager_of(&driver).latch("boot", 2);
    others.count_down_as("a").await.unwrap();
    driver.next("store", Mood::FailAfter);
    let latch = locks.latch("boot", 2);
    let resetting = tokio::spawn(async move { latch.reset(2).await });
    settle().await;
    assert_eq!(others.count_down_as("b").await.unwrap(), 1);
    assert_eq!(others.count_down_as("c").await.unwrap(), 0);
    resetting.await.unwrap().unwrap();
    assert_eq!(others.count().await.unwrap(), 0, "it stays open for who counted since");
}

#[tokio::test(start_paused = true)]
async fn what_the_driver_sent_twice_may_have_been_applied() {
    let (driver, locks) = locks();
    let register = locks.register("cursor");
    register.store("0").await.unwrap();
    driver.send_twice();
    let told = register.compare_and_store(Precondition::Absent, "1").await;
    assert!(matches!(told, Err(Error::Conflict { maybe_applied: true, .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_break_that_was_sent_twice_is_told_as_what_it_was() {
    let (driver, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    driver.send_twice();
    for (why, expected) in [("it hangs", true), ("again", false)] {
        let broke =
            locks.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, Some(why)).await;
        assert_eq!(broke.unwrap(), expected, "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_acquire_was_sent_twice_leaves_no_ghost() {
    let (driver, locks) = locks();
    driver.send_twice();
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 1);
    let before = driver.calls("release").len();
    guard.release().await.unwrap();
    settle().await;
    tokio::time::sleep(SECOND).await;
    // The first attempt may arrive now, so the claim is released again and again.
    assert!(driver.calls("release").len() > before + 2, "{:?}", driver.calls("release"));
    assert_eq!(claims(&driver, "a").await, 0);
}
