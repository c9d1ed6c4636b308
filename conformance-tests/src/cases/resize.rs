//! Semaphores whose limit changes while permits are out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkit_core::driver::{LockDriver, Patience, Renewal, SetLimit};
use lockkit_core::{Error, Key, Space};
use tokio::task::JoinSet;

use super::contention::finish;
use crate::context::{CaseContext, MustSucceed, PATIENCE};
use crate::faulty::{Faulty, InjectedFault, InjectionPoint};
use crate::wrap::Tampered;

fn pool(context: &CaseContext) -> Key {
    context.key_in(Space::Semaphore, "pool")
}

async fn resize(driver: &Arc<dyn LockDriver>, key: &Key, limit: u32) {
    let limit_now = driver.resize(key, SetLimit::To(limit)).await.expect("it works");
    assert_eq!(limit_now, limit, "the limit that was set");
}

/// Limit and roles of the claims of the queue, as they are shown.
async fn limit_and_roles(
    context: &CaseContext,
    driver: &Arc<dyn LockDriver>,
) -> (Option<u32>, Vec<bool>) {
    let state = context.state(driver, &pool(context)).await;
    let limits = state.queue.iter().map(|s| s.mode.limit());
    assert!(limits.clone().all(|limit| limit == state.limit()), "one limit: {state:?}");
    (state.limit(), state.queue.iter().map(|s| s.holds()).collect())
}

pub async fn resize_01_a_raise_lets_in_at_once_whom_it_has_room_for(context: CaseContext) {
    let (driver, other) = (context.driver().await, context.driver().await);
    resize(&driver, &pool(&context), 1).await;
    let holder = context.permits("pool", 1, 1);
    driver.grant(&holder).await;
    let waiters = [(); 4].map(|()| context.permits("pool", 1, 1));
    let mut turns = JoinSet::new();
    for waiter in &waiters {
        driver.queue(waiter).await;
        let (driver, waiter) = (driver.clone(), waiter.clone());
        turns.spawn(async move { driver.granted(&waiter).await.expect("its turn").token });
    }
    // No claim is renewed or leaves: what they learn they learn from the raise.
    resize(&other, &pool(&context), 3).await;
    for _ in 0..2 {
        context
            .soon("there is room", turns.join_next())
            .await
            .expect("two wait")
            .expect("no panic");
    }
    let roles = limit_and_roles(&context, &driver).await;
    assert_eq!(roles, (Some(3), vec![true, true, true, false, false]));
    for waiter in &waiters[..2] {
        driver.holds(waiter).await;
    }
    resize(&other, &pool(&context), 10).await;
    let rest = context.soon("room for all", turns.join_all()).await;
    assert_eq!(rest.len(), 2);
    driver.grant(&context.permits("pool", 5, 10)).await;
    driver.refuse(&context.permits("pool", 1, 10)).await;
}

pub async fn resize_02_lowering_evicts_no_holder_and_admits_none_until_permits_are_free(
    context: CaseContext,
) {
    let (driver, other) = (context.driver().await, context.driver().await);
    resize(&driver, &pool(&context), 4).await;
    let holders = [(); 4].map(|()| context.permits("pool", 1, 4));
    for holder in &holders {
        driver.grant(holder).await;
    }
    let waiter = context.permits("pool", 1, 4);
    driver.queue(&waiter).await;
    resize(&other, &pool(&context), 2).await;
    for holder in &holders {
        driver.holds(holder).await;
    }
    let newcomer = context.permits("pool", 1, 2);
    assert_eq!(driver.queue(&newcomer).await, 5);
    // Two leave: as many are out as the limit says, and none is free.
    for (gone, holder) in holders[..2].iter().enumerate() {
        driver.let_go(holder).await;
        let (limit, roles) = limit_and_roles(&context, &driver).await;
        assert_eq!(limit, Some(2));
        assert_eq!(roles, [vec![true; 3 - gone], vec![false; 2]].concat(), "after {}", gone + 1);
        driver.refuse(&context.permits("pool", 1, 2)).await;
    }
    driver.let_go(&holders[2]).await;
    driver.turn(&waiter).await;
    driver.let_go(&holders[3]).await;
    driver.turn(&newcomer).await;
    let roles = limit_and_roles(&context, &driver).await;
    assert_eq!(roles, (Some(2), vec![true; 2]));
}

