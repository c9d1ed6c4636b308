//! What the tests of this driver share: claims, drivers, and a look at what lies in ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_core::{
    Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::Server;
use lockkit_lab::raw::zookeeper::four_letters;
use lockkit_zk::zookeeper_client::{Client, Error as ZkError};
use lockkit_zk::{ZkDriver, ZkOptions};

/// Long enough for a machine that stalls; never waited out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(500);

pub(crate) async fn driver(hosts: impl ToString, ttl: Duration) -> Arc<ZkDriver> {
    let options = ZkOptions::new(hosts.to_string()).ttl(ttl).tick(TICK);
    Arc::new(ZkDriver::connect_with(options).await.unwrap())
}

pub(crate) async fn manager(hosts: impl ToString, ttl: Duration) -> LockManager {
    let settings = Settings::default().ttl(ttl).wait_ttl(ttl);
    LockManager::owning(driver(hosts, ttl).await, settings).unwrap()
}

pub(crate) fn claim(name: &str, mode: Mode, ttl: Duration) -> Arc<Claim> {
    let space = mode.limit().map_or(Space::Lock, |_| Space::Semaphore);
    let key = Key::new(Namespace::default(), space, Name::new(name).unwrap());
    Arc::new(Claim::new(key, mode, ttl, ttl, Arc::new(ClientIdentity::of_this_process())))
}

pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    soon(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

pub(crate) async fn take(driver: &ZkDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Granted(_)), "it is free: {answer:?}");
}

pub(crate) async fn queue(driver: &ZkDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Queued { .. }), "somebody holds it: {answer:?}");
}

pub(crate) async fn client(server: &Server) -> Client {
    Client::connect(&server.addr().to_string()).await.unwrap()
}

/// The children of a node; none if it is not there.
pub(crate) async fn children(client: &Client, path: &str) -> Vec<String> {
    match client.list_children(path).await {
        Err(ZkError::NoNode) => Vec::new(),
        listed => listed.unwrap(),
    }
}

/// The sessions that the server has, whether they are connected or not.
pub(crate) async fn sessions(server: &Server) -> Vec<String> {
    let dump = four_letters(server.addr(), "dump").await.unwrap();
    let tracked = dump.split("ephemeral nodes dump").next().unwrap_or_default();
    let ids = tracked.split_whitespace().filter(|word| word.starts_with("0x"));
    ids.map(ToOwned::to_owned).collect()
}
