//! What the tests of this driver share: claims, drivers, and a look at what lies in etcd.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, Grant, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, ClientIdentity, Error, Key, Mode, Name, Namespace, Space};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, GetOptions, KeyValue};
use lockkit_lab::Server;

/// Long enough for a machine that stalls; never waited out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn driver(url: &str) -> Arc<EtcdDriver> {
    Arc::new(EtcdDriver::connect(url).await.expect("etcd answers"))
}

/// An exclusive claim with these ttls for holding and for waiting, in seconds.
pub(crate) fn claim(name: &str, hold: u64, wait: u64) -> Arc<Claim> {
    Arc::new(exclusive(name, hold, wait))
}

pub(crate) fn exclusive(name: &str, hold: u64, wait: u64) -> Claim {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let (hold, wait) = (Duration::from_secs(hold), Duration::from_secs(wait));
    Claim::new(key, Mode::Exclusive, hold, wait, Arc::new(ClientIdentity::of_this_process()))
}

pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    soon(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn client(server: &Server) -> Client {
    Client::connect([server.addr().to_string()], None).await.unwrap()
}

/// The keys of a lock in the order of their creation.
pub(crate) async fn keys(server: &Server, name: &str) -> Vec<KeyValue> {
    let all = GetOptions::new().with_prefix();
    let list = format!("lockkit/lock//{name}/");
    let mut keys = client(server).await.get(list, Some(all)).await.unwrap().take_kvs();
    keys.sort_by_key(KeyValue::create_revision);
    keys
}

/// Whether the last of these claims has the lease of a holder.
pub(crate) fn last_holds(keys: &[KeyValue]) -> bool {
    keys.last().is_some_and(|kv| kv.value_str().unwrap().contains("held_at_ms"))
}

/// The leases that etcd has.
pub(crate) async fn leases(server: &Server) -> Vec<i64> {
    let all = client(server).await.leases().await.unwrap();
    all.leases().iter().map(|lease| lease.id()).collect()
}

pub(crate) async fn take(driver: &EtcdDriver, claim: &Arc<Claim>) -> Grant {
    match driver.acquire(claim, Patience::Wait).await.unwrap().result {
        Acquisition::Granted(grant) => grant,
        other => panic!("it is free: {other:?}"),
    }
}

pub(crate) async fn queue(driver: &EtcdDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap();
    assert!(matches!(answer.result, Acquisition::Queued { .. }), "somebody holds it");
}

pub(crate) async fn renewed(driver: &EtcdDriver, claim: &Arc<Claim>) -> Result<Renewal, Error> {
    let mut all = driver.renew(std::slice::from_ref(claim)).await?;
    all.pop().expect("one for each")
}
