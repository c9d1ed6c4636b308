//! The ZooKeeper driver on an ensemble of three that falls apart: exclusion and tokens hold, and
//! the lock works again.

use std::sync::Arc;
use std::time::Duration;

use lockkit_conformance::lab::{Data, Group, Layout, Server};
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::{LockManager, Settings};
use lockkit_zk::{ZkDriver, ZkOptions};

const TTL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

async fn manager(hosts: &str) -> LockManager {
    let options = ZkOptions::new(hosts).ttl(TTL).tick(Duration::from_millis(500));
    let driver = ZkDriver::connect_with(options).await.unwrap();
    LockManager::with(Arc::new(driver), Settings::default().ttl(TTL)).unwrap()
}

fn hosts(group: &Group) -> String {
    let addrs: Vec<_> = group.members().iter().map(|m| m.addr().to_string()).collect();
    addrs.join(",")
}

async fn a_follower(group: &Group) -> (usize, &Server) {
    let leader = group.leader().await.unwrap().addr();
    let mut members = group.members().iter().enumerate();
    members.find(|(_, member)| member.addr() != leader).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_behind_a_follower_that_is_cut_off_gives_up_before_the_next_holds() {
    let group = Group::start_divisible_ensemble().await.unwrap();
    let (number, follower) = a_follower(&group).await;
    let ours = manager(&follower.addr().to_string()).await;
    let leader = group.leader().await.unwrap().addr().to_string();
    let theirs = manager(&leader).await;
    let guard = ours.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let waiting = tokio::spawn(async move {
        let next = theirs.mutex("a").lock().await.unwrap();
        (BootClock.now(), next.token().unwrap(), next)
    });
    // Renewed for a while, as long as all is well.
    tokio::time::sleep(TTL).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    group.cut_off(number).await.unwrap();
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("it is lost");
    let lost = BootClock.now();
    let (granted, next, _guard) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(lost < granted, "two held for {:?}", lost.since(granted));
    assert!(next > token);
    group.rejoin().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_the_death_of_the_leader_and_so_does_its_exclusion() {
    let group = Group::start(Layout::ZooKeeperEnsemble).await.unwrap();
    let (ours, theirs) = (manager(&hosts(&group)).await, manager(&hosts(&group)).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let waiting = tokio::spawn(async move {
        let next = theirs.mutex("a").lock().await.unwrap();
        (BootClock.now(), next.token().unwrap(), next)
    });
    let leader = group.leader().await.unwrap();
    leader.kill().await;
    // Whether it survives is a question of how long the election takes; that it is alone is not.
    let ended = tokio::time::timeout(TTL * 3, guard.lost()).await.map(|_| BootClock.now());
    let released = match ended {
        Ok(lost) => lost,
        Err(_) => {
            let released = BootClock.now();
            guard.release().await.unwrap();
            released
        }
    };
    let (granted, next, _guard) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(released < granted, "two held for {:?}", released.since(granted));
    assert!(next > token);
    leader.restart(Data::Keep).await.unwrap();
}
