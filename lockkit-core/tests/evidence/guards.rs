//! Guards. Leases last 30 s and are renewed after 10 s. What is due soon is renewed along with what is
//! due, so locks that are to be renewed apart have leases of different lengths.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::{Guard, LockManager, LossReason, Margin};
use tokio::time::{Instant, advance, sleep, sleep_until};

use super::server::Server;
use super::{SECOND, settings};

const TTL: Duration = Duration::from_secs(30);

/// The second lock's: renewed after 30 s.
const LONG: Duration = Duration::from_secs(90);

/// How long after evidence put claims in doubt they are renewed, at most; then some, for the timer.
const AT_ONCE: Duration = Duration::from_millis(1_050);

fn locks() -> (Server, LockManager) {
    let server = Server::new();
    let locks = LockManager::with(Arc::new(server.clone()), settings()).unwrap();
    (server, locks)
}

/// How long an answer that a claim holds is trusted.
fn trusted(ttl: Duration) -> Duration {
    ttl - Margin::default().of(ttl)
}

/// Two locks, which have been renewed together; the first is about to be renewed without the second.
async fn two(server: &Server, locks: &LockManager) -> (Guard, Guard) {
    let begun = Instant::now();
    let first = locks.mutex("first").lock().await.unwrap();
    let second = locks.mutex("second").ttl(LONG).lock().await.unwrap();
    sleep_until(begun + 29 * SECOND).await;
    let sizes: Vec<_> = server.renewals().iter().map(|(_, names)| names.len()).collect();
    assert_eq!(sizes, [1, 2]);
    (first, second)
}

