//! `SET NX PX` with a random value, and a script that deletes the key if it still has that value
//! (or a server's own compare-and-delete). Sound as far as one server goes; but a holder that is
//! late does not know, a failover forgets, nobody stands in line.

use std::time::Duration;

use lockkit_core::{LockManager, Space};
use lockkit_lab::proxy::{Protocol, Proxy, ProxyFault, When};
use lockkit_lab::raw::resp::{self, RespConnection, RespReply};
use lockkit_lab::{Server, ServerKind};

use crate::scene::{
    AFTERWARDS, LONG, Resource, answered, ask, client, gets_in, lockkit, overtake, server,
};

const LOCK: &str = "compared";
const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('DEL', KEYS[1]) end return 0";

async fn take(redis: &mut RespConnection, id: &str) -> bool {
    let lease = LONG.as_millis().to_string();
    ask(redis, &["SET", LOCK, id, "NX", "PX", &lease]).await.text() == "OK"
}

async fn release(redis: &mut RespConnection, id: &str) -> bool {
    ask(redis, &["EVAL", DELETE, "1", LOCK, id]).await == RespReply::Number(1)
}

#[tokio::test]
async fn with_compare_and_delete_a_holder_that_stood_still_writes_over_the_one_after_it() {
    let server = server().await;
    let (mut paused, mut second) = (client(&server).await, client(&server).await);
    let mut resource = Resource::default();
    assert!(take(&mut paused, "a").await);
    server.move_clock(AFTERWARDS).unwrap();
    assert!(take(&mut second, "b").await);
    assert!(resource.write(None));
    assert!(resource.write(None), "nothing tells the write of the one that stood still");
    assert!(!release(&mut paused, "a").await, "that it was late shows at its release");

    let (a, b) = (lockkit(&server).await, lockkit(&server).await);
    overtake(&a, &b, LOCK).await.does_no_harm(&a).await;
}

#[tokio::test]
async fn with_compare_and_delete_who_asks_at_the_right_moment_overtakes_who_came_first() {
    let server = server().await;
    let (mut holder, mut first) = (client(&server).await, client(&server).await);
    let mut late = client(&server).await;
    assert!(take(&mut holder, "a").await);
    assert!(!take(&mut first, "b").await, "it is to ask again after a pause");
    assert!(release(&mut holder, "a").await);
    assert!(take(&mut late, "c").await, "within that pause");
    assert!(!take(&mut first, "b").await);

    let (a, b, c) = (lockkit(&server).await, lockkit(&server).await, lockkit(&server).await);
    let guard = a.mutex(LOCK).lock().await.unwrap();
    let first = waiting(&b, 2).await;
    drop(guard);
    assert!(gets_in(&c, LOCK).await.is_none(), "it does not overtake");
    assert!(first.await.unwrap().unwrap().is_valid(), "first come, first served");
}

/// Somebody who waits, once so many are in line.
async fn waiting(
    locks: &LockManager,
    in_line: usize,
) -> tokio::task::JoinHandle<Result<lockkit_core::Guard, lockkit_core::Error>> {
    let lock = locks.mutex(LOCK);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let look = async || locks.inspect(Space::Lock, LOCK).await;
    while answered(look).await.unwrap().queue.len() < in_line {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    waiting
}

#[tokio::test]
async fn with_compare_and_delete_a_failover_to_a_replica_that_lags_makes_two_holders() {
    let (master, replica) = (server().await, Server::start(ServerKind::Redis).await.unwrap());
    let way = Proxy::start(master.addr(), Protocol::Unknown).await.unwrap();
    follow(&replica, &way).await;
    way.fault(ProxyFault::BlackHole, When::Now);
    let a = lockkit(&master).await;
    let before = a.mutex(LOCK).lock().await.unwrap();
    let stale = before.token().unwrap();
    assert!(take(&mut client(&master).await, "a").await);

    master.kill().await;
    resp::ask(replica.addr(), &["REPLICAOF", "NO", "ONE"]).await.unwrap();
    let mut resource = Resource::default();
    assert!(take(&mut client(&replica).await, "b").await, "two hold");
    assert!(resource.write(None) && resource.write(None), "and both write");

    // So it is with lockkit: no lock on one server survives the loss of what it wrote. But the
    // later token is greater.
    let b = lockkit(&replica).await;
    let after = gets_in(&b, LOCK).await.expect("the replica knows of no lock");
    let mut resource = Resource::default();
    assert!(resource.write(Some(after.token().unwrap())));
    assert!(!resource.write(Some(stale)), "the write of the one before is refused");
}

/// Makes a replica, and returns once it has what its master has.
async fn follow(replica: &Server, master: &Proxy) {
    let (host, port) = (master.addr().ip().to_string(), master.addr().port().to_string());
    resp::ask(replica.addr(), &["REPLICAOF", &host, &port]).await.unwrap();
    loop {
        let info = resp::ask(replica.addr(), &["INFO", "replication"]).await.unwrap();
        if info.text().contains("master_link_status:up") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
