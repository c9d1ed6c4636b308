//! What the driver does by itself when answers are late or missing, or when its runtime is gone.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_core::driver::{Acquisition, LockDriver, Patience};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Group, Layout, Server, ServerKind};
use lockkit_redis::redis::Client;
use lockkit_redis::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use lockkit_redis::{RedisDriver, RedisOptions};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(30);

fn claim(name: &str) -> Arc<Claim> {
    lasting(name, Duration::from_secs(300))
}

fn lasting(name: &str, ttl: Duration) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, ClientIdentity::of_this_process().into()))
}

async fn info(server: &Server, section: &str, fact: &str) -> u64 {
    let info = resp::ask(server.addr(), &["INFO", section]).await.unwrap().text().to_owned();
    let (_, rest) = info.split_once(fact).unwrap_or_else(|| panic!("{fact} in {info}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// Somebody else keeps the server busy, so that ten thousand answers take several times the time limit
/// of one. With a bound on what is under way none of them is late.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_that_lock_at_once_are_asked_for_once_and_over_one_connection() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let driver = RedisDriver::connect(&format!("{}?timeout=1s", server.url())).await.unwrap();
    let driver = Arc::new(driver);
    let before = info(&server, "stats", "total_connections_received:").await;
    let addr = server.addr();
    let busy = tokio::spawn(async move {
        let slow = ["EVAL", "local x = 0; for i = 1, 2000000 do x = x + i end return 1", "0"];
        let mut connection = resp::RespConnection::open(addr).await.unwrap();
        loop {
            connection.call(&slow).await.unwrap();
        }
    });
    let tasks = (0..10_000).map(|i| {
        let driver = driver.clone();
        tokio::spawn(async move {
            let claim = claim(&i.to_string());
            // As core does it.
            while let Err(error) = driver.acquire(&claim, Patience::Wait).await {
                assert!(error.is_retryable(), "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.unwrap();
    }
    busy.abort();
    let calls = info(&server, "commandstats", "cmdstat_evalsha:calls=").await;
    let opened = info(&server, "stats", "total_connections_received:").await - before;
    // A machine that stands still for so long may have some asked for again, never most of them.
    assert!(calls < 12_000 && opened < 10, "{calls} calls, {opened} connections");
}

#[test]
fn a_driver_that_outlives_its_runtime_hears_of_its_turn_in_the_next_one() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let first = runtime();
    let (server, driver) = first.block_on(async {
        let server = Server::start(ServerKind::Redis).await.unwrap();
        let url = format!("{}?timeout=30s", server.url());
        let driver = RedisDriver::connect(&url).await.unwrap();
        assert!(matches!(
            driver.acquire(&claim("warm"), Patience::Wait).await.unwrap().result,
            Acquisition::Granted(_)
        ));
        (server, driver)
    });
    drop(first);
    runtime().block_on(async {
        let url = format!("{}?timeout=30s", server.url());
        let other = RedisDriver::connect(&url).await.unwrap();
        let (holder, waiter) = (claim("a"), claim("a"));
        other.acquire(&holder, Patience::Wait).await.unwrap();
        driver.acquire(&waiter, Patience::Wait).await.unwrap();
        // The leases last for minutes: only a message, or the start of the subscription, tells.
        let wait = async {
            let granted = driver.granted(&waiter);
            let release = other.release(&holder);
            tokio::join!(granted, release).0.unwrap();
        };
        tokio::time::timeout(LONG, wait).await.expect("it was told");
    });
}

/// Where its keys are, by the port of the master.
async fn masters_of(group: &Group, names: &[String]) -> Vec<u16> {
    let RespReply::Array(ranges) =
        resp::ask(group.members()[0].addr(), &["CLUSTER", "SLOTS"]).await.unwrap()
    else {
        panic!("a table of slots")
    };
    let mut ports = Vec::new();
    for name in names {
        let driver_key = resp::ask(group.members()[0].addr(), &["CLUSTER", "KEYSLOT", name]).await;
        let RespReply::Number(slot) = driver_key.unwrap() else { panic!("a slot") };
        let range = ranges.iter().find_map(|range| match range {
            RespReply::Array(parts) => match &parts[..] {
                [
                    RespReply::Number(first),
                    RespReply::Number(last),
                    RespReply::Array(master),
                    ..,
                ] if (*first..=*last).contains(&slot) => match master[1] {
                    RespReply::Number(port) => Some(port as u16),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        });
        ports.push(range.expect("somebody has the slot"));
    }
    ports
}

/// The names of locks, and the ports of the masters that have them.
async fn placed(group: &Group) -> Vec<(String, u16)> {
    let mut keys = Vec::new();
    for member in group.members() {
        let RespReply::Array(found) =
            resp::ask(member.addr(), &["KEYS", "lockkit:lock:*"]).await.unwrap()
        else {
            panic!("KEYS")
        };
        keys.extend(found.iter().map(|key| key.text().to_owned()));
    }
    let ports = masters_of(group, &keys).await;
    let name = |key: &String| key.rsplit_once(':').unwrap().1.to_owned();
    keys.iter().map(name).zip(ports).collect()
}

async fn one_silent_master_costs_its_own_locks_alone(kill: bool, ttl: Duration) {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let locks = LockManager::new(RedisDriver::connect(&group.url()).await.unwrap());
    let mut guards = Vec::new();
    for i in 0..60 {
        let name = format!("lock-{i}");
        let guard = locks.mutex(&name).ttl(ttl).lock().await.unwrap();
        guards.push((name, guard));
    }
    let placed = placed(&group).await;
    let ports: BTreeSet<_> = placed.iter().map(|(_, port)| *port).collect();
    assert_eq!((placed.len(), ports.len()), (60, 3), "{placed:?}");
    let silent = &group.members()[1];
    if kill {
        silent.kill().await
    } else {
        silent.freeze().await
    }
    let begun = Instant::now();
    while begun.elapsed() < 3 * ttl {
        tokio::time::sleep(ttl / 10).await;
        for (name, guard) in &guards {
            let port = placed.iter().find(|(placed, _)| placed == name).unwrap().1;
            assert!(
                port == silent.addr().port() || guard.is_valid(),
                "{name} is at another master, and lost after {:?}: {:?}",
                begun.elapsed(),
                guard.loss(),
            );
        }
    }
    silent.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_a_cluster_that_stands_still_costs_its_own_locks_alone() {
    one_silent_master_costs_its_own_locks_alone(false, Duration::from_secs(9)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_of_a_cluster_that_is_dead_costs_its_own_locks_alone() {
    one_silent_master_costs_its_own_locks_alone(true, Duration::from_secs(6)).await;
}

/// Its bus is silent, its port for clients is not: it answers each script with `CLUSTERDOWN`, and tells a table
/// of slots that nobody else has.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_cut_off_from_its_cluster_is_left_for_its_replica() {
    let group = Group::start(Layout::RedisClusterWithReplicas).await.unwrap();
    let [plain, careful] = ["timeout=2s", "timeout=2s&min_replicas=1"]
        .map(|options| format!("{}?{options}", group.url()));
    let plain = RedisDriver::connect(&plain).await.unwrap();
    let careful = RedisDriver::connect(&careful).await.unwrap();
    let warm = claim("a");
    asked_until_answered(&careful, &warm).await;
    let key = group.key_with("lockkit:lock:").await.unwrap().expect("it is held");
    plain.release(&warm).await.unwrap();
    let master = group.holder_of(&key).await.unwrap();
    let id = ask(master, &["CLUSTER", "MYID"]).await;
    let mut replica = None;
    for other in group.members().iter().filter(|it| it.addr() != master.addr()) {
        let nodes = ask(other, &["CLUSTER", "NODES"]).await;
        let own = nodes.text().lines().find(|line| line.contains("myself"));
        if own.is_some_and(|line| line.contains(id.text())) {
            replica = Some(other);
        }
        // For a minute, the master knows no other node.
        let other = ask(other, &["CLUSTER", "MYID"]).await;
        ask(master, &["CLUSTER", "FORGET", other.text()]).await;
    }
    ask(replica.expect("it has one"), &["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    while !ask(master, &["CLUSTER", "INFO"]).await.text().contains("cluster_state:fail") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let found = async {
        let held = claim("a");
        asked_until_answered(&plain, &held).await;
        plain.release(&held).await.unwrap();
        // The connections for replicas have a table of their own. The new master has no replica.
        let asked = async || careful.acquire(&claim("a"), Patience::Try).await;
        while !asked().await.is_err_and(|error| error.to_string().contains("replicas")) {}
    };
    tokio::time::timeout(LONG, found).await.expect("the replica serves");
}

/// Asks until the driver has found the server that now counts; gives up requests that hang.
async fn asked_until_answered(driver: &RedisDriver, claim: &Arc<Claim>) -> Acquisition {
    loop {
        let asked = driver.acquire(claim, Patience::Wait);
        match tokio::time::timeout(Duration::from_millis(500), asked).await {
            Ok(Ok(answered)) => return answered.result,
            Ok(Err(error)) => assert!(error.is_retryable(), "{error}"),
            Err(_) => {}
        }
    }
}

/// One address, behind which another server can be put for connections that come from now on: those
/// that are open stay where they are.
struct VirtualAddress {
    addr: SocketAddr,
    target: watch::Sender<SocketAddr>,
}

impl VirtualAddress {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (target, now) = watch::channel(server.addr());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let target = *now.borrow();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { addr, target }
    }

    /// Commands go to the other server from now on, and nobody's subscription notices.
    async fn take_over(&self, old: &Server, new: &Server) {
        while listeners(old).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.target.send_replace(new.addr());
        ask(old, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    }
}

async fn ask(server: &Server, words: &[&str]) -> RespReply {
    resp::ask(server.addr(), words).await.unwrap()
}

/// How long it takes until a waiter learns that the holder, another client, has released.
async fn hand_over(giver: &RedisDriver, next: &RedisDriver) -> Duration {
    let [holder, waiter] = [(); 2].map(|()| lasting("a", Duration::from_secs(30)));
    let granted = asked_until_answered(giver, &holder).await;
    assert!(matches!(granted, Acquisition::Granted(_)), "{granted:?}");
    let queued = asked_until_answered(next, &waiter).await;
    assert!(matches!(queued, Acquisition::Queued { .. }), "{queued:?}");
    let released = async {
        // A waiter looks once at the beginning; then it waits for a message, or polls.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = Instant::now();
        giver.release(&holder).await.unwrap();
        begun
    };
    let (granted, begun) = tokio::join!(next.granted(&waiter), released);
    granted.unwrap();
    begun.elapsed()
}

/// The subscription's connection is as good as ever, and the server at its end answers: only a message
/// sent where commands go shows that nobody publishes there any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_at_another_server_than_commands_is_found_out_at_a_reconnection() {
    // A message that does not arrive is waited for for a second, and waiters poll meanwhile. The best of
    // three: on a busy machine polling may take as long.
    let mut took = Duration::MAX;
    for _ in 0..3 {
        took = took.min(hand_over_after_a_reconnection().await);
        if took < Duration::from_millis(500) {
            return;
        }
    }
    panic!("{took:?}");
}

async fn hand_over_after_a_reconnection() -> Duration {
    let (old, new) =
        (Server::start(ServerKind::Redis).await, Server::start(ServerKind::Redis).await);
    let (old, new) = (old.unwrap(), new.unwrap());
    let address = VirtualAddress::before(&old).await;
    let url = |addr| format!("redis://{addr}?timeout=30s");
    let next = RedisDriver::connect(&url(address.addr)).await.unwrap();
    address.take_over(&old, &new).await;
    let giver = RedisDriver::connect(&url(new.addr())).await.unwrap();
    hand_over(&giver, &next).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_at_another_server_is_found_out_although_nobody_sees_the_reconnection() {
    let (old, new) =
        (Server::start(ServerKind::Redis).await, Server::start(ServerKind::Redis).await);
    let (old, new) = (old.unwrap(), new.unwrap());
    let address = VirtualAddress::before(&old).await;
    let client = Client::open(format!("redis://{}", address.addr)).unwrap();
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(LONG));
    let manager = ConnectionManager::new_with_config(client.clone(), config).await.unwrap();
    let options = RedisOptions::default().timeout(LONG);
    let next = options.connection_manager(manager, client).await.unwrap();
    address.take_over(&old, &new).await;
    let giver = RedisDriver::connect(&new.url()).await.unwrap();
    let took = hand_over(&giver, &next).await;
    // Messages are proved to arrive every 5 s; the lease of the one ahead would last for 30.
    assert!(took < Duration::from_secs(15), "{took:?}");
    // It subscribes where commands go.
    while listeners(&new).await < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn listeners(server: &Server) -> usize {
    match ask(server, &["PUBSUB", "CHANNELS", "lockkit:wake:*"]).await {
        RespReply::Array(channels) => channels.len(),
        other => panic!("{other:?}"),
    }
}

/// The sentinels cannot demote the old master, which stood still for a while and lives on: it answers
/// on the subscription, and nobody publishes there any more.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_waiters_are_told_although_the_old_master_lives_on() {
    let group = Group::start(Layout::RedisSentinel).await.unwrap();
    let url = format!("{}?timeout=30s", group.url());
    let [giver, next] = [RedisDriver::connect(&url).await, RedisDriver::connect(&url).await];
    let (giver, next) = (giver.unwrap(), next.unwrap());
    for driver in [&giver, &next] {
        asked_until_answered(driver, &claim("warm")).await;
    }
    let old = &group.members()[0];
    resp::ask(old.addr(), &["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]).await.unwrap();
    // Both subscribe by now, and nobody has reason to ask again soon.
    old.freeze().await;
    resp::ask(group.sentinels()[0].addr(), &["SENTINEL", "FAILOVER", "main"]).await.unwrap();
    for sentinel in group.sentinels() {
        loop {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"];
            let named = resp::ask(sentinel.addr(), &words).await.unwrap();
            let RespReply::Array(address) = named else { panic!("an address") };
            if address[1].text() == group.members()[1].addr().port().to_string() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // Both are at the new master by now.
    for driver in [&giver, &next] {
        asked_until_answered(driver, &claim("warm")).await;
    }
    old.thaw();
    resp::ask(old.addr(), &["PING"]).await.unwrap();
    let took = hand_over(&giver, &next).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let role = resp::ask(old.addr(), &["ROLE"]).await.unwrap();
    assert!(format!("{role:?}").contains("master"), "the old master lives on: {role:?}");
}

/// `REPLICAOF` while a lock is asked for: an error that stays for who meets the server first, a wait for who
/// has written there or set a limit.
#[tokio::test]
async fn a_replica_is_an_error_at_first_contact_and_waited_for_otherwise() {
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let manager = || async { LockManager::new(RedisDriver::connect(&server.url()).await.unwrap()) };
    let (written, fresh) = (manager().await, manager().await);
    written.mutex("a").lock().await.unwrap().release().await.unwrap();
    resp::ask(server.addr(), &["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    for error in [
        fresh.mutex("a").try_lock().await.unwrap_err(),
        fresh.mutex("a").lock().await.unwrap_err(),
        fresh.register("r").store(b"value").await.unwrap_err(),
    ] {
        assert!(error.is_read_only() && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains("standby"), "{error}");
    }
    let error = written.mutex("a").try_lock().await.unwrap_err();
    assert!(error.is_read_only() && error.is_retryable(), "{error}");
    let (mine, limited) = (written.mutex("mine"), fresh.mutex("limited"));
    let waiting = tokio::spawn(async move { mine.lock().await.unwrap() });
    let limited = tokio::spawn(async move { limited.try_lock_for(LONG).await.unwrap().unwrap() });
    while written.outage().is_none() || fresh.outage().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!waiting.is_finished() && !limited.is_finished());
    resp::ask(server.addr(), &["REPLICAOF", "NO", "ONE"]).await.unwrap();
    for granted in [waiting, limited] {
        let guard = tokio::time::timeout(LONG, granted).await.expect("it takes writes").unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_sentinel_that_hangs_costs_no_time() {
    let group = Group::start(Layout::RedisSentinel).await.unwrap();
    let url = format!("{}?timeout=300ms", group.url());
    for hangs in group.sentinels() {
        hangs.freeze().await;
        let mut took = Vec::new();
        // A machine that stalls may make one late, never all of them.
        for _ in 0..10 {
            let begun = Instant::now();
            if RedisDriver::connect(&url).await.is_ok() {
                took.push(begun.elapsed());
            }
        }
        let best = took.iter().min();
        assert!(best.is_some_and(|it| *it < Duration::from_millis(200)), "{took:?}");
        hangs.thaw();
    }
    for silent in group.sentinels() {
        silent.freeze().await;
    }
    let error = RedisDriver::connect(&url).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    group.sentinels().iter().for_each(Server::thaw);
}

/// It names another server than the others do, one that is alive and takes itself for the master.
#[tokio::test]
async fn a_sentinel_that_is_cut_off_with_an_old_master_is_outvoted() {
    let (group, old) =
        (Group::start(Layout::RedisSentinel).await, Group::start(Layout::RedisSentinel).await);
    let (group, old) = (group.unwrap(), old.unwrap());
    let sentinels = [&old.sentinels()[0], &group.sentinels()[1], &group.sentinels()[2]];
    let hosts: Vec<_> = sentinels.iter().map(|it| it.addr().to_string()).collect();
    for turn in 0..3 {
        let mut hosts = hosts.clone();
        hosts.rotate_left(turn);
        let url = format!("redis+sentinel://{}/main?timeout=30s", hosts.join(","));
        let driver = RedisDriver::connect(&url).await.unwrap();
        let held = claim("a");
        driver.acquire(&held, Patience::Try).await.unwrap();
        let keys = ["KEYS", "lockkit:lock:*"];
        let at_old = resp::ask(old.members()[0].addr(), &keys).await.unwrap();
        assert_eq!(at_old, RespReply::Array(Vec::new()), "{hosts:?}");
        driver.release(&held).await.unwrap();
    }
}
