//! Requests that the driver sends a second time by itself, since the first one was not answered: it
//! says so, and nothing happens twice.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Attempted, BreakMode, LockDriver, Patience, Precondition, RegisterKey, Registers,
    Released, Write, WriteId, WriteResult,
};
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space, Token,
};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::{Group, Layout, Server, ServerKind};
use lockkit_redis::RedisDriver;

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(30);

/// Servers, a way to them that can be cut, and one that cannot.
struct Scene {
    _servers: (Option<Server>, Option<Group>),
    proxy: Proxy,
    through: RedisDriver,
    past: RedisDriver,
}

async fn alone() -> Scene {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Resp).await.unwrap();
    let (url, through) = (server.url(), server.url_at(proxy.addr()));
    scene((Some(server), None), proxy, &url, &through).await
}

async fn in_a_cluster() -> Scene {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let proxy = group.proxy(Protocol::Resp).await.unwrap();
    let (url, through) = (group.url(), group.url_through(&proxy));
    scene((None, Some(group)), proxy, &url, &through).await
}

async fn scene(
    servers: (Option<Server>, Option<Group>),
    proxy: Proxy,
    url: &str,
    through: &str,
) -> Scene {
    let connect =
        async |url: &str| RedisDriver::connect(&format!("{url}?timeout=30s")).await.unwrap();
    let (through, past) = (connect(through).await, connect(url).await);
    // All that the tests send goes over a connection that is open, and no script is unknown.
    for driver in [&past, &through] {
        let claim = claim("a");
        take(driver, &claim, 0).await;
        driver.release(&claim).await.unwrap();
        driver.write(&at(), &store(Precondition::Anything, None)).await.unwrap();
        driver.write(&at(), &delete()).await.unwrap();
    }
    Scene { _servers: servers, proxy, through, past }
}

/// Returns once nothing more passes: what a driver says when it begins has been said.
async fn is_quiet(proxy: &Proxy) {
    let passed = || {
        let counts = proxy.counts();
        [counts.requests, counts.answers, counts.pushes]
    };
    let mut before = passed();
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = passed();
        if now == before {
            return;
        }
        before = now;
    }
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let ttl = Duration::from_secs(300);
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, ClientIdentity::of_this_process().into()))
}

async fn take(driver: &RedisDriver, claim: &Arc<Claim>, ambiguous: u32) -> Token {
    let answered = driver.acquire(claim, Patience::Try).await.unwrap();
    assert_eq!(answered.ambiguous, ambiguous);
    match answered.result {
        Acquisition::Granted(grant) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

fn at() -> RegisterKey {
    RegisterKey { namespace: Namespace::default(), name: Name::new("r").unwrap() }
}

fn store(expect: Precondition, token: Option<Token>) -> Write {
    let write_id = WriteId::random();
    Write { value: Some(b"1".to_vec()), expect, token, write_id, repeated: false, ttl: None }
}

fn delete() -> Write {
    Write::of(None)
}

#[tokio::test]
async fn an_acquire_whose_answer_was_lost_is_sent_again_and_says_so() {
    for scene in [alone().await, in_a_cluster().await] {
        for fault in [When::Answer(1), When::Request(1)] {
            let claim = claim("a");
            is_quiet(&scene.proxy).await;
            let mut strike = scene.proxy.fault(ProxyFault::Cut, fault);
            take(&scene.through, &claim, 1).await;
            strike.struck().await;
            assert_eq!(scene.through.release(&claim).await.unwrap(), Released::Removed);
            take(&scene.through, &claim, 0).await;
            scene.through.release(&claim).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_one_in_a_cluster_too() {
    let scene = in_a_cluster().await;
    let claim = claim("a");
    take(&scene.through, &claim, 0).await;
    is_quiet(&scene.proxy).await;
    let mut strike = scene.proxy.fault(ProxyFault::Cut, When::Answer(1));
    assert_eq!(scene.through.release(&claim).await.unwrap(), Released::Removed);
    strike.struck().await;
    assert_eq!(scene.through.release(&claim).await.unwrap(), Released::NoSuchLock);
}

/// The first request comes late, after an orderly release: nobody else would release what it takes.
#[tokio::test]
async fn a_request_that_arrives_after_the_release_leaves_no_ghost() {
    for scene in [alone().await, in_a_cluster().await] {
        let Scene { proxy, through, past, _servers } = scene;
        is_quiet(&proxy).await;
        let locks = LockManager::new(through);
        locks.mutex("b").lock().await.unwrap().release().await.unwrap();
        is_quiet(&proxy).await;
        let mut strike = proxy.fault(ProxyFault::Cut, When::Request(1));
        let guard = locks.mutex("a").ttl(10 * LONG).lock().await.unwrap();
        strike.struck().await;
        let claim = guard.lease().claim();
        guard.release().await.unwrap();
        take(&past, &claim, 0).await; // the very same request
        let is_free = async {
            while !past.inspect(&claim.key).await.unwrap().is_free() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, is_free).await.expect("it was released again");
    }
}

/// What another client wrote between the two attempts stays.
#[tokio::test]
async fn a_write_that_was_applied_is_not_applied_again_over_a_later_one() {
    for scene in [alone().await, in_a_cluster().await] {
        let token = take(&scene.past, &claim("a"), 0).await;
        for mine in [store(Precondition::Absent, None), store(Precondition::Anything, Some(token))]
        {
            is_quiet(&scene.proxy).await;
            let mut strike = scene.proxy.fault(ProxyFault::Cut, When::Answer(1));
            let between = async {
                strike.struck().await;
                // On its way for long: there is a new connection to be made, too.
                let mut theirs = delete();
                theirs.token = mine.token;
                let deleted = scene.past.write(&at(), &theirs).await.unwrap();
                assert!(matches!(deleted.result, WriteResult::Stored(_)), "{deleted:?}");
            };
            scene.proxy.latency(Duration::from_millis(300));
            let at = at();
            let (answered, ()) = tokio::join!(scene.through.write(&at, &mine), between);
            scene.proxy.latency(Duration::ZERO);
            assert_eq!(answered.unwrap(), Attempted::after(1, WriteResult::Conflict));
            assert!(scene.past.load(&at).await.unwrap().is_none(), "the deletion stays");
        }
    }
}

#[tokio::test]
async fn a_forced_break_whose_answer_was_lost_has_broken() {
    let Scene { proxy, through, past, _servers } = alone().await;
    let held = claim("a");
    let token = take(&past, &held, 0).await;
    let locks = LockManager::new(through);
    locks.mutex("b").lock().await.unwrap().release().await.unwrap();
    is_quiet(&proxy).await;
    let mut strike = proxy.fault(ProxyFault::Cut, When::Answer(1));
    assert!(
        locks.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await.unwrap()
    );
    strike.struck().await;
    // And one that is somebody else's is told apart.
    let other = claim("a");
    let next = take(&past, &other, 0).await;
    assert!(next > token);
    let admin = locks.admin();
    let late = admin.break_lock(Space::Lock, "a", token, BreakMode::Forced, Some("late"));
    assert!(!late.await.unwrap());
    let by = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(by, 0, None, true);
    assert!(!past.break_claim(&other.key, token, BreakMode::Forced, &record).await.unwrap());
}
