//! Storms of a few seconds on Redis: a server alone, sentinels, clusters.

use std::time::Duration;

use lockkit_lab::storm::{FAULTS, Storm, StormSetup};
use lockkit_lab::{Kind, Layout};

async fn is_acquitted(stage: StormSetup) {
    let mut storm = Storm::brief(lockkit_lab::worker::example("redis_worker"));
    (storm.processes, storm.lasts) = (2, storm.lasts.max(Duration::from_secs(10)));
    let look = |url: String, settings| async move { lockkit::connect_with(&url, settings).await };
    let report = storm.acquitted(stage, look).await;
    assert!(report.count("granted") > 0 && report.count("faults") > 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_alone_that_stands_still_restarts_and_is_cut_off_is_acquitted() {
    is_acquitted(StormSetup::server(Kind::Redis, &FAULTS).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_change_the_master_are_acquitted() {
    is_acquitted(StormSetup::group(Layout::RedisSentinel).await.unwrap()).await;
}

/// Locks are free in the end and nobody waits in vain, even if each of two masters gives tokens.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_whose_old_master_lives_on_are_acquitted() {
    is_acquitted(StormSetup::that_splits(Layout::RedisSentinel).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_nodes_stand_still_restart_and_give_slots_away_is_acquitted() {
    is_acquitted(StormSetup::group(Layout::RedisCluster).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_replicas_take_over_is_acquitted() {
    is_acquitted(StormSetup::group(Layout::RedisClusterWithReplicas).await.unwrap()).await;
}
