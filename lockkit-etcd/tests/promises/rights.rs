//! The rights that a login needs: to read and to write all keys below the root. Each of them is
//! withdrawn, before and while a lock is held: what is refused says so, and nothing is half done.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquire, Batch, BreakMode, LockDriver, Patience};
use lockkit_core::{Error, LockManager, Settings, Space};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, ConnectOptions, GetOptions, Permission};
use lockkit_lab::{Server, ServerKind};

use crate::stage::{claim, soon};

const ROOT: (&str, &str) = ("root", "root");
/// Longer than a machine stalls, as a rule.
const TTL: Duration = Duration::from_secs(6);
const SHOP: (&str, &str) = ("shop", "shop");
const NAMES: &str = "the rights to read and to write all keys below";

/// Makes a right for the keys below a root.
type Right = fn(&str) -> Permission;

/// What is left of the rights, and what is missing.
const MISSING: [(&str, Option<Right>); 3] = [
    ("to read", Some(|prefix| Permission::write(prefix))),
    ("to write", Some(|prefix| Permission::read(prefix))),
    ("both", None),
];

struct Place {
    server: Server,
    root: Client,
}

impl Place {
    async fn new() -> Self {
        let server = Server::start(ServerKind::Etcd).await.unwrap();
        let at = [server.addr().to_string()];
        let mut client = Client::connect(&at, None).await.unwrap();
        for (name, password) in [ROOT, SHOP] {
            client.user_add(name, password, None).await.unwrap();
        }
        client.user_grant_role(ROOT.0, "root").await.unwrap();
        client.auth_enable().await.unwrap();
        let login = ConnectOptions::new().with_user(ROOT.0, ROOT.1);
        let root = Client::connect(&at, Some(login)).await.unwrap();
        Self { server, root }
    }

    /// From now on the login has these rights alone.
    async fn allow(&mut self, rights: Option<fn(&str) -> Permission>) {
        let _ = self.root.role_delete("locks").await;
        self.root.role_add("locks").await.unwrap();
        if let Some(rights) = rights {
            let below = rights("lockkit/").with_prefix();
            self.root.role_grant_permission("locks", below).await.unwrap();
        }
        self.root.user_grant_role(SHOP.0, "locks").await.unwrap();
    }

    async fn allow_all(&mut self) {
        self.allow(Some(|prefix| Permission::read_write(prefix))).await;
    }

    fn url(&self, (user, password): (&str, &str)) -> String {
        format!("etcd://{user}:{password}@{}", self.server.addr())
    }

    async fn manager(&self, login: (&str, &str)) -> Result<LockManager, Error> {
        let driver = EtcdDriver::connect(&self.url(login)).await?;
        let settings = Settings::default().ttl(TTL).wait_ttl(TTL);
        LockManager::with(Arc::new(driver), settings)
    }

    /// All keys with their revisions, and all leases.
    async fn contents(&mut self) -> (Vec<(Vec<u8>, i64)>, Vec<i64>) {
        let all = Some(GetOptions::new().with_all_keys());
        let keys = self.root.get("", all).await.unwrap();
        let keys = keys.kvs().iter().map(|kv| (kv.key().to_vec(), kv.mod_revision())).collect();
        let leases = self.root.leases().await.unwrap();
        (keys, leases.leases().iter().map(|lease| lease.id()).collect())
    }
}

/// A machine that stalls gives another error, of no answer: then it is asked again.
async fn refused<T, F>(what: &str, missing: &str, ask: impl Fn() -> F)
where
    T: std::fmt::Debug,
    F: Future<Output = Result<T, Error>>,
{
    let error = loop {
        match ask().await.expect_err(what) {
            error if error.is_retryable() => {}
            error => break error,
        }
    };
    assert!(error.to_string().contains(NAMES), "{what} without the right {missing}: {error}");
}

