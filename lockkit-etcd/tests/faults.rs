//! What happens to locks on etcd when servers, leases, streams and answers are lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Acquisition, Attempted, ClaimEnd, LockDriver, Patience, Renewal};
use lockkit_core::{
    Claim, ClientIdentity, Key, LockManager, LossReason, Mode, Name, Namespace, Settings, Space,
};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, CompactionOptions, GetOptions};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Data, Group, Layout, Proxy, Server, ServerKind};

/// Long enough for a machine that stalls; never waited out.
const PATIENCE: Duration = Duration::from_secs(40);

async fn driver(url: &str) -> Arc<EtcdDriver> {
    Arc::new(EtcdDriver::connect(url).await.expect("etcd answers"))
}

fn manager(driver: &Arc<EtcdDriver>, ttl: u64) -> LockManager {
    let settings = Settings::default().ttl(Duration::from_secs(ttl));
    let settings = settings.wait_ttl(Duration::from_secs(ttl));
    LockManager::with(driver.clone(), settings).expect("these settings are valid")
}

fn claim(name: &str, ttl: u64) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let (ttl, me) = (Duration::from_secs(ttl), Arc::new(ClientIdentity::of_this_process()));
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, me))
}

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    soon(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// How many keys a lock has.
async fn keys(server: &Server, name: &str) -> i64 {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let options = GetOptions::new().with_prefix().with_count_only();
    client.get(format!("lockkit/lock//{name}/"), Some(options)).await.unwrap().count()
}

#[tokio::test]
async fn a_dead_endpoint_does_no_harm() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for hosts in [format!("{dead},{}", server.addr()), format!("{},{dead}", server.addr())] {
        let locks = manager(&driver(&format!("etcd://{hosts}")).await, 10);
        let began = Instant::now();
        for _ in 0..50 {
            let guard = locks.mutex("a").try_lock().await.expect("no call fails");
            guard.expect("it is free").release().await.expect("it was held");
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_revoked_lease_ends_its_holder_and_its_waiter_with_the_reason() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let (ours, theirs) = (driver(&server.url()).await, driver(&server.url()).await);
    let holder = claim("a", 30);
    assert!(matches!(
        ours.acquire(&holder, Patience::Wait).await,
        Ok(Attempted { result: Acquisition::Granted(_), .. })
    ));
    let waiter = claim("a", 20);
    let queued = theirs.acquire(&waiter, Patience::Wait).await.unwrap().result;
    assert_eq!(queued, Acquisition::Queued { ahead: 1 });
    let waiting = tokio::spawn({
        let (theirs, waiter) = (theirs.clone(), waiter.clone());
        async move { theirs.granted(&waiter).await }
    });
    tokio::task::yield_now().await;

    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let all = client.get("lockkit/lock//a/", Some(GetOptions::new().with_prefix())).await.unwrap();
    let second = all.kvs().iter().max_by_key(|kv| kv.create_revision()).unwrap();
    client.lease_revoke(second.lease()).await.unwrap();
    let told = soon("word of the end", waiting).await.unwrap().expect_err("its lease is gone");
    assert_eq!(told.loss(), Some(&LossReason::SessionEnded));
    assert_eq!(keys(&server, "a").await, 1, "the holder was not touched");

    let first = all.kvs().iter().min_by_key(|kv| kv.create_revision()).unwrap();
    client.lease_revoke(first.lease()).await.unwrap();
    let renewal = ours.renew_single(&holder).await.unwrap();
    assert_eq!(renewal, Renewal::Ended(ClaimEnd::SessionEnded));

    let locks = manager(&ours, 30);
    let next = locks.mutex("a").try_lock().await.unwrap();
    assert!(next.is_some(), "the next lock gets a lease that lives");
}

#[tokio::test]
async fn a_waiter_hears_of_a_release_that_came_while_its_stream_was_cut_and_compacted() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let near = driver(&server.url()).await;
    let far = driver(&server.url_at(proxy.addr())).await;
    for compacted in [false, true] {
        let (held, locks) = (manager(&near, 60), manager(&far, 60));
        let guard = held.mutex("a").lock().await.unwrap();
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.mutex("a").lock().await }
        });
        until("a waiter", || async { keys(&server, "a").await == 2 }).await;
        proxy.refuse().await;
        guard.release().await.unwrap();
        if compacted {
            let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
            let now = client.put("x", "y", None).await.unwrap();
            let now = now.header().unwrap().revision();
            client.compact(now, Some(CompactionOptions::new().with_physical())).await.unwrap();
        }
        proxy.accept().await.unwrap();
        let guard = soon("its turn", waiting).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_restart_keeps_holders_and_tokens() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let locks = manager(&ours, 20);
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    server.restart(Data::Keep).await.unwrap();
    soon("an answer", async {
        while guard.verify().await.is_err() {
            assert!(guard.is_valid(), "{:?}", guard.loss());
        }
    })
    .await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none(), "it is still held");
    guard.release().await.unwrap();
    let next = locks.mutex("a").lock().await.unwrap();
    assert!(next.token().unwrap() > token);
}

