//! Locks in ZooKeeper beside the bare calls of equal effect through the same client, beside that
//! client's own lock and kazoo's; behind 10 ms each way, in round trips; and by count: what a
//! release costs when a thousand wait, and a renewal of ten thousand locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use lockkit::driver::{LockDriver, Patience};
use lockkit::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::proxy::Protocol;
use lockkit_lab::raw::zookeeper::four_letters;
use lockkit_lab::{Proxy, Server, ServerKind};
use lockkit_zk::zookeeper_client::{Acls, Client, CreateMode, CreateOptions, LockPrefix};
use lockkit_zk::{ZkDriver, ZkOptions};

const TASKS: usize = 64;
const LATENCY: Duration = Duration::from_millis(10);
/// For messages that follow an answer and nobody waits for.
const SETTLE: Duration = Duration::from_millis(500);

async fn driver(addr: impl ToString) -> ZkDriver {
    let options = ZkOptions::new(addr.to_string()).tick(Duration::from_millis(500));
    ZkDriver::connect_with(options).await.unwrap()
}

fn options(mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(Acls::anyone_all())
}

/// What a lock cannot do without: a node in line, a look at the line, and the node's removal.
async fn bare_pair(client: &Client, folder: &str) {
    let path = format!("{folder}/x-0123456789abcdef0123456789abcdef-");
    let ephemeral = options(CreateMode::EphemeralSequential);
    let created = client.create(&path, b"{}", &ephemeral);
    let listed = client.list_children(folder);
    let (created, listed) = tokio::join!(created, listed);
    assert_eq!(listed.unwrap().len(), 1);
    client.delete(&format!("{path}{}", created.unwrap().1), None).await.unwrap();
}

async fn pair(locks: &LockManager, name: &str) {
    locks.mutex(name).lock().await.unwrap().release().await.unwrap();
}

/// Through the client's own recipe. It gives the lock back in the background.
async fn peers_pair(client: &Client, folder: &str) {
    let prefix = LockPrefix::new_curator(folder, "lock").unwrap();
    drop(client.lock(prefix, b"{}", Acls::anyone_all()).await.unwrap());
}

async fn beside_bare_calls(server: &Server) {
    let locks = LockManager::new(driver(server.addr()).await);
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let folders: Vec<_> = (0..TASKS).map(|n| format!("/bare/{n}")).collect();
    for folder in &folders {
        client.mkdir(folder, &options(CreateMode::Persistent)).await.unwrap();
    }
    let names: Vec<_> = (0..TASKS).map(|n| format!("lock/{n}")).collect();
    let what = "zookeeper, 1 task, beside create+list and delete";
    lockkit_bench::ratio(
        what,
        100,
        async || pair(&locks, &names[0]).await,
        async || bare_pair(&client, &folders[0]).await,
    )
    .await;
    let what = "zookeeper, 64 tasks (of which one is counted), beside create+list and delete";
    lockkit_bench::ratio(
        what,
        8,
        async || drop(join_all(names.iter().map(|name| pair(&locks, name))).await),
        async || drop(join_all(folders.iter().map(|folder| bare_pair(&client, folder))).await),
    )
    .await;
    let what = "zookeeper, 1 task, beside the client's lock()";
    lockkit_bench::ratio(
        what,
        100,
        async || pair(&locks, &names[0]).await,
        async || peers_pair(&client, &folders[0]).await,
    )
    .await;
    let what = "zookeeper, 64 tasks (of which one is counted), beside the client's lock()";
    lockkit_bench::ratio(
        what,
        8,
        async || drop(join_all(names.iter().map(|name| pair(&locks, name))).await),
        async || drop(join_all(folders.iter().map(|folder| peers_pair(&client, folder))).await),
    )
    .await;
    beside_kazoo(server, &locks).await;
    locks.shutdown().await;
}

const KAZOO: &str = "
import sys, time
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start()
lock = client.Lock('/kazoo')
with lock: pass
begun = time.monotonic()
for _ in range(300):
    with lock: pass
print(300 / (time.monotonic() - begun))
client.stop()
";

