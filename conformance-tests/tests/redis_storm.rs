//! Storms of a few seconds on Redis: a server alone, sentinels, clusters.

use std::sync::Arc;
use std::time::Duration;

use lockkit_conformance::lab::proxy::Protocol;
use lockkit_conformance::lab::{Group, Kind, Layout, Proxy, Server};
use lockkit_conformance::storm::group::GroupSaboteur;
use lockkit_conformance::storm::server::ServerSaboteur;
use lockkit_conformance::storm::{Saboteur, Storm};
use lockkit_core::capabilities::Fault;
use lockkit_core::{LockManager, Settings};
use lockkit_redis::RedisDriver;

async fn is_acquitted(seed: u64, url: String, direct: String, saboteur: Arc<dyn Saboteur>) {
    let folder = tempfile::tempdir().unwrap();
    let storm = Storm {
        seed,
        lasts: Duration::from_secs(10),
        processes: 2,
        tasks: 3,
        locks: 2,
        ttl: Duration::from_secs(1),
        program: env!("CARGO_BIN_EXE_lockkit-storm").into(),
        url,
        folder: folder.path().to_owned(),
        strike_clients: true,
    };
    let settings = Settings::default().ttl(storm.ttl).wait_ttl(storm.ttl);
    let driver = Arc::new(RedisDriver::connect(&direct).await.unwrap());
    let look = LockManager::with(driver, settings).unwrap();
    let report = storm.run(Vec::new(), &look, saboteur).await.unwrap();
    println!("{:?}", report.judgement.counts);
    if !report.judgement.acquitted() {
        let kept = folder.keep();
        panic!("{:#?}, histories in {}", report.judgement.violations, kept.display());
    }
    for what in ["granted", "faults"] {
        assert!(report.judgement.counts.contains_key(what), "nothing {what}: {report:?}");
    }
}

async fn on_group(seed: u64, layout: Layout, change: fn(GroupSaboteur) -> GroupSaboteur) {
    let group = Group::start(layout).await.unwrap();
    let proxy = group.proxy(Protocol::Resp).await.unwrap();
    let (url, direct) = (group.url_through(&proxy), group.url());
    is_acquitted(seed, url, direct, Arc::new(change(GroupSaboteur::new(group, proxy)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_alone_that_stands_still_restarts_and_is_cut_off_is_acquitted() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let (url, direct) = (server.url_at(proxy.addr()), server.url());
    let faults = vec![
        Fault::ConnectionCut,
        Fault::Partition,
        Fault::ServerStandsStill,
        Fault::ServerRestarts,
    ];
    let saboteur = Arc::new(ServerSaboteur::new(server, proxy, faults));
    is_acquitted(2026, url, direct, saboteur).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_change_the_master_are_acquitted() {
    on_group(2026, Layout::RedisSentinel, |saboteur| saboteur).await;
}

/// Locks are free in the end and nobody waits in vain, even if each of two masters gives tokens.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_whose_old_master_lives_on_are_acquitted() {
    on_group(2026, Layout::RedisSentinel, GroupSaboteur::that_splits).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_nodes_stand_still_restart_and_give_slots_away_is_acquitted() {
    on_group(2026, Layout::RedisCluster, |saboteur| saboteur).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_replicas_take_over_is_acquitted() {
    on_group(2026, Layout::RedisClusterWithReplicas, |saboteur| saboteur).await;
}