#[tokio::test(start_paused = true)]
async fn evidence_without_a_change_changes_nothing() {
    let (server, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    sleep(105 * SECOND).await;
    assert_eq!(server.renewals().len(), 10, "one a third of the ttl");
    let left = trusted(TTL) - 5 * SECOND;
    assert!(guard.remaining() > left - SECOND && guard.remaining() <= left);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_clock_is_fast_is_trusted_for_as_long_as_its_lease_lasts_here() {
    // Twice as fast, an answer takes back what the one before it was trusted for.
    for (rate, later) in [(1.5, 3), (2.0, 4)] {
        let (server, locks) = locks();
        server.runs_at(rate);
        let guard = locks.mutex("a").lock().await.unwrap();
        // The second answer shows it.
        sleep(20 * SECOND + SECOND / 10).await;
        let fast = trusted(TTL.div_f64(rate));
        assert!(guard.remaining() <= fast && guard.remaining() > fast - SECOND, "{guard:?}");
        let renewals = server.renewals().len();
        sleep(20 * SECOND).await;
        assert!(renewals == 2 && server.renewals().len() == later, "now 6.7 s and 5 s apart");
        assert!(guard.is_valid());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_and_a_step_back_shorten_nothing() {
    for slow in [true, false] {
        let (server, locks) = locks();
        let guard = locks.mutex("a").lock().await.unwrap();
        sleep(15 * SECOND).await;
        match slow {
            true => server.runs_at(0.2),
            false => server.steps(-3_600),
        }
        for _ in 0..30 {
            sleep(SECOND).await;
            let least = trusted(TTL) - 11 * SECOND;
            assert!(guard.remaining() > least, "slow: {slow}, {guard:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_run_has_what_the_old_one_answered_renewed_at_once() {
    let (server, locks) = locks();
    let (first, second) = two(&server, &locks).await;
    server.becomes("two");
    sleep(SECOND + AT_ONCE).await;
    let renewals = server.renewals();
    let names: Vec<_> = renewals.iter().map(|(_, names)| names.concat()).collect();
    assert_eq!(names, ["first", "second"]);
    assert!(first.remaining() > trusted(TTL) - 2 * SECOND, "its own answer holds");
    assert!(second.remaining() > trusted(LONG) - 2 * SECOND, "its own answer holds");
    sleep(60 * SECOND).await;
    assert!(first.is_valid() && second.is_valid());
}

#[tokio::test(start_paused = true)]
async fn many_claims_in_doubt_are_renewed_in_one_request() {
    let (server, locks) = locks();
    let mut guards = vec![locks.mutex("first").lock().await.unwrap()];
    for i in 0..50 {
        guards.push(locks.mutex(format!("other{i}")).ttl(LONG).lock().await.unwrap());
        advance(SECOND / 100).await;
    }
    sleep(28 * SECOND).await; // all were renewed after 20 s
    server.renewals();
    server.becomes("two");
    sleep(5 * SECOND).await;
    let sizes: Vec<_> = server.renewals().iter().map(|(_, names)| names.len()).collect();
    assert_eq!(sizes, [1, 50]);
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_that_gets_no_answer_is_trusted_for_a_third_of_its_ttl() {
    let (server, locks) = locks();
    let (first, second) = two(&server, &locks).await;
    server.becomes("two");
    server.answers("second", false);
    sleep(SECOND + SECOND / 100).await;
    assert!(second.remaining() <= LONG / 3, "{second:?}");
    let changed = Instant::now();
    assert_eq!(second.lost().await, LossReason::ServerChanged);
    let after = changed.elapsed();
    assert!(after > LONG / 3 - SECOND && after <= LONG / 3, "{after:?}");
    assert!(first.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_is_trusted_as_before_after_its_own_answer() {
    let (server, locks) = locks();
    let (_first, second) = two(&server, &locks).await;
    server.becomes("two");
    server.answers("second", false);
    sleep(5 * SECOND).await;
    assert!(second.remaining() <= LONG / 3);
    server.answers("second", true);
    sleep(2 * SECOND).await;
    assert!(second.remaining() > trusted(LONG) - 2 * SECOND, "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_another_server_does_not_have_is_lost_to_that() {
    let (server, locks) = locks();
    let (first, second) = two(&server, &locks).await;
    server.becomes("two");
    server.lacks("first");
    server.lacks("second");
    assert_eq!(first.lost().await, LossReason::ServerChanged);
    let seen = Instant::now();
    assert_eq!(second.lost().await, LossReason::ServerChanged);
    assert!(seen.elapsed() <= AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn a_position_that_went_back_is_another_server() {
    let (server, locks) = locks();
    server.goes_back_to(500);
    let (_first, second) = two(&server, &locks).await;
    server.goes_back_to(400);
    server.lacks("second");
    let restored = Instant::now();
    assert_eq!(second.lost().await, LossReason::ServerChanged);
    assert!(restored.elapsed() <= SECOND + AT_ONCE, "{:?}", restored.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_time_has_other_claims_renewed_at_once_and_no_more() {
    let (server, locks) = locks();
    let (first, second) = two(&server, &locks).await;
    server.steps(25);
    server.answers("second", false);
    sleep(SECOND + SECOND / 100).await;
    let left = second.remaining();
    assert!(left > trusted(LONG) - 12 * SECOND, "its deadline is as it was: {left:?}");
    server.renewals();
    sleep(AT_ONCE).await;
    assert!(server.renewals().iter().any(|(_, names)| names.contains(&"second".to_owned())));
    assert!(first.is_valid());
    server.lacks("second");
    server.answers("second", true);
    assert_eq!(second.lost().await, LossReason::ClockJump);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_it_holds_never_ends_a_guard() {
    let (server, locks) = locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..20 {
        sleep(2 * SECOND).await;
        server.steps(3_600);
        assert!(guard.is_valid(), "{guard:?}");
    }
    sleep(120 * SECOND).await;
    assert!(guard.remaining() > trusted(TTL) - 11 * SECOND, "three pairs later it is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_fast_clock_is_one_jump_and_no_storm_of_renewals() {
    let (server, locks) = locks();
    let (_first, _second) = two(&server, &locks).await;
    server.runs_at(1.4);
    sleep(300 * SECOND).await;
    // The first lock's are 7.1 s apart, the second's 21 s.
    let renewals = server.renewals().len();
    assert!(renewals <= 2 * 300 / 7 + 2, "{renewals}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_renewed_keeps_its_deadline() {
    let (server, locks) = locks();
    let _renewed = locks.mutex("first").lock().await.unwrap();
    sleep(11 * SECOND).await;
    let fixed = locks.mutex("second").auto_renew(false).lock().await.unwrap();
    server.becomes("two");
    sleep(12 * SECOND).await;
    assert!(fixed.remaining() > trusted(TTL) - 13 * SECOND, "{fixed:?}");
}
