//! Storms on ZooKeeper: processes that are frozen and killed, a server, a leader or a follower that
//! is lost, a network that is cut; a few seconds each, or as many as `LOCKKIT_STORM_SECONDS` says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::lab::proxy::Protocol;
use lockkit_conformance::lab::{Data, Group, Kind, LabError, Proxy, Server};
use lockkit_conformance::storm::server::ServerSaboteur;
use lockkit_conformance::storm::{Saboteur, Storm};
use lockkit_core::capabilities::Fault;
use lockkit_core::{LockManager, Settings};
use lockkit_zk::{ZkDriver, ZkOptions};

const TTL: Duration = Duration::from_secs(2);

async fn acquitted(url: String, direct: &str, saboteur: Arc<dyn Saboteur>) {
    let seconds = std::env::var("LOCKKIT_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let folder = tempfile::tempdir().unwrap();
    let storm = Storm {
        seed: 2026,
        lasts: Duration::from_secs(seconds.unwrap_or(10)),
        processes: 3,
        tasks: 3,
        locks: 2,
        ttl: TTL,
        program: env!("CARGO_BIN_EXE_lockkit-storm").into(),
        url: format!("{url}?tick=500ms"),
        folder: folder.path().to_owned(),
        strike_clients: true,
    };
    let options = ZkOptions::parse(direct).unwrap().ttl(TTL).tick(Duration::from_millis(500));
    let driver = Arc::new(ZkDriver::connect_with(options).await.unwrap());
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
    let server = Server::start(Kind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let (url, direct) = (server.url_at(proxy.addr()), server.url());
    let faults = vec![
        Fault::ConnectionCut,
        Fault::Partition,
        Fault::ServerStandsStill,
        Fault::ServerRestarts,
    ];
    acquitted(url, &direct, Arc::new(ServerSaboteur::new(server, proxy, faults))).await;
}

/// Kills the leader, has it stand still, and cuts a follower off from it that its clients still
/// reach: in turn.
struct EnsembleSaboteur {
    group: Group,
    strikes: AtomicUsize,
}

impl EnsembleSaboteur {
    async fn lose(&self, lasts: Duration) -> Result<(), LabError> {
        let leader = self.group.leader().await?;
        match self.strikes.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => {
                leader.kill().await;
                tokio::time::sleep(lasts).await;
                leader.launch(Data::Keep).await?;
            }
            1 => {
                leader.freeze().await;
                tokio::time::sleep(lasts).await;
                leader.thaw();
            }
            _ => {
                let mut members = self.group.members().iter();
                let follower = members.position(|m| m.addr() != leader.addr()).unwrap_or(0);
                self.group.cut_off(follower).await?;
                tokio::time::sleep(lasts).await;
                self.group.rejoin().await?;
            }
        }
        self.group.complete().await
    }
}

#[async_trait]
impl Saboteur for EnsembleSaboteur {
    fn faults(&self) -> Vec<Fault> {
        vec![Fault::LeaderLost]
    }

    fn log(&self) -> String {
        let logs = self.group.members().iter().map(|m| format!("{}:\n{}", m.name(), m.log_tail()));
        logs.collect::<Vec<_>>().join("\n")
    }

    async fn strike(&self, _: Fault, lasts: Duration) {
        // The storm goes on when a strike fails; its report shows what did not work afterwards.
        if let Err(error) = self.lose(lasts).await {
            eprintln!("storm: no member was lost, or it did not come back: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_an_ensemble_that_loses_its_leaders_is_acquitted() {
    let group = Group::start_divisible_ensemble().await.unwrap();
    let url = group.url();
    let saboteur = EnsembleSaboteur { group, strikes: AtomicUsize::new(0) };
    acquitted(url.clone(), &url, Arc::new(saboteur)).await;
}