#[tokio::test]
async fn a_server_that_stands_still_ends_guards_in_time_and_is_used_again() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let locks = manager(&driver(&server.url()).await, 2);
    let guard = locks.mutex("a").lock().await.unwrap();
    let began = Instant::now();
    server.freeze().await;
    let why = soon("word of the loss", guard.lost()).await;
    assert!(matches!(why, LossReason::Unreachable(_)), "{why:?}");
    assert!(!guard.is_valid());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    server.thaw();
    let next = soon("the lock", locks.mutex("a").lock()).await.unwrap();
    assert!(next.is_valid());
}

#[tokio::test]
async fn a_killed_leader_costs_no_lock() {
    let cluster = Group::start(Layout::EtcdCluster).await.unwrap();
    let locks = manager(&driver(&cluster.url()).await, 20);
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    cluster.leader().await.unwrap().kill().await;
    soon("an answer", async {
        while guard.verify().await.is_err() {
            assert!(guard.is_valid(), "{:?}", guard.loss());
        }
    })
    .await;
    assert_eq!(guard.token().unwrap(), token);
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").lock().await }
    });
    guard.release().await.unwrap();
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(next.token().unwrap() > token);
}

#[tokio::test]
async fn a_frozen_leader_is_left_for_another_member() {
    let cluster = Group::start(Layout::EtcdCluster).await.unwrap();
    let locks = manager(&driver(&cluster.url()).await, 30);
    let guard = locks.mutex("a").lock().await.unwrap();
    cluster.leader().await.unwrap().freeze().await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("a").lock().await }
    });
    soon("an answer", async {
        while guard.verify().await.is_err() {
            assert!(guard.is_valid(), "{:?}", guard.loss());
        }
    })
    .await;
    soon("a release", guard.release()).await.unwrap();
    let next = soon("its turn", waiting).await.unwrap().unwrap();
    assert!(next.is_valid());
}

/// The claims that share a lease with a ghost stay, and the ghost goes.
#[tokio::test]
async fn a_request_that_arrives_after_its_release_leaves_no_ghost_on_a_shared_lease() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let slow = driver(&server.url_at(proxy.addr())).await;
    let other = claim("b", 4);
    slow.acquire(&other, Patience::Wait).await.unwrap();
    let ghost = claim("a", 4);
    let mut struck = proxy.fault(ProxyFault::BlackHole, When::Request(1));
    {
        let acquire = slow.acquire(&ghost, Patience::Wait);
        tokio::select! {
            answer = acquire => panic!("nothing passes: {answer:?}"),
            () = struck.struck() => {}
        } // dropped here, while its request is under way
    }
    proxy.heal().await.unwrap();
    // Held back by the network, it arrives now, and no client will ever release it.
    until("the ghost's end", || async {
        let renewed = slow.renew_single(&other).await;
        if let Ok(renewed) = renewed {
            assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
        }
        keys(&server, "a").await == 0 && slow.health().await.is_ok()
    })
    .await;
    assert_eq!(keys(&server, "b").await, 1, "the claim that shared its lease is there");
}

/// Here the ghost is certainly there: etcd put it in, and its answer was lost. Its lease would last
/// longer than this test waits.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_does_not_live_on_a_shared_lease() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let slow = driver(&server.url_at(proxy.addr())).await;
    let other = claim("b", 120);
    slow.acquire(&other, Patience::Wait).await.unwrap();
    let ghost = claim("a", 120);
    proxy.fault(ProxyFault::Mute, When::Request(1));
    {
        let acquire = slow.acquire(&ghost, Patience::Wait);
        tokio::select! {
            answer = acquire => panic!("no answer arrives: {answer:?}"),
            () = until("the ghost", || async { keys(&server, "a").await == 1 }) => {}
        }
    }
    proxy.fault(ProxyFault::Cut, When::Now);
    until("the ghost's end", || async {
        let _ = slow.renew_single(&other).await;
        keys(&server, "a").await == 0
    })
    .await;
    assert_eq!(keys(&server, "b").await, 1, "the claim that shared its lease is there");
    let renewed = slow.renew_single(&other).await.unwrap();
    assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
}

#[tokio::test]
async fn a_claim_that_core_forgot_does_not_live_on_a_lease_that_others_renew() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let (forgotten, renewed) = (claim("a", 3), claim("b", 3));
    ours.acquire(&forgotten, Patience::Wait).await.unwrap();
    ours.acquire(&renewed, Patience::Wait).await.unwrap();
    until("its end", || async {
        let answer = ours.renew_single(&renewed).await.unwrap();
        assert!(matches!(answer, Renewal::Holds(_)));
        keys(&server, "a").await == 0
    })
    .await;
}
