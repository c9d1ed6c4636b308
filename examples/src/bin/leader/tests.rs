//! The leader loses its term: another leads with a greater token, and one that has not noticed stores
//! nothing any more.

use std::time::Duration;

use lockkit::testing::{self, TestControl};
use lockkit::{Error, LockManager, LossReason, Token};

use super::lead;

/// Returns once somebody leads under this address, with its token and the tick that it has stored.
async fn led_by(control: &TestControl, address: &str) -> (Token, u64) {
    let election = control.others().election("scheduler");
    loop {
        let leader = election.leader().await.unwrap();
        let stored = control.others().register("ticks").load().await.unwrap();
        if let (Some(leader), Some(stored)) = (leader, stored)
            && leader.value.as_deref() == Some(address)
            && stored.token == Some(leader.token)
        {
            return (leader.token, String::from_utf8_lossy(&stored.value).parse().unwrap());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn spawn(locks: &LockManager, address: &'static str) -> tokio::task::JoinHandle<Result<(), Error>> {
    let locks = locks.clone();
    tokio::spawn(async move { lead(&locks, address).await })
}

#[tokio::test(start_paused = true)]
async fn a_term_that_is_lost_goes_to_the_next_who_counts_on() {
    let (locks, control) = testing::locks();
    let _one = spawn(&locks, "one");
    let (first, tick) = led_by(&control, "one").await;
    let _two = spawn(control.others(), "two");
    tokio::time::sleep(Duration::from_millis(100)).await; // which passes once it is in line
    assert!(control.lose("scheduler", LossReason::Expired).await);
    let (second, later) = led_by(&control, "two").await;
    assert!(second > first && later > tick, "{second} after {first}, {later} after {tick}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_not_noticed_stores_nothing_after_its_successor() {
    let (locks, control) = testing::locks();
    let one = spawn(&locks, "one");
    led_by(&control, "one").await;
    let other = control.overtake("scheduler").await.unwrap();
    let ticks = control.others().register("ticks");
    ticks.store_with(&other, "1000").await.unwrap();
    let ended = one.await.unwrap().unwrap_err();
    assert!(matches!(ended, Error::Stale { .. } | Error::Conflict { .. }), "{ended}");
    assert_eq!(ticks.load().await.unwrap().unwrap().value, b"1000");
}
