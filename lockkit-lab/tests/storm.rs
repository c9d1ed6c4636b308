//! Storms of a few seconds; `cargo xtask storm` runs them for minutes.

mod second;
mod setnx;

use std::sync::Arc;

use lockkit_core::capabilities::Fault;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::history::violation::Invariant;
use lockkit_lab::storm::{FAULTS, Storm, StormReport, StormSetup};
use lockkit_lab::{Replication, ServerKind, SharedServer};

fn storm() -> Storm {
    Storm::brief(lockkit_lab::worker::example("storm_worker"))
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    lockkit::connect_with(&url, settings).await
}

fn had(report: &StormReport, granted: usize, faults: usize) {
    let enough = report.count("granted") >= granted && report.count("faults") >= faults;
    assert!(enough, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_sqlite_that_are_frozen_and_killed_are_acquitted() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let report = storm().acquitted(StormSetup::calm(url), connect).await;
    had(&report, 30, 2); // the dead leave leases of four seconds
    assert!(report.drawing.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_postgresql_that_are_frozen_and_killed_are_acquitted() {
    let server = SharedServer::server(ServerKind::Postgres).await.unwrap();
    let report = storm().acquitted(StormSetup::calm(server.url()), connect).await;
    had(&report, 10, 2);
    assert!(second::finds_linearizable(&report.recorded));
}

/// No write is lost, so nothing needs an excuse.
#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_of_postgresql_that_takes_over_breaks_nothing() {
    let stage = StormSetup::pair(Replication::PostgresSynchronous).await.unwrap();
    let report = storm().acquitted(stage, connect).await;
    had(&report, 10, 2);
    let excused = &report.judgement.excused;
    assert!(excused.is_empty(), "no write is lost: {excused:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_of_postgresql_that_takes_over_is_acquitted() {
    let stage = StormSetup::pair(Replication::PostgresAsynchronous).await.unwrap();
    had(&storm().acquitted(stage, connect).await, 10, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_loses_what_it_had_not_synced_is_acquitted() {
    let faults = [Fault::ConnectionCut, Fault::ServerRestarts, Fault::WritesLost];
    let mut stage = StormSetup::server(ServerKind::Postgres, &faults).await.unwrap();
    for url in [&mut stage.url, &mut stage.direct] {
        url.push_str("?durability=needed");
    }
    had(&storm().acquitted(stage, connect).await, 10, 2);
}

/// Members of a quorum of Redis servers are frozen, killed, cut off and emptied, one at a time; and
/// so are clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_three_redis_that_fail_one_by_one_is_acquitted() {
    let storm = storm();
    let stage =
        StormSetup::quorum(ServerKind::Redis, 3, storm.seed, storm.longest()).await.unwrap();
    had(&storm.acquitted(stage, connect).await, 10, 2);
}

/// As before, with a server that is struck as well.
#[tokio::test(flavor = "multi_thread")]
async fn processes_on_mariadb_and_the_server_that_are_frozen_and_killed_are_acquitted() {
    let stage = StormSetup::server(ServerKind::MariaDb, &FAULTS).await.unwrap();
    had(&storm().acquitted(stage, connect).await, 1, 1);
}

/// Consumers in three processes that are frozen and killed, and cut off from a Redis that stands
/// still at times.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_on_redis_lose_no_event_and_do_none_twice() {
    let faults = [Fault::ConnectionCut, Fault::Partition, Fault::ServerPaused];
    let stage = StormSetup::server(ServerKind::Redis, &faults).await.unwrap();
    let storm = storm();
    let look = storm.onlooker(&stage, connect).await.unwrap();
    let mut verdict = storm.run_consumers(&stage, &look).await.unwrap();
    while verdict.events == 0 {
        // A machine that was busy all the time shows nothing.
        verdict = storm.run_consumers(&stage, &look).await.unwrap();
    }
    look.shutdown().await;
    let kept = storm.folder.display();
    assert!(verdict.wrong.is_empty(), "{:#?}, what they wrote down is in {kept}", verdict.wrong);
    println!("{verdict:?}");
    assert!(verdict.faults >= 2, "{verdict:?}");
    std::fs::remove_dir_all(&storm.folder).unwrap();
}

/// The lock that half of the field has: SET NX with a ttl, a release without a check, no token.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_lock_on_a_real_redis_is_convicted_and_drawn() {
    let redis = SharedServer::server(ServerKind::Redis).await.unwrap();
    let mut storm = storm();
    (storm.processes, storm.faults_at_clients) = (0, false);
    let settings = Settings::default().ttl(storm.ttl).wait_ttl(storm.wait_ttl);
    let clients = |_| {
        let driver = Arc::new(setnx::SetNx::new(redis.addr()));
        LockManager::with(driver, settings.clone()).unwrap()
    };
    let (here, look) = ((0..3).map(clients).collect(), clients(3));
    let report = storm.run(&StormSetup::calm(redis.url()), here, &look).await.unwrap();
    let rules: Vec<_> = report.judgement.violations.iter().map(|v| v.invariant).collect();
    assert!(rules.contains(&Invariant::Exclusion), "{rules:?}");
    assert!(rules.contains(&Invariant::TokenOnce), "{rules:?}");
    assert!(!second::finds_linearizable(&report.recorded));
    let drawing = std::fs::read_to_string(report.drawing.unwrap()).unwrap();
    assert!(drawing.contains("#c00"), "the violation is not marked");
    assert!(storm.folder.join("server.log").exists(), "what the server said is missing");
    std::fs::remove_dir_all(&storm.folder).unwrap();
}
