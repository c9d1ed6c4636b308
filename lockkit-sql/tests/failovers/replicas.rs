//! A primary and a replica of PostgreSQL and MariaDB.

use std::time::Duration;

use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Pair, Proxy, Replication};

use crate::{LEASE, connect, is_busy, is_confirmed, lock};

/// A pair, and the address that clients know: it leads to whichever is the primary.
struct Scene {
    pair: Pair,
    proxy: Proxy,
    url: String,
}

impl Scene {
    async fn set(replication: Replication) -> Self {
        let protocol = match replication {
            Replication::PostgresAsynchronous | Replication::PostgresSynchronous => {
                Protocol::Postgres
            }
            _ => Protocol::MySql,
        };
        let pair = Pair::start(replication).await.unwrap();
        let proxy = Proxy::start(pair.primary().addr(), protocol).await.unwrap();
        let url = format!("{}?timeout=2s", pair.primary().url_at(proxy.addr()));
        Self { pair, proxy, url }
    }

    /// The replica takes over, and all who use the address are led there.
    async fn fail_over(&self) {
        self.pair.promote().await.unwrap();
        self.proxy.lead_to(&[self.pair.primary().addr()]);
        self.proxy.fault(ProxyFault::Cut, When::Now);
    }

    /// The URL of the old primary, past the address.
    fn old(&self) -> String {
        format!("{}?timeout=2s", self.pair.primary().url())
    }
}

/// A replica that has not got the last commits forgets who holds: exclusion breaks until the first
/// holder's next answer; the later holder has the greater token.
async fn the_last_claims_are_forgotten(replication: Replication) {
    let scene = Scene::set(replication).await;
    let (first, second) = (connect(&scene.url, LEASE).await, connect(&scene.url, LEASE).await);
    lock(&first, "warm").await.release().await.unwrap();
    scene.pair.cut_off().await.unwrap();
    let guard = lock(&first, "a").await;
    let token = guard.token().unwrap();
    scene.pair.primary().kill().await;
    scene.fail_over().await;
    let later = lock(&second, "a").await;
    assert!(guard.is_valid(), "two hold: it has not asked since");
    assert!(later.token().unwrap() > token, "{:?} after {token}", later.token());
    assert!(!is_confirmed(&guard).await, "the new primary does not know it");
    assert!(later.is_valid());
}

/// A commit that was answered is at the replica: the claim survives, and so does its token.
async fn the_last_claims_survive(replication: Replication) {
    let scene = Scene::set(replication).await;
    let (first, second) = (connect(&scene.url, LEASE).await, connect(&scene.url, LEASE).await);
    let guard = lock(&first, "a").await;
    let token = guard.token().unwrap();
    scene.pair.primary().kill().await;
    scene.fail_over().await;
    assert!(is_busy(&second, "a").await, "the first one holds");
    assert!(is_confirmed(&guard).await, "the new primary knows it");
    drop(guard);
    assert!(lock(&second, "a").await.token().unwrap() > token);
}

/// The old primary lives on and confirms its clients' claims; so does the new one, to others.
async fn both_primaries_grant(replication: Replication) {
    let scene = Scene::set(replication).await;
    let (old, new) = (connect(&scene.old(), LEASE).await, connect(&scene.url, LEASE).await);
    lock(&old, "warm").await.release().await.unwrap();
    scene.pair.cut_off().await.unwrap();
    let guard = lock(&old, "a").await;
    scene.fail_over().await;
    let other = lock(&new, "a").await;
    assert!(other.token().unwrap() > guard.token().unwrap());
    assert!(is_confirmed(&guard).await && is_confirmed(&other).await, "two hold, for ever");
    drop(guard);
    let next = lock(&old, "a").await;
    assert!(next.token().unwrap() > other.token().unwrap(), "the old primary outbids the new one");
    assert!(other.is_valid());
}

/// The old primary lives on, but has nobody to confirm its commits: it grants and renews nothing.
async fn the_old_primary_grants_nothing(replication: Replication) {
    let lease = Duration::from_secs(4);
    let scene = Scene::set(replication).await;
    let (old, new) = (connect(&scene.old(), lease).await, connect(&scene.url, lease).await);
    let guard = lock(&old, "a").await;
    let token = guard.token().unwrap();
    scene.fail_over().await;
    let later = lock(&new, "a").await;
    assert!(!guard.is_valid(), "its lease was over, and could not be renewed");
    assert!(later.token().unwrap() > token);
    let tried = old.mutex("another").try_lock().await;
    assert!(tried.is_err(), "it is not answered: {tried:?}");
}

#[tokio::test]
async fn an_asynchronous_standby_of_postgresql_forgets_the_last_claims() {
    the_last_claims_are_forgotten(Replication::PostgresAsynchronous).await;
}

#[tokio::test]
async fn a_synchronous_standby_of_postgresql_knows_all_claims() {
    the_last_claims_survive(Replication::PostgresSynchronous).await;
}

#[tokio::test]
async fn an_old_primary_of_postgresql_that_lives_on_grants_as_before() {
    both_primaries_grant(Replication::PostgresAsynchronous).await;
}

#[tokio::test]
async fn an_old_primary_of_postgresql_that_waits_for_its_standby_grants_nothing() {
    the_old_primary_grants_nothing(Replication::PostgresSynchronous).await;
}

#[tokio::test]
async fn an_asynchronous_replica_of_mariadb_forgets_the_last_claims() {
    the_last_claims_are_forgotten(Replication::MariaDbAsynchronous).await;
}

#[tokio::test]
async fn a_semi_synchronous_replica_of_mariadb_knows_all_claims() {
    the_last_claims_survive(Replication::MariaDbSemiSynchronous).await;
}

#[tokio::test]
async fn an_old_primary_of_mariadb_that_lives_on_grants_as_before() {
    both_primaries_grant(Replication::MariaDbAsynchronous).await;
}

#[tokio::test]
async fn an_old_primary_of_mariadb_that_waits_for_its_replica_grants_nothing() {
    the_old_primary_grants_nothing(Replication::MariaDbSemiSynchronous).await;
}

/// With `rpl_semi_sync_master_timeout`, ten seconds by default, it goes on without a replica.
#[tokio::test]
async fn a_semi_synchronous_primary_of_mariadb_that_gave_up_waiting_is_asynchronous() {
    let scene = Scene::set(Replication::MariaDbSemiSynchronous).await;
    let (first, second) = (connect(&scene.url, LEASE).await, connect(&scene.url, LEASE).await);
    lock(&first, "warm").await.release().await.unwrap();
    let admin = lockkit_lab::raw::mysql::MySqlClient::open(scene.pair.primary().addr());
    let mut admin = admin.await.unwrap();
    admin.query("SET GLOBAL rpl_semi_sync_master_timeout = 100").await.unwrap();
    scene.pair.cut_off().await.unwrap();
    let guard = lock(&first, "a").await;
    let token = guard.token().unwrap();
    scene.pair.primary().kill().await;
    scene.fail_over().await;
    let later = lock(&second, "a").await;
    assert!(guard.is_valid(), "two hold");
    assert!(later.token().unwrap() > token);
}
