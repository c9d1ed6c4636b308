//! Redlock as published: `SET NX PX` at most of several servers in turn, a validity of the ttl less
//! what that took and less the drift. It gives no token; and it counts on members that keep their
//! clocks and their data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_core::LockManager;
use lockkit_core::driver::LockDriver;
use lockkit_lab::raw::resp::RespConnection;
use lockkit_lab::{Data, Server};
use lockkit_redis::RedisDriver;

use crate::scene::{AFTERWARDS, LONG, Resource, answered, manager, overtake, server};

const LOCK: &str = "redlock";
const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('DEL', KEYS[1]) end return 0";

/// Takes the lock, and says until when it is valid.
async fn take(members: &[Server], id: &str) -> Option<Instant> {
    let (begun, lease) = (Instant::now(), LONG.as_millis().to_string());
    let mut taken = 0;
    for member in members {
        let words = ["SET", LOCK, id, "NX", "PX", &lease];
        taken += usize::from(ask(member, &words).await.as_deref() == Some("OK"));
    }
    let drift = LONG / 100 + Duration::from_millis(2);
    let valid_until = begun + LONG - drift;
    if 2 * taken > members.len() && Instant::now() < valid_until {
        return Some(valid_until);
    }
    for member in members {
        ask(member, &["EVAL", DELETE, "1", LOCK, id]).await;
    }
    None
}

/// A member that is down says nothing.
async fn ask(member: &Server, words: &[&str]) -> Option<String> {
    let reply = RespConnection::open(member.addr()).await.ok()?.call(words).await.ok()?;
    Some(reply.text().to_owned())
}

async fn members() -> [Server; 3] {
    let members = [server().await, server().await, server().await];
    for member in &members {
        // A restart loses no write that was acknowledged: lockkit's quorum would give the member no vote.
        ask(member, &["CONFIG", "SET", "appendfsync", "always"]).await.unwrap();
        ask(member, &["CONFIG", "REWRITE"]).await.unwrap();
    }
    members
}

/// A client of lockkit's quorum over the same members. A member may take its time: one that seemed
/// to be away when the quorum began would be taken for one that lost its data.
async fn quorum(members: &[Server]) -> LockManager {
    let mut drivers: Vec<Arc<dyn LockDriver>> = Vec::new();
    for member in members {
        drivers.push(Arc::new(RedisDriver::connect(&member.url()).await.unwrap()));
    }
    let options = QuorumOptions::default().max_ttl(LONG).member_limit(LONG);
    manager(Arc::new(QuorumDriver::new(drivers, options).unwrap()))
}

/// Two clients of the quorum. A lock was held, so that every member bears its sign.
async fn two_clients(members: &[Server]) -> (LockManager, LockManager) {
    let (a, b) = (quorum(members).await, quorum(members).await);
    drop(a.mutex("before").lock().await.unwrap());
    (a, b)
}

#[tokio::test]
async fn with_redlock_a_holder_that_stood_still_writes_over_the_one_after_it() {
    let members = members().await;
    let valid_until = take(&members, "a").await.unwrap();
    assert!(Instant::now() < valid_until, "it looks, as it should; and then it stands still");
    for member in &members {
        member.move_clock(AFTERWARDS).unwrap();
    }
    assert!(take(&members, "b").await.is_some());
    let mut resource = Resource::default();
    assert!(resource.write(None));
    assert!(resource.write(None), "the write that it had begun is accepted");

    let (a, b) = two_clients(&members).await;
    overtake(&a, &b, LOCK).await.does_no_harm(&a).await;
}

#[tokio::test]
async fn with_redlock_a_clock_that_steps_at_one_member_makes_two_majorities() {
    let members = members().await;
    let (a, b) = two_clients(&members).await;
    members[2].kill().await;
    assert!(take(&members, "a").await.is_some());
    let first = a.mutex(LOCK).lock().await.unwrap();
    let stale = first.token().unwrap();

    members[2].restart(Data::Keep).await.unwrap();
    members[1].move_clock(AFTERWARDS).unwrap();
    assert!(take(&members, "b").await.is_some(), "two hold");
    let mut resource = Resource::default();
    assert!(resource.write(None) && resource.write(None), "and both write");

    // A quorum cannot see a step either. But the majorities share a member, which knows the token.
    let second = b.mutex(LOCK).lock().await.unwrap();
    let mut resource = Resource::default();
    assert!(resource.write(Some(second.token().unwrap())));
    assert!(!resource.write(Some(stale)), "the write of the first is refused");
    let verified = answered(async || first.verify().await).await;
    verified.expect_err("the first one learns of it with its next renewal");
    answered(async || second.verify().await).await.expect("the second one holds");
}

#[tokio::test]
async fn with_redlock_a_member_that_comes_back_empty_makes_two_majorities() {
    let members = members().await;
    let (a, b) = two_clients(&members).await;
    members[2].kill().await;
    assert!(take(&members, "a").await.is_some());
    let first = a.mutex(LOCK).lock().await.unwrap();
    let token = first.token().unwrap();

    members[1].restart(Data::Lose).await.unwrap();
    members[2].restart(Data::Keep).await.unwrap();
    assert!(take(&members, "b").await.is_some(), "two hold");

    // With lockkit an empty member has no vote until all leases that it forgot are over.
    let second = b.mutex(LOCK).try_lock().await;
    assert!(!matches!(second, Ok(Some(_))), "one majority at a time: {second:?}");
    let verified = answered(async || first.verify().await).await;
    assert_eq!(verified.unwrap(), token, "the first one holds");
}
