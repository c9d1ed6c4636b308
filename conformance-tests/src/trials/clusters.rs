//! Groups of servers that lose their leader, and a follower that does not know that it is alone.

use std::time::Duration;

use lockkit_core::capabilities::{Fault, Keeps};

use super::scene::{Held, Tokens, answered, its_turn, keeps, wait_in_line, works_again};
use super::stage::staged;
use super::{Applied, NotApplicable, Stage};
use crate::lab::{Data, Group, Layout, Server};

const LOCK: &str = "a";

/// What becomes of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Falls {
    /// It is gone, and its connections with it.
    Dead,
    /// It keeps its connections, and says nothing.
    Silent,
}

pub async fn robust_07_the_leader_of_a_cluster_is_killed(stage: Stage) -> Applied {
    every_leader(&stage, Falls::Dead).await
}

pub async fn robust_07_the_leader_of_a_cluster_falls_silent(stage: Stage) -> Applied {
    every_leader(&stage, Falls::Silent).await
}

async fn every_leader(stage: &Stage, falls: Falls) -> Applied {
    let led = stage.site().layouts();
    if led.is_empty() {
        return NotApplicable::because("the site names no group that has a leader");
    }
    for layout in led {
        leader_lost(stage, layout, falls).await?;
    }
    Ok(())
}

async fn leader_lost(stage: &Stage, layout: Layout, falls: Falls) -> Applied {
    let fault = match layout {
        Layout::RedisSentinel | Layout::RedisClusterWithReplicas => Fault::Failover,
        _ => Fault::LeaderLost,
    };
    let kept = keeps(stage.bench(), fault)?;
    let mut tokens = Tokens::new(kept);
    let group = staged(Group::start(layout).await);
    let bench = &stage.bench_over(group.url()).await;
    let ours = bench.manager().await;
    let wait = bench.lively();
    let theirs = bench.manager_with(bench.driver().await, |s| s.wait_ttl(wait));
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    let token = tokens.next(&guard, "under the first leader");
    let waiting = wait_in_line(bench, &theirs, LOCK).await;
    staged(group.hurry().await);
    let key = match layout.divides_its_keys() {
        true => staged(group.key_with(bench.namespace().as_str()).await),
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
    let verified = answered(bench, "the new leader says", || guard.verify()).await;
    if kept == Keeps::All {
        held.still(&verified, !waiting.is_finished());
    }
    drop(guard);
    let limit = bench.after(wait);
    let next = its_turn(bench, waiting, limit, None).await;
    tokens.next(&next, "under the new leader");
    drop(next);
    match falls {
        Falls::Dead => staged(old.launch(Data::Keep).await),
        Falls::Silent => old.thaw(),
    }
    staged(group.complete().await);
    staged(group.calm().await);
    works_again(bench, &[&ours, &theirs], LOCK, &mut tokens, limit).await;
    bench.clean_up().await;
    Ok(())
}

/// The server on whose word a lock depends: where keys are divided, the holder of this one.
async fn leader_of<'a>(group: &'a Group, key: Option<&str>) -> &'a Server {
    match key {
        Some(key) => staged(group.holder_of(key).await),
        None => staged(group.leader().await),
    }
}

pub async fn robust_07_a_follower_is_cut_off_from_its_leader(stage: Stage) -> Applied {
    if !stage.site().layouts().contains(&Layout::ZooKeeperEnsemble) {
        return NotApplicable::because("the lab can cut off followers of ZooKeeper alone");
    }
    let kept = keeps(stage.bench(), Fault::LeaderLost)?;
    let mut tokens = Tokens::new(kept);
    let group = staged(Group::start_divisible_ensemble().await);
    let leader = staged(group.leader().await).addr();
    let members = group.members();
    let alone = members.iter().position(|m| m.addr() != leader).expect("there are followers");
    let bench = &stage.bench_over(group.url_at(&[leader])).await;
    let ttl = bench.lively();
    // It knows no other server than the one that will be alone, which goes on answering.
    let driver = stage.connect_to(group.url_at(&[members[alone].addr()])).await;
    let driver = driver.expect("the driver connects to a follower");
    let ours = bench.manager_with(driver, |s| s.ttl(ttl).wait_ttl(ttl));
    let theirs = bench.manager().await;
    let guard = ours.mutex(LOCK).lock().await.expect("it is free");
    tokens.next(&guard, "the client of the follower");
    let waiting = wait_in_line(bench, &theirs, LOCK).await;
    staged(group.cut_off(alone).await);
    let limit = bench.after(ttl) + Duration::from_secs(10);
    let next = its_turn(bench, waiting, limit, Some((&guard, kept))).await;
    tokens.next(&next, "the client of the leader");
    drop((guard, next));
    staged(group.rejoin().await);
    staged(group.complete().await);
    works_again(bench, &[&ours, &theirs], LOCK, &mut tokens, limit).await;
    bench.clean_up().await;
    Ok(())
}
