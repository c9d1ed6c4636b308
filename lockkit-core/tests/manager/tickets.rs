//! What a ticket means: whoever has it is the holder, and one process at a time goes on with it.

use lockkit_core::driver::Released;
use lockkit_core::{Error, LossReason};
use tokio::time::{Instant, sleep};

use super::moody::Mood;
use super::{MS, SECOND, claims, locks, manager_of};

#[tokio::test(start_paused = true)]
async fn a_guard_whose_ticket_another_manager_released_knows_at_its_next_renewal() {
    let (driver, first) = locks();
    let (second, third) = (manager_of(&driver), manager_of(&driver));
    let ticket = first.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    let guard = first.resume(&ticket).await.unwrap();
    let other = second.resume(&ticket).await.unwrap();
    assert_eq!(guard.token().unwrap(), other.token().unwrap(), "they are one holder");
    other.release().await.unwrap();
    let begun = Instant::now();
    let next = third.mutex("a").lock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Vanished);
    assert!(begun.elapsed() <= 10 * SECOND + 10 * MS, "{:?}", begun.elapsed());
    assert!(!guard.is_valid() && next.is_valid());
    assert!(guard.release().await.is_err());
    assert_eq!(claims(&driver, "a").await, 1, "the next one's lock is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_ticket_lets_another_manager_go_on_and_release() {
    let (driver, first) = locks();
    let second = manager_of(&driver);
    let guard = first.mutex("a").detached().lock().await.unwrap();
    let token = guard.token().unwrap();
    let ticket = guard.detach().unwrap();
    first.shutdown().await;
    sleep(20 * SECOND).await;
    let resumed = second.resume(&ticket.to_string().parse().unwrap()).await.unwrap();
    assert_eq!(resumed.token().unwrap(), token);
    sleep(100 * SECOND).await;
    assert!(resumed.is_valid(), "a resumed lock is renewed");
    let ticket = resumed.detach().unwrap();
    assert_eq!(second.release_ticket(&ticket).await.unwrap(), Released::Removed);
    assert_eq!(second.release_ticket(&ticket).await.unwrap(), Released::NoSuchLock);
    assert!(matches!(second.resume(&ticket).await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn one_manager_resumes_a_ticket_once_at_a_time() {
    let (driver, locks) = locks();
    let ticket = locks.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    let (one, two) = tokio::join!(locks.resume(&ticket), locks.resume(&ticket));
    let (guards, errors): (Vec<_>, Vec<_>) = [one, two].into_iter().partition(Result::is_ok);
    assert_eq!((guards.len(), errors.len()), (1, 1));
    assert!(matches!(&errors[0], Err(Error::Config(_))), "{errors:?}");
    let guard = guards.into_iter().next().unwrap().unwrap();
    assert!(matches!(locks.resume(&ticket).await, Err(Error::Config(_))));
    sleep(100 * SECOND).await;
    assert!(guard.is_valid(), "it is renewed");
    let ticket = guard.detach().unwrap();
    locks.resume(&ticket).await.unwrap().release().await.unwrap();
    assert_eq!(claims(&driver, "a").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_guard_whose_ticket_its_own_manager_released_knows_before_the_backend_does() {
    let (driver, locks) = locks();
    let ticket = locks.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    let guard = locks.resume(&ticket).await.unwrap();
    driver.next("release", Mood::Late(SECOND));
    let releasing = tokio::spawn({
        let (locks, ticket) = (locks.clone(), ticket.clone());
        async move { locks.release_ticket(&ticket).await }
    });
    sleep(SECOND / 2).await;
    assert_eq!(claims(&driver, "a").await, 0);
    assert!(!guard.is_valid(), "anybody else may hold it by now");
    assert_eq!(releasing.await.unwrap().unwrap(), Released::Removed);
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_answered_later_than_the_lease_lasts_asks_again() {
    let (driver, locks) = locks();
    let ticket = locks.mutex("a").detached().lock().await.unwrap().detach().unwrap();
    driver.next("renew", Mood::Late(30 * SECOND - 100 * MS));
    let guard = locks.resume(&ticket).await.expect("the lease was not over");
    assert!(guard.is_valid());
}
