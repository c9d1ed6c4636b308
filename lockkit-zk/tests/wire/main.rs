//! What the ZooKeeper driver sends, and what becomes of its claims when something of that is lost:
//! counted and staged by the proxy between driver and server.

mod changed;

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquire, Acquisition, Batch, ClaimEnd, LockDriver, Patience, Precondition, RegisterKey,
    Registers, Released, Renewal, SetLimit, Version, Write, WriteId, WriteResult,
};
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, Lifetime, LockManager, LossReason, Mode, Name, Namespace,
    Settings, Space, Token,
};
use lockkit_lab::proxy::{Counts, Protocol, Proxy, ProxyFault, When};
use lockkit_lab::{Data, Server, ServerKind, SharedServer};
use lockkit_zk::zookeeper_client::{Acls, Client, CreateMode};
use lockkit_zk::{ZkDriver, ZkOptions};

const TTL: Duration = Duration::from_secs(6);
const TICK: Duration = Duration::from_millis(500);
const LATENCY: Duration = Duration::from_millis(10);

async fn proxied() -> (SharedServer, Proxy, ZkDriver) {
    let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = driver(proxy.addr().to_string()).await;
    (server, proxy, driver)
}

async fn driver(hosts: impl Into<String>) -> ZkDriver {
    let options = ZkOptions::new(hosts).ttl(TTL).tick(TICK);
    ZkDriver::connect_with(options).await.unwrap()
}

fn key(name: &str) -> Key {
    let unique = &lockkit_core::driver::ClaimId::random().to_hex()[..8];
    let namespace = Namespace::new(format!("wire-{unique}")).unwrap();
    Key::new(namespace, Space::Lock, Name::new(name).unwrap())
}

fn claim(key: &Key, mode: Mode) -> Arc<Claim> {
    let identity = Arc::new(ClientIdentity::of_this_process());
    let long = Duration::from_secs(60);
    Arc::new(Claim::new(key.clone(), mode, long, long, identity))
}

async fn take(driver: &ZkDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Granted(_)), "{answer:?}");
}

/// Requests and round trips.
fn brief(counts: Counts) -> [u64; 2] {
    [counts.requests, counts.round_trips]
}

#[tokio::test]
async fn acquiring_releasing_and_a_refused_try_take_one_round_trip_each() {
    let (_server, proxy, driver) = proxied().await;
    let key = key("a");
    let warm = claim(&key, Mode::Exclusive);
    take(&driver, &warm).await;
    driver.release(&warm).await.unwrap();
    proxy.latency(LATENCY);
    let mine = claim(&key, Mode::Exclusive);
    proxy.reset();
    take(&driver, &mine).await;
    assert_eq!(brief(proxy.counts()), [1, 1]);
    proxy.reset();
    let other = claim(&key, Mode::Exclusive);
    assert_eq!(driver.acquire(&other, Patience::Try).await.unwrap().result, Acquisition::Busy);
    assert_eq!(brief(proxy.counts()), [1, 1], "a try that is refused only looks");
    proxy.reset();
    assert_eq!(driver.release(&mine).await.unwrap(), Released::Removed);
    assert_eq!(brief(proxy.counts()), [1, 1]);
}

#[tokio::test]
async fn an_error_says_whether_a_request_got_no_answer() {
    let (_server, proxy, driver) = proxied().await;
    let key = key("a");
    let held = claim(&key, Mode::Exclusive);
    take(&driver, &held).await;
    proxy.fault(ProxyFault::BlackHole, When::Now);
    let acquires = [Acquire { claim: claim(&key, Mode::Exclusive), patience: Patience::Wait }];
    let batch = Batch { releases: &[held], acquires: &acquires };
    let outcome = driver.submit(batch).await.unwrap();
    let released = outcome.released[0].as_ref().unwrap_err();
    assert!(released.error.is_retryable() && released.ambiguous == 1, "{released:?}");
    let acquired = outcome.acquired[0].as_ref().unwrap_err();
    assert!(acquired.error.is_retryable() && acquired.ambiguous == 1, "{acquired:?}");
    proxy.heal().await.unwrap();
    // Refused before anything is sent.
    let detached = Claim::clone(&acquires[0].claim).with_lifetime(Lifetime::Detached);
    let acquires = [Acquire { claim: Arc::new(detached), patience: Patience::Wait }];
    let outcome = driver.submit(Batch { releases: &[], acquires: &acquires }).await.unwrap();
    assert_eq!(outcome.acquired[0].as_ref().unwrap_err().ambiguous, 0);
}

