//! lockkit and its neighbours exclude each other, hand over, and end with their leases.

use std::time::{Duration, Instant};

use lockkit_core::LossReason;

use super::{Place, STYLES, packages, script_is_there, soon, word};

const TTL: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(300);

#[tokio::test]
async fn they_exclude_each_other_and_hand_over_with_pypi() {
    if packages().is_none() {
        return;
    }
    script_is_there();
    for style in STYLES {
        let place = Place::new(style).await;
        let locks = place.locks(TTL).await;
        let mutex = locks.mutex(&place.name);
        let guard = soon("the lock", mutex.lock()).await.unwrap();
        let token = guard.token().unwrap();
        assert_eq!(place.tries().await, "busy", "{style}");
        let left = place.left().await;
        assert!(left > 0 && left <= 30_000, "{style}: it has a lease: {left}");
        // One that waits, for a message in the case of Redisson.
        let (mut theirs, mut said) = place.holder(LONG);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        assert_eq!(word(&mut said).await, "held", "{style}");
        assert!(released.elapsed() < Duration::from_secs(10), "{style}: it slept for the lease");

        assert!(mutex.try_lock().await.unwrap().is_none(), "{style}: they hold it");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        let wait = soon("the wait", async {
            loop {
                match locks.neighbour_wait(&place.name) {
                    Some(wait) => return wait,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        let wait = wait.await;
        assert!(wait.remaining.is_some_and(|left| left > TTL), "{style}: {wait:?}");
        drop(theirs.stdin.take());
        assert_eq!(word(&mut said).await, "released", "{style}");
        let guard = soon("our turn", waiting).await.unwrap().unwrap();
        assert!(guard.token().unwrap() > token, "{style}");
        assert_eq!(place.tries().await, "busy", "{style}");
        guard.release().await.unwrap();
        assert_eq!(place.left().await, -2, "{style}");
        assert_eq!(place.tries().await, "held", "{style}");
        soon("their end", theirs.wait()).await.unwrap();
    }
}

#[tokio::test]
async fn a_neighbour_that_dies_or_stands_still_is_waited_for_until_its_lease_ends_with_pypi() {
    if packages().is_none() {
        return;
    }
    for style in STYLES {
        let place = Place::new(style).await;
        let locks = place.locks(TTL).await;
        let (mut theirs, mut said) = place.holder(Duration::from_secs(3));
        assert_eq!(word(&mut said).await, "held", "{style}");
        let left = Duration::from_millis(place.left().await.try_into().unwrap());
        let began = Instant::now();
        theirs.kill().await.unwrap();
        let guard = soon("our turn", locks.mutex(&place.name).lock()).await.unwrap();
        assert!(began.elapsed() + Duration::from_millis(50) >= left, "{:?}", began.elapsed());
        assert!(guard.is_valid());
        guard.release().await.unwrap();
    }
}

/// Nothing of theirs can be removed by ours, and nothing of ours is made again.
#[tokio::test]
async fn a_lock_that_was_deleted_by_hand_is_a_loss_at_the_next_renewal_with_pypi() {
    if packages().is_none() {
        return;
    }
    for style in STYLES {
        let place = Place::new(style).await;
        let locks = place.locks(Duration::from_secs(2)).await;
        let guard = locks.mutex(&place.name).lock().await.unwrap();
        place.ask(&["DEL", &place.name]).await;
        let (mut theirs, mut said) = place.holder(LONG);
        assert_eq!(word(&mut said).await, "held", "{style}");
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Neighbour, "{style}");
        assert!(guard.release().await.is_err());
        assert!(place.left().await > 200_000, "{style}: theirs is as it was");
        assert_eq!(place.tries().await, "busy", "{style}");
        drop(theirs.stdin.take());
        assert_eq!(word(&mut said).await, "released", "{style}");
        // Without a neighbour it is not made again either.
        let guard = locks.mutex(&place.name).lock().await.unwrap();
        place.ask(&["DEL", &place.name]).await;
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Neighbour, "{style}");
        assert_eq!(place.left().await, -2, "{style}");
    }
}
