//! Leaders that lost their majority and answer all the same, and those that are followed by others.

use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{BreakMode, ClaimEnd, LockDriver, Renewal};
use lockkit_core::{BreakRecord, ClientIdentity, LockManager, Settings};
use lockkit_etcd::etcd_client::Client;
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Group, Layout, Proxy, Rift};

use crate::stage::{claim, driver, renewed, take, until};

/// Above what the driver waits for an answer where there is another member to ask.
const LATE: Duration = Duration::from_millis(1_800);
const LONG: u64 = 60;

fn record() -> BreakRecord {
    let by = ClientIdentity::of_this_process();
    BreakRecord::from_parts(by, 1, None, false)
}

/// The stream of keep-alives is at a follower, all else is asked of the leader, which is cut off and
/// stands still while the others have another leader, at which the claim is broken. Then it wakes, and
/// lists the keys of leases as it knows them.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_does_not_believe_the_keys_that_a_leader_without_a_majority_lists() {
    let group = Group::start_divisible_cluster().await.unwrap();
    let leader = group.leader().await.unwrap().addr();
    let mut members: Vec<_> = (0..group.members().len()).collect();
    members.sort_by_key(|at| group.members()[*at].addr() != leader);
    let follower = group.members()[members[1]].addr();
    let proxy = Proxy::start(follower, Protocol::Grpc).await.unwrap();
    let ours = driver(&group.url_at(&[proxy.addr(), leader])).await;
    let near = driver(&group.url_at(&[follower])).await;
    let holder = claim("a", LONG, LONG);
    let token = take(&ours, &holder).await.token;
    let opened = renewed(&ours, &holder).await.unwrap();
    assert!(matches!(opened, Renewal::Holds(_)), "{opened:?}");
    proxy.fault(ProxyFault::Delay(LATE), When::Answer(1));
    ours.inspect(&holder.key).await.unwrap(); // by the leader, after the follower took its time
    proxy.heal().await.unwrap();

    let old = &group.members()[members[0]];
    group.cut_off(members[0], Rift::Silent).await.unwrap();
    old.freeze().await;
    until("the break", || async {
        let broken = near.break_claim(&holder.key, token, BreakMode::Graceful, &record()).await;
        matches!(broken, Ok(true))
    })
    .await;
    let broken = SteadyClock.now();
    old.thaw();
    until("word of the break", || async {
        match renewed(&ours, &holder).await {
            Ok(Renewal::Holds(grant)) => {
                let since = grant.start.moment().expect("leases are shared");
                assert!(since <= broken, "renewed {:?} after the break", since.since(broken));
                false
            }
            Ok(Renewal::Ended(ClaimEnd::Broken(_))) => true,
            Ok(other) => panic!("it is broken gracefully: {other:?}"),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                false
            }
        }
    })
    .await;
}

/// A change of leaders in the middle of a renewal costs that renewal a repetition or a retry.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_three_seconds_survives_three_elections() {
    let group = Group::start(Layout::EtcdCluster).await.unwrap();
    let ttl = Duration::from_secs(3);
    let settings = Settings::default().ttl(ttl).wait_ttl(ttl);
    let locks = LockManager::with(driver(&group.url()).await, settings).unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    for election in 1..=3 {
        let leader = group.leader().await.unwrap().addr();
        let mut client = Client::connect([leader.to_string()], None).await.unwrap();
        let me = client.status().await.unwrap().leader();
        let members = client.member_list().await.unwrap();
        let next = members.members().iter().map(|member| member.id()).find(|id| *id != me);
        client.move_leader(next.expect("there are three")).await.unwrap();
        // Renewed at the new leader, a few times.
        tokio::time::sleep(ttl).await;
        assert!(guard.is_valid(), "election {election}: {:?}", guard.loss());
        assert_ne!(group.leader().await.unwrap().addr(), leader, "election {election}");
    }
    guard.release().await.unwrap();
}
