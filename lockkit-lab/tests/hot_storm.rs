//! Storms of a few seconds on one name that all clients contend for, on every backend: answers are lost
//! after the server has acted, clients are paused and killed, the server is paused and restarted. The judge
//! asks for exclusion, tokens, order, and that no waiter is forgotten. `cargo xtask storm --hot` runs them
//! for minutes. (Those of ZooKeeper and etcd are in their crates.)

mod forgetful;

use std::sync::Arc;

use forgetful::Forgetful;
use lockkit_core::capabilities::Fault;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::ServerKind;
use lockkit_lab::history::violation::Invariant;
use lockkit_lab::storm::{HOT_FAULTS, Storm, StormReport, StormSetup};

fn storm() -> Storm {
    Storm::hot(lockkit_lab::worker::example("storm_worker"))
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    lockkit::connect_with(&url, settings).await
}

async fn is_acquitted(stage: StormSetup) -> StormReport {
    let report = storm().acquitted(stage, connect).await;
    let granted = report.count("granted");
    assert!(granted >= 30 && report.count("faults") >= 2, "{:?}", report.judgement.counts);
    report
}

async fn is_acquitted_on(kind: ServerKind) {
    let report = is_acquitted(StormSetup::server(kind, &HOT_FAULTS).await.unwrap()).await;
    assert!(report.faults(Fault::ConnectionCut) >= 1, "no answer was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_on_redis_is_passed_on_through_all_faults() {
    is_acquitted_on(ServerKind::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_on_postgresql_is_passed_on_through_all_faults() {
    is_acquitted_on(ServerKind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_on_mariadb_is_passed_on_through_all_faults() {
    is_acquitted_on(ServerKind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_on_sqlite_is_passed_on_by_processes_that_are_frozen_and_killed() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    is_acquitted(StormSetup::calm(url)).await;
}

/// No order is promised here.
#[tokio::test(flavor = "multi_thread")]
async fn one_hot_name_on_a_quorum_of_redis_is_passed_on_through_all_faults() {
    let storm = storm();
    is_acquitted(
        StormSetup::quorum(ServerKind::Redis, 3, storm.seed, storm.longest()).await.unwrap(),
    )
    .await;
}

/// A wake-up that is forgotten after a lost answer costs no safety: the judge has to count liveness.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_forgets_its_waiters_after_a_lost_answer_is_convicted() {
    let mut storm = storm();
    (storm.processes, storm.faults_at_clients) = (0, false);
    let settings = Settings::default().ttl(storm.ttl).wait_ttl(storm.wait_ttl);
    let stage = StormSetup::server(ServerKind::Redis, &[Fault::ConnectionCut]).await.unwrap();
    let mut here = Vec::new();
    for _ in 0..3 {
        let right = connect(stage.url.clone(), settings.clone()).await.unwrap();
        let wrong = Forgetful::new(right.driver().clone());
        here.push(LockManager::with(Arc::new(wrong), settings.clone()).unwrap());
    }
    let look = storm.onlooker(&stage, connect).await.unwrap();
    let report = storm.run(&stage, here, &look).await.unwrap();
    let rules: Vec<_> = report.judgement.violations.iter().map(|v| v.invariant).collect();
    assert!(
        rules.contains(&Invariant::Progress),
        "{rules:?}: {:?}",
        report.judgement.longest_waits
    );
    let safety =
        [Invariant::Exclusion, Invariant::TokensGrow, Invariant::TokenOnce, Invariant::Order];
    assert!(!safety.iter().any(|rule| rules.contains(rule)), "{:#?}", report.judgement.violations);
    std::fs::remove_dir_all(&storm.folder).unwrap();
}

/// The same storm with the driver as it is.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_in_one_process_are_not_forgotten_when_answers_are_lost() {
    let mut storm = storm();
    (storm.processes, storm.faults_at_clients) = (0, false);
    let settings = Settings::default().ttl(storm.ttl).wait_ttl(storm.wait_ttl);
    for kind in [ServerKind::Redis, ServerKind::Postgres] {
        let stage = StormSetup::server(kind, &[Fault::ConnectionCut]).await.unwrap();
        let mut here = Vec::new();
        for _ in 0..3 {
            here.push(connect(stage.url.clone(), settings.clone()).await.unwrap());
        }
        let look = storm.onlooker(&stage, connect).await.unwrap();
        let report = storm.run(&stage, here, &look).await.unwrap();
        let judgement = &report.judgement;
        assert!(judgement.acquitted(), "{kind:?}: {:#?}", judgement.violations);
        std::fs::remove_dir_all(&storm.folder).unwrap();
    }
}