/// Of several servers it may be one that lags: it catches up before it refuses.
#[tokio::test]
async fn a_refused_try_costs_what_is_said_where_several_servers_are_named() {
    let (_server, proxy, alone) = proxied().await;
    let driver = driver(format!("{0},{0}", proxy.addr())).await;
    let said = |driver: &ZkDriver| driver.capabilities().round_trips.unwrap().refused_try;
    assert_eq!((said(&alone), said(&driver)), (1, 2));
    let key = key("a");
    take(&driver, &claim(&key, Mode::Exclusive)).await;
    proxy.latency(LATENCY);
    proxy.reset();
    let other = claim(&key, Mode::Exclusive);
    assert_eq!(driver.acquire(&other, Patience::Try).await.unwrap().result, Acquisition::Busy);
    let [requests, round_trips] = brief(proxy.counts());
    assert_eq!(requests, 2, "a sign from the leader, and a look");
    assert!(round_trips <= 2, "{round_trips}");
}

#[tokio::test]
async fn a_permit_of_a_resizable_semaphore_takes_one_round_trip() {
    let (_server, proxy, driver) = proxied().await;
    let pool = Key { space: Space::Semaphore, ..key("pool") };
    let permits = |permits| claim(&pool, Mode::Permits { permits, limit: 3 });
    assert_eq!(driver.resize(&pool, SetLimit::IfUnset(3)).await.unwrap(), 3);
    // Claims of this ttl have a session by now.
    take(&driver, &claim(&key("warm"), Mode::Exclusive)).await;
    proxy.latency(LATENCY);
    proxy.reset();
    let one = permits(2);
    take(&driver, &one).await;
    assert_eq!(brief(proxy.counts()), [1, 1], "nobody else is there");
    proxy.reset();
    let other = permits(1);
    take(&driver, &other).await;
    assert_eq!(brief(proxy.counts()), [2, 2], "somebody is there");
    proxy.reset();
    assert_eq!(driver.acquire(&permits(1), Patience::Try).await.unwrap().result, Acquisition::Busy);
    assert_eq!(brief(proxy.counts()), [1, 1], "a try that is refused only looks");
    for claim in [&one, &other] {
        proxy.reset();
        assert_eq!(driver.release(claim).await.unwrap(), Released::Removed);
        assert_eq!(brief(proxy.counts()), [1, 1]);
    }
    proxy.reset();
    let answer = driver.acquire(&permits(3), Patience::Try).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Granted(_)));
    assert_eq!(brief(proxy.counts()), [2, 2], "a try looks first");
    proxy.reset();
    assert_eq!(driver.resize(&pool, SetLimit::To(5)).await.unwrap(), 5);
    // Sync and list leave at once, but the client does not set TCP_NODELAY.
    let [requests, round_trips] = brief(proxy.counts());
    assert!(requests == 3 && round_trips <= 3, "{requests} in {round_trips}");
}

#[tokio::test]
async fn a_thousand_claims_are_renewed_by_three_requests() {
    let (_server, proxy, driver) = proxied().await;
    let claims: Vec<_> = (0..1000).map(|n| claim(&key(&format!("{n}")), Mode::Exclusive)).collect();
    // Of one namespace, as the claims of one manager are.
    let namespace = claims[0].key.namespace.clone();
    let claims: Vec<_> = claims
        .iter()
        .map(|c| claim(&Key { namespace: namespace.clone(), ..c.key.clone() }, Mode::Exclusive))
        .collect();
    for claim in &claims {
        take(&driver, claim).await;
    }
    proxy.latency(LATENCY);
    proxy.reset();
    let answers = driver.renew(&claims).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::Holds(_)))));
    let [requests, round_trips] = brief(proxy.counts());
    assert_eq!(requests, 3, "a transaction that only looks, the session's nodes, the breaks");
    // They leave at once, but the client does not set TCP_NODELAY.
    assert!(round_trips <= 2, "{round_trips}");
}

