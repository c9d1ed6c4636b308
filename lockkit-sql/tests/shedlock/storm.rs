//! Clients of both kinds at one lock, which are killed and paused, whose answers come late and whose row is taken
//! away: no two hold at once while each keeps its lease.
//!
//! A moment in the tests; `LOCKKIT_STORM_SECONDS=60` for a minute.

use std::process::Command;

use lockkit_core::LockManager;
use lockkit_lab::neighbours::{self, LEASE, NeighbourStorm, TakenFrom, late_answers};
use lockkit_lab::proxy::{ProxyFault, When};
use lockkit_lab::{Proxy, ServerKind, SharedServer};

use super::{KINDS, MYSQL, POSTGRES, Scene};

const OURS: &str = "LOCKKIT_TEST_OURS";
const URL: &str = "LOCKKIT_TEST_URL";
const TABLE: &str = "LOCKKIT_TEST_TABLE";
const UNIQUE: &str = "LOCKKIT_TEST_UNIQUE";

/// The part of a client in a storm. By itself, a round on each server.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_takes_and_gives_back() {
    if !neighbours::is_client() {
        for kind in KINDS {
            let scene = Scene::on(kind).await;
            let locks = scene.locks(LEASE).await;
            locks.mutex("hot").lock().await.unwrap().release().await.unwrap();
            assert!(scene.neighbour("hot").await.lock(LEASE).await);
        }
        return;
    }
    let var = |name| std::env::var(name).unwrap();
    let (url, table, unique) = (var(URL), var(TABLE), var(UNIQUE));
    let statements = if url.starts_with("postgres") { &POSTGRES } else { &MYSQL };
    let scene = Scene { url, _server: None, statements, table, unique };
    if std::env::var_os(OURS).is_some() {
        let driver = loop {
            // Its first connection may be cut.
            if let Ok(driver) = scene.driver_with(&scene.url, "").await {
                break driver;
            }
        };
        let locks = LockManager::with(driver, scene.settings(LEASE)).unwrap();
        neighbours::live(&locks, "hot").await
    }
    let shedlock = tokio::sync::Mutex::new(scene.neighbour("hot").await);
    neighbours::live_beside(
        Some(LEASE),
        async || shedlock.lock().await.lock(LEASE).await,
        async || shedlock.lock().await.unlock().await,
    )
    .await
}

async fn rages_on(kind: ServerKind) {
    let server = SharedServer::server(kind).await.unwrap();
    let scene = Scene::on(kind).await;
    let proxy = Proxy::start(server.addr(), kind.protocol()).await.unwrap();
    let ours = server.url_at(proxy.addr());
    let start = |is_ours| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "storm::a_child_takes_and_gives_back", "--nocapture"]);
        command.env(TABLE, &scene.table).env(UNIQUE, &scene.unique);
        match is_ours {
            true => command.env(OURS, "1").env(URL, &ours),
            false => command.env(URL, &scene.url),
        };
        command
    };
    let mut storm = NeighbourStorm::new(&start);
    let faults = async |fault| match fault {
        0 => late_answers(&proxy).await,
        1 => {
            proxy.fault(ProxyFault::Cut, When::Now);
            TakenFrom::NoClient
        }
        _ => {
            scene.sql("UPDATE shedlock SET lock_until = '2020-02-02 02:02:02'").await;
            TakenFrom::Anybody
        }
    };
    storm.rage(neighbours::storm_length(), 3, faults).await;
    storm.judge(&format!("{kind:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_hold_at_once_in_a_storm_on_postgres() {
    rages_on(ServerKind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_hold_at_once_in_a_storm_on_mariadb() {
    rages_on(ServerKind::MariaDb).await;
}
