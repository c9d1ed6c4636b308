//! Storms on etcd: processes in tasks that are frozen and killed, a server and a leader that are
//! lost, a network that is cut; a few seconds each, or as many as `LOCKKIT_STORM_SECONDS` says.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::capabilities::Fault;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::storm::{FAULTS, HOT_FAULTS, Storm, StormReport, StormSetup};
use lockkit_lab::{Layout, ServerKind};

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    LockManager::with(Arc::new(EtcdDriver::connect(&url).await?), settings)
}

async fn is_acquitted(stage: StormSetup) {
    is_acquitted_with(stage, |_| {}).await;
}

async fn is_acquitted_with(stage: StormSetup, change: impl FnOnce(&mut Storm)) -> StormReport {
    let mut storm = Storm::brief(lockkit_lab::worker::example("etcd_worker"));
    storm.ttl = Duration::from_secs(2); // the shortest leases that etcd gives
    change(&mut storm);
    let report = storm.acquitted(stage, connect).await;
    assert!(report.count("granted") > 10 && report.count("faults") >= 1, "{report:?}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_a_single_server_is_acquitted() {
    is_acquitted(StormSetup::server(ServerKind::Etcd, &FAULTS).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_a_cluster_that_loses_its_leaders_is_acquitted() {
    is_acquitted(StormSetup::group(Layout::EtcdCluster).await.unwrap()).await;
}

/// Most hand-overs are within a process, or between two of them.
#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_is_passed_on_through_all_faults() {
    let stage = StormSetup::server(ServerKind::Etcd, &HOT_FAULTS).await.unwrap();
    let report = is_acquitted_with(stage, |storm| {
        let hot = Storm::hot(storm.program.clone());
        let ttl = storm.ttl; // the shortest leases
        *storm = Storm { ttl, wait_ttl: ttl, ..hot };
    })
    .await;
    assert!(report.faults(Fault::ConnectionCut) >= 1, "no answer was lost");
}
