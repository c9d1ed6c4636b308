//! Storms of a few seconds; `cargo xtask storm` runs them for minutes.

mod setnx;

use std::sync::Arc;
use std::time::Duration;

use lockkit_conformance::history::judge::Rule;
use lockkit_conformance::lab::proxy::Protocol;
use lockkit_conformance::lab::{Kind, Proxy, Server, Shared};
use lockkit_conformance::storm::members::MembersSaboteur;
use lockkit_conformance::storm::server::ServerSaboteur;
use lockkit_conformance::storm::{NoSaboteur, Report, Storm};
use lockkit_core::capabilities::Fault;
use lockkit_core::{LockManager, Settings};
use lockkit_sql::{MySqlDriver, PostgresDriver, SqliteDriver};

fn storm(folder: &std::path::Path, url: String) -> Storm {
    Storm {
        seed: 2026,
        lasts: Duration::from_secs(8),
        processes: 3,
        tasks: 3,
        locks: 2,
        ttl: Duration::from_secs(1),
        program: env!("CARGO_BIN_EXE_lockkit-storm").into(),
        url,
        folder: folder.to_owned(),
        strike_clients: true,
    }
}

fn settings(storm: &Storm) -> Settings {
    Settings::default().ttl(storm.ttl).wait_ttl(storm.ttl)
}

fn count(report: &Report, what: &str) -> usize {
    report.judgement.counts.get(what).copied().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_sqlite_that_are_frozen_and_killed_are_acquitted() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let storm = storm(folder.path(), url.clone());
    let driver = Arc::new(SqliteDriver::connect(&url).await.unwrap());
    let look = LockManager::with(driver, settings(&storm)).unwrap();
    let report = storm.run(Vec::new(), &look, Arc::new(NoSaboteur)).await.unwrap();
    if !report.judgement.acquitted() {
        let kept = folder.keep();
        panic!("{:#?}, histories in {}", report.judgement.violations, kept.display());
    }
    assert!(count(&report, "granted") > 100 && count(&report, "faults") >= 2, "{report:?}");
    assert!(report.drawing.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_on_postgresql_that_are_frozen_and_killed_are_acquitted() {
    let server = Shared::server(Kind::Postgres).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let storm = storm(folder.path(), server.url().to_owned());
    let driver = Arc::new(PostgresDriver::connect(server.url()).await.unwrap());
    let look = LockManager::with(driver, settings(&storm)).unwrap();
    let report = storm.run(Vec::new(), &look, Arc::new(NoSaboteur)).await.unwrap();
    if !report.judgement.acquitted() {
        let kept = folder.keep();
        panic!("{:#?}, histories in {}", report.judgement.violations, kept.display());
    }
    assert!(count(&report, "granted") > 10 && count(&report, "faults") >= 2, "{report:?}");
}

/// Members of a quorum of Redis servers are frozen, killed, cut off and emptied, one at a time; and
/// so are clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_three_redis_that_fail_one_by_one_is_acquitted() {
    let folder = tempfile::tempdir().unwrap();
    let mut members = Vec::new();
    let (mut urls, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = Server::start(Kind::Redis).await.unwrap();
        let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
        urls.push(server.url_at(proxy.addr()));
        direct.push(server.url());
        let faults = [
            Fault::ConnectionCut,
            Fault::Partition,
            Fault::ServerStandsStill,
            Fault::ServerRestarts,
            Fault::DataLost,
        ];
        members.push(ServerSaboteur::new(server, proxy, faults.to_vec()));
    }
    let of = |urls: Vec<String>| format!("quorum:{}?longest_ttl=1s", urls.join(","));
    let storm = storm(folder.path(), of(urls));
    let look = lockkit::connect_with(&of(direct), settings(&storm)).await.unwrap();
    // It begins when all its members are there, which a storm would see to only by and by.
    look.mutex("the first of all").lock().await.unwrap().release().await.unwrap();
    let saboteur = Arc::new(MembersSaboteur::new(members, storm.seed, storm.ttl * 2));
    let report = storm.run(Vec::new(), &look, saboteur).await.unwrap();
    if !report.judgement.acquitted() {
        let kept = folder.keep();
        panic!("{:#?}, histories in {}", report.judgement.violations, kept.display());
    }
    assert!(count(&report, "granted") > 10 && count(&report, "faults") >= 2, "{report:?}");
}

/// As before, with a server that is struck as well.
#[tokio::test(flavor = "multi_thread")]
async fn processes_on_mariadb_and_the_server_that_are_frozen_and_killed_are_acquitted() {
    let server = Server::start(Kind::MariaDb).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::MySql).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let storm = storm(folder.path(), server.url_at(proxy.addr()));
    let driver = Arc::new(MySqlDriver::connect(&server.url()).await.unwrap());
    let look = LockManager::with(driver, settings(&storm)).unwrap();
    let faults = vec![
        Fault::ConnectionCut,
        Fault::Partition,
        Fault::ServerStandsStill,
        Fault::ServerRestarts,
    ];
    let saboteur = Arc::new(ServerSaboteur::new(server, proxy, faults));
    let report = storm.run(Vec::new(), &look, saboteur).await.unwrap();
    if !report.judgement.acquitted() {
        let kept = folder.keep();
        panic!("{:#?}, histories in {}", report.judgement.violations, kept.display());
    }
    assert!(count(&report, "granted") >= 1 && count(&report, "faults") >= 1, "{report:?}");
}

