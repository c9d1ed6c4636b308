//! What a program leaves behind that ends: nothing, if it shut its manager down.

use std::time::Duration;

use lockkit_lab::{Server, ServerKind};

use crate::stage::{children, client, manager, sessions, until};

const TTL: Duration = Duration::from_secs(30);

/// All nodes below this one but for containers that are empty.
async fn nodes(client: &lockkit_zk::zookeeper_client::Client, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    for child in children(client, path).await {
        let path = format!("{path}/{child}");
        let below = Box::pin(nodes(client, &path)).await;
        all.extend(below);
        if client.check_stat(&path).await.unwrap().is_some_and(|stat| stat.ephemeral_owner > 0) {
            all.push(path);
        }
    }
    all
}

#[test]
fn a_program_that_ends_right_after_its_shutdown_leaves_no_session_behind() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(ServerKind::ZooKeeper)).unwrap();
    let (client, before) = runtime.block_on(async {
        let client = client(&server).await;
        let before = sessions(&server).await;
        (client, before)
    });
    let program = tokio::runtime::Runtime::new().unwrap();
    program.block_on(async {
        let (ours, theirs) = (manager(server.addr(), TTL).await, manager(server.addr(), TTL).await);
        let guard = ours.mutex("a").lock().await.unwrap();
        let waiting = tokio::spawn({
            let lock = theirs.mutex("a");
            async move { lock.lock().await.unwrap() }
        });
        let line = "/lockkit/n-/lock/a";
        until("a waiter", || async { children(&client, line).await.len() == 2 }).await;
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        // A session of its own, and a guard that is held to the end.
        let _short = ours.mutex("b").ttl(TTL / 3).lock().await.unwrap();
        let _by_hand = ours.mutex("c").auto_renew(false).lock().await.unwrap();
        assert_eq!(sessions(&server).await.len(), before.len() + 3);
        ours.shutdown().await;
        theirs.shutdown().await;
    });
    program.shutdown_background();
    runtime.block_on(async {
        assert_eq!(sessions(&server).await, before);
        assert_eq!(nodes(&client, "/lockkit").await, [""; 0]);
        assert!(children(&client, "/lockkit/n-/lock").await.is_empty(), "its folders are gone");
    });
}

/// A program that just ends: its sessions and their nodes end by themselves.
#[test]
fn a_program_that_ends_without_a_word_leaves_nothing_beyond_its_sessions() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::start(ServerKind::ZooKeeper)).unwrap();
    let program = tokio::runtime::Runtime::new().unwrap();
    let locks = program.block_on(async {
        let locks = manager(server.addr(), Duration::from_secs(4)).await;
        std::mem::forget(locks.mutex("a").lock().await.unwrap());
        locks
    });
    program.shutdown_background();
    runtime.block_on(async {
        let client = client(&server).await;
        until("their end", || async { nodes(&client, "/lockkit").await.is_empty() }).await;
        until("its end", || async { sessions(&server).await.len() == 1 }).await;
    });
    drop(locks);
}
