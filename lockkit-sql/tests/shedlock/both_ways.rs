//! lockkit and ShedLock exclude each other, hand over, and end with their leases.

use std::time::{Duration, Instant};

use lockkit_core::{Error, LockManager, LossReason};

use super::{KINDS, LONG, SOON, Scene, soon};

async fn wait_for_neighbour(locks: &LockManager, name: &str) {
    soon("the wait", async {
        while locks.neighbour_wait(name).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_exclude_each_other_and_hand_over() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let locks = scene.locks(LONG).await;
        let mut theirs = scene.neighbour("nightly").await;
        let mutex = locks.mutex("nightly");
        let guard = mutex.lock().await.unwrap();
        let token = guard.token().unwrap();
        assert!(!theirs.lock(LONG).await, "{kind:?}");
        assert!(!theirs.extend(LONG).await, "{kind:?}");
        theirs.unlock().await;
        assert!(!theirs.lock(LONG).await, "{kind:?}: an unlock without a lock changes nothing");
        guard.release().await.unwrap();
        assert!(theirs.lock(LONG).await, "{kind:?}");
        assert!(mutex.try_lock().await.unwrap().is_none(), "{kind:?}");
        let waiting = tokio::spawn(async move { mutex.lock().await });
        wait_for_neighbour(&locks, "nightly").await;
        let left = locks.neighbour_wait("nightly").unwrap().remaining.unwrap();
        assert!(left > LONG - SOON && left <= LONG, "{kind:?}: {left:?}");
        assert!(theirs.extend(LONG).await, "{kind:?}");
        theirs.unlock().await;
        let guard = soon("our turn", waiting).await.unwrap().unwrap();
        assert!(guard.token().unwrap() > token, "{kind:?}");
        // A row that ShedLock knows of is there for good.
        assert!(!theirs.lock(LONG).await);
        guard.release().await.unwrap();
        assert!(theirs.lock(LONG).await, "{kind:?}");
        theirs.unlock().await;
        locks.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_that_dies_is_waited_for_until_its_lease_ends_and_so_is_its_least_hold() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let locks = scene.locks(LONG).await;
        let mut theirs = scene.neighbour("nightly").await;
        let (began, lease) = (Instant::now(), Duration::from_secs(2));
        assert!(theirs.lock(lease).await);
        let guard = soon("our turn", locks.mutex("nightly").lock()).await.unwrap();
        assert!(began.elapsed() >= lease, "{kind:?}: {:?}", began.elapsed());
        // What is late of it changes nothing.
        theirs.unlock().await;
        assert!(!theirs.extend(LONG).await && !theirs.lock(LONG).await, "{kind:?}");
        guard.release().await.unwrap();
        let began = Instant::now();
        assert!(theirs.lock(LONG).await);
        theirs.unlock_after(lease).await;
        let guard = soon("our turn", locks.mutex("nightly").lock()).await.unwrap();
        assert!(began.elapsed() >= lease, "{kind:?}: {:?}", began.elapsed());
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_was_taken_away_is_a_loss_at_the_next_renewal_and_is_not_made_again() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let locks = scene.locks(Duration::from_secs(3)).await;
        for taken in [
            "DELETE FROM shedlock",
            "UPDATE shedlock SET locked_by = 'another'",
            // As ShedLock up to version 6 unlocks by its own clock: whoever has the row.
            "UPDATE shedlock SET lock_until = '2020-02-02 02:02:02'",
        ] {
            let guard = locks.mutex("nightly").lock().await.unwrap();
            assert_eq!(scene.sql(taken).await, 1);
            let owner = scene.owner_of("nightly").await;
            assert_eq!(soon("the loss", guard.lost()).await, LossReason::Neighbour, "{taken}");
            assert!(guard.release().await.is_err());
            assert_eq!(scene.owner_of("nightly").await, owner, "{kind:?}: {taken}");
            scene.sql("DELETE FROM shedlock").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_shedlock_cannot_have_are_refused_and_twins_in_a_multi_lock() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let locks = scene.locks(LONG).await;
        for bad in ["é", &"a".repeat(65)] {
            let refused = locks.mutex(bad).lock().await.unwrap_err();
            assert!(matches!(refused, Error::Config(_)), "{bad}: {refused}");
        }
        let longest = "a".repeat(64);
        locks.mutex(&longest).lock().await.unwrap().release().await.unwrap();
        // MariaDB's collation makes them one.
        let both = locks.multi(["Job", "job"]).try_lock().await;
        match scene.url.starts_with("postgres") {
            true => both.unwrap().expect("they are free").release().await.unwrap(),
            false => {
                let refused = both.unwrap_err();
                assert!(refused.to_string().contains("one row of ShedLock"), "{refused}");
                let guard = locks.mutex("Job").lock().await.unwrap();
                assert!(locks.mutex("job").try_lock().await.unwrap().is_none(), "closed too often");
                guard.release().await.unwrap();
            }
        }
    }
}
