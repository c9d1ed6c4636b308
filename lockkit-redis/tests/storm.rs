//! Storms of a few seconds on Redis: a server alone, sentinels, clusters.

use std::time::Duration;

use lockkit_core::capabilities::Fault;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::storm::{FAULTS, HOT_FAULTS, Storm, StormReport, StormSetup};
use lockkit_lab::worker::example;
use lockkit_lab::{Kind, Layout};

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    lockkit::connect_with(&url, settings).await
}

async fn is_acquitted(stage: StormSetup) {
    let mut storm = Storm::brief(example("redis_worker"));
    (storm.processes, storm.lasts) = (2, storm.lasts.max(Duration::from_secs(10)));
    is_acquitted_of(stage, storm).await;
}

async fn is_acquitted_of(stage: StormSetup, storm: Storm) -> StormReport {
    let report = storm.acquitted(stage, connect).await;
    assert!(report.count("granted") > 0 && report.count("faults") > 0, "{report:?}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_alone_that_stands_still_restarts_and_is_cut_off_is_acquitted() {
    is_acquitted(StormSetup::server(Kind::Redis, &FAULTS).await.unwrap()).await;
}

/// Most hand-overs are within a process, or between two of them.
#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_is_passed_on_through_all_faults() {
    let stage = StormSetup::server(Kind::Redis, &HOT_FAULTS).await.unwrap();
    let report = is_acquitted_of(stage, Storm::hot(example("redis_worker"))).await;
    assert!(report.faults(Fault::ConnectionCut) >= 1, "no answer was lost");
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