pub async fn resize_03_a_drained_semaphore_admits_none_until_it_is_raised_again(
    context: CaseContext,
) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let pool = ours.semaphore("pool", 2).resizable();
    let out = pool.acquire_many(2).await.expect("it is free");
    theirs.admin().resize("pool", 0).await.expect("it works");
    assert!(out.is_valid() && out.verify().await.is_ok(), "what is out stays out");
    out.release().await.expect("it was held");
    for handle in
        [&pool, &theirs.semaphore("pool", 2).resizable(), &theirs.semaphore("pool", 7).resizable()]
    {
        assert!(handle.try_acquire().await.expect("it works").is_none(), "it is drained");
        let brief = handle.try_acquire_for(Duration::from_millis(100)).await;
        assert!(brief.expect("it works").is_none(), "it is drained");
        assert_eq!(handle.limit().await.expect("it works"), 0);
        assert_eq!(handle.available_permits().await.expect("it works"), 0);
    }
    // Those whose time was over are taken out in the background.
    let driver = context.driver().await;
    context.free(&driver, &self::pool(&context), PATIENCE).await;
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.acquire_many(3).await }
    });
    context.waiters(&driver, &self::pool(&context), 1).await;
    ours.admin().resize("pool", 2).await.expect("it works");
    let driver_sees = limit_and_roles(&context, &driver).await;
    assert_eq!(driver_sees, (Some(2), vec![false]), "three do not fit into two");
    ours.admin().resize("pool", 3).await.expect("it works");
    let three = context.soon("it fits", waiting).await.expect("no panic").expect("it works");
    assert_eq!(pool.available_permits().await.expect("it works"), 0);
    three.release().await.expect("it was held");
}

pub async fn resize_04_of_racing_resizes_one_wins_and_all_agree(context: CaseContext) {
    const RACERS: u32 = 6;
    let locks = context.manager().await;
    let held = locks.semaphore("pool", 1).resizable().acquire().await.expect("it is free");
    let mut racers = JoinSet::new();
    for racer in 1..=RACERS {
        let locks = context.manager().await;
        racers.spawn(async move {
            let pool = locks.semaphore("pool", 1).resizable();
            locks.admin().resize("pool", racer * 2).await.expect("it works");
            pool
        });
    }
    let pools = context.soon("all have resized", racers.join_all()).await;
    let limit = locks.semaphore("pool", 1).resizable().limit().await.expect("it works");
    assert!((1..=RACERS).any(|racer| racer * 2 == limit), "one of theirs: {limit}");
    let mut out = vec![held];
    for turn in 1..limit {
        let pool = &pools[turn as usize % pools.len()];
        let permit = pool.try_acquire().await.expect("it works");
        out.push(permit.unwrap_or_else(|| panic!("{turn} of {limit} are out")));
    }
    for pool in &pools {
        let more = pool.try_acquire().await.expect("it works");
        assert!(more.is_none(), "{limit} of {limit} are out");
        assert_eq!(pool.limit().await.expect("it works"), limit);
    }
}

pub async fn resize_05_the_first_use_gives_the_limit_and_later_ones_do_not(context: CaseContext) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let (first, second) =
        (ours.semaphore("pool", 3).resizable(), theirs.semaphore("pool", 5).resizable());
    assert_eq!(first.limit().await.expect("it works"), 3);
    assert_eq!(second.limit().await.expect("it works"), 3, "it has one already");
    let three = second.acquire_many(3).await.expect("it is free");
    assert!(second.try_acquire().await.expect("it works").is_none(), "three are out");
    three.release().await.expect("it was held");
    let driver = context.driver().await;
    let again = driver.resize(&pool(&context), SetLimit::IfUnset(9)).await;
    assert_eq!(again.expect("it works"), 3, "also when nobody is there");
    // One that was in use as a plain one keeps the limit that it is in use with.
    let plain = ours.semaphore("plain", 2);
    let one = plain.acquire().await.expect("it is free");
    let resizable = theirs.semaphore("plain", 8).resizable();
    assert_eq!(resizable.limit().await.expect("it works"), 2);
    let other = resizable.try_acquire().await.expect("it works").expect("one is left");
    assert!(resizable.try_acquire().await.expect("it works").is_none(), "two are out");
    for permit in [one, other] {
        permit.release().await.expect("it was held");
    }
    // Locks and semaphores of other names have nothing to do with it.
    let all = ours.semaphore("another", 9).resizable().acquire_many(9).await.expect("it is free");
    all.release().await.expect("it was held");
}

