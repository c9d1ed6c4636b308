//! Slots: numbers that are held, each by one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::sync::SlotLease;
use lockkit_core::{
    Error, LockManager, LossReason, MemoryDriver, Name, Namespace, Settings, Space,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::moody::Mood;
use super::{MS, SECOND, claims, locks, manager_of, settle};

#[tokio::test(start_paused = true)]
async fn a_slot_is_the_lowest_free_number_and_its_token_grows() {
    let (_driver, locks) = locks();
    let slots = locks.slots("gpu", 3);
    let mut held = Vec::new();
    for number in 0..3 {
        held.push(slots.acquire().await.unwrap());
        assert_eq!(held[number].number(), number as u32);
        assert_eq!(held[number].name().as_str(), "gpu");
    }
    assert!(slots.try_acquire().await.unwrap().is_none(), "all are held");
    let before = Instant::now();
    assert!(slots.try_acquire_for(SECOND).await.unwrap().is_none());
    assert_eq!(before.elapsed(), SECOND);
    let first = held[1].token().unwrap();
    held.remove(1).release().await.unwrap();
    held.remove(0).release().await.unwrap();
    let again = slots.acquire().await.unwrap();
    assert_eq!(again.number(), 0, "the lowest of two");
    let other = slots.acquire().await.unwrap();
    assert_eq!(other.number(), 1);
    assert!(other.token().unwrap() > first, "of one number the tokens grow");
}

#[tokio::test(start_paused = true)]
async fn it_takes_three_requests_where_the_first_try_wins_and_two_to_release() {
    let (driver, locks) = locks();
    locks.slots("gpu", 4).acquire().await.unwrap().release().await.unwrap();
    let (acquires, lists) = (driver.calls("acquire").len(), driver.calls("list").len());
    let (releases, others) = (driver.calls("release").len(), driver.calls("inspect").len());
    let slot = locks.slots("gpu", 4).acquire().await.unwrap();
    assert_eq!(driver.calls("acquire").len() - acquires, 2, "permit and lock");
    assert_eq!(driver.calls("list").len() - lists, 1);
    slot.release().await.unwrap();
    assert_eq!(driver.calls("release").len() - releases, 2);
    assert_eq!(driver.calls("inspect").len(), others);
    assert!(driver.calls("renew").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_released_before_its_permit() {
    let (driver, locks) = locks();
    let slot = locks.slots("gpu", 1).acquire().await.unwrap();
    driver.always("release", Mood::Slow(SECOND));
    let release = tokio::spawn(slot.release());
    sleep(1_500 * MS).await;
    assert_eq!(claims(&driver, "lockkit.slot/gpu/0").await, 0);
    assert_eq!(permits(&driver, "gpu").await, 1, "the permit is not released yet");
    release.await.unwrap().unwrap();
    assert_eq!(permits(&driver, "gpu").await, 0);
}

async fn permits(driver: &super::moody::Moody, name: &str) -> usize {
    let name = Name::new(name).unwrap();
    let key = lockkit_core::Key::new(Namespace::default(), Space::Semaphore, name);
    driver.store().inspect(&key).await.unwrap().queue.len()
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_either_is_the_slot_s() {
    for (space, name) in [(Space::Lock, "lockkit.slot/gpu/0"), (Space::Semaphore, "gpu")] {
        let (driver, locks) = locks();
        let slot = locks.slots("gpu", 1).acquire().await.unwrap();
        let part = if space == Space::Lock { slot.lock() } else { slot.permit() };
        let token = part.token().unwrap();
        let others = manager_of(&driver);
        assert!(
            others.admin().break_lock(space, name, token, BreakMode::Forced, None).await.unwrap()
        );
        let reason = slot.lost().await;
        assert!(matches!(reason, LossReason::Broken(_)), "{reason:?}");
        assert!(!slot.is_valid() && slot.token().is_err() && slot.remaining().is_zero());
        let released = slot.release().await;
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
        assert_eq!(
            (claims(&driver, "lockkit.slot/gpu/0").await, permits(&driver, "gpu").await),
            (0, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_slot_and_a_dropped_wait_leave_nothing() {
    let (driver, locks) = locks();
    let slot = locks.slots("gpu", 1).acquire().await.unwrap();
    let slots = locks.slots("gpu", 1);
    let waiting = tokio::spawn(async move { slots.acquire().await });
    settle().await;
    waiting.abort();
    drop(slot);
    settle().await;
    sleep(SECOND).await;
    assert_eq!(
        (claims(&driver, "lockkit.slot/gpu/0").await, permits(&driver, "gpu").await),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_permit_without_a_free_slot_asks_again_until_the_lease_of_a_dead_holder_is_over() {
    let (driver, ours) = locks();
    // A holder that died: its permit is gone, and the lease of its slot still runs.
    let dead = manager_of(&driver);
    let left =
        dead.mutex("lockkit.slot/gpu/0").ttl(5 * SECOND).auto_renew(false).lock().await.unwrap();
    assert!(ours.slots("gpu", 1).try_acquire().await.unwrap().is_none());
    assert_eq!(permits(&driver, "gpu").await, 0, "the permit is given back");
    let before = Instant::now();
    let slot = ours.slots("gpu", 1).acquire().await.unwrap();
    assert!(
        before.elapsed() >= 4 * SECOND && before.elapsed() < 7 * SECOND,
        "{:?}",
        before.elapsed()
    );
    assert_eq!(slot.number(), 0);
    assert!(!left.is_valid());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_slots_is_refused_before_any_request() {
    let (driver, locks) = locks();
    let long = locks.slots("x".repeat(481), 2).try_acquire().await;
    assert!(matches!(long, Err(Error::InvalidName { .. })), "{long:?}");
    let none = locks.slots("gpu", 0).try_acquire().await;
    assert!(matches!(none, Err(Error::Config(_))), "{none:?}");
    assert!(driver.calls("acquire").is_empty());
    assert!(locks.slots("x".repeat(480), u32::MAX).try_acquire().await.unwrap().is_some());

    let _held = locks.slots("gpu", 2).acquire().await.unwrap();
    let other = locks.slots("gpu", 3).try_acquire().await;
    assert!(matches!(other, Err(Error::LimitMismatch { in_use: 2, asked: 3, .. })), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lower_number_of_slots_moves_no_holder() {
    let locks = LockManager::new(MemoryDriver::new());
    let slots = locks.slots("gpu", 3).resizable();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(slots.acquire().await.unwrap());
    }
    locks.admin().resize("gpu", 1).await.unwrap();
    let third = held.pop().unwrap();
    assert!(third.is_valid() && third.number() == 2);
    drop(held);
    sleep(MS).await;
    assert!(slots.try_acquire().await.unwrap().is_none(), "one is out, and one there is");
    third.release().await.unwrap();
    assert_eq!(slots.acquire().await.unwrap().number(), 0);
}

#[tokio::test(start_paused = true)]
async fn slots_of_names_that_begin_each_other_do_not_meet() {
    let (_driver, locks) = locks();
    let long = locks.slots("a/0", 2).acquire().await.unwrap();
    let odd = locks.mutex("lockkit.slot/a/01").lock().await.unwrap();
    let short = locks.slots("a", 2).acquire().await.unwrap();
    assert_eq!((long.number(), short.number()), (0, 0));
    drop(odd);
}

#[tokio::test(start_paused = true)]
async fn no_two_of_many_workers_ever_hold_one_number() {
    let (driver, _) = locks();
    let inside: Arc<Mutex<HashMap<u32, u64>>> = Arc::default();
    let (highest, mut workers) = (Arc::new(Mutex::new(HashMap::new())), JoinSet::new());
    for worker in 0..12_u64 {
        let locks = LockManager::with(Arc::new(driver.clone()), Settings::default()).unwrap();
        let (inside, highest) = (inside.clone(), highest.clone());
        workers.spawn(async move {
            for turn in 0..20 {
                let work = async |slot: SlotLease| {
                    let (number, token) = (slot.number(), slot.token()?);
                    assert_eq!(
                        inside.lock().unwrap().insert(number, worker),
                        None,
                        "two in {number}"
                    );
                    assert!(inside.lock().unwrap().len() <= 3);
                    let before = highest.lock().unwrap().insert(number, token);
                    assert!(before.is_none_or(|before| before < token), "{before:?} {token}");
                    sleep(MS * ((worker * 7 + turn) % 5) as u32).await;
                    assert_eq!(inside.lock().unwrap().remove(&number), Some(worker));
                    Ok::<_, Error>(())
                };
                locks.slots("gpu", 3).run(work).await.unwrap();
            }
        });
    }
    workers.join_all().await;
}