#[tokio::test]
async fn the_next_in_line_knows_that_it_holds_without_another_look() {
    let (server, proxy, driver) = proxied().await;
    let other = self::driver(server.addr().to_string()).await;
    let key = key("a");
    let (first, second) = (claim(&key, Mode::Exclusive), claim(&key, Mode::Exclusive));
    take(&other, &first).await;
    let queued = driver.acquire(&second, Patience::Wait).await.unwrap().result;
    assert_eq!(queued, Acquisition::Queued { ahead: 1 });
    let driver = Arc::new(driver);
    let before = proxy.counts().requests;
    let waiting = tokio::spawn({
        let (driver, second) = (driver.clone(), second.clone());
        async move { driver.granted(&second).await }
    });
    // Its two watches, on itself and on the one ahead, are answered.
    let settled = |now: Counts| now.requests >= before + 2 && now.answers >= now.requests;
    while !settled(proxy.counts()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.reset();
    other.release(&first).await.unwrap();
    let grant = waiting.await.unwrap().unwrap();
    assert!(grant.token.get() > 0);
    let counts = proxy.counts();
    assert_eq!(counts.pushes, 1, "{counts:?}");
    // What may follow is the removal of the watch on its own node, which nothing waits for.
    assert!(counts.requests <= 1, "{counts:?}");
}

#[tokio::test]
async fn whatever_message_is_lost_nothing_is_left_and_the_lock_works() {
    let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let witness = driver(server.addr().to_string()).await;
    for nth in 1..=6 {
        for when in [When::Request(nth), When::Answer(nth)] {
            let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
            let driver = driver(proxy.addr().to_string()).await;
            let key = key("a");
            let settings = Settings::default().namespace(key.namespace.as_str()).ttl(TTL);
            let locks = LockManager::with(Arc::new(driver), settings).unwrap();
            let strike = proxy.fault(ProxyFault::Cut, when);
            let guard = locks.mutex("a").lock().await.unwrap();
            assert!(guard.is_valid(), "{when:?}");
            let line = witness.inspect(&key).await.unwrap().queue;
            assert_eq!(line.len(), 1, "{when:?}: one claim, one node: {line:?}");
            // Lost after the cut it may be, but not for the lock.
            let _ = guard.release().await;
            let again = locks.mutex("a").lock().await.unwrap();
            again.release().await.unwrap();
            locks.shutdown().await;
            let line = witness.inspect(&key).await.unwrap().queue;
            assert!(line.is_empty(), "{when:?} (struck: {}): {line:?}", strike.has_struck());
        }
    }
}

#[tokio::test]
async fn a_folder_that_vanishes_between_two_calls_is_made_again() {
    let (server, _proxy, driver) = proxied().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let key = key("a");
    let folder = format!("/lockkit/n-{}", key.namespace);
    for _ in 0..20 {
        let mine = claim(&key, Mode::Exclusive);
        take(&driver, &mine).await;
        driver.release(&mine).await.unwrap();
        for path in [format!("{folder}/lock/a"), format!("{folder}/lock"), folder.clone()] {
            client.delete(&path, None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_session_that_ended_ends_its_guards_and_the_next_lock_works() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let driver = driver(server.addr().to_string()).await;
    let locks = LockManager::with(Arc::new(driver), Settings::default().ttl(TTL)).unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    server.kill().await;
    let why = tokio::time::timeout(TTL * 2, guard.lost()).await.expect("it is lost in time");
    assert!(matches!(why, LossReason::Unreachable(_) | LossReason::SessionEnded), "{why:?}");
    server.restart(Data::Keep).await.unwrap();
    let again = tokio::time::timeout(TTL * 4, locks.mutex("a").lock()).await;
    let again = again.expect("a new session is made").unwrap();
    assert!(again.token().unwrap() > token, "tokens grow across a restart");
}

#[tokio::test]
async fn a_server_that_stood_still_beyond_the_session_has_ended_it() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let ours = driver(server.addr().to_string()).await;
    let key = key("a");
    let mine = claim(&key, Mode::Exclusive);
    take(&ours, &mine).await;
    let settings = Settings::default().namespace(key.namespace.as_str()).ttl(TTL);
    let locks = LockManager::with(Arc::new(ours), settings).unwrap();
    let guard = locks.mutex("b").lock().await.unwrap();
    server.freeze().await;
    tokio::time::timeout(TTL * 2, guard.lost()).await.expect("it is lost by its own deadline");
    tokio::time::sleep(TTL).await;
    server.thaw();
    let next = tokio::time::timeout(TTL * 4, locks.mutex("b").lock()).await;
    drop(next.expect("the next lock works").unwrap());
    // The claim of the old session is told that it ended.
    let answer = locks.driver().renew_single(&mine).await.unwrap();
    let told = matches!(answer, Renewal::Ended(ClaimEnd::SessionEnded | ClaimEnd::NotFound));
    assert!(told || matches!(answer, Renewal::Holds(_)), "{answer:?}");
}

#[tokio::test]
async fn the_users_own_client_and_a_chroot_work() {
    let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let options = || ZkOptions::new("").chroot("/apps/shop").unwrap().tick(TICK);
    let driver = ZkDriver::from_client(client.clone(), options());
    let key = key("a");
    let mine = claim(&key, Mode::Exclusive);
    take(&driver, &mine).await;
    let folder = format!("/apps/shop/lockkit/n-{}/lock/a", key.namespace);
    let children = client.list_children(&folder).await.unwrap();
    assert_eq!(children.len(), 1);
    assert!(!children[0].contains(&mine.id.to_hex()), "the id is nobody's business");
    // Another driver on the same client leaves these nodes alone when it renews.
    let second = ZkDriver::from_client(client.clone(), options());
    let other = claim(&Key { name: Name::new("b").unwrap(), ..key.clone() }, Mode::Exclusive);
    take(&second, &other).await;
    second.renew(&[other]).await.unwrap();
    assert!(matches!(driver.renew_single(&mine).await.unwrap(), Renewal::Holds(_)));
    // From a URL, the same chroot is the same place.
    let url = format!("zk://{}/apps/shop?tick=500ms", server.addr());
    let third = ZkDriver::connect(&url).await.unwrap();
    let busy = third.acquire(&claim(&key, Mode::Shared), Patience::Try).await.unwrap().result;
    assert_eq!(busy, Acquisition::Busy);
}

#[tokio::test]
async fn with_a_login_others_are_refused_and_told_so_for_good() {
    let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let unique = lockkit_core::driver::ClaimId::random().to_hex();
    let place = format!("{}/private-{unique}", server.addr());
    let mine = ZkDriver::connect(&format!("zk://me:secret@{place}")).await.unwrap();
    let key = key("a");
    take(&mine, &claim(&key, Mode::Exclusive)).await;
    let stranger = ZkDriver::connect(&format!("zk://me:guess@{place}")).await.unwrap();
    let refused = stranger.acquire(&claim(&key, Mode::Exclusive), Patience::Wait).await;
    match refused {
        Err(error @ Error::Backend { retryable: false, .. }) => {
            assert!(!error.to_string().contains("guess"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_foreign_node_in_a_folder_disturbs_nobody() {
    let (server, _proxy, driver) = proxied().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let key = key("a");
    let mine = claim(&key, Mode::Exclusive);
    take(&driver, &mine).await;
    let foreign = format!("/lockkit/n-{}/lock/a/notes", key.namespace);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(&foreign, b"", &options).await.unwrap();
    assert!(matches!(driver.renew_single(&mine).await.unwrap(), Renewal::Holds(_)));
    assert_eq!(driver.release(&mine).await.unwrap(), Released::Removed);
    take(&driver, &claim(&key, Mode::Exclusive)).await;
}

fn register(key: &Key, name: &str) -> RegisterKey {
    RegisterKey { namespace: key.namespace.clone(), name: Name::new(name).unwrap() }
}

fn write(expect: Precondition, token: Option<u64>) -> Write {
    let token = token.and_then(Token::new);
    let write_id = WriteId::random();
    Write { value: Some(b"value".to_vec()), expect, token, write_id, repeated: false, ttl: None }
}

async fn stored(driver: &ZkDriver, at: &RegisterKey, store: Write) -> Version {
    match driver.write(at, &store).await.unwrap().result {
        WriteResult::Stored(version) => version,
        other => panic!("it should have been stored: {other:?}"),
    }
}

#[tokio::test]
async fn a_register_costs_one_request_to_write_again_and_two_to_read() {
    let (server, proxy, driver) = proxied().await;
    let other = self::driver(server.addr().to_string()).await;
    let key = key("a");
    stored(&driver, &register(&key, "warm"), write(Precondition::Anything, None)).await;
    let at = register(&key, "r");
    proxy.latency(LATENCY);
    proxy.reset();
    stored(&driver, &at, write(Precondition::Absent, None)).await;
    let [requests, round_trips] = brief(proxy.counts());
    assert!(requests == 3 && round_trips <= 3, "a look, and a node: {requests} in {round_trips}");
    let again = [(Precondition::Anything, None), (Precondition::Version(Version(2)), Some(7))];
    for (expect, token) in again {
        proxy.reset();
        stored(&driver, &at, write(expect, token)).await;
        assert_eq!(brief(proxy.counts()), [1, 1], "{expect:?}");
    }
    proxy.reset();
    let entry = driver.load(&at).await.unwrap().unwrap();
    let [requests, round_trips] = brief(proxy.counts());
    // They leave at once, but the client does not set TCP_NODELAY.
    assert!(requests == 2 && round_trips <= 2, "{requests} in {round_trips}");
    proxy.reset();
    let deletion = Write {
        expect: Precondition::Version(entry.version),
        token: Token::new(8),
        ..Write::of(None)
    };
    let deleted = driver.write(&at, &deletion).await.unwrap().result;
    assert!(matches!(deleted, WriteResult::Stored(_)), "{deleted:?}");
    assert_eq!(brief(proxy.counts()), [1, 1]);
    // What another client wrote in between is seen, and costs a look.
    stored(&other, &at, write(Precondition::Absent, Some(9))).await;
    proxy.reset();
    stored(&driver, &at, write(Precondition::Anything, Some(9))).await;
    let [requests, round_trips] = brief(proxy.counts());
    assert!(requests == 4 && round_trips <= 4, "{requests} in {round_trips}");
}

/// What a process remembers of a register chooses what is sent first, and decides nothing.
#[tokio::test]
async fn a_write_never_goes_over_one_that_came_since_the_last_look() {
    let (server, _proxy, ours) = proxied().await;
    let theirs = driver(server.addr().to_string()).await;
    let at = register(&key("a"), "r");
    let first = stored(&ours, &at, write(Precondition::Anything, Some(5))).await;
    let second = stored(&theirs, &at, write(Precondition::Version(first), Some(6))).await;
    let late = write(Precondition::Version(first), Some(6));
    assert_eq!(ours.write(&at, &late).await.unwrap().result, WriteResult::Conflict);
    let first = stored(&ours, &at, write(Precondition::Version(second), None)).await;
    stored(&theirs, &at, write(Precondition::Anything, Some(8))).await;
    let highest = Token::new(8).unwrap();
    let stale = write(Precondition::Anything, Some(7));
    assert_eq!(ours.write(&at, &stale).await.unwrap().result, WriteResult::Stale { highest });
    let entry = theirs.load(&at).await.unwrap().unwrap();
    assert_eq!((entry.version.0, entry.token), (first.0 + 1, Some(highest)));
}

/// Behind one that waits as well, the one ahead that leaves makes no client a holder.
#[tokio::test]
async fn whoever_waits_behind_one_that_gives_up_goes_on_waiting() {
    let (server, proxy, driver) = proxied().await;
    let other = self::driver(server.addr().to_string()).await;
    for (first, last) in [(Mode::Exclusive, Mode::Exclusive), (Mode::Shared, Mode::Exclusive)] {
        let key = key("a");
        let holder = claim(&key, first);
        let (gives_up, waits) = (claim(&key, Mode::Exclusive), claim(&key, last));
        take(&other, &holder).await;
        for (driver, claim, ahead) in [(&other, &gives_up, 1), (&driver, &waits, 2)] {
            let queued = driver.acquire(claim, Patience::Wait).await.unwrap().result;
            assert_eq!(queued, Acquisition::Queued { ahead });
        }
        let before = proxy.counts().requests;
        let mut turn = std::pin::pin!(driver.granted(&waits));
        // Its watches, on itself and on the one ahead, are answered.
        let settled = |least: u64| {
            let now = proxy.counts();
            now.requests >= before + least && now.answers >= now.requests
        };
        let until_settled = async |least: u64| {
            while !settled(least) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = until_settled(2) => {}
            granted = &mut turn => panic!("it holds beside another: {granted:?}"),
        }
        assert_eq!(other.release(&gives_up).await.unwrap(), Released::Removed);
        // It looks again, and watches the holder.
        tokio::select! {
            () = until_settled(4) => {}
            granted = &mut turn => panic!("it holds beside another: {granted:?}"),
        }
        assert_eq!(other.release(&holder).await.unwrap(), Released::Removed);
        tokio::time::timeout(Duration::from_secs(30), turn).await.expect("its turn").unwrap();
        driver.release(&waits).await.unwrap();
    }
}