pub async fn resize_06_a_handle_that_remembers_an_old_limit_works_on_under_the_new_one(
    context: CaseContext,
) {
    let (ours, theirs) = (context.manager().await, context.manager().await);
    let (old, admin) = (ours.semaphore("pool", 5).resizable(), theirs.admin());
    old.acquire_many(5).await.expect("it is free").release().await.expect("it was held");
    admin.resize("pool", 2).await.expect("it works");
    // No claim is in the queue that would tell it.
    let one = old.try_acquire().await.expect("it works").expect("two are free");
    let two = old.try_acquire().await.expect("it works").expect("one is free");
    assert!(old.try_acquire().await.expect("it works").is_none(), "two of two are out");
    admin.resize("pool", 3).await.expect("it works");
    let three = old.try_acquire().await.expect("it works").expect("one is free");
    assert!(old.try_acquire().await.expect("it works").is_none(), "three of three are out");
    for permit in [one, two, three] {
        permit.release().await.expect("it was held");
    }
    admin.resize("pool", 0).await.expect("it works");
    assert!(old.try_acquire().await.expect("it works").is_none(), "none of none");
    let waiting = tokio::spawn(async move { old.acquire().await });
    let driver = context.driver().await;
    context.waiters(&driver, &pool(&context), 1).await;
    admin.resize("pool", 1).await.expect("it works");
    let one = context.soon("there is one", waiting).await.expect("no panic").expect("it works");
    one.release().await.expect("it was held");
}

pub async fn resize_07_a_plain_semaphore_must_name_the_limit_in_force(context: CaseContext) {
    let locks = context.manager().await;
    let pool = locks.semaphore("pool", 2).resizable();
    locks.admin().resize("pool", 4).await.expect("it works");
    for in_use in [false, true] {
        let held = match in_use {
            true => Some(pool.acquire().await.expect("it is free")),
            false => None,
        };
        for limit in [2, 5] {
            match locks.semaphore("pool", limit).try_acquire().await {
                Err(Error::LimitMismatch { in_use: 4, asked, .. }) => assert_eq!(asked, limit),
                answer => panic!("a limit of {limit} beside 4: {answer:?}"),
            }
        }
        let plain = locks.semaphore("pool", 4).try_acquire().await.expect("it works");
        plain.expect("there is room").release().await.expect("it was held");
        if let Some(held) = held {
            held.release().await.expect("it was held");
        }
    }
    let state = locks.inspect(Space::Semaphore, "pool").await.expect("it works");
    assert!(state.is_free(), "nothing was left: {state:?}");
}

pub async fn resize_08_a_queued_claim_is_known_by_its_id_whatever_its_limit_was(
    context: CaseContext,
) {
    let driver = context.driver().await;
    resize(&driver, &pool(&context), 2).await;
    let (holder, waiter) = (context.permits("pool", 2, 2), context.permits("pool", 1, 2));
    let token = driver.grant(&holder).await.token;
    driver.queue(&waiter).await;
    resize(&driver, &pool(&context), 1).await;
    // Their answers were lost, and they ask again.
    assert_eq!(driver.grant(&holder).await.token, token, "its place, its token");
    assert_eq!(driver.queue(&waiter).await, 1);
    assert_eq!(context.queue(&driver, &pool(&context)).await.len(), 2, "nobody stands there twice");
    driver.let_go(&holder).await;
    driver.turn(&waiter).await;
    driver.let_go(&waiter).await;
    let ended = driver.acquire(&holder, Patience::Try).await;
    let refused = matches!(ended, Err(Error::LimitMismatch { in_use: 1, asked: 2, .. }));
    assert!(refused, "once out of line it is as any other: {ended:?}");
}

