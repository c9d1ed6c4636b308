//! One contended lock within a driver: the scenes of the lab, and what a hand-over between two processes costs.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{BreakMode, Renewal};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::handover::{ContendedLock, soon};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};

const LONG: Duration = Duration::from_secs(300);

/// A server, and a lock of a driver behind a proxy.
async fn proxied() -> (Server, ContendedLock) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let driver = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    (server, ContendedLock::new(Arc::new(driver), proxy, LONG, LONG / 2))
}

#[tokio::test]
async fn a_hand_over_within_a_process_is_one_request_and_no_message() {
    let (_server, lock) = proxied().await;
    lock.costs_one_request_within_a_process().await;
}

#[tokio::test]
async fn a_hand_over_between_two_processes_is_six_requests_and_two_messages_at_most() {
    const ROUNDS: u64 = 100;
    let (server, lock) = proxied().await;
    let other = EtcdDriver::connect(&server.url_at(lock.proxy.addr())).await.unwrap();
    let counts = lock.between_two_processes(Arc::new(other), ROUNDS).await;
    // The hand-over, the move to the lease of a holder, and four changes of watches: two begin and two end.
    // (At times a waiter watches earlier than it would have to.)
    assert!((6 * ROUNDS - 5..=6 * ROUNDS + ROUNDS / 2).contains(&counts.requests), "{counts:?}");
    // That the key ahead was deleted; and that the next one holds now, to a waiter that watches it already.
    assert!((ROUNDS..=2 * ROUNDS).contains(&counts.pushes), "{counts:?}");
}

#[tokio::test]
async fn a_release_by_itself_lets_the_next_claim_hold_with_its_own_answer() {
    let (_server, lock) = proxied().await;
    lock.a_release_grants_with_its_answer().await;
}

/// Its lease as a waiter is half as long.
#[tokio::test]
async fn the_next_claim_holds_for_its_hold_ttl() {
    let (_server, lock) = proxied().await;
    let holder = lock.hold().await;
    let waiter = lock.wait().await;
    lock.release_soon(&holder).await;
    let (next, grant) = waiter.until_granted().await;
    assert_eq!(grant.ttl, LONG);
    let renewed = lock.driver.renew_single(&next).await.unwrap();
    assert!(matches!(renewed, Renewal::Holds(grant) if grant.ttl == LONG), "{renewed:?}");
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
    let other = EtcdDriver::connect(&server.url()).await.unwrap();
    lock.a_break_ends_that_claim_only(&other, &[BreakMode::Forced, BreakMode::Graceful]).await;
}

#[tokio::test]
async fn a_holder_that_others_end_is_missed_by_the_waiter_of_its_own_driver() {
    let (server, lock) = proxied().await;
    let other = EtcdDriver::connect(&server.url()).await.unwrap();
    lock.a_holder_that_others_end_is_missed(&other).await;
}

#[tokio::test]
async fn a_waiter_reads_the_queue_when_the_answer_that_would_have_granted_it_is_lost() {
    let (_server, lock) = proxied().await;
    lock.a_lost_answer_is_made_up_for().await;
}

/// The claim ahead gave up, and no answer says that it did. (Core releases it again, which is not to be
/// relied on: a waiter that waits for a claim that is not there any more waits for ever.)
#[tokio::test]
async fn a_waiter_does_not_rely_on_a_claim_whose_release_got_no_answer() {
    let (_server, lock) = proxied().await;
    let holder = lock.hold().await;
    let [gives_up, last] = [lock.wait().await, lock.wait().await];
    gives_up.granted.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut struck = lock.proxy.fault(ProxyFault::Mute, When::Request(1));
    let released = lock.driver.release(&gives_up.claim);
    let (released, ()) = tokio::join!(released, soon("the fault", struck.struck()));
    assert!(released.is_err(), "it was answered: {released:?}");
    lock.proxy.heal().await.unwrap();
    lock.release_soon(&holder).await;
    last.until_granted().await;
}
