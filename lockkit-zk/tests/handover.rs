//! One contended lock within a driver: the scenes of the lab, and what a hand-over between two processes costs.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use lockkit_core::driver::{Batch, BreakMode, Released, Renewal};
use lockkit_lab::handover::{ContendedLock, soon};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, ServerKind, SharedServer};
use lockkit_zk::{ZkDriver, ZkOptions};

const LONG: Duration = Duration::from_secs(60);

async fn driver(hosts: String) -> ZkDriver {
    let options =
        ZkOptions::new(hosts).ttl(Duration::from_secs(6)).tick(Duration::from_millis(500));
    ZkDriver::connect_with(options).await.unwrap()
}

/// A server, and a lock of a driver behind a proxy.
async fn proxied() -> (SharedServer, ContendedLock) {
    let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::ZooKeeper).await.unwrap();
    let driver = driver(proxy.addr().to_string()).await;
    (server, ContendedLock::new(Arc::new(driver), proxy, LONG, LONG))
}

#[tokio::test]
async fn a_hand_over_within_a_process_is_one_request_and_no_message() {
    let (_server, lock) = proxied().await;
    lock.costs_one_request_within_a_process().await;
}

#[tokio::test]
async fn a_hand_over_between_two_processes_is_six_requests_and_one_message() {
    const ROUNDS: u64 = 100;
    let (_server, lock) = proxied().await;
    let other = driver(lock.proxy.addr().to_string()).await;
    let counts = lock.between_two_processes(Arc::new(other), ROUNDS).await;
    // The hand-over, two lists, two watches, and the end of one.
    assert!((6 * ROUNDS - 10..=6 * ROUNDS + ROUNDS / 10).contains(&counts.requests), "{counts:?}");
    assert!((ROUNDS - 2..=ROUNDS + 2).contains(&counts.pushes), "{counts:?}");
}

#[tokio::test]
async fn a_release_by_itself_lets_the_next_claim_hold_with_its_own_answer() {
    let (_server, lock) = proxied().await;
    lock.a_release_grants_with_its_answer().await;
}

#[tokio::test]
async fn a_waiter_that_gives_up_with_the_holder_is_passed_over() {
    let (_server, lock) = proxied().await;
    lock.a_waiter_that_leaves_with_the_holder_is_passed_over().await;
}

#[tokio::test]
async fn a_waiter_behind_one_that_gives_up_waits_for_the_holder() {
    let (_server, lock) = proxied().await;
    lock.a_waiter_behind_one_that_leaves_waits_for_the_holder().await;
}

#[tokio::test]
async fn a_break_of_a_claim_of_the_chain_breaks_that_claim_only() {
    let (server, lock) = proxied().await;
    let other = driver(server.addr().to_string()).await;
    lock.a_break_ends_that_claim_only(&other, &[BreakMode::Forced]).await;
}

#[tokio::test]
async fn a_holder_that_others_end_is_missed_by_the_waiter_of_its_own_driver() {
    let (server, lock) = proxied().await;
    let other = driver(server.addr().to_string()).await;
    lock.a_holder_that_others_end_is_missed(&other).await;
}

#[tokio::test]
async fn a_waiter_reads_the_queue_when_the_answer_that_would_have_granted_it_is_lost() {
    let (_server, lock) = proxied().await;
    lock.a_lost_answer_is_made_up_for().await;
}

/// The claims ahead gave up, and no answer says that they did. (Core releases them again, which is not to be
/// relied on: a waiter that waits for a claim that is not there any more waits for ever.)
#[tokio::test]
async fn a_waiter_does_not_rely_on_a_claim_whose_release_got_no_answer() {
    let (_server, lock) = proxied().await;
    let holder = lock.hold().await;
    let mut leaving = Vec::new();
    for _ in 0..2 {
        let waiter = lock.wait().await;
        waiter.granted.abort();
        leaving.push(waiter.claim);
    }
    let last = lock.wait().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut struck = lock.proxy.fault(ProxyFault::Cut, When::Answer(1));
    let batch = Batch { releases: &leaving, acquires: &[] };
    let (outcome, ()) = tokio::join!(lock.driver.submit(batch), soon("the fault", struck.struck()));
    let released = outcome.unwrap().released;
    assert!(released.iter().all(Result::is_err), "they were answered: {released:?}");
    lock.release_soon(&holder).await;
    last.until_granted().await;
}

/// The queue was read before the release was carried out, and the answer to the release came before it was
/// judged.
#[tokio::test]
async fn a_renewal_whose_read_is_older_than_the_hand_over_says_that_the_claim_holds() {
    let (_server, lock) = proxied().await;
    let (holder, next) = (lock.hold().await, lock.wait().await);
    let claims = [next.claim.clone()];
    let mut renewing = pin!(lock.driver.renew(&claims));
    // Its requests leave now, and it hears of no answer before the release is over.
    assert!(poll!(renewing.as_mut()).is_pending());
    let released = soon("the release", lock.driver.release(&holder)).await;
    assert_eq!(released.unwrap(), Released::Removed);
    let renewed = renewing.await.unwrap();
    assert!(matches!(renewed[..], [Ok(Renewal::Holds(_))]), "{renewed:?}");
    next.until_granted().await;
}
