//! Groups of servers that lose their leader, and a member that does not know that it is alone.

use std::net::SocketAddr;
use std::time::Duration;

use lockkit_core::capabilities::{Fault, Guarantee};

use super::scene::{Held, Tokens, answered, guarantee, its_turn, wait_in_line, works_again};
use super::stage::staged;
use super::{NotApplicable, TrialResult, TrialSetup};
use crate::{Data, Group, Layout, Rift, Server};

const LOCK: &str = "a";
/// For how long members believe in each other where they are divided: as long as in ZooKeeper's
/// sample configuration, so that one that is alone goes on answering for long.
const FAITH: Duration = Duration::from_secs(10);

/// What becomes of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Falls {
    /// It is gone, and its connections with it.
    Dead,
    /// It keeps its connections, and says nothing.
    Silent,
}

pub async fn robust_07_the_leader_of_a_cluster_is_killed(stage: TrialSetup) -> TrialResult {
    every_leader(&stage, Falls::Dead).await
}

pub async fn robust_07_the_leader_of_a_cluster_falls_silent(stage: TrialSetup) -> TrialResult {
    every_leader(&stage, Falls::Silent).await
}

async fn every_leader(stage: &TrialSetup, falls: Falls) -> TrialResult {
    let led = stage.site().layouts();
    if led.is_empty() {
        return NotApplicable::because("the site names no group that has a leader");
    }
    for layout in led {
        leader_lost(stage, layout, falls).await?;
    }
    Ok(())
}

async fn leader_lost(stage: &TrialSetup, layout: Layout, falls: Falls) -> TrialResult {
    let fault = match layout {
        Layout::RedisSentinel | Layout::RedisClusterWithReplicas => Fault::Failover,
        _ => Fault::LeaderLost,
    };
    let kept = guarantee(stage.context(), fault)?;
    let mut tokens = Tokens::new(kept);
    let group = staged(Group::start(layout).await);
    let context = &stage.bench_over(group.url()).await;
    let ours = context.manager().await;
    let wait = context.lively();
    let theirs = context.manager_with(context.driver().await, |s| s.wait_ttl(wait));
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    let token = tokens.next(&guard, "under the first leader");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    staged(group.hurry().await);
    let key = match layout.divides_its_keys() {
        true => staged(group.key_with(context.namespace().as_str()).await),
        false => None,
    };
    let old = leader_of(&group, key.as_deref()).await;
    let held = Held::by(&guard, token);
    match falls {
        Falls::Dead => old.kill().await,
        Falls::Silent => old.freeze().await,
    }
    let new = leader_of(&group, key.as_deref()).await;
    assert_ne!(new.addr(), old.addr());
    staged(group.calm().await);
    let verified = answered(context, "the new leader says", || guard.verify()).await;
    if kept == Guarantee::All {
        held.still(&verified, !waiting.is_finished());
    }
    drop(guard);
    let limit = context.after(wait);
    let next = its_turn(context, waiting, limit, None).await;
    tokens.next(&next, "under the new leader");
    drop(next);
    match falls {
        Falls::Dead => staged(old.launch(Data::Keep).await),
        Falls::Silent => old.thaw(),
    }
    staged(group.complete().await);
    staged(group.calm().await);
    works_again(context, &[&ours, &theirs], LOCK, &mut tokens, limit).await;
    context.clean_up().await;
    Ok(())
}

/// The server on whose word a lock depends: where keys are divided, the holder of this one.
async fn leader_of<'a>(group: &'a Group, key: Option<&str>) -> &'a Server {
    match key {
        Some(key) => staged(group.holder_of(key).await),
        None => staged(group.leader().await),
    }
}

pub async fn robust_07_a_follower_is_cut_off_from_its_leader(stage: TrialSetup) -> TrialResult {
    let (group, leader) = divided(&stage).await?;
    let mut members = group.members().iter();
    let alone = members.position(|m| m.addr() != leader).expect("there are followers");
    cut_off(&stage, &group, alone, &[leader], Rift::Silent).await
}

/// A leader that is alone goes on answering until it misses the others, and those soon have
/// another.
pub async fn robust_07_a_leader_is_cut_off_from_the_others(stage: TrialSetup) -> TrialResult {
    leader_cut_off(&stage, Rift::Silent).await
}

/// They have another one at once, and it is the old one that goes on answering meanwhile.
pub async fn robust_07_a_leader_is_cut_off_and_the_others_see_it_first(
    stage: TrialSetup,
) -> TrialResult {
    leader_cut_off(&stage, Rift::OthersSee).await
}

async fn leader_cut_off(stage: &TrialSetup, rift: Rift) -> TrialResult {
    let (group, leader) = divided(stage).await?;
    let addrs = group.members().iter().map(Server::addr);
    let others: Vec<_> = addrs.clone().filter(|addr| *addr != leader).collect();
    let alone = addrs.into_iter().position(|addr| addr == leader).expect("it is one of them");
    cut_off(stage, &group, alone, &others, rift).await
}

/// A group that can be divided, and its leader.
async fn divided(stage: &TrialSetup) -> Result<(Group, SocketAddr), NotApplicable> {
    let group = match stage.site().layouts().as_slice() {
        [Layout::ZooKeeperEnsemble, ..] => Group::start_divisible_ensemble(FAITH).await,
        [Layout::EtcdCluster, ..] => Group::start_divisible_cluster().await,
        _ => return NotApplicable::because("the lab divides groups of ZooKeeper and etcd alone"),
    };
    let group = staged(group);
    let leader = staged(group.leader().await).addr();
    Ok((group, leader))
}

/// The member that is cut off has the holder's client, which knows no other one; who waits is a
/// client of the others.
async fn cut_off(
    stage: &TrialSetup,
    group: &Group,
    alone: usize,
    others: &[SocketAddr],
    rift: Rift,
) -> TrialResult {
    let kept = guarantee(stage.context(), Fault::LeaderLost)?;
    let mut tokens = Tokens::new(kept);
    let context = &stage.bench_over(group.url_at(others)).await;
    let ttl = context.lively();
    let driver = stage.connect_to(group.url_at(&[group.members()[alone].addr()])).await;
    let driver = driver.expect("the driver connects to the member that will be alone");
    let ours = context.manager_with(driver, |s| s.ttl(ttl).wait_ttl(ttl));
    let theirs = context.manager().await;
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    tokens.next(&guard, "the client of the one that will be alone");
    let waiting = wait_in_line(context, &theirs, LOCK).await;
    staged(group.cut_off(alone, rift).await);
    let limit = context.after(ttl) + 2 * FAITH + Duration::from_secs(10);
    let next = its_turn(context, waiting, limit, Some((&guard, kept))).await;
    tokens.next(&next, "the client of the others");
    let verified = answered(context, "the others know it", || next.verify()).await;
    verified.expect("who follows holds while the others are still divided");
    drop((guard, next));
    group.rejoin();
    staged(group.complete().await);
    works_again(context, &[&ours, &theirs], LOCK, &mut tokens, limit).await;
    context.clean_up().await;
    Ok(())
}
