//! `min_replicas` where a grant comes late, and in a cluster; on Redis 7.0, whose `WAIT` covers whatever
//! was written before, and on Valkey, whose `WAIT` covers what its own connection wrote.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Renewal};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space, Token};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{Group, Layout, Server, ServerKind, missing_valkey};
use lockkit_redis::RedisDriver;

/// Longer than any machine stands still.
const LONG: Duration = Duration::from_secs(30);

fn claim() -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
    let ttl = Duration::from_secs(300);
    Arc::new(Claim::new(key, Mode::Exclusive, ttl, ttl, ClientIdentity::of_this_process().into()))
}

async fn ask(server: &Server, words: &[&str]) -> RespReply {
    resp::ask(server.addr(), words).await.unwrap()
}

#[derive(Clone, Copy)]
enum On {
    Redis,
    Valkey,
}

impl On {
    async fn server(self) -> Server {
        match self {
            Self::Redis => Server::start(ServerKind::Redis).await.unwrap(),
            Self::Valkey => Server::start_valkey().await.unwrap(),
        }
    }

    async fn cluster(self) -> Group {
        let layout = Layout::RedisClusterWithReplicas;
        match self {
            Self::Redis => Group::start(layout).await.unwrap(),
            Self::Valkey => Group::start_valkey(layout).await.unwrap(),
        }
    }
}

/// Each test on both servers.
macro_rules! on_both {
    ($($test:ident $on_valkey:ident)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                with::$test(On::Redis).await;
            }

            #[tokio::test]
            async fn $on_valkey() {
                match missing_valkey() {
                    None => with::$test(On::Valkey).await,
                    Some(why) => eprintln!("skipped: {why}"),
                }
            }
        )*
    };
}

on_both! {
    a_renewal_that_replicas_do_not_have_fails_and_its_claim_is_not_given_back
    a_renewal_that_replicas_do_not_have_fails_on_valkey
    a_renewal_that_finds_the_claim_holding_does_not_count_before_replicas_have_it
    a_renewal_that_finds_the_claim_holding_does_not_count_on_valkey
    a_downgrade_or_a_raise_that_replicas_do_not_have_fails_and_its_claim_is_not_given_back
    a_downgrade_or_a_raise_that_replicas_do_not_have_fails_on_valkey
    a_grant_that_no_replica_has_is_given_back
    a_grant_that_no_replica_has_is_given_back_on_valkey
    a_grant_that_a_release_carries_does_not_count_before_replicas_have_it
    a_grant_that_a_release_carries_does_not_count_on_valkey
    in_a_cluster_it_is_the_replicas_of_the_locks_own_master_that_count
    in_a_cluster_it_is_the_replicas_of_the_locks_own_master_that_count_on_valkey
}

async fn master_and_replica(on: On) -> (Server, Server) {
    let (master, replica) = (on.server().await, on.server().await);
    ask(&replica, &["REPLICAOF", "127.0.0.1", &master.addr().port().to_string()]).await;
    while !ask(&master, &["INFO", "replication"]).await.text().contains("state=online") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (master, replica)
}

mod with {
    use super::*;

