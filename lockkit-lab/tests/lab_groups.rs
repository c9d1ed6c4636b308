//! The lab's groups of servers: each layout starts, knows its leader, gets a new
//! one when that is killed, takes a member back with and without its data, and
//! leaves nothing.

mod lab_memory;

use std::time::{Duration, Instant};

use lab_memory::{recalls, remember};
use lockkit_lab::raw::{resp, zookeeper};
use lockkit_lab::{Data, Group, LabError, Layout, Rift, Server, ServerKind, processes_in};

const PATIENCE: Duration = Duration::from_secs(120);

async fn survives_its_leader(layout: Layout) {
    let since = Instant::now();
    let group = Group::start(layout).await.unwrap();
    eprintln!("{layout:?}: start {:.0?}", since.elapsed());
    group.hurry().await.unwrap();
    let kind = layout.kind();
    let leader = group.leader().await.unwrap();
    remember(kind, leader.addr()).await.unwrap();
    until_recalled_by_all(&group).await;

    let since = Instant::now();
    leader.kill().await;
    let next = group.leader().await.unwrap();
    eprintln!("{layout:?}: another leader {:.0?} after SIGKILL", since.elapsed());
    // A machine that stalls must not make the old leader the new one again: then it would be the
    // leader that loses its data below, and Redis would have them nowhere.
    group.calm().await.unwrap();
    assert_ne!(next.addr(), leader.addr());
    until_recalled_by(next).await;

    let since = Instant::now();
    leader.restart(Data::Keep).await.unwrap();
    group.complete().await.unwrap();
    eprintln!("{layout:?}: complete again {:.0?}", since.elapsed());
    let since = Instant::now();
    assert_ne!(group.leader().await.unwrap().addr(), leader.addr());
    leader.restart(Data::Lose).await.unwrap();
    group.complete().await.unwrap();
    until_recalled_by_all(&group).await;
    eprintln!("{layout:?}: complete again without data {:.0?}", since.elapsed());

    group.hurry().await.unwrap();
    let since = Instant::now();
    let frozen = group.leader().await.unwrap();
    frozen.freeze().await;
    let next = group.leader().await.unwrap();
    eprintln!("{layout:?}: another leader {:.0?} after SIGSTOP", since.elapsed());
    assert_ne!(next.addr(), frozen.addr());

    let folder = frozen.folder().to_owned();
    drop(group);
    assert!(processes_in(&folder).is_empty() && !folder.exists());
}

async fn until_recalled_by_all(group: &Group) {
    for member in group.members() {
        until_recalled_by(member).await;
    }
}

async fn until_recalled_by(member: &Server) {
    let since = Instant::now();
    loop {
        match recalls(member.kind(), member.addr()).await {
            Ok(true) => return,
            other if since.elapsed() > PATIENCE => panic!("{member:?} recalls: {other:?}"),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test]
async fn redis_under_sentinels_survives_its_master() {
    survives_its_leader(Layout::RedisSentinel).await;
}

#[tokio::test]
async fn a_zookeeper_ensemble_survives_its_leader() {
    survives_its_leader(Layout::ZooKeeperEnsemble).await;
}

#[tokio::test]
async fn an_etcd_cluster_survives_its_leader() {
    survives_its_leader(Layout::EtcdCluster).await;
}

#[tokio::test]
async fn a_redis_cluster_divides_its_keys_and_announces_proxies() {
    let since = Instant::now();
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    eprintln!("RedisCluster: start {:.0?}", since.elapsed());
    assert!(matches!(group.leader().await, Err(LabError::Unsupported { .. })));
    let mut holders = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        let holder = group.holder_of(key).await.unwrap();
        assert_eq!(resp::ask(holder.addr(), &["SET", key, key]).await.unwrap().text(), "OK");
        holders.push(holder.addr());
    }
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), 3);

    group.announce(0, 4321).await.unwrap();
    let known = resp::ask(group.members()[0].addr(), &["CLUSTER", "SLOTS"]).await.unwrap();
    assert!(format!("{known:?}").contains("Number(4321)"), "{known:?}");

    let since = Instant::now();
    let member = &group.members()[1];
    member.restart(Data::Keep).await.unwrap();
    group.complete().await.unwrap();
    eprintln!("RedisCluster: complete again {:.0?}", since.elapsed());
    member.restart(Data::Lose).await.unwrap();
    group.complete().await.unwrap();
    assert_eq!(resp::ask(member.addr(), &["DBSIZE"]).await.unwrap(), resp::RespReply::Number(0));
    assert_eq!(group.members()[2].kind(), ServerKind::Redis);
}

