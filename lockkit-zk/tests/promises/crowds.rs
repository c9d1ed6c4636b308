//! Very many who wait for one lock, in one process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use lockkit_core::driver::{LockDriver, Released};
use lockkit_core::{Claim, Mode};
use lockkit_lab::proxy::{Protocol, Proxy};
use lockkit_lab::{Server, ServerKind};
use lockkit_zk::ZkDriver;
use tokio::sync::mpsc;

use crate::stage::{claim, driver, queue, soon, take};

/// No client renews these claims: longer than the slowest machine takes.
const TTL: Duration = Duration::from_secs(1_200);
/// What a hand-over costs at most besides the release: lists that all share, and the watches of those
/// for whom it makes room.
const CONSTANT: u64 = 10;

/// Claims that wait in one line, in tasks that tell when they hold.
async fn crowd(
    driver: &Arc<ZkDriver>,
    name: &str,
    mode: Mode,
    size: usize,
) -> mpsc::UnboundedReceiver<Arc<Claim>> {
    let (to, held) = mpsc::unbounded_channel();
    let enter = |_| async {
        let one = claim(name, mode, TTL);
        queue(driver, &one).await;
        let (driver, to) = (driver.clone(), to.clone());
        tokio::spawn(async move {
            driver.granted(&one).await.unwrap();
            let _ = to.send(one);
        });
    };
    stream::iter(0..size).for_each_concurrent(16, enter).await;
    held
}

/// Nothing passes any more.
async fn quiet(proxy: &Proxy) {
    let mut before = None;
    while before != Some(proxy.counts()) {
        before = Some(proxy.counts());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What each of a few releases costs, with all that follows from it.
async fn hand_overs(
    proxy: &Proxy,
    driver: &ZkDriver,
    mut holder: Arc<Claim>,
    held: &mut mpsc::UnboundedReceiver<Arc<Claim>>,
) -> Vec<u64> {
    let mut costs = Vec::new();
    for _ in 0..3 {
        quiet(proxy).await;
        proxy.reset();
        assert_eq!(driver.release(&holder).await.unwrap(), Released::Removed);
        holder = soon("the next", held.recv()).await.expect("they wait");
        quiet(proxy).await;
        costs.push(proxy.counts().requests);
    }
    costs
}

#[tokio::test(flavor = "multi_thread")]
async fn three_thousand_who_wait_for_a_lock_share_their_lists() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = driver(proxy.addr(), TTL).await;
    let holder = claim("a", Mode::Exclusive, TTL);
    take(&driver, &holder).await;
    let mut held = crowd(&driver, "a", Mode::Exclusive, 3_000).await;
    let costs = hand_overs(&proxy, &driver, holder, &mut held).await;
    assert!(costs.iter().all(|cost| *cost <= CONSTANT), "requests for a release: {costs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_who_wait_for_permits_share_their_lists() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = driver(proxy.addr(), TTL).await;
    let one = Mode::Permits { permits: 1, limit: 1 };
    let holder = claim("s", one, TTL);
    take(&driver, &holder).await;
    let mut held = crowd(&driver, "s", one, 500).await;
    let costs = hand_overs(&proxy, &driver, holder, &mut held).await;
    assert!(costs.iter().all(|cost| *cost <= CONSTANT), "requests for a release: {costs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_that_are_waited_for_at_once_share_the_next_list() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = driver(proxy.addr(), TTL).await;
    let one = Mode::Permits { permits: 1, limit: 1 };
    take(&driver, &claim("s", one, TTL)).await;
    let waiters: Vec<_> = (0..50).map(|_| claim("s", one, TTL)).collect();
    for waiter in &waiters {
        queue(&driver, waiter).await;
    }
    quiet(&proxy).await;
    proxy.reset();
    let waiting = tokio::spawn(async move {
        join_all(waiters.iter().map(|waiter| driver.granted(waiter))).await;
    });
    quiet(&proxy).await;
    // That of the first waiter, and one that is sent when it has come.
    assert_eq!(proxy.counts().requests, 2);
    waiting.abort();
}