    pub(super) async fn a_grant_that_no_replica_has_is_given_back(on: On) {
        let (master, replica) = master_and_replica(on).await;
        let careful = format!("{}?timeout=2s&min_replicas=1", master.url());
        let careful = RedisDriver::connect(&careful).await.unwrap();
        replica.freeze().await;
        let held = claim();
        let error = careful.acquire(&held, Patience::Try).await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("replicas"), "{error}");
        while !careful.inspect(&held.key).await.unwrap().is_free() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) async fn a_grant_that_a_release_carries_does_not_count_before_replicas_have_it(
        on: On,
    ) {
        let (master, replica) = master_and_replica(on).await;
        let careful = format!("{}?timeout=2s&min_replicas=1", master.url());
        let careful = RedisDriver::connect(&careful).await.unwrap();
        let [held, waiter] = [claim(), claim()];
        while careful.acquire(&held, Patience::Wait).await.is_err() {}
        careful.acquire(&waiter, Patience::Wait).await.unwrap();
        replica.freeze().await;
        careful.release(&held).await.unwrap();
        let granted = tokio::time::timeout(LONG, careful.granted(&waiter)).await;
        let error = granted.expect("it is told").unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("replicas"), "{error}");
    }

    pub(super) async fn a_renewal_that_replicas_do_not_have_fails_and_its_claim_is_not_given_back(
        on: On,
    ) {
        let (master, replica) = master_and_replica(on).await;
        let careful = format!("{}?timeout=2s&min_replicas=1", master.url());
        let careful = RedisDriver::connect(&careful).await.unwrap();
        let held = claim();
        // One lock as a string, and one in which somebody waits.
        for waiting in [None, Some(claim())] {
            while careful.acquire(&held, Patience::Wait).await.is_err() {}
            if let Some(waiter) = &waiting {
                careful.acquire(waiter, Patience::Wait).await.unwrap();
            }
            while careful.renew_single(&held).await.is_err() {}
            replica.freeze().await;
            let error = careful.renew_single(&held).await.unwrap_err();
            assert!(error.is_retryable() && error.to_string().contains("replicas"), "{error}");
            let line = careful.inspect(&held.key).await.unwrap().queue;
            assert!(line[0].holds(), "{line:?}");
            if let Some(waiter) = &waiting {
                let renewed = careful.renew(&[waiter.clone(), held.clone()]).await.unwrap();
                assert!(matches!(renewed[0], Ok(Renewal::Waits { ahead: 1 })), "{renewed:?}");
                assert!(renewed[1].is_err(), "{renewed:?}");
            }
            replica.thaw();
            let renewed = loop {
                match careful.renew_single(&held).await {
                    Ok(renewed) => break renewed,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            };
            assert!(matches!(renewed, Renewal::Holds(_)), "{renewed:?}");
        }
    }

    pub(super) async fn a_downgrade_or_a_raise_that_replicas_do_not_have_fails_and_its_claim_is_not_given_back(
        on: On,
    ) {
        let (master, replica) = master_and_replica(on).await;
        let careful = format!("{}?timeout=2s&min_replicas=1", master.url());
        let careful = RedisDriver::connect(&careful).await.unwrap();
        let held = claim();
        while careful.acquire(&held, Patience::Wait).await.is_err() {}
        let higher = Token::new(1_000_000_000_000_000_000).unwrap();
        replica.freeze().await;
        for changed in [careful.raise(&held, higher).await, careful.downgrade(&held).await] {
            let error = changed.unwrap_err();
            assert!(error.is_retryable() && error.to_string().contains("replicas"), "{error}");
        }
        let queue = careful.inspect(&held.key).await.unwrap().queue;
        assert!(queue[0].holds() && queue[0].token == higher, "{queue:?}");
        replica.thaw();
        for changes in 0..2 {
            let changed = loop {
                let changed = match changes {
                    0 => careful.raise(&held, higher).await,
                    _ => careful.downgrade(&held).await,
                };
                match changed {
                    Ok(changed) => break changed,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            };
            let holds = matches!(changed, Renewal::Holds(grant) if grant.token == higher);
            assert!(holds, "{changed:?}");
        }
    }

    pub(super) async fn a_renewal_that_finds_the_claim_holding_does_not_count_before_replicas_have_it(
        on: On,
    ) {
        let (master, replica) = master_and_replica(on).await;
        let plain = RedisDriver::connect(&format!("{}?timeout=30s", master.url())).await.unwrap();
        let careful = format!("{}?timeout=120s&min_replicas=1", master.url());
        let careful = RedisDriver::connect(&careful).await.unwrap();
        let (holder, waiter) = (claim(), claim());
        plain.acquire(&holder, Patience::Wait).await.unwrap();
        careful.acquire(&waiter, Patience::Wait).await.unwrap();
        replica.freeze().await;
        plain.release(&holder).await.unwrap();
        // It holds by now, as far as the master knows.
        let renewed = careful.renew_single(&waiter).await.unwrap();
        assert_eq!(renewed, Renewal::Waits { ahead: 0 });
        replica.thaw();
        let granted = tokio::time::timeout(2 * LONG, careful.granted(&waiter)).await;
        let granted = granted.expect("the replica is back").unwrap();
        let renewed = careful.renew_single(&waiter).await.unwrap();
        assert!(matches!(renewed, Renewal::Holds(grant) if grant.token == granted.token));
    }

    pub(super) async fn in_a_cluster_it_is_the_replicas_of_the_locks_own_master_that_count(on: On) {
        let group = on.cluster().await;
        let patient = RedisDriver::connect(&format!("{}?timeout=30s", group.url())).await.unwrap();
        let careful = format!("{}?timeout=16s&min_replicas=1", group.url());
        let careful = RedisDriver::connect(&careful).await.unwrap();
        let first = claim();
        let granted = careful.acquire(&first, Patience::Try).await.unwrap().result;
        assert!(matches!(granted, Acquisition::Granted(_)), "{granted:?}");
        careful.release(&first).await.unwrap();
        for member in group.members() {
            let RespReply::Array(role) = ask(member, &["ROLE"]).await else { panic!("a role") };
            if role[0].text() == "slave" {
                member.freeze().await;
            }
        }
        let error = careful.acquire(&claim(), Patience::Try).await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("replicas"), "{error}");
        // Given back, at the latest when the release that it sent has arrived.
        while !patient.inspect(&first.key).await.unwrap().is_free() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