#[tokio::test]
async fn without_a_right_nothing_is_begun() {
    let mut place = Place::new().await;
    for (missing, left) in MISSING {
        place.allow(left).await;
        let before = place.contents().await;
        match missing {
            "to write" => {
                let locks = place.manager(SHOP).await.unwrap();
                let (lock, permits) = (locks.mutex("a"), locks.semaphore("s", 2));
                let (admin, latch) = (locks.admin(), locks.latch("l", 1));
                let register = locks.register("r");
                refused("a lock", missing, || lock.lock()).await;
                refused("a try", missing, || lock.try_lock()).await;
                refused("permits", missing, || permits.acquire()).await;
                refused("a limit", missing, || admin.resize("s", 3)).await;
                refused("a register", missing, || register.store("x")).await;
                refused("a latch", missing, || latch.count_down()).await;
                locks.shutdown().await;
                // A batch of several is carried out in nested transactions.
                let driver = EtcdDriver::connect(&place.url(SHOP)).await.unwrap();
                let acquires = ["a", "b"].map(|name| {
                    let patience = Patience::Wait;
                    Acquire { claim: claim(name, 3, 3), patience }
                });
                refused("two locks", missing, || async {
                    let batch = Batch { releases: &[], acquires: &acquires };
                    driver.submit(batch).await.map_err(|failed| failed.error)
                })
                .await;
                driver.close().await;
            }
            _ => refused("connecting", missing, || place.manager(SHOP)).await,
        }
        assert_eq!(place.contents().await.0, before.0, "without the right {missing}");
        let ended = async { while place.contents().await.1 != before.1 {} };
        soon("the end of what was leased", ended).await;
    }
}

#[tokio::test]
async fn a_right_that_is_withdrawn_from_a_holder_costs_it_its_lock_at_most() {
    let mut place = Place::new().await;
    place.allow_all().await;
    let (ours, theirs) = (place.manager(SHOP).await.unwrap(), place.manager(ROOT).await.unwrap());
    let mut last = None;
    for (missing, left) in MISSING {
        let register = ours.register("r");
        let stored = register.store("before").await.unwrap();
        let guard = soon("the lock", ours.mutex("a").lock()).await.unwrap();
        let other = theirs.mutex("b").lock().await.unwrap();
        let token = guard.token().unwrap();
        assert!(last.is_none_or(|last| last < token));
        let waiting = tokio::spawn({
            let lock = theirs.mutex("a");
            async move { lock.lock().await.unwrap() }
        });
        place.allow(left).await;
        refused("a register", missing, || register.store("after")).await;
        let another = ours.mutex("c");
        refused("another lock", missing, || another.lock()).await;
        let token_of_b = other.token().unwrap();
        let admin = ours.admin();
        let break_b = || admin.break_lock(Space::Lock, "b", token_of_b, BreakMode::Graceful, None);
        refused("a break", missing, break_b).await;
        match guard.release().await.expect_err("a release") {
            Error::Lost { .. } => {} // this took longer than its lease
            error if error.is_retryable() => {}
            error => assert!(error.to_string().contains(NAMES), "a release: {error}"),
        }
        let next = soon("the next holder", waiting).await.unwrap();
        assert!(token < next.token().unwrap());
        last = next.token().ok();
        assert!(other.verify().await.is_ok(), "it was not broken");
        let entry = theirs.register("r").load().await.unwrap().unwrap();
        assert_eq!((entry.version, &entry.value[..]), (stored, &b"before"[..]));
        next.release().await.unwrap();
        other.release().await.unwrap();
        place.allow_all().await;
    }
    soon("the lock", ours.mutex("a").lock()).await.unwrap().release().await.unwrap();
    ours.shutdown().await;
    theirs.shutdown().await;
    let (keys, _) = place.contents().await;
    let locks = keys.iter().filter(|(key, _)| key.starts_with(b"lockkit/lock/")).count();
    assert_eq!(locks, 0, "{keys:?}");
}

/// Of a guard that is not released: it is valid no longer than its lease.
#[tokio::test]
async fn a_guard_that_cannot_be_renewed_any_more_ends_before_the_next_one_begins() {
    for (missing, left) in MISSING {
        let mut place = Place::new().await;
        place.allow_all().await;
        let ours = place.manager(SHOP).await.unwrap();
        let theirs = place.manager(ROOT).await.unwrap();
        let guard = ours.mutex("a").lock().await.unwrap();
        place.allow(left).await;
        if missing == "to write" {
            // It can be renewed: nothing of that is a write.
            tokio::time::sleep(TTL + TTL / 6).await;
            assert!(guard.is_valid(), "{:?}", guard.loss());
            continue;
        }
        let next = soon("the next holder", theirs.mutex("a").lock()).await.unwrap();
        assert!(!guard.is_valid(), "two guards are valid without the right {missing}");
        next.release().await.unwrap();
    }
}
