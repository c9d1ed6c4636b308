//! The sequence by which ZooKeeper orders claims is a signed 32-bit number. At its end it wraps, or
//! (version 3.8) stays what it is, so that many claims have the same one. Here a server reaches that
//! point, since its data is changed while it is down.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, SetLimit};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space, Token};
use lockkit_lab::{Data, Server, ServerKind};
use lockkit_zk::zookeeper_client::{Acls, Client, CreateMode};
use lockkit_zk::{ZkDriver, ZkOptions};

const FOLDER: &str = "/lockkit/n-/lock/a";
const PATIENCE: Duration = Duration::from_secs(90);

async fn locks(server: &Server) -> LockManager {
    let options = ZkOptions::new(server.addr().to_string()).tick(Duration::from_millis(500));
    LockManager::new(ZkDriver::connect_with(options).await.unwrap())
}

/// The snapshot that a server wrote last.
fn last_snapshot(server: &Server) -> PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![server.folder().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            match path.extension().and_then(|zxid| i64::from_str_radix(zxid.to_str()?, 16).ok()) {
                _ if path.is_dir() => folders.push(path),
                Some(zxid) if path.file_stem().is_some_and(|stem| stem == "snapshot") => {
                    found.push((zxid, path));
                }
                _ => {}
            }
        }
    }
    found.into_iter().max().expect("there is a snapshot").1
}

/// Makes a snapshot say that so many children were created below this path.
fn set_created(snapshot: &Path, path: &str, created: i32) {
    let mut bytes = std::fs::read(snapshot).unwrap();
    // A node: its path, its data, its ACL (8 bytes), and its numbers: czxid, mzxid, ctime, mtime (8
    // each), version, and how many children were created (4 each). All lengths come first.
    let name = [&(path.len() as u32).to_be_bytes(), path.as_bytes()].concat();
    let at = bytes.windows(name.len()).position(|window| window == name).expect("it is in there");
    let data = at + name.len();
    let length = i32::from_be_bytes(bytes[data..data + 4].try_into().unwrap()).max(0) as usize;
    let number = data + 4 + length + 8 + 4 * 8 + 4;
    bytes[number..number + 4].copy_from_slice(&created.to_be_bytes());
    // After the nodes: a checksum (8 bytes) of all before it, and "/". Then perhaps a digest (of
    // another kind, which is compared but not insisted on) with a checksum and "/" of its own.
    let slash = [0, 0, 0, 1, b'/'];
    let ends: Vec<_> =
        (0..bytes.len() - 4).filter(|&i| bytes[i..i + 5] == slash && i > number + 8).collect();
    let mut fixed = 0;
    for end in ends {
        let (before, stated) = (&bytes[..end - 8], &bytes[end - 8..end]);
        if stated[..4] == [0; 4] {
            let sum = u64::from(adler32(before)).to_be_bytes();
            bytes[end - 8..end].copy_from_slice(&sum);
            fixed += 1;
        }
    }
    assert!(fixed > 0, "no checksum was found");
    std::fs::write(snapshot, bytes).unwrap();
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// A server whose next claim on the lock `a` gets one of the last numbers, and the token that was
/// given last.
async fn near_the_end() -> (Server, Token) {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    // A driver removes the folders that it made itself.
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let folder = CreateMode::Container.with_acls(Acls::anyone_all());
    client.mkdir(FOLDER, &folder).await.unwrap();
    let before = locks(&server).await;
    let guard = before.mutex("a").lock().await.unwrap();
    let last = guard.token().unwrap();
    guard.release().await.unwrap();
    before.shutdown().await;
    come_near_the_end(&server, FOLDER).await;
    (server, last)
}

/// Lets the next claim in this folder get one of the last numbers.
async fn come_near_the_end(server: &Server, folder: &str) {
    // When it starts, it writes a snapshot of what it read.
    server.restart(Data::Keep).await.unwrap();
    server.kill().await;
    set_created(&last_snapshot(server), folder, i32::MAX - 3);
    server.restart(Data::Keep).await.unwrap();
}

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} never came"))
}

