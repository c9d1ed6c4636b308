//! Older data are put back while clients hold, wait, watch and are idle.
//!
//! Nothing of promises 1 and 2 is left then: what came since is gone, and tokens go back. The server
//! refuses clients that have seen more than it has, so their sessions end; but no client hangs, and
//! who lost a lock hears of it.

use std::fs;
use std::process::Command;
use std::time::Duration;

use lockkit_core::LockManager;
use lockkit_lab::{Data, Server, ServerKind};

use crate::stage::{children, client, manager, soon, until};

const TTL: Duration = Duration::from_secs(6);

fn copy(from: &str, to: &str) {
    let done = Command::new("cp").args(["-r", from, to]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

struct Backup {
    data: String,
    copy: String,
}

impl Backup {
    async fn take(server: &Server) -> Self {
        let at = |name: &str| server.folder().join(name).to_str().unwrap().to_owned();
        let (data, saved) = (at(&format!("{}/data", server.name())), at("backup"));
        server.kill().await;
        copy(&data, &saved);
        server.restart(Data::Keep).await.unwrap();
        Self { data, copy: saved }
    }

    async fn put_back(&self, server: &Server) {
        server.kill().await;
        fs::remove_dir_all(&self.data).unwrap();
        copy(&self.copy, &self.data);
        server.restart(Data::Keep).await.unwrap();
    }
}

async fn use_it(locks: &LockManager) {
    let guard = soon("the lock", locks.mutex("idle").lock()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn who_holds_waits_watches_or_is_idle_while_older_data_are_put_back_goes_on_or_hears_of_it() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let ours = manager(server.addr(), TTL).await;
    ours.register("r").store("old").await.unwrap();
    ours.latch("l", 1).reset(1).await.unwrap();
    let backup = Backup::take(&server).await;
    let (ours, idle) = (manager(server.addr(), TTL).await, manager(server.addr(), TTL).await);
    use_it(&idle).await;
    let stored = ours.register("r").store("new").await.unwrap();
    let held = ours.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = idle.mutex("a");
        async move { lock.lock().await }
    });
    let register = tokio::spawn({
        let register = idle.register("r");
        async move { register.changed(Some(stored)).await }
    });
    let latch = tokio::spawn({
        let latch = idle.latch("l", 1);
        async move { latch.wait().await }
    });
    let admin = client(&server).await;
    until("a waiter", || async { children(&admin, "/lockkit/n-/lock/a").await.len() == 2 }).await;
    drop(admin);
    backup.put_back(&server).await;
    soon("word of the loss", held.lost()).await;
    assert!(held.token().is_err());
    drop(held);
    let next = soon("the lock of which nothing is known", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
    let entry = soon("the register as it was", register).await.unwrap().unwrap();
    assert_eq!(entry.expect("it is in the backup").value, b"old");
    assert!(!latch.is_finished());
    let fresh = manager(server.addr(), TTL).await;
    fresh.latch("l", 1).count_down().await.unwrap();
    soon("the latch", latch).await.unwrap().unwrap();
    use_it(&idle).await;
    use_it(&ours).await;
}
