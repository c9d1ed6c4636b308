//! The sequence by which ZooKeeper orders claims is a signed 32-bit number that wraps. Here a server
//! reaches that point, since its data is changed while it is down.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit_conformance::lab::{Data, Kind, Server};
use lockkit_core::LockManager;
use lockkit_zk::zookeeper_client::Client;
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

#[tokio::test]
async fn order_and_tokens_hold_across_the_wrap_of_the_sequence() {
    let server = Server::start(Kind::ZooKeeper).await.unwrap();
    let before = locks(&server).await;
    let guard = before.mutex("a").lock().await.unwrap();
    let mut last = guard.token().unwrap();
    guard.release().await.unwrap();
    before.shutdown().await;
    // When it starts, it writes a snapshot of what it read.
    server.restart(Data::Keep).await.unwrap();
    server.kill().await;
    set_created(&last_snapshot(&server), FOLDER, i32::MAX - 3);
    server.restart(Data::Keep).await.unwrap();

    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let managers = [locks(&server).await, locks(&server).await];
    let first = managers[0].mutex("a").lock().await.unwrap();
    assert!(first.token().unwrap() > last, "tokens do not wrap");
    last = first.token().unwrap();
    let mut waiting = Vec::new();
    for n in 0..6 {
        let mutex = managers[n % 2].mutex("a");
        waiting.push(tokio::spawn(async move { mutex.lock().await }));
        tokio::time::timeout(PATIENCE, async {
            while client.list_children(FOLDER).await.unwrap().len() < n + 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("it stands in line");
    }
    let mut names = client.list_children(FOLDER).await.unwrap();
    names.retain(|name| name.ends_with("--2147483648") || name.ends_with("-2147483647"));
    assert!(names.len() >= 2, "the wrap is among them: {names:?}");
    let mut held = first;
    for next in waiting {
        held.release().await.unwrap();
        held = tokio::time::timeout(PATIENCE, next).await.expect("its turn").unwrap().unwrap();
        let token = held.token().unwrap();
        assert!(token > last, "in the order in which they came");
        last = token;
    }
    held.release().await.unwrap();
}
