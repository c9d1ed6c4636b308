//! Older data are put back while clients hold, wait, watch and are idle.
//!
//! What holds then is nothing of promises 1 and 2: revisions go back, and tokens with them. But no
//! client hangs, and who lost a lock hears of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Key, LockManager, LossReason, Name, Namespace, Settings, Space};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::proxy::Protocol;
use lockkit_lab::{Data, Proxy, Server, ServerKind};

use crate::stage::{client, driver, keys, soon, until};

/// How the data come back.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A copy of the files: to clients the cluster is the same.
    Files,
    /// `etcdctl snapshot restore`, which makes another cluster.
    Snapshot,
}

struct Backup(Way, PathBuf);

fn data(server: &Server) -> PathBuf {
    server.folder().join(server.name()).join("data")
}

fn run(program: &str, args: &[&str]) {
    let done = Command::new(program).env("ETCDCTL_API", "3").args(args).output().unwrap();
    assert!(done.status.success(), "{program} {args:?}: {done:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the lab")
}

impl Backup {
    async fn take(server: &Server, way: Way) -> Self {
        let file = server.folder().join("backup");
        match way {
            Way::Files => {
                server.kill().await;
                run("cp", &["-r", text(&data(server)), text(&file)]);
                server.restart(Data::Keep).await.unwrap();
            }
            Way::Snapshot => {
                let at = server.addr().to_string();
                run("etcdctl", &["--endpoints", &at, "snapshot", "save", text(&file)]);
            }
        }
        Self(way, file)
    }

    async fn put_back(&self, server: &Server) {
        server.kill().await;
        let data = data(server);
        fs::remove_dir_all(&data).unwrap();
        match self.0 {
            Way::Files => run("cp", &["-r", text(&self.1), text(&data)]),
            Way::Snapshot => {
                let args = ["snapshot", "restore", text(&self.1), "--data-dir", text(&data)];
                run("etcdctl", &args);
            }
        }
        server.restart(Data::Keep).await.unwrap();
    }
}

/// Writes that have nothing to do with locks, each of which is a revision.
async fn write(server: &Server, times: usize) {
    let mut client = client(server).await;
    for _ in 0..times {
        client.put("elsewhere", "", None).await.unwrap();
    }
}

async fn manager(url: &str) -> LockManager {
    let ttl = Duration::from_secs(6);
    let settings = Settings::default().ttl(ttl).wait_ttl(ttl);
    LockManager::with(driver(url).await, settings).unwrap()
}

/// Waits for a latch, and for changes of a register and of a lock, in tasks.
struct Watchers {
    latch: tokio::task::JoinHandle<()>,
    register: tokio::task::JoinHandle<Option<Vec<u8>>>,
    lock: tokio::task::JoinHandle<bool>,
}

impl Watchers {
    async fn begin(locks: &LockManager, driver: Arc<EtcdDriver>) -> Self {
        let latch = locks.latch("l", 1);
        let latch = tokio::spawn(async move { latch.wait().await.unwrap() });
        let register = locks.register("r");
        let seen = register.load().await.unwrap().expect("it was stored").version;
        let register = tokio::spawn(async move {
            register.changed(Some(seen)).await.unwrap().map(|entry| entry.value)
        });
        let key = Key::new(Namespace::default(), Space::Lock, Name::new("held later").unwrap());
        let seen = driver.inspect(&key).await.unwrap();
        assert!(!seen.is_free());
        let lock =
            tokio::spawn(async move { driver.changed(&key, &seen).await.unwrap().is_free() });
        Self { latch, register, lock }
    }
}

/// Requests to watch, the streams that are open, and what passes over them: nothing more.
async fn quiet(proxy: &Proxy) {
    let mut before = None;
    while before != Some(proxy.counts()) {
        before = Some(proxy.counts());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Whether the data have passed the revisions that were seen, when clients see them.
async fn watched_states_are_read_again(way: Way, passed: bool) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let near = manager(&server.url()).await;
    near.register("r").store("old").await.unwrap();
    near.latch("l", 1).reset(1).await.unwrap();
    let backup = Backup::take(&server, way).await;
    write(&server, 100).await;
    near.register("r").store("new").await.unwrap();
    let holder = manager(&server.url()).await;
    let held = holder.mutex("held later").lock().await.unwrap();
    let url = server.url_at(proxy.addr());
    let (far, watching) = (manager(&url).await, driver(&url).await);
    let watchers = Watchers::begin(&far, watching).await;
    quiet(&proxy).await;
    proxy.refuse().await;
    backup.put_back(&server).await;
    if passed {
        write(&server, 300).await;
    }
    proxy.accept().await.unwrap();
    let value = soon("the register as it was", watchers.register).await.unwrap();
    assert_eq!(value.as_deref(), Some(&b"old"[..]), "{way:?}");
    assert!(soon("the lock as it was", watchers.lock).await.unwrap(), "{way:?}");
    assert!(!watchers.latch.is_finished());
    // (A manager that the backup does not disturb.)
    manager(&server.url()).await.latch("l", 1).count_down().await.unwrap();
    soon("the latch", watchers.latch).await.unwrap();
    drop(held);
}

#[tokio::test]
async fn states_are_watched_on_after_files_were_put_back() {
    watched_states_are_read_again(Way::Files, false).await;
}

#[tokio::test]
async fn states_are_watched_on_after_a_snapshot_was_restored() {
    watched_states_are_read_again(Way::Snapshot, false).await;
}

#[tokio::test]
async fn states_are_watched_on_though_the_revisions_have_passed_those_that_were_seen() {
    watched_states_are_read_again(Way::Files, true).await;
}

#[tokio::test]
async fn who_holds_waits_or_is_idle_while_a_snapshot_is_restored_goes_on_or_hears_of_it() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let locks = manager(&server.url()).await;
    let idle = manager(&server.url()).await;
    idle.mutex("idle").lock().await.unwrap().release().await.unwrap();
    let kept = locks.mutex("kept").lock().await.unwrap();
    let token = kept.token().unwrap();
    let backup = Backup::take(&server, Way::Snapshot).await;
    write(&server, 100).await;
    let lost = locks.mutex("lost").lock().await.unwrap();
    let waiting = |name: &'static str| {
        let locks = idle.clone();
        tokio::spawn(async move { locks.mutex(name).lock().await })
    };
    let (for_kept, for_lost) = (waiting("kept"), waiting("lost"));
    until("waiters", || async {
        keys(&server, "kept").await.len() == 2 && keys(&server, "lost").await.len() == 2
    })
    .await;
    backup.put_back(&server).await;
    let why = soon("word of the loss", lost.lost()).await;
    let known =
        matches!(why, LossReason::Vanished | LossReason::SessionEnded | LossReason::ServerChanged);
    assert!(known, "{why:?}");
    drop(lost);
    let next = soon("the lock of which nothing is known", for_lost).await.unwrap().unwrap();
    next.release().await.unwrap();
    // What was held when the backup was made is held.
    soon("an answer", async { while kept.verify().await.is_err() {} }).await;
    assert_eq!(kept.token().unwrap(), token);
    assert!(!for_kept.is_finished());
    kept.release().await.unwrap();
    let next = soon("its turn", for_kept).await.unwrap().unwrap();
    assert!(next.token().unwrap() > token, "that order is the backup's");
    next.release().await.unwrap();
    idle.mutex("idle").lock().await.unwrap().release().await.unwrap();
}
