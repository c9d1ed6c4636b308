//! Many operations of one key: what they cost the other keys of the same process.

use lockkit_core::LockManager;
use lockkit_core::driver::BatchLimits;
use tokio::task::JoinSet;

use crate::moody::{Mood, Moody, Sent};
use crate::{MS, manager_of, settle};

/// One batch at a time, of 64 operations.
fn one_batch_at_a_time(same_key: bool) -> (Moody, LockManager) {
    let mut limits = BatchLimits::of(64, 1);
    limits.same_key = same_key;
    let driver = Moody::batching(limits);
    let locks = manager_of(&driver);
    (driver, locks)
}

fn names(batch: &[Sent]) -> Vec<String> {
    batch.iter().map(|it| it.name().to_owned()).collect()
}

/// Waits for this lock in a task of its own, which holds it once it has it.
fn wait_for(tasks: &mut JoinSet<()>, locks: &LockManager, name: String) {
    let mutex = locks.mutex(name);
    tasks.spawn(async move {
        let _guard = mutex.lock().await.unwrap();
        std::future::pending::<()>().await;
    });
}

/// A batch is in flight, so that what comes next has to wait for it.
async fn occupied(driver: &Moody, locks: &LockManager, tasks: &mut JoinSet<()>) {
    let before = driver.batches().len();
    driver.next("batch", Mood::Late(MS));
    for name in ["first", "second"] {
        wait_for(tasks, locks, name.to_owned());
    }
    settle().await;
    assert_eq!(driver.batches().len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_leaves_in_the_next_batch_however_many_wait_for_another_key() {
    for same_key in [false, true] {
        let (driver, locks) = one_batch_at_a_time(same_key);
        let mut tasks = JoinSet::new();
        occupied(&driver, &locks, &mut tasks).await;
        for _ in 0..1_000 {
            wait_for(&mut tasks, &locks, "crowd".to_owned());
        }
        wait_for(&mut tasks, &locks, "other".to_owned());
        settle().await;
        assert_eq!(driver.batches().len(), 1, "the first batch is still in flight");
        tokio::time::sleep(2 * MS).await;
        let next = names(&driver.batches()[1]);
        assert!(next.contains(&"other".to_owned()), "same_key: {same_key}, {next:?}");
        assert_eq!(next[0], "crowd", "it came first");
        let crowd = next.iter().filter(|name| *name == "crowd").count();
        assert_eq!(crowd, if same_key { 63 } else { 1 }, "{next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_take_turns_so_that_no_number_of_crowds_holds_up_another_key() {
    for same_key in [false, true] {
        let (driver, locks) = one_batch_at_a_time(same_key);
        let mut tasks = JoinSet::new();
        occupied(&driver, &locks, &mut tasks).await;
        // More crowds than a batch has room for.
        for _ in 0..10 {
            for crowd in 0..100 {
                wait_for(&mut tasks, &locks, format!("crowd/{crowd}"));
            }
        }
        wait_for(&mut tasks, &locks, "other".to_owned());
        settle().await;
        tokio::time::sleep(2 * MS).await;
        let submitted = driver.batches()[1..3].concat();
        let submitted = names(&submitted);
        assert_eq!(submitted.len(), 128);
        assert_eq!(submitted[100], "other", "after one of each crowd: same_key: {same_key}");
    }
}

#[tokio::test(start_paused = true)]
async fn releases_of_a_crowd_hold_up_no_release_of_another_key() {
    let (driver, locks) = one_batch_at_a_time(true);
    let other = locks.mutex("other").lock().await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..200 {
        let crowd = locks.rwlock("crowd");
        readers.spawn(async move { crowd.read().await.unwrap() });
    }
    let guards = readers.join_all().await;
    let mut tasks = JoinSet::new();
    let before = driver.batches().len();
    occupied(&driver, &locks, &mut tasks).await;
    let mut releases = JoinSet::new();
    guards.into_iter().for_each(|guard| drop(releases.spawn(guard.release())));
    releases.spawn(other.release());
    settle().await;
    tokio::time::sleep(2 * MS).await;
    let next = names(&driver.batches()[before + 1]);
    assert_eq!(next.len(), 64);
    assert!(next.contains(&"other".to_owned()), "{next:?}");
    releases.join_all().await.into_iter().for_each(|released| released.unwrap());
}
