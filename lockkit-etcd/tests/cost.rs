//! What the verbs cost on the wire, by count.

use std::sync::Arc;
use std::time::Duration;

use lockkit_conformance::lab::proxy::{Counts, Protocol};
use lockkit_conformance::lab::{Kind, Proxy, Server};
use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, Renewal};
use lockkit_core::{Claim, Identity, Key, Mode, Name, Namespace, Space};
use lockkit_etcd::EtcdDriver;

const LONG: Duration = Duration::from_secs(300);

fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let me = Arc::new(Identity::of_this_process());
    Arc::new(Claim::new(key, mode, LONG, LONG / 2, me))
}

/// A server behind ten milliseconds, and a driver whose connection and leases are warm.
async fn warm() -> (Server, Proxy, EtcdDriver) {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let driver = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let first = claim("warm", Mode::Exclusive);
    driver.acquire(&first, Patience::Wait).await.unwrap();
    driver.renew(std::slice::from_ref(&first)).await.unwrap();
    driver.release(&first).await.unwrap();
    proxy.latency(Duration::from_millis(10));
    (server, proxy, driver)
}

/// The counts of what happens meanwhile.
async fn counted<T>(proxy: &Proxy, what: impl Future<Output = T>) -> (T, Counts) {
    proxy.reset();
    let done = what.await;
    (done, proxy.counts())
}

#[tokio::test]
async fn the_usual_verbs_take_one_round_trip() {
    let (_server, proxy, driver) = warm().await;
    let holder = claim("a", Mode::Exclusive);
    let (answer, cost) = counted(&proxy, driver.acquire(&holder, Patience::Wait)).await;
    assert!(matches!(answer, Ok(Acquisition::Granted(_))));
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "acquire: {cost:?}");

    let other = claim("a", Mode::Exclusive);
    let (answer, cost) = counted(&proxy, driver.acquire(&other, Patience::Try)).await;
    assert_eq!(answer.unwrap(), Acquisition::Busy);
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "try, when held: {cost:?}");

    let (answer, cost) = counted(&proxy, driver.acquire(&other, Patience::Wait)).await;
    assert_eq!(answer.unwrap(), Acquisition::Queued { ahead: 1 });
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "standing in line: {cost:?}");
    driver.release(&other).await.unwrap();

    let (answer, cost) = counted(&proxy, driver.release(&holder)).await;
    assert_eq!(answer.unwrap(), Released::Removed);
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "release: {cost:?}");

    let (answer, cost) = counted(&proxy, driver.acquire(&other, Patience::Try)).await;
    assert!(matches!(answer, Ok(Acquisition::Granted(_))));
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "try: {cost:?}");
}

#[tokio::test]
async fn a_thousand_claims_are_renewed_by_one_keep_alive() {
    let (_server, proxy, driver) = warm().await;
    proxy.latency(Duration::ZERO);
    let mut claims = Vec::new();
    for i in 0..1000 {
        let claim = claim(&format!("n{i}"), Mode::Exclusive);
        let answer = driver.acquire(&claim, Patience::Wait).await.unwrap();
        assert!(matches!(answer, Acquisition::Granted(_)));
        claims.push(claim);
    }
    proxy.latency(Duration::from_millis(10));
    let (answer, cost) = counted(&proxy, driver.renew(&claims)).await;
    let renewed = answer.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Renewal::Holds(_))));
    // The keep-alive; beside it the question which keys stand on the lease, and a read that says
    // whether the leader still is one.
    assert_eq!((cost.round_trips, cost.requests), (1, 3), "{cost:?}");
}

#[tokio::test]
async fn a_waiter_knows_that_it_holds_without_asking() {
    let (server, proxy, driver) = warm().await;
    let near = EtcdDriver::connect(&server.url()).await.unwrap();
    let (holder, waiter) = (claim("a", Mode::Exclusive), claim("a", Mode::Exclusive));
    near.acquire(&holder, Patience::Wait).await.unwrap();
    driver.acquire(&waiter, Patience::Wait).await.unwrap();
    let granted = driver.granted(&waiter);
    tokio::pin!(granted);
    // Its watches are set when nothing more passes.
    let mut before = None;
    while before != Some(proxy.counts()) {
        before = Some(proxy.counts());
        let a_while = tokio::time::sleep(Duration::from_millis(300));
        tokio::select! {
            _ = &mut granted => panic!("it is held"),
            () = a_while => {}
        }
    }
    let began = std::time::Instant::now();
    let (answer, cost) = counted(&proxy, async {
        near.release(&holder).await.unwrap();
        granted.await
    })
    .await;
    let took = began.elapsed();
    answer.unwrap();
    assert_eq!((cost.answers, cost.requests.min(1)), (0, 0), "{cost:?} in {took:?}");
    assert!(cost.pushes >= 1, "{cost:?}");
}
