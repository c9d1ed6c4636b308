//! Rows that another client has locked, and what they cost the other names of a process: nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, Batcher, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::{Claim, Error, LockManager, Settings};
use lockkit_lab::ServerKind;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::claim;
use super::scene::{LONG, Scene};

on_either_server! {
    a_locked_row_delays_no_other_name_of_its_batch,
    a_release_waits_for_the_row_of_its_own_lock_only,
    many_locked_rows_delay_neither_renewals_nor_other_names,
    a_renewal_leaves_out_claims_whose_rows_are_locked_and_renews_the_others,
    the_locked_row_of_a_claim_that_comes_to_hold_fails_the_renewals_of_its_queue_only,
    a_row_that_stays_locked_costs_its_process_no_other_lock,
}

const SOON: Duration = Duration::from_millis(200);

fn much_later(driver: &Arc<dyn LockDriver>) -> Moment {
    driver.clock().now().after(LONG)
}

/// Tries to acquire these, which are free, in one batch of core.
async fn acquire(batcher: &Batcher, claims: &[Arc<Claim>], latest: Moment) {
    let patience = Patience::Try;
    let acquires: Vec<_> =
        claims.iter().map(|claim| Acquire { claim: claim.clone(), patience }).collect();
    let batch = Batch { releases: &[], acquires: &acquires };
    for acquired in batcher.submit(batch, latest).await.acquired {
        let acquired = acquired.unwrap().result;
        assert!(matches!(acquired, Acquisition::Granted(_)), "{acquired:?}");
    }
}

async fn hold(scene: &Scene, claims: &[Arc<Claim>]) {
    for claims in claims.chunks(32) {
        let batcher = Batcher::new(scene.driver.clone());
        acquire(&batcher, claims, much_later(&scene.driver)).await;
    }
}

/// One release through core, in a task of its own.
fn release(tasks: &mut JoinSet<Released>, batcher: &Batcher, claim: &Arc<Claim>, latest: Moment) {
    let (batcher, releases) = (batcher.clone(), [claim.clone()]);
    tasks.spawn(async move {
        let batch = Batch { releases: &releases, acquires: &[] };
        batcher.submit(batch, latest).await.released.pop().unwrap().unwrap().result
    });
}

/// Ten names are asked for at once, and two of them are locked.
async fn a_locked_row_delays_no_other_name_of_its_batch(scene: Scene) {
    scene.warm().await;
    let names: Vec<_> = (0..10).map(|i| format!("{i}")).collect();
    let known: Vec<_> = names.iter().map(|name| claim(name)).collect();
    hold(&scene, &known).await;
    let batcher = Batcher::new(scene.driver.clone());
    let latest = much_later(&scene.driver);
    batcher.submit(Batch { releases: &known, acquires: &[] }, latest).await;
    let locks = LockManager::with(scene.driver.clone(), Settings::default()).unwrap();
    let mut admin = scene.admin().await;
    admin.run(scene.words.begin).await;
    for lock in scene.words.lock_rows {
        assert_eq!(admin.count(lock).await, 1);
    }
    // On a busy machine not every round is quick.
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for name in &names {
            let mutex = locks.mutex(name);
            tasks.spawn(async move { mutex.lock().await.unwrap() });
        }
        let mut guards = Vec::new();
        for _ in 0..8 {
            guards.push(tasks.join_next().await.unwrap().unwrap());
        }
        fastest = fastest.min(begun.elapsed());
        tasks.abort_all();
        for guard in guards {
            guard.release().await.unwrap();
        }
    }
    assert!(fastest <= SOON, "the others were answered after {fastest:?}");
    // Whoever waits for a locked row gets its lock once that is free.
    let mutex = locks.mutex("4");
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    admin.run("ROLLBACK").await;
    let guard = timeout(Duration::from_secs(20), waiting).await.expect("it is free").unwrap();
    guard.release().await.unwrap();
}

