//! Locks that stay held, or closed, for longer than their guards are used: least hold and lock delay.

use std::sync::Arc;

use lockkit_core::driver::BreakMode;
use lockkit_core::{LockManager, Space};

use crate::context::{CaseContext, MustSucceed};
use crate::wrap::Tampered;
use crate::wrap::tampers::Severed;

pub async fn stay_01_a_released_lock_stays_for_its_least_hold(context: CaseContext) {
    let (manager, driver) = (context.manager().await, context.driver().await);
    let (ttl, asked) = (context.short(), context.short() * 3);
    let clock = driver.clock();
    for dropped in [false, true] {
        let name = format!("dropped {dropped}");
        let begun = clock.now();
        let guard = manager.mutex(&name).ttl(ttl).at_least(asked).lock().await;
        let guard = guard.expect("it is free");
        // The least hold counts from the grant, of which this learned later, on a busy machine much later.
        let granted = clock.now();
        let least = guard.least_remaining();
        let counted = least + granted.since(begun);
        assert!(counted >= asked.mul_f64(0.95), "{counted:?} of {asked:?}, {least:?} is left");
        match dropped {
            true => drop(guard),
            false => guard.release().await.expect("it was held"),
        }
        if clock.now().since(granted) < least / 2 {
            driver.refuse(&context.exclusive(&name)).await;
        }
        context.free(&driver, &context.key(&name), context.after(least)).await;
        let passed = clock.now().since(granted);
        assert!(passed >= least, "free after {passed:?} of {least:?}, {name}");
    }
}

pub async fn stay_02_a_dead_holder_s_lock_stays_for_its_least_hold(context: CaseContext) {
    let (severed, dead) = cut_off_later(&context).await;
    let driver = context.driver().await;
    let (ttl, least) = (context.short(), context.short() * 3);
    let clock = driver.clock();
    let guard = dead.mutex("a").ttl(ttl).at_least(least).lock().await.expect("it is free");
    let granted = clock.now();
    severed.cut();
    context.free(&driver, &context.key("a"), context.after(least)).await;
    let passed = clock.now().since(granted);
    assert!(!guard.is_valid());
    // The lease counts from the grant, of which this learned a little later.
    assert!(passed >= least.mul_f64(0.95), "free after {passed:?} of {least:?}");
}

pub async fn stay_03_a_lost_lock_stays_closed_for_its_lock_delay(context: CaseContext) {
    let (severed, ours) = cut_off_later(&context).await;
    let driver = context.driver().await;
    let (ttl, delay) = (context.short(), context.short() * 3);
    let clock = driver.clock();
    for kept in [true, false] {
        let name = format!("kept {kept}");
        let waiter = context.exclusive(&name);
        let guard = ours.mutex(&name).ttl(ttl).lock_delay(delay).lock().await;
        let guard = guard.expect("it is free");
        driver.queue(&waiter).await;
        severed.cut();
        // Nothing moves it from here on, and the word of it may come late.
        let ends = clock.now().after(guard.remaining());
        context.within(context.after(ttl), "it is told", guard.lost()).await;
        // From here on a release by the one that lost it would reach the backend.
        severed.mend();
        let guard = if kept { Some(guard) } else { None };
        let limit = context.after(ttl + delay);
        let granted = context.within(limit, "it is over", driver.granted(&waiter)).await;
        let passed = clock.now().since(ends);
        granted.expect("its turn");
        assert!(
            passed >= delay,
            "open {passed:?} after the end of the guard, and not {delay:?}: {name}"
        );
        drop(guard);
    }
}

pub async fn stay_04_a_release_and_a_forced_break_open_in_spite_of_a_lock_delay(
    context: CaseContext,
) {
    let (manager, others) = (context.manager().await, context.manager().await);
    let driver = context.driver().await;
    let (soon, delay) = (context.lively() * 2, context.lively() * 4);
    let lock = manager.mutex("a").ttl(context.lively()).lock_delay(delay);
    let guard = lock.lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    context.free(&driver, &context.key("a"), soon).await;
    let guard = lock.lock().await.expect("it is free");
    let state = others.inspect(Space::Lock, "a").await.expect("it works");
    assert_eq!(state.queue[0].lock_delay, delay, "it is shown");
    assert_eq!(state.queue[0].note, None);
    let token = guard.token().expect("it is held");
    let broken = others.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await;
    assert!(broken.expect("it works"));
    context.free(&driver, &context.key("a"), soon).await;
}

/// A manager whose driver can be cut off.
async fn cut_off_later(context: &CaseContext) -> (Arc<Severed>, LockManager) {
    let severed = Arc::new(Severed::passing());
    let driver = Tampered::new(context.driver().await, severed.clone());
    (severed, context.manager_over(Arc::new(driver)))
}
