//! Slots: numbers that are held, each by one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkit_core::driver::BreakMode;
use lockkit_core::sync::SlotLease;
use lockkit_core::{Error, LossReason, Space};
use tokio::task::JoinSet;

use crate::context::{CaseContext, PATIENCE};
use crate::wrap::Tampered;
use crate::wrap::tampers::Severed;

pub async fn slots_01_a_slot_is_the_lowest_free_number_and_its_token_grows(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let take = async |locks: &lockkit_core::LockManager| {
        let slot = locks.slots("gpu", 3);
        context.soon("a slot", slot.acquire()).await.expect("there is one")
    };
    let (zero, one) = (take(&ours).await, take(&theirs).await);
    let two = take(&ours).await;
    assert_eq!([zero.number(), one.number(), two.number()], [0, 1, 2]);
    assert!(theirs.slots("gpu", 3).try_acquire().await.expect("it works").is_none());
    let before = one.token().expect("it is held");
    one.release().await.expect("it was held");
    let again = take(&ours).await;
    assert_eq!(again.number(), 1, "the only one that is free");
    assert!(again.token().expect("it is held") > before);
    two.release().await.expect("it was held");
    zero.release().await.expect("it was held");
    assert_eq!(take(&theirs).await.number(), 0, "the lower of two");
}

pub async fn slots_02_a_dead_holder_s_slot_is_free_after_its_lease(context: CaseContext) {
    let severed = Arc::new(Severed::passing());
    let driver = Tampered::new(context.driver().await, severed.clone());
    let ttl = context.short() * 2;
    let dead = context.manager_with(Arc::new(driver), |settings| settings.ttl(ttl));
    let slot = dead.slots("gpu", 1).acquire().await.expect("it is free");
    let clock = dead.driver().clock();
    let cut = clock.now();
    severed.cut();
    let locks = context.manager().await;
    let limit = context.after(ttl) * 2;
    let next = context.within(limit, "the slot is free", locks.slots("gpu", 1).acquire()).await;
    let next = next.expect("its turn");
    assert!(!slot.is_valid(), "two hold it {:?} after the cut", clock.now().since(cut));
    assert_eq!(next.number(), 0);
}

pub async fn slots_03_no_two_of_many_workers_hold_one_number(context: CaseContext) {
    let managers = [context.manager().await, context.manager().await];
    let holders = Arc::new([const { AtomicU64::new(0) }; 3]);
    let highest = Arc::new([const { AtomicU64::new(0) }; 3]);
    let mut workers = JoinSet::new();
    for worker in 1..=8_u64 {
        let (locks, holders) = (managers[worker as usize % 2].clone(), holders.clone());
        let highest = highest.clone();
        workers.spawn(async move {
            for _ in 0..5 {
                let work = async |slot: SlotLease| {
                    let (number, token) = (slot.number() as usize, slot.token()?.get());
                    let other = holders[number].swap(worker, Ordering::SeqCst);
                    assert_eq!(other, 0, "two in {number}");
                    let before = highest[number].swap(token, Ordering::SeqCst);
                    assert!(before < token, "the token of {number} went from {before} to {token}");
                    tokio::task::yield_now().await;
                    holders[number].store(0, Ordering::SeqCst);
                    Ok::<_, Error>(())
                };
                locks.slots("gpu", 3).run(work).await.expect("it is held");
            }
        });
    }
    context.within(PATIENCE * 3, "all have their turns", workers.join_all()).await;
}

pub async fn slots_04_the_loss_of_permit_or_lock_is_the_slot_s(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let slots = || ours.slots("gpu", 2).ttl(context.lively());
    for part in ["permit", "lock"] {
        let slot = slots().acquire().await.expect("it is free");
        let other = theirs.slots("gpu", 3).try_acquire().await;
        assert!(
            matches!(other, Err(Error::LimitMismatch { in_use: 2, asked: 3, .. })),
            "{other:?}"
        );
        let (space, name, held) = match part {
            "permit" => (Space::Semaphore, "gpu".to_owned(), slot.permit()),
            _ => (Space::Lock, format!("lockkit.slot/gpu/{}", slot.number()), slot.lock()),
        };
        let token = held.token().expect("it is held");
        let broken = theirs.admin().break_lock(space, name, token, BreakMode::Forced, None).await;
        assert!(broken.expect("it works"), "the {part} is there");
        let reason = context.soon("the holder is told", slot.lost()).await;
        assert!(matches!(reason, LossReason::Broken(_)), "{part}: {reason:?}");
        assert!(slot.token().is_err());
        assert!(slot.release().await.is_err());
    }
    let driver = context.driver().await;
    for number in 0..2 {
        context.free(&driver, &context.key(&format!("lockkit.slot/gpu/{number}")), PATIENCE).await;
    }
    context.free(&driver, &context.key_in(Space::Semaphore, "gpu"), PATIENCE).await;
}