/// Both are released in one batch, and both rows are locked: the second for a moment, the first until
/// the second lock is released.
async fn a_release_waits_for_the_row_of_its_own_lock_only(scene: Scene) {
    scene.warm().await;
    let claims = [claim("4"), claim("5")];
    hold(&scene, &claims).await;
    let (mut long, mut short) = (scene.admin().await, scene.admin().await);
    for (admin, row) in [(&mut long, 0), (&mut short, 1)] {
        admin.run(scene.words.begin).await;
        assert_eq!(admin.count(scene.words.lock_rows[row]).await, 1);
    }
    let batcher = Batcher::new(scene.driver.clone());
    let latest = much_later(&scene.driver);
    let [mut first, mut second] = [JoinSet::new(), JoinSet::new()];
    release(&mut first, &batcher, &claims[0], latest);
    release(&mut second, &batcher, &claims[1], latest);
    tokio::time::sleep(Duration::from_millis(300)).await;
    short.run("COMMIT").await;
    let answer = timeout(Duration::from_secs(20), second.join_next()).await;
    assert_eq!(answer.expect("its row is free").unwrap().unwrap(), Released::Removed);
    assert!(first.try_join_next().is_none(), "the other row is locked");
    // For longer than a statement waits.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(first.try_join_next().is_none(), "it waits as long as the driver's time limit allows");
    long.run("COMMIT").await;
    let answer = timeout(Duration::from_secs(20), first.join_next()).await;
    assert_eq!(answer.expect("its row is free").unwrap().unwrap(), Released::Removed);
}

