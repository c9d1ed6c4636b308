//! Clients of both kinds at one lock, which are killed and paused, whose connections are closed, whose answers
//! come late and whose keys are deleted: no two hold at once while each keeps its lease.
//!
//! A moment in the tests; `LOCKKIT_STORM_SECONDS=60` for a minute.

use std::process::Command;
use std::sync::Arc;

use lockkit_core::{LockManager, Settings};
use lockkit_lab::Proxy;
use lockkit_lab::neighbours::{self, LEASE, NeighbourStorm, TakenFrom, late_answers};
use lockkit_lab::proxy::Protocol;
use lockkit_redis::RedisDriver;

use super::{Place, STYLES, packages};

const URL: &str = "LOCKKIT_TEST_URL";
const NAMESPACE: &str = "LOCKKIT_TEST_NAMESPACE";
const NAME: &str = "LOCKKIT_TEST_NAME";

/// The part of a client of lockkit in a storm. By itself, a round on a server of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_takes_and_gives_back() {
    if !neighbours::is_client() {
        let place = Place::new("set-nx").await;
        let locks = place.locks(LEASE).await;
        locks.mutex(&place.name).lock().await.unwrap().release().await.unwrap();
        return assert_eq!(place.left().await, -2);
    }
    let var = |name| std::env::var(name).unwrap();
    let driver = RedisDriver::connect(&var(URL)).await.unwrap();
    let settings = Settings::default().namespace(var(NAMESPACE)).ttl(LEASE).wait_ttl(LEASE);
    let locks = LockManager::with(Arc::new(driver), settings).unwrap();
    neighbours::live(&locks, &var(NAME)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_hold_at_once_in_a_storm_with_pypi() {
    if packages().is_none() {
        return;
    }
    for style in STYLES {
        let place = Place::new(style).await;
        let proxy = Proxy::start(place.server.addr(), Protocol::Resp).await.unwrap();
        let url = place.server.url_at(proxy.addr());
        let start = |is_ours| match is_ours {
            true => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "storm::a_child_takes_and_gives_back", "--nocapture"]);
                command.env(URL, format!("{url}?neighbours={style}&timeout=30s"));
                command.env(NAMESPACE, &place.namespace).env(NAME, &place.name);
                command
            }
            false => {
                let lease = LEASE.as_millis().to_string();
                place.neighbour(&["storm", &lease]).into_std()
            }
        };
        let mut storm = NeighbourStorm::new(&start);
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        let faults = async |fault| match fault {
            0 => late_answers(&proxy).await,
            1 => {
                place.ask(&kill).await;
                TakenFrom::NoClient
            }
            _ => {
                place.ask(&["DEL", &place.name]).await;
                TakenFrom::Anybody
            }
        };
        storm.rage(neighbours::storm_length(), 3, faults).await;
        storm.judge(style);
    }
}