/// Consumers in three processes that are frozen and killed, and cut off from a Redis that stands
/// still at times.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_on_redis_lose_no_event_and_do_none_twice() {
    let server = Server::start(Kind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let (url, direct) = (server.url_at(proxy.addr()), server.url());
    let folder = tempfile::tempdir().unwrap();
    let storm = storm(folder.path(), url);
    let look = Arc::new(lockkit_redis::RedisDriver::connect(&direct).await.unwrap());
    let look = LockManager::with(look, settings(&storm)).unwrap();
    let faults = vec![Fault::ConnectionCut, Fault::Partition, Fault::ServerStandsStill];
    let saboteur = Arc::new(ServerSaboteur::new(server, proxy, faults));
    let mut verdict = storm.run_consumers(&look, saboteur.clone()).await.unwrap();
    while verdict.events == 0 {
        // A machine that was busy all the time shows nothing.
        verdict = storm.run_consumers(&look, saboteur.clone()).await.unwrap();
    }
    look.shutdown().await;
    if !verdict.wrong.is_empty() {
        let kept = folder.keep();
        panic!("{:#?}, what they wrote down is in {}", verdict.wrong, kept.display());
    }
    println!("{verdict:?}");
    assert!(verdict.faults >= 2, "{verdict:?}");
}

/// The lock that half of the field has: SET NX with a ttl, a release without a check, no token.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_lock_on_a_real_redis_is_convicted_and_drawn() {
    let redis = Shared::server(Kind::Redis).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut storm = storm(folder.path(), String::new());
    (storm.processes, storm.strike_clients) = (0, false);
    let clients = |_| {
        let driver = Arc::new(setnx::SetNx::new(redis.addr()));
        LockManager::with(driver, settings(&storm)).unwrap()
    };
    let (here, look) = ((0..3).map(clients).collect(), clients(3));
    let report = storm.run(here, &look, Arc::new(NoSaboteur)).await.unwrap();
    let rules: Vec<_> = report.judgement.violations.iter().map(|v| v.rule).collect();
    assert!(rules.contains(&Rule::Exclusion), "{rules:?}");
    assert!(rules.contains(&Rule::TokenOnce), "{rules:?}");
    let drawing = std::fs::read_to_string(report.drawing.unwrap()).unwrap();
    assert!(drawing.contains("#c00"), "the violation is not marked");
    assert!(folder.path().join("server.log").exists(), "what the server said is missing");
}