async fn many_locked_rows_delay_neither_renewals_nor_other_names(scene: Scene) {
    scene.warm().await;
    let many: Vec<_> = (0..64).map(|i| claim(&format!("row/{i}"))).collect();
    let other = claim("warm/1");
    hold(&scene, &many).await;
    hold(&scene, std::slice::from_ref(&other)).await;
    let mut admin = scene.admin().await;
    admin.run(scene.words.begin).await;
    assert_eq!(admin.run(scene.words.lock_many).await, 64);
    let batcher = Batcher::new(scene.driver.clone());
    let latest = much_later(&scene.driver);
    let mut releases = JoinSet::new();
    for claim in &many {
        release(&mut releases, &batcher, claim, latest);
    }
    let mut watch = scene.admin().await;
    while watch.count(scene.words.waiting).await == 0 {
        // MariaDB's answer is as old as the last one that was asked for within 100 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let (mut renewals, mut acquires, mut most) = (Vec::new(), Vec::new(), 0);
    for round in 0..9 {
        let begun = Instant::now();
        let renewal = scene.driver.renew_single(&other).await.unwrap();
        assert!(matches!(renewal, Renewal::Holds(_)), "{renewal:?}");
        renewals.push(begun.elapsed());
        let free = claim(&format!("free/{round}"));
        let begun = Instant::now();
        acquire(&batcher, &[free], latest).await;
        acquires.push(begun.elapsed());
        most = most.max(watch.count(scene.words.waiting).await);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    for times in [&mut renewals, &mut acquires] {
        times.sort();
    }
    println!("{:?}: renewals {renewals:?}, acquires {acquires:?}", scene.kind);
    assert!(renewals[4] <= SOON, "renewals took {renewals:?}");
    assert!(acquires[4] <= SOON, "acquires of free names took {acquires:?}");
    assert!((1..=4).contains(&most), "{most} of 8 connections waited for rows");
    assert!(releases.try_join_next().is_none(), "their rows are locked");
    admin.run("COMMIT").await;
    let released = timeout(Duration::from_secs(60), releases.join_all()).await;
    assert!(
        released.expect("the rows are free").iter().all(|released| *released == Released::Removed)
    );
}

/// The rows of names of claims that are alone, of a name for which one waits, and of a claim among others.
async fn a_renewal_leaves_out_claims_whose_rows_are_locked_and_renews_the_others(scene: Scene) {
    let many: Vec<_> = (0..64).map(|i| claim(&format!("row/{i}"))).collect();
    let (waits, among) = (claim("5"), claim("among"));
    let free: Vec<_> = (0..16).map(|i| claim(&format!("free/{i}"))).collect();
    for claims in [&many, &free, &vec![among.clone()]] {
        hold(&scene, claims).await;
    }
    let other = scene.other().await;
    other.acquire(&claim("5"), Patience::Try).await.unwrap();
    scene.driver.acquire(&waits, Patience::Wait).await.unwrap();
    other.acquire(&claim("among"), Patience::Wait).await.unwrap();
    let mut admin = scene.admin().await;
    admin.run(scene.words.begin).await;
    admin.run(scene.words.lock_many).await;
    assert_eq!(admin.count(scene.words.lock_rows[1]).await, 1);
    assert_eq!(admin.count(&scene.lock_claim(&among)).await, 1);
    let claims = [many.clone(), vec![waits, among], free].concat();
    let locked = many.len() + 2;
    let renewed = timeout(Duration::from_secs(20), scene.driver.renew(&claims)).await;
    let renewed = renewed.expect("no renewal waits for all locked rows").unwrap();
    for (claim, answer) in claims[..locked].iter().zip(&renewed) {
        assert!(answer.as_ref().is_err_and(Error::is_retryable), "{:?}: {answer:?}", claim.key);
    }
    for (claim, answer) in claims[locked..].iter().zip(&renewed[locked..]) {
        assert!(matches!(answer, Ok(Renewal::Holds(_))), "{:?}: {answer:?}", claim.key);
    }
    admin.run("COMMIT").await;
    for (claim, answer) in claims.iter().zip(scene.driver.renew(&claims).await.unwrap()) {
        let ended = matches!(answer, Err(_) | Ok(Renewal::Ended(_)));
        assert!(!ended, "{:?}: {answer:?}", claim.key);
    }
}

/// The renewal of the waiter behind it would let it hold.
async fn the_locked_row_of_a_claim_that_comes_to_hold_fails_the_renewals_of_its_queue_only(
    scene: Scene,
) {
    let free = [claim("0"), claim("1")];
    hold(&scene, &free).await;
    let other = scene.other().await;
    let mut ending = Claim::clone(&claim("a"));
    ending.hold_ttl = Duration::from_millis(500);
    let (ending, next, last) = (Arc::new(ending), claim("a"), claim("a"));
    for (driver, claim) in [(&other, &ending), (&other, &next), (&scene.driver, &last)] {
        driver.acquire(claim, Patience::Wait).await.unwrap();
    }
    let mut admin = scene.admin().await;
    admin.run(scene.words.begin).await;
    assert_eq!(admin.count(&scene.lock_claim(&next)).await, 1);
    tokio::time::sleep(ending.hold_ttl * 2).await;
    let renewed = scene.driver.renew(&[last, free[0].clone(), free[1].clone()]).await.unwrap();
    assert!(renewed[0].as_ref().is_err_and(Error::is_retryable), "{:?}", renewed[0]);
    for answer in &renewed[1..] {
        assert!(matches!(answer, Ok(Renewal::Holds(_))), "{answer:?}");
    }
}

/// An administrator changes one row by hand, and does not commit.
async fn a_row_that_stays_locked_costs_its_process_no_other_lock(scene: Scene) {
    let settings = Settings::default().ttl(Duration::from_secs(6));
    let locks = LockManager::with(scene.driver.clone(), settings).unwrap();
    let mut others = Vec::new();
    for name in ["0", "1", "2"] {
        others.push(locks.mutex(name).lock().await.unwrap());
    }
    let locked = locks.mutex("4").lock().await.unwrap();
    let mut admin = scene.admin().await;
    admin.run(scene.words.begin).await;
    assert_eq!(admin.count(scene.words.lock_rows[0]).await, 1);
    timeout(LONG, locked.lost()).await.expect("it cannot be renewed");
    // It was acquired last, so without a renewal the others were over as well.
    assert!(others.iter().all(|guard| guard.is_valid()));
    admin.run("COMMIT").await;
    for guard in others {
        guard.release().await.unwrap();
    }
}
