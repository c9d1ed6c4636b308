//! Storms on etcd: processes in tasks that are frozen and killed, a server and a leader that are
//! lost, a network that is cut; a few seconds each, or as many as `LOCKKIT_STORM_SECONDS` says.

mod worker;

use std::sync::Arc;
use std::time::Duration;

use lockkit_conformance::lab::proxy::Protocol;
use lockkit_conformance::lab::{Group, Kind, Layout, Proxy, Server};
use lockkit_conformance::storm::leader::LeaderSaboteur;
use lockkit_conformance::storm::server::ServerSaboteur;
use lockkit_conformance::storm::{Saboteur, Storm};
use lockkit_core::capabilities::Fault;
use lockkit_core::{LockManager, Settings};
use lockkit_etcd::EtcdDriver;

/// The shortest leases that etcd gives.
const TTL: Duration = Duration::from_secs(2);

async fn acquitted(url: String, direct: &str, saboteur: Arc<dyn Saboteur>) {
    let seconds = std::env::var("LOCKKIT_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let folder = tempfile::tempdir().unwrap();
    let storm = Storm {
        seed: 2026,
        lasts: Duration::from_secs(seconds.unwrap_or(8)),
        processes: 3,
        tasks: 3,
        locks: 2,
        ttl: TTL,
        program: worker::program(),
        url,
        folder: folder.path().to_owned(),
        strike_clients: true,
    };
    let driver = Arc::new(EtcdDriver::connect(direct).await.unwrap());
    let settings = Settings::default().ttl(TTL).wait_ttl(TTL);
    let look = LockManager::with(driver, settings).unwrap();
    let report = storm.run(Vec::new(), &look, saboteur).await.unwrap();
    let judgement = &report.judgement;
    if !judgement.acquitted() {
        panic!("{:#?}, histories in {}", judgement.violations, folder.keep().display());
    }
    println!("{:?}, excused: {:#?}", judgement.counts, judgement.excused);
    let count = |what| judgement.counts.get(what).copied().unwrap_or(0);
    assert!(count("granted") > 10 && count("faults") >= 1, "{:?}", judgement.counts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_a_single_server_is_acquitted() {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let (url, direct) = (server.url_at(proxy.addr()), server.url());
    let faults = vec![
        Fault::ConnectionCut,
        Fault::Partition,
        Fault::ServerStandsStill,
        Fault::ServerRestarts,
    ];
    acquitted(url, &direct, Arc::new(ServerSaboteur::new(server, proxy, faults))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_a_cluster_that_loses_its_leaders_is_acquitted() {
    let group = Group::start(Layout::EtcdCluster).await.unwrap();
    let url = group.url();
    let saboteur = LeaderSaboteur::new(group, Fault::LeaderLost);
    acquitted(url.clone(), &url, Arc::new(saboteur)).await;
}
