//! What `health` finds about the versions of servers and about their tick.

use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::state::{Finding, Severity};
use lockkit_lab::{Group, Layout, Server, ServerKind, SharedServer};
use lockkit_zk::{ZkDriver, ZkOptions};

async fn findings(options: ZkOptions) -> Vec<Finding> {
    let driver = ZkDriver::connect_with(options).await.unwrap();
    let findings = driver.health().await.unwrap().findings;
    driver.close().await;
    findings
}

fn members(group: &Group) -> String {
    group.members().iter().map(|m| m.addr().to_string()).collect::<Vec<_>>().join(",")
}

/// Debian's is 3.8.0. What is known of it happens to followers, which a single server has none of.
#[tokio::test(flavor = "multi_thread")]
async fn an_ensemble_of_a_version_that_loses_writes_is_warned_of_and_a_single_server_is_not() {
    let group = Group::start(Layout::ZooKeeperEnsemble).await.unwrap();
    let found = findings(ZkOptions::new(members(&group))).await;
    let known: Vec<_> = found.iter().filter(|f| f.what.contains("ZOOKEEPER-4785")).collect();
    assert_eq!(known.len(), 1, "three servers of one version are one finding: {found:?}");
    assert_eq!(known[0].severity, Severity::Warning);
    assert!(known[0].advice.contains("https://"), "{found:?}");
    let single = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let found = findings(ZkOptions::new(single.addr().to_string())).await;
    assert_eq!(found, []);
}

/// The lab's servers have a tick of 500 ms, and so a least session of a second.
#[tokio::test]
async fn a_least_session_that_tells_of_a_longer_tick_is_a_note() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let short = |tick| {
        let options = ZkOptions::new(server.addr().to_string()).tick(tick);
        options.session_timeout(Duration::from_millis(500))
    };
    let found = findings(short(Duration::from_millis(100))).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Note);
    assert!(found[0].advice.contains("set tick"), "{found:?}");
    assert_eq!(findings(short(Duration::from_millis(500))).await, []);
}
