//! Rows that another client has locked, and what they cost the other names of a process: nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, Batcher, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::{Claim, LockManager, Settings};
use lockkit_lab::ServerKind;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::claim;
use super::scene::{LONG, Scene};

on_either_server! {
    a_locked_row_delays_no_other_name_of_its_batch,
    a_release_waits_for_the_row_of_its_own_lock_only,
    many_locked_rows_delay_neither_renewals_nor_other_names,
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
