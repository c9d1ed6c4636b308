//! Others who lock on the same etcd: `etcdctl lock`, which is Go's `concurrency.Mutex`. And the
//! program's own writes, under the condition that its lock is held.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Fence, Guard, LockManager, Namespace, Settings};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, Compare, GetOptions, Txn, TxnOp};
use lockkit_lab::{Server, ServerKind};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(40);

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

async fn start() -> (Server, Arc<EtcdDriver>, LockManager) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let driver = Arc::new(EtcdDriver::connect(&server.url()).await.unwrap());
    let locks = LockManager::with(driver.clone(), Settings::default()).unwrap();
    (server, driver, locks)
}

/// `etcdctl lock` on the lock of this name; it says the key that it got.
fn etcdctl_lock(server: &Server, name: &str) -> Child {
    Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", server.addr()))
        .args(["lock", &format!("lockkit/lock//{name}")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("etcdctl is installed beside etcd")
}

async fn keys(server: &Server) -> i64 {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let options = GetOptions::new().with_prefix().with_count_only();
    client.get("lockkit/lock//a/", Some(options)).await.unwrap().count()
}

#[tokio::test]
async fn etcdctl_and_lockkit_exclude_each_other_and_hand_over() {
    let (server, _, locks) = start().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut theirs = etcdctl_lock(&server, "a");
    let mut said = BufReader::new(theirs.stdout.take().unwrap()).lines();
    soon("etcdctl in line", async {
        while keys(&server).await < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let early = tokio::time::timeout(Duration::from_millis(300), said.next_line()).await;
    assert!(early.is_err(), "etcdctl got a lock that is held: {early:?}");
    guard.release().await.unwrap();
    let key = soon("etcdctl's turn", said.next_line()).await.unwrap().unwrap();
    assert!(key.starts_with("lockkit/lock//a/"), "{key}");

    assert!(locks.mutex("a").try_lock().await.unwrap().is_none(), "etcdctl holds it");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").lock().await }
    });
    soon("a place in line", async {
        while keys(&server).await < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Told to end, it gives the lock back.
    let pid = theirs.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    let guard = soon("our turn", waiting).await.unwrap().unwrap();
    assert!(guard.is_valid());
    soon("etcdctl's end", theirs.wait()).await.unwrap();
}

/// The stale writer: it looks at its guard, all is well, and then stands still for so long that its
/// lease ends and the next one holds and writes. What it sends on waking is refused.
#[tokio::test]
async fn a_stale_holder_does_not_get_its_write_through() {
    let (server, _, locks) = start().await;
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let held = conditions(&guard).await;
    let write = |held, value: &str| {
        let held: Vec<Compare> = held;
        Txn::new().when(held).and_then([TxnOp::put("x", value, None)])
    };
    assert!(client.txn(write(held.clone(), "mine")).await.unwrap().succeeded());

    let waiting = tokio::spawn({
        let locks = LockManager::new(EtcdDriver::connect(&server.url()).await.unwrap());
        async move { locks.mutex("a").lock().await.map(|guard| (guard, locks)) }
    });
    soon("a place in line", async {
        while keys(&server).await < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Nothing of the holder's doing ends its lease.
    let all = GetOptions::new().with_prefix();
    let line = client.get("lockkit/lock//a/", Some(all)).await.unwrap();
    let holder = line.kvs().iter().min_by_key(|kv| kv.create_revision()).unwrap();
    client.lease_revoke(holder.lease()).await.unwrap();
    let (next, _locks) = soon("its turn", waiting).await.unwrap().unwrap();
    let theirs = conditions(&next).await;
    assert!(client.txn(write(theirs, "theirs")).await.unwrap().succeeded());
    assert!(!client.txn(write(held, "stale")).await.unwrap().succeeded());
    let stored = client.get("x", None).await.unwrap();
    assert_eq!(stored.kvs()[0].value(), b"theirs");

    // Once the holder knows, it gets no condition any more.
    soon("word of the loss", guard.lost()).await;
    let mut none = Vec::new();
    assert!(matches!(guard.fence(&mut none).await, Err(Error::Lost { .. })));
    assert!(none.is_empty());
}

/// The condition that the lock is held, of a transaction that has no other.
async fn conditions(guard: &Guard) -> Vec<Compare> {
    let mut held = Vec::new();
    guard.fence(&mut held).await.unwrap();
    held
}

#[tokio::test]
async fn a_transaction_under_two_locks_needs_both() {
    let (server, _, locks) = start().await;
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let (a, b) = (locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap());
    let mut held = conditions(&a).await;
    b.fence(&mut held).await.unwrap();
    let write = Txn::new().when(held).and_then([TxnOp::put("x", "both", None)]);
    assert!(client.txn(write.clone()).await.unwrap().succeeded());
    b.release().await.unwrap();
    assert!(!client.txn(write).await.unwrap().succeeded());
    a.release().await.unwrap();
}

#[tokio::test]
async fn a_fence_follows_a_base_that_was_raised() {
    let (server, driver, locks) = start().await;
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let before = locks.mutex("a").lock().await.unwrap();
    driver.raise_namespace_counter(&Namespace::default(), 1 << 40).await.unwrap();
    let raised = LockManager::with(driver.clone(), Settings::default()).unwrap();
    let after = raised.mutex("b").lock().await.unwrap();
    assert!(after.token().unwrap().get() > 1 << 40);
    for guard in [before, after] {
        let held = conditions(&guard).await;
        let write = Txn::new().when(held).and_then([TxnOp::put("x", "y", None)]);
        assert!(client.txn(write).await.unwrap().succeeded());
    }
}

/// As by a snapshot of before the raise, put back under clients that stay connected.
#[tokio::test]
async fn a_base_that_went_back_is_an_error() {
    let (server, driver, _locks) = start().await;
    let namespace = Namespace::default();
    for base in [1_000, 2_000] {
        driver.raise_namespace_counter(&namespace, base).await.unwrap();
        assert_eq!(driver.namespace_counter(&namespace).await.unwrap(), base);
    }
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let all = Some(GetOptions::new().with_prefix());
    let kept = client.get("lockkit/base/", all).await.unwrap();
    client.put(kept.kvs()[0].key(), "1000", None).await.unwrap();
    let fell = driver.namespace_counter(&namespace).await.unwrap_err();
    assert!(fell.to_string().contains("went back from 2000 to 1000"), "{fell}");
}

#[tokio::test]
async fn a_driver_can_be_made_from_the_programs_own_client() {
    let (server, _, locks) = start().await;
    let client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let own = LockManager::with(Arc::new(EtcdDriver::with_client(client, "")), Settings::default());
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(own.unwrap().mutex("a").try_lock().await.unwrap().is_none(), "they meet");
    guard.release().await.unwrap();
}