async fn beside_kazoo(server: &Server, locks: &LockManager) {
    let mut python = tokio::process::Command::new("/usr/bin/python3");
    let output = python.args(["-c", KAZOO, &server.addr().to_string()]).output().await;
    let said = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let Some(theirs) = said.and_then(|said| said.trim().parse::<f64>().ok()) else {
        return println!("zookeeper, kazoo: not installed");
    };
    let begun = Instant::now();
    for _ in 0..300 {
        pair(locks, "beside kazoo").await;
    }
    let ours = 300.0 / begun.elapsed().as_secs_f64();
    println!("zookeeper, 1 task: {ours:.0}/s beside {theirs:.0}/s of kazoo");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn behind_latency(server: &Server) {
    let (one, two) = (proxied(server).await, proxied(server).await);
    let (mut bare, mut acquired, mut handed_over) = (Vec::new(), Vec::new(), Vec::new());
    let client = Client::connect(&one.1.addr().to_string()).await.unwrap();
    for proxy in [&one.1, &two.1] {
        proxy.latency(LATENCY);
    }
    for n in 0..31 {
        let begun = Instant::now();
        let made = client.create("/bare/one", b"{}", &options(CreateMode::Ephemeral)).await;
        bare.push(begun.elapsed());
        made.unwrap();
        client.delete("/bare/one", None).await.unwrap();
        let begun = Instant::now();
        let guard = one.0.mutex("latency").lock().await.unwrap();
        acquired.push(begun.elapsed());
        let waiting = tokio::spawn({
            let locks = two.0.clone();
            async move {
                let guard = locks.mutex("latency").lock().await.unwrap();
                (Instant::now(), guard)
            }
        });
        tokio::time::sleep(10 * LATENCY).await; // it stands in line and watches
        let begun = Instant::now();
        // The release goes one way in, and the word of it one way out.
        let releasing = tokio::spawn(guard.release());
        let (knows, guard) = waiting.await.unwrap();
        if n > 0 {
            handed_over.push(knows - begun);
        }
        releasing.await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
    // One way in and one way out, with what the server and the proxy's timers add to that.
    let (trip, acquired, over) = (median(bare), median(acquired), median(handed_over));
    let trips = |time: Duration| time.as_secs_f64() / trip.as_secs_f64();
    println!("zookeeper, behind 10 ms each way, a bare create takes {trip:?}");
    println!("zookeeper, acquire: {acquired:?}, {:.2} of these", trips(acquired));
    println!("zookeeper, hand-over: {over:?}, {:.2} of these", trips(over));
}

async fn proxied(server: &Server) -> (LockManager, Proxy) {
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    (LockManager::new(driver(proxy.addr()).await), proxy)
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let long = Duration::from_secs(600);
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, long, long, identity))
}

async fn a_thousand_waiters(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = Arc::new(driver(proxy.addr()).await);
    let claims: Vec<_> = (0..1000).map(|_| claim("crowded")).collect();
    let mut waiting = Vec::new();
    for claim in &claims {
        driver.acquire(claim, Patience::Wait).await.unwrap();
        let (driver, claim) = (driver.clone(), claim.clone());
        waiting.push(tokio::spawn(async move { driver.granted(&claim).await.unwrap() }));
    }
    tokio::time::sleep(4 * SETTLE).await;
    let watches = four_letters(server.addr(), "wchs").await.unwrap_or_default();
    println!("zookeeper, 1,000 waiters: {}", watches.replace('\n', "; "));
    let mut requests = Vec::new();
    let mut pushes = Vec::new();
    for (claim, next) in claims.iter().zip(waiting.drain(..).skip(1)).take(21) {
        proxy.reset();
        driver.release(claim).await.unwrap();
        next.await.unwrap();
        tokio::time::sleep(SETTLE / 5).await;
        requests.push(proxy.counts().requests);
        pushes.push(proxy.counts().pushes);
    }
    requests.sort_unstable();
    pushes.sort_unstable();
    println!(
        "zookeeper, 1,000 waiters, a release: {} requests, {} events",
        requests[10], pushes[10]
    );
    driver.close().await;
}

async fn ten_thousand_held(server: &Server) {
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = driver(proxy.addr()).await;
    let claims: Vec<_> = (0..10_000).map(|n| claim(&format!("held/{n}"))).collect();
    for some in claims.chunks(200) {
        let taken = some.iter().map(|claim| driver.acquire(claim, Patience::Wait));
        try_join_all(taken).await.unwrap();
    }
    proxy.reset();
    let begun = Instant::now();
    driver.renew(&claims).await.unwrap();
    let (took, counts) = (begun.elapsed(), proxy.counts());
    println!("zookeeper, 10,000 held locks, a tick: {} requests, {took:?}", counts.requests);
    driver.close().await;
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
        beside_bare_calls(&server).await;
        behind_latency(&server).await;
        a_thousand_waiters(&server).await;
        ten_thousand_held(&server).await;
    });
}
