//! Folders of locks with ever new names. (ZooKeeper looks for empty containers for the first time a
//! minute after its start: what is gone earlier was removed by the driver.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released};
use lockkit_core::{LockManager, Mode, Token};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::{Server, ServerKind};

use crate::stage::{children, claim, client, driver, manager, until};

const TTL: Duration = Duration::from_secs(30);
const LOCKS: &str = "/lockkit/n-/lock";

async fn use_names(locks: &LockManager, names: std::ops::Range<usize>) {
    let lock = |n| async move {
        let guard = locks.mutex(format!("n{n}")).lock().await.unwrap();
        guard.release().await.unwrap();
    };
    stream::iter(names).for_each_concurrent(64, lock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folders_of_a_thousand_names_go_when_the_driver_closes_and_those_of_others_stay() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let client = client(&server).await;
    let (ours, theirs) = (manager(server.addr(), TTL).await, manager(server.addr(), TTL).await);
    use_names(&theirs, 0..1).await;
    let held = theirs.mutex("held").lock().await.unwrap();
    assert!(ours.mutex("held").try_lock().await.unwrap().is_none());
    let resizable = ours.semaphore("s", 2).resizable();
    ours.admin().resize("s", 3).await.unwrap();
    resizable.acquire().await.unwrap().release().await.unwrap();
    use_names(&ours, 0..1_000).await;
    assert_eq!(children(&client, LOCKS).await.len(), 1_001);
    ours.shutdown().await;
    let mut left = children(&client, LOCKS).await;
    left.sort();
    assert_eq!(left, ["held", "n0"], "that of another driver, and one that it made");
    assert_eq!(children(&client, "/lockkit/n-/semaphore").await, ["s"], "it has a limit");
    held.release().await.unwrap();
    theirs.shutdown().await;
    assert!(children(&client, LOCKS).await.is_empty());
}

/// On a busy machine each answer takes longer: that costs no folder.
#[tokio::test(flavor = "multi_thread")]
async fn the_folders_of_a_thousand_names_go_also_where_each_answer_takes_its_time() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let client = client(&server).await;
    let locks = manager(proxy.addr(), TTL).await;
    use_names(&locks, 0..1_000).await;
    proxy.latency(Duration::from_millis(20));
    locks.shutdown().await;
    assert_eq!(children(&client, LOCKS).await.len(), 0, "folders that are left");
}

/// A server that says nothing does not hold up the end of a program.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_closes_soon_although_its_server_is_silent() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let locks = manager(proxy.addr(), TTL).await;
    use_names(&locks, 0..1_000).await;
    proxy.fault(ProxyFault::BlackHole, When::Now);
    let begun = Instant::now();
    locks.shutdown().await;
    // One second; a machine that stalls gets more.
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folders_of_ever_new_names_go_while_the_program_runs() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let client = client(&server).await;
    let locks = manager(server.addr(), TTL).await;
    let held = locks.mutex("held").lock().await.unwrap();
    use_names(&locks, 0..1_500).await;
    // A thousand are left to the server.
    until("their removal", || async { children(&client, LOCKS).await.len() <= 1_001 }).await;
    assert!(held.is_valid());
    // Whatever became of a folder, its lock works.
    use_names(&locks, 0..50).await;
}

/// A client deletes the folder of a lock whenever it is empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_deleted_again_and_again_costs_no_error_and_no_place() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let driver = driver(server.addr(), TTL).await;
    let over = Arc::new(AtomicBool::new(false));
    let deleting = tokio::spawn({
        let (client, over) = (client(&server).await, over.clone());
        async move {
            let mut deleted = 0;
            while !over.load(Ordering::Relaxed) {
                let folder = client.delete("/lockkit/n-/lock/a", None).await;
                deleted += u32::from(folder.is_ok());
            }
            deleted
        }
    });
    let mut last: Option<Token> = None;
    let mut in_order = |token: Token| {
        assert!(last.is_none_or(|last| last < token), "{last:?}, then {token:?}");
        last = Some(token);
    };
    for round in 0..5_000 {
        let (first, second) = [(); 2].map(|()| claim("a", Mode::Exclusive, TTL)).into();
        let answer = driver.acquire(&first, Patience::Wait).await;
        match answer.unwrap_or_else(|e| panic!("round {round}: {e}")).result {
            Acquisition::Granted(grant) => in_order(grant.token),
            other => panic!("round {round}: {other:?}"),
        }
        let answer = driver.acquire(&second, Patience::Wait).await.unwrap().result;
        assert_eq!(answer, Acquisition::Queued { ahead: 1 });
        assert_eq!(driver.release(&first).await.unwrap(), Released::Removed);
        in_order(driver.granted(&second).await.unwrap().token);
        assert_eq!(driver.release(&second).await.unwrap(), Released::Removed);
    }
    over.store(true, Ordering::Relaxed);
    assert!(deleting.await.unwrap() > 1_000, "the folder was there all the time");
}