/// Cuts off the leader, or a follower, of an ensemble: it answers for a while and then no more,
/// while the others go on, and knows everything once it is let back in.
async fn ensemble_without(leads: bool, rift: Rift) {
    let group = Group::start_divisible_ensemble(Duration::from_secs(5)).await.unwrap();
    let leader = group.leader().await.unwrap().addr();
    let mut members = group.members().iter();
    let alone = members.position(|member| leads == (member.addr() == leader)).unwrap();
    let addr = group.members()[alone].addr();
    let other = group.members().iter().map(Server::addr).find(|other| *other != addr).unwrap();
    let mut client = zookeeper::ZkConnection::open(addr).await.unwrap();

    group.cut_off(alone, rift).await.unwrap();
    let since = Instant::now();
    let mut answers = 0;
    while client.exists("/lab", false).await.is_ok_and(|known| !known) {
        answers += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(answers > 0, "clients reach it still");
    eprintln!("{rift:?}: one that is cut off answers for {:.1?}", since.elapsed());
    while remember(ServerKind::ZooKeeper, other).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eprintln!("{rift:?}: the others remember after {:.1?}", since.elapsed());
    assert!(zookeeper::ZkConnection::open(addr).await.is_err(), "it serves alone");
    assert_ne!(group.leader().await.unwrap().addr(), addr);

    group.rejoin();
    group.complete().await.unwrap();
    let since = Instant::now();
    until_recalled_by_all(&group).await;
    eprintln!("{rift:?}: and it knows everything {:.1?} after it was let in", since.elapsed());
}

#[tokio::test]
async fn a_zookeeper_follower_that_is_cut_off_answers_for_a_while_and_then_no_more() {
    ensemble_without(false, Rift::Silent).await;
}

#[tokio::test]
async fn a_zookeeper_leader_that_is_cut_off_answers_for_a_while_and_then_no_more() {
    ensemble_without(true, Rift::Silent).await;
    ensemble_without(true, Rift::OthersSee).await;
}

#[tokio::test]
async fn an_ensemble_that_was_not_started_for_it_cannot_be_divided() {
    let group = Group::start_calm_ensemble().await.unwrap();
    let cut = group.cut_off(0, Rift::Silent).await;
    assert!(matches!(cut, Err(LabError::Unsupported { .. })));
}

#[tokio::test]
async fn a_replica_of_a_cluster_takes_the_place_of_its_master() {
    let group = Group::start(Layout::RedisClusterWithReplicas).await.unwrap();
    group.hurry().await.unwrap();
    let holder = group.holder_of("a").await.unwrap();
    let mut connection = resp::RespConnection::open(holder.addr()).await.unwrap();
    connection.call(&["SET", "a", "b"]).await.unwrap();
    let synced = connection.call(&["WAIT", "1", "2000"]).await.unwrap();
    assert_eq!(synced, resp::RespReply::Number(1));
    holder.kill().await;
    let next = group.holder_of("a").await.unwrap();
    assert_ne!(next.addr(), holder.addr());
    assert_eq!(resp::ask(next.addr(), &["GET", "a"]).await.unwrap().text(), "b");
    holder.restart(Data::Keep).await.unwrap();
    group.complete().await.unwrap();
}

#[tokio::test]
async fn a_slot_moves_from_one_master_to_another_key_by_key() {
    let group = Group::start(Layout::RedisCluster).await.unwrap();
    let from = group.holder_of("{x}").await.unwrap().addr();
    for key in ["{x}1", "{x}2"] {
        resp::ask(from, &["SET", key, key]).await.unwrap();
    }
    let moving = group.begin_to_move("{x}").await.unwrap();
    assert!(moving.one_key().await.unwrap());
    assert_eq!(resp::ask(from, &["DBSIZE"]).await.unwrap(), resp::RespReply::Number(1));
    moving.finish().await.unwrap();
    assert_eq!(resp::ask(from, &["DBSIZE"]).await.unwrap(), resp::RespReply::Number(0));
    let to = group.holder_of("{x}").await.unwrap().addr();
    assert_ne!(from, to);
    assert_eq!(resp::ask(to, &["GET", "{x}2"]).await.unwrap().text(), "{x}2");
    assert!(group.key_with("x}").await.unwrap().is_some());
}
