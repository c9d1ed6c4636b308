//! The code of docs/testing.md, compiled and run; `pages.rs` compares the two.

#[rustfmt::skip]
mod work {
    use lockkit::{Error, LockManager, LossReason, testing};

    /// The program: counts for as long as it has the lock.
    async fn count(locks: &LockManager, counted: &mut u32) -> Result<(), Error> {
        locks.mutex("counter").run(async |_lock| {
            loop {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                *counted += 1;
            }
        }).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_count_stops_when_the_lock_is_lost() {
        let (locks, hand) = testing::locks();
        let mut counted = 0;
        let lose = async {
            hand.held("counter").await;
            tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
            hand.lose("counter", LossReason::Expired).await
        };
        let (result, held) = tokio::join!(count(&locks, &mut counted), lose);
        assert!(held);
        assert!(matches!(result, Err(Error::Lost { reason: LossReason::Expired, .. })));
        assert_eq!(counted, 2);
    }
}

#[rustfmt::skip]
mod late {
    use lockkit::{Error, testing};

    #[tokio::test(start_paused = true)]
    async fn a_late_store_is_refused() {
        let (locks, hand) = testing::locks();
        let guard = locks.mutex("consumer").lock().await.unwrap();
        let cursor = locks.register("cursor");
        cursor.store_with(&guard, "event 41").await.unwrap();

        let other = hand.overtake("consumer").await.unwrap();
        hand.others().register("cursor").store_with(&other, "event 42").await.unwrap();

        assert!(guard.is_valid(), "the program has not noticed");
        let late = cursor.store_with(&guard, "event 41 again").await;
        assert!(matches!(late, Err(Error::Stale { .. })));
    }
}

#[rustfmt::skip]
mod trouble {
    use std::time::Duration;
    use lockkit::{Error, LossReason, testing};

    #[tokio::test(start_paused = true)]
    async fn a_backend_in_trouble() {
        let (locks, hand) = testing::locks();
        hand.refuse_next("nightly", Error::permanent("test", "the disk is full"));
        assert!(locks.mutex("nightly").lock().await.is_err());

        let guard = locks.mutex("nightly").lock().await.unwrap(); // the one after it is not refused
        hand.hold_up_renewals("nightly", Duration::from_secs(60));
        assert!(matches!(guard.lost().await, LossReason::Unreachable(_)));
    }
}
