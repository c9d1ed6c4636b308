//! The ZooKeeper driver on an ensemble of three that falls apart: exclusion and tokens hold, and
//! the lock works again.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Key, LockManager, Name, Namespace, Settings, Space};
use lockkit_lab::{Data, Group, Layout, Rift, Server};
use lockkit_zk::{ZkDriver, ZkOptions};

/// Longer than a busy machine stands still.
const TTL: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long members believe in each other.
const FAITH: Duration = Duration::from_secs(2);

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
    let group = Group::start_divisible_ensemble(FAITH).await.unwrap();
    let (number, follower) = a_follower(&group).await;
    let ours = manager(&follower.addr().to_string()).await;
    let leader = group.leader().await.unwrap().addr().to_string();
    let theirs = manager(&leader).await;
    let guard = ours.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let waiting = tokio::spawn(async move {
        let next = theirs.mutex("a").lock().await.unwrap();
        (SteadyClock.now(), next.token().unwrap(), next)
    });
    // Renewed for a while, as long as all is well.
    tokio::time::sleep(TTL).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    group.cut_off(number, Rift::Silent).await.unwrap();
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("it is lost");
    let lost = SteadyClock.now();
    let (granted, next, _guard) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(lost < granted, "two held for {:?}", lost.since(granted));
    assert!(next > token);
    group.rejoin();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_behind_a_follower_that_lags_is_not_refused_what_was_released() {
    let group = Group::start_divisible_ensemble(PATIENCE).await.unwrap();
    let (number, follower) = a_follower(&group).await;
    // As one of several, whichever it is connected to.
    let ours = manager(&format!("{0},{0}", follower.addr())).await.mutex("a");
    let theirs = manager(&group.leader().await.unwrap().addr().to_string()).await;
    let guard = theirs.mutex("a").lock().await.unwrap();
    assert!(ours.try_lock().await.unwrap().is_none(), "it is held");
    group.cut_off(number, Rift::Silent).await.unwrap();
    guard.release().await.unwrap();
    let trying = tokio::spawn(async move {
        loop {
            match ours.try_lock().await {
                Err(error) if error.is_retryable() => {} // it cannot say
                answer => return answer.unwrap(),
            }
        }
    });
    // Time enough for an answer from what the follower knows.
    tokio::time::sleep(Duration::from_secs(1)).await;
    group.rejoin();
    let answer = tokio::time::timeout(PATIENCE, trying).await.expect("it is told").unwrap();
    assert!(answer.is_some(), "it was free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_outlives_the_death_of_the_leader_and_so_does_its_exclusion() {
    let group = Group::start(Layout::ZooKeeperEnsemble).await.unwrap();
    let (ours, theirs) = (manager(&hosts(&group)).await, manager(&hosts(&group)).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let waiting = tokio::spawn(async move {
        let next = theirs.mutex("a").lock().await.unwrap();
        (SteadyClock.now(), next.token().unwrap(), next)
    });
    let leader = group.leader().await.unwrap();
    leader.kill().await;
    // Whether it survives is a question of how long the election takes; that it is alone is not.
    let ended = tokio::time::timeout(TTL * 3, guard.lost()).await.map(|_| SteadyClock.now());
    let released = match ended {
        Ok(lost) => lost,
        Err(_) => {
            let released = SteadyClock.now();
            guard.release().await.unwrap();
            released
        }
    };
    let (granted, next, _guard) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(released < granted, "two held for {:?}", released.since(granted));
    assert!(next > token);
    leader.restart(Data::Keep).await.unwrap();
}

/// Its clients cannot know that the others have a new leader, and get an answer the moment it wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_and_wakes_makes_no_second_holder() {
    let group = Group::start(Layout::ZooKeeperEnsemble).await.unwrap();
    let old = group.leader().await.unwrap();
    let others = group.members().iter().map(|m| m.addr()).filter(|addr| *addr != old.addr());
    let others: Vec<_> = others.map(|addr| addr.to_string()).collect();
    // They know no other server than the one that will stand still, and the other two.
    let ours = manager(&old.addr().to_string()).await;
    let theirs = manager(&others.join(",")).await;
    let guard = ours.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let waiting = tokio::spawn(async move {
        let next = theirs.mutex("a").lock().await.unwrap();
        (SteadyClock.now(), next.token().unwrap(), next)
    });
    // Once more answered, as long as all is well.
    let _ = guard.verify().await;
    old.freeze().await;
    group.leader().await.unwrap();
    old.thaw();
    // Whether the session survives depends on how soon the old leader sees what happened; that
    // there is one holder does not.
    let ended = tokio::time::timeout(TTL * 2, guard.lost()).await.map(|_| SteadyClock.now());
    let released = match ended {
        Ok(lost) => lost,
        Err(_) => {
            let released = SteadyClock.now();
            drop(guard);
            released
        }
    };
    let (granted, next, _guard) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(released < granted, "two held for {:?}", released.since(granted));
    assert!(next > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_does_not_answer_with_what_was() {
    let group = Group::start_divisible_ensemble(FAITH).await.unwrap();
    let (number, follower) = a_follower(&group).await;
    let options = ZkOptions::new(follower.addr().to_string()).ttl(TTL * 3);
    let ours = ZkDriver::connect_with(options.tick(Duration::from_millis(500))).await.unwrap();
    let leader = group.leader().await.unwrap().addr().to_string();
    let theirs = manager(&leader).await;
    let namespace = Namespace::default();
    assert_eq!(ours.namespace_counter(&namespace).await.unwrap(), 0);
    group.cut_off(number, Rift::Silent).await.unwrap();
    let key = Key::new(namespace.clone(), Space::Lock, Name::new("a").unwrap());
    let guard = theirs.mutex("a").lock().await.unwrap();
    theirs.driver().raise_namespace_counter(&namespace, 1_000).await.unwrap();
    // An error now, and the truth later; never the base that was, or a lock that seems free.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut rejoined = false;
    loop {
        let (base, state) = (ours.namespace_counter(&namespace).await, ours.inspect(&key).await);
        for error in [base.as_ref().err(), state.as_ref().err()].into_iter().flatten() {
            assert!(error.is_retryable(), "{error}");
        }
        assert!(!matches!(base, Ok(0)), "an old base");
        if let (Ok(base), Ok(state)) = (base, state) {
            assert_eq!(base, 1_000);
            assert_eq!(state.holders().count(), 1);
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it never answers");
        if !rejoined {
            group.rejoin();
            rejoined = true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(guard);
}