/// Returns when so many claims are in the queue.
async fn in_line(client: &Client, count: usize) {
    soon("a place in line", async {
        while client.list_children(FOLDER).await.unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn order_and_tokens_hold_across_the_end_of_the_sequence() {
    let (server, mut last) = near_the_end().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let managers = [locks(&server).await, locks(&server).await];
    // (A driver that does not know the folder makes sure that it is there.)
    let mut held = managers[0].mutex("a").lock().await.unwrap();
    assert!(held.token().unwrap() > last, "tokens do not wrap");
    last = held.token().unwrap();
    let mut waiting = Vec::new();
    for n in 0..6 {
        let mutex = managers[n % 2].mutex("a");
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
        in_line(&client, n + 2).await;
    }
    let mut names = client.list_children(FOLDER).await.unwrap();
    names.retain(|name| name.contains("-214748364"));
    assert_eq!(names.len(), 7, "the end is among them: {names:?}");
    for next in waiting {
        held.release().await.unwrap();
        held = soon("its turn", next).await.unwrap().unwrap();
        let token = held.token().unwrap();
        assert!(token > last, "in the order in which they came");
        last = token;
    }
    held.release().await.unwrap();
    // Once no client is there, the numbers begin again.
    let guard = managers[0].mutex("a").lock().await.unwrap();
    assert!(guard.token().unwrap() > last);
    let names = client.list_children(FOLDER).await.unwrap();
    assert!(names[0].ends_with("-0000000000"), "{names:?}");
}

/// The folder of a semaphore with a fixed limit never gets empty, so its numbers do not begin
/// again.
#[tokio::test]
async fn who_holds_on_below_a_lowered_limit_is_known_across_the_end_of_the_sequence() {
    const POOL: &str = "/lockkit/n-/semaphore/pool";
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let options = || ZkOptions::new(server.addr().to_string()).tick(Duration::from_millis(500));
    let pool = Key::new(Namespace::default(), Space::Semaphore, Name::new("pool").unwrap());
    let before = ZkDriver::connect_with(options()).await.unwrap();
    before.resize(&pool, SetLimit::To(3)).await.unwrap();
    before.close().await;
    come_near_the_end(&server, POOL).await;
    let driver = ZkDriver::connect_with(options()).await.unwrap();
    let me = Arc::new(ClientIdentity::of_this_process());
    let long = Duration::from_secs(300);
    let one = |limit| {
        let mode = Mode::Permits { permits: 1, limit };
        Arc::new(Claim::new(pool.clone(), mode, long, long, me.clone()))
    };
    let holding = async || {
        let state = driver.inspect(&pool).await.unwrap();
        let order: Vec<_> = state.queue.iter().map(|s| s.token).collect();
        assert!(order.is_sorted(), "in the order in which they came: {order:?}");
        (state.holders().count(), state.queue.len())
    };
    let claims: Vec<_> = (0..8).map(|_| one(3)).collect();
    for claim in &claims {
        driver.acquire(claim, Patience::Wait).await.unwrap();
    }
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let names = client.list_children(POOL).await.unwrap();
    assert!(names.iter().any(|name| name.contains("-214748364")), "the end is near: {names:?}");
    assert_eq!(holding().await, (3, 8));
    driver.resize(&pool, SetLimit::To(1)).await.unwrap();
    assert_eq!(holding().await, (3, 8), "nobody is evicted");
    driver.release(&claims[0]).await.unwrap();
    assert_eq!(holding().await, (2, 7), "nobody comes in");
    driver.resize(&pool, SetLimit::To(5)).await.unwrap();
    assert_eq!(holding().await, (5, 7));
    driver.resize(&pool, SetLimit::To(0)).await.unwrap();
    let last = driver.acquire(&one(0), Patience::Wait).await.unwrap().result;
    assert_eq!(last, Acquisition::Queued { ahead: 7 });
    assert_eq!(holding().await, (5, 8));
    for claim in &claims[1..6] {
        driver.release(claim).await.unwrap();
    }
    assert_eq!(holding().await, (0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_end_of_the_sequence_nobody_is_ever_inside_twice() {
    const TASKS: usize = 24;
    const ROUNDS: usize = 4;
    let (server, _) = near_the_end().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let managers = [locks(&server).await, locks(&server).await, locks(&server).await];
    let first = managers[0].mutex("a").lock().await.unwrap();
    let (inside, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..TASKS {
        let mutex = managers[n % 3].mutex("a");
        let (inside, last) = (inside.clone(), last.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                let token = guard.token().unwrap().get();
                assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    in_line(&client, TASKS + 1).await;
    first.release().await.unwrap();
    soon("the end", async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap()
        }
    })
    .await;
}
