//! Sessions of the ZooKeeper driver: how one is had, what it survives, and what follows its end.

mod several;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquisition, LockDriver, Patience, RegisterKey, Registers, Renewal, Write,
};
use lockkit_core::{
    Claim, ClientIdentity, Key, LockManager, LossReason, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_zk::zookeeper_client::Client;
use lockkit_zk::{ZkDriver, ZkOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const TICK: Duration = Duration::from_millis(500);
/// Longer than any stall of a busy machine.
const TTL: Duration = Duration::from_secs(40);
const PATIENCE: Duration = Duration::from_secs(90);

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

async fn server() -> SharedServer {
    SharedServer::server(ServerKind::ZooKeeper).await.unwrap()
}

fn options(hosts: impl Into<String>) -> ZkOptions {
    ZkOptions::new(hosts).ttl(TTL).tick(TICK)
}

async fn driver(hosts: impl ToString) -> ZkDriver {
    ZkDriver::connect_with(options(hosts.to_string())).await.unwrap()
}

fn namespace() -> Namespace {
    Namespace::new(format!("session-{}", &ClaimId::random().to_hex()[..8])).unwrap()
}

fn claim(namespace: &Namespace, name: &str) -> Arc<Claim> {
    let key = Key::new(namespace.clone(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    let long = Duration::from_secs(300);
    Arc::new(Claim::new(key, Mode::Exclusive, long, long, identity))
}

/// Accepts connections and says nothing, as a server that stands still.
async fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test]
async fn calls_that_find_no_server_fail_together_rather_than_one_after_the_other() {
    let server = server().await;
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let hosts = proxy.addr().to_string();
    let options = ZkOptions::new(hosts).session_timeout(Duration::from_secs(10)).tick(TICK);
    let driver = Arc::new(ZkDriver::connect_with(options).await.unwrap());
    let namespace = namespace();
    let held = claim(&namespace, "a");
    driver.acquire(&held, Patience::Wait).await.unwrap();
    proxy.fault(ProxyFault::BlackHole, When::Now);
    // Its session is over for all that it can know.
    soon("the end of the session", async {
        while driver.granted(&held).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let begun = Instant::now();
    let mut calls = JoinSet::new();
    for n in 0..50 {
        let (driver, claim) = (driver.clone(), claim(&namespace, &format!("{n}")));
        calls.spawn(async move { driver.acquire(&claim, Patience::Wait).await });
    }
    while let Some(answer) = calls.join_next().await {
        let error = answer.unwrap().unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
    // One after the other they would take five minutes.
    assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn silent_servers_do_not_keep_a_driver_from_the_one_that_answers() {
    let server = server().await;
    let (one, two) = (silent().await, silent().await);
    let (one, two) = (one.local_addr().unwrap(), two.local_addr().unwrap());
    // The client asks in random order, and waits for a silent one for many seconds. One attempt
    // may be unlucky several times in a row; five may not.
    for attempt in 0..5 {
        let hosts = format!("{one},{two},{}", server.addr());
        match ZkDriver::connect_with(options(hosts)).await {
            Ok(_) => return,
            Err(error) => println!("attempt {attempt}: {error}"),
        }
    }
    panic!("no attempt reached the server");
}

#[tokio::test]
async fn a_process_with_hundreds_of_waiters_survives_a_cut_connection() {
    let server = server().await;
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let (ours, theirs) = (Arc::new(driver(proxy.addr()).await), driver(server.addr()).await);
    let namespace = namespace();
    let held = claim(&namespace, "held");
    ours.acquire(&held, Patience::Wait).await.unwrap();
    let mut waiting = JoinSet::new();
    for some in (0..800).collect::<Vec<_>>().chunks(100) {
        let names: Vec<_> = some.iter().map(|n| format!("a lock with a longer name {n}")).collect();
        let taken: Vec<_> = names.iter().map(|name| claim(&namespace, name)).collect();
        let taking = taken.iter().map(|claim| theirs.acquire(claim, Patience::Wait));
        futures_util::future::try_join_all(taking).await.unwrap();
        for name in names {
            let (ours, claim) = (ours.clone(), claim(&namespace, &name));
            let queued = ours.acquire(&claim, Patience::Wait).await.unwrap().result;
            assert_eq!(queued, Acquisition::Queued { ahead: 1 });
            waiting.spawn(async move {
                // As core does: what fails is asked again.
                loop {
                    match ours.granted(&claim).await {
                        Err(error) if error.is_retryable() => {
                            tokio::time::sleep(Duration::from_millis(200)).await;
                        }
                        answer => return answer,
                    }
                }
            });
        }
    }
    // Until all who can watch do.
    let quiet = || proxy.counts().requests == proxy.counts().answers;
    soon("quiet", async {
        while !quiet() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    for _ in 0..2 {
        proxy.fault(ProxyFault::Cut, When::Now);
        let renewed = soon("a renewal", async {
            loop {
                match ours.renew_single(&held).await {
                    Ok(renewed) => return renewed,
                    Err(error) if error.is_retryable() => {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await;
        assert!(matches!(renewed, Renewal::Holds(_)), "the session is lost: {renewed:?}");
    }
    // All waiters get their turn when the others go, those who watch and those who look.
    theirs.close().await;
    drop(theirs);
    soon("all turns", async {
        while let Some(granted) = waiting.join_next().await {
            granted.unwrap().unwrap();
        }
    })
    .await;
}

/// Has the server end a session, as it does when the session's time is over: past a client that uses it.
async fn end_session(server: SocketAddr, id: i64) {
    // Where nothing is answered, it may be because the session ended so fast.
    let mut perhaps = false;
    loop {
        match ask_to_end(server, id).await {
            None => perhaps = true,
            Some(true) => return,
            Some(false) => return assert!(perhaps, "the server knows no such session"),
        }
    }
}

/// Takes a session over and closes it in one go, so that its client has no time to take it back.
/// Whether the server knows the session, if it says.
async fn ask_to_end(server: SocketAddr, id: i64) -> Option<bool> {
    let mut frames = Vec::new();
    let mut frame = |parts: &[&[u8]]| {
        let body = parts.concat();
        frames.extend_from_slice(&(body.len() as u32).to_be_bytes());
        frames.extend_from_slice(&body);
    };
    let (protocol, seen, timeout) = (0_i32.to_be_bytes(), 0_i64.to_be_bytes(), 40_000_i32);
    let password = password(id);
    let length = (password.len() as u32).to_be_bytes();
    let session = id.to_be_bytes();
    frame(&[&protocol, &seen, &timeout.to_be_bytes(), &session, &length, &password, &[0]]);
    let (number, close) = (1_i32.to_be_bytes(), (-11_i32).to_be_bytes());
    frame(&[&number, &close]);
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(&frames).await.unwrap();
    let mut answers = Vec::new();
    let _ = soon("the end of the connection", stream.read_to_end(&mut answers)).await;
    let granted = answers.get(8..12).map(|four| u32::from_be_bytes(four.try_into().unwrap()));
    granted.map(|timeout| timeout > 0)
}

/// The password of a session: the first bytes of Java's generator of random numbers, seeded by the
/// session's id and a constant of ZooKeeper's.
fn password(session: i64) -> Vec<u8> {
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = (session as u64 ^ 0xB341_5C00 ^ MULTIPLIER) & MASK;
    let mut next = || {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        ((state >> 16) as u32).to_le_bytes()
    };
    (0..4).flat_map(|_| next()).collect()
}

/// The session that holds this lock.
async fn session_of(client: &Client, namespace: &Namespace, name: &str) -> i64 {
    let folder = format!("/lockkit/n-{namespace}/lock/{name}");
    let node = client.list_children(&folder).await.unwrap().pop().expect("somebody holds it");
    let stat = client.check_stat(&format!("{folder}/{node}")).await.unwrap();
    stat.expect("it holds it still").ephemeral_owner
}

#[tokio::test]
async fn a_session_that_the_server_ended_ends_all_its_guards_and_the_next_lock_works() {
    let server = server().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let namespace = namespace();
    let settings = Settings::default().namespace(namespace.as_str()).ttl(Duration::from_secs(30));
    let locks = LockManager::with(Arc::new(driver(server.addr()).await), settings).unwrap();
    let (a, b) = (locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap());
    let token = b.token().unwrap();
    end_session(server.addr(), session_of(&client, &namespace, "a").await).await;
    // They learn it when they ask; here, at once.
    let verified = soon("an answer", a.verify()).await;
    assert!(verified.is_err(), "{verified:?}");
    let why = soon("the loss", a.lost()).await;
    assert!(matches!(why, LossReason::SessionEnded), "{why:?}");
    let _ = soon("an answer", b.verify()).await;
    assert!(matches!(soon("the loss", b.lost()).await, LossReason::SessionEnded));
    let again = soon("a new session", locks.mutex("b").lock()).await.unwrap();
    assert!(again.token().unwrap() > token);
}

#[tokio::test]
async fn the_session_of_a_given_client_is_not_replaced_when_it_has_ended() {
    let server = server().await;
    let client = Client::connector().with_session_timeout(TTL);
    let client = client.connect(&server.addr().to_string()).await.unwrap();
    let driver = ZkDriver::from_client(client.clone(), options(""));
    let settings = Settings::default().namespace(namespace().as_str());
    let locks = LockManager::with(Arc::new(driver), settings).unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    end_session(server.addr(), client.session_id().0).await;
    soon("the client's notice", async {
        let mut states = client.state_watcher();
        while !client.state().is_terminated() {
            states.changed().await;
        }
    })
    .await;
    let error = locks.mutex("b").lock().await.unwrap_err();
    assert!(!error.is_retryable(), "{error}");
    drop(guard);
}

#[test]
fn a_driver_outlives_the_runtime_that_it_was_made_in() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let (server, locks, token) = first.block_on(async {
        let server = server().await;
        let settings = Settings::default().namespace(namespace().as_str());
        let driver = Arc::new(driver(server.addr()).await);
        let locks = LockManager::with(driver, settings).unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        (server, locks, guard.token().unwrap())
    });
    drop(first);
    let second = runtime();
    second.block_on(async {
        let guard = soon("the lock", locks.mutex("b").lock()).await.unwrap();
        assert!(guard.token().unwrap() > token);
        guard.release().await.unwrap();
    });
    drop(server);
}

/// A watch ends with the runtime that the client works in, and no event says so.
#[test]
fn a_wait_for_a_change_outlives_the_runtime_of_its_session() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (first, second) = (runtime(), runtime());
    let (server, proxy) = second.block_on(async {
        let server = server().await;
        let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
        (server, proxy)
    });
    let driver = Arc::new(first.block_on(driver(proxy.addr())));
    second.block_on(async {
        let other = self::driver(server.addr()).await;
        let claim = claim(&namespace(), "a");
        other.acquire(&claim, Patience::Wait).await.unwrap();
        let (key, name) = (claim.key.clone(), claim.key.name.clone());
        let at = RegisterKey { namespace: key.namespace.clone(), name };
        let held = driver.inspect(&key).await.unwrap();
        let watched = async |requests: u64| {
            soon("the watch, and a read", async {
                while proxy.counts().answers < requests {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await;
            proxy.reset();
        };
        proxy.reset();
        let (waits, register) = (driver.clone(), at.clone());
        let register =
            tokio::spawn(
                async move { retried(|| Registers::changed(&*waits, &register, None)).await },
            );
        watched(3).await;
        let waits = driver.clone();
        let queue =
            tokio::spawn(
                async move { retried(|| LockDriver::changed(&*waits, &key, &held)).await },
            );
        watched(4).await;
        tokio::task::spawn_blocking(move || drop(first)).await.unwrap();
        other.release(&claim).await.unwrap();
        other.write(&at, &Write::of(Some(b"value".to_vec()))).await.unwrap();
        let stored = soon("the value", register).await.unwrap().expect("it has a value");
        assert_eq!(stored.value, b"value");
        assert!(soon("the release", queue).await.unwrap().is_free());
    });
}

/// As core does it: what fails for now is asked again.
async fn retried<T, F: Future<Output = lockkit_core::Result<T>>>(ask: impl Fn() -> F) -> T {
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}