pub async fn resize_09_a_resize_whose_answer_was_lost_is_in_force(context: CaseContext) {
    let theirs = context.manager().await;
    for place in [InjectionPoint::Before, InjectionPoint::Polls(1), InjectionPoint::After] {
        let faulty = Arc::new(Faulty::at(InjectedFault { call: 0, point: place }));
        let ours = context.manager_over(Arc::new(Tampered::new(context.driver().await, faulty)));
        let name = format!("{place:?}");
        let pool = ours.semaphore(&name, 1).resizable();
        ours.admin().resize(&name, 3).await.expect(&name);
        let elsewhere = theirs.semaphore(&name, 1).resizable();
        assert_eq!(elsewhere.limit().await.expect(&name), 3, "{name}");
        let three = pool.try_acquire_many(3).await.expect(&name).expect(&name);
        assert!(elsewhere.try_acquire().await.expect(&name).is_none(), "{name}");
        three.release().await.expect(&name);
    }
}

pub async fn resize_10_permits_out_stay_within_a_limit_that_only_grows(context: CaseContext) {
    let managers = [context.manager().await, context.manager().await];
    managers[0].admin().resize("pool", 1).await.expect("it works");
    let (out, limit) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(1)));
    let mut tasks = JoinSet::new();
    for i in 0..6 {
        let pool = managers[i % 2].semaphore("pool", 1).resizable();
        let (out, limit) = (out.clone(), limit.clone());
        tasks.spawn(async move {
            for _ in 0..6 {
                let permit = pool.acquire().await.expect("it gets a permit");
                let now = out.fetch_add(1, Ordering::SeqCst) + 1;
                let most = limit.load(Ordering::SeqCst);
                assert!(now <= most, "{now} permits of {most} were out");
                tokio::task::yield_now().await;
                out.fetch_sub(1, Ordering::SeqCst);
                permit.release().await.expect("it was held");
            }
        });
    }
    for more in 2..=4 {
        // Noted first: a claim that holds by the raise may have ended before that is answered.
        limit.store(more, Ordering::SeqCst);
        managers[1].admin().resize("pool", more).await.expect("it works");
    }
    finish(tasks).await;
    let pool = managers[0].semaphore("pool", 1).resizable();
    assert_eq!(pool.available_permits().await.expect("it works"), 4);
}

pub async fn resize_11_a_turn_that_comes_while_the_limit_is_lowered_came_or_did_not(
    context: CaseContext,
) {
    let (driver, other, third) =
        (context.driver().await, context.driver().await, context.driver().await);
    let key = pool(&context);
    for round in 0..24 {
        resize(&other, &key, 1).await;
        let (holder, waiter) = (context.permits("pool", 1, 1), context.permits("pool", 1, 1));
        driver.grant(&holder).await;
        third.queue(&waiter).await;
        let turn = tokio::spawn({
            let (third, waiter) = (third.clone(), waiter.clone());
            async move { third.granted(&waiter).await.map(drop) }
        });
        // So that one comes first at times, and at times the other.
        let leaves = async {
            turns(round % 3).await;
            driver.let_go(&holder).await;
        };
        let lowers = async {
            turns(round % 5).await;
            resize(&other, &key, 0).await;
        };
        tokio::join!(leaves, lowers);
        let (limit, roles) = limit_and_roles(&context, &driver).await;
        assert_eq!(limit, Some(0));
        if roles == [true] {
            context.soon("its turn came", turn).await.expect("no panic").expect("it holds");
            third.holds(&waiter).await;
        } else {
            assert_eq!(roles, [false]);
            assert_eq!(third.renew_one(&waiter).await, Renewal::Waits { ahead: 0 });
            assert!(!turn.is_finished(), "it believes that it holds, and is shown as waiting");
            resize(&other, &key, 1).await;
            context.soon("there is room", turn).await.expect("no panic").expect("it holds");
        }
        third.let_go(&waiter).await;
    }
}

async fn turns(of_others: u32) {
    for _ in 0..of_others {
        tokio::task::yield_now().await;
    }
}
