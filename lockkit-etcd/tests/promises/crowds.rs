//! Many claims of one process share leases, streams and renewals: what one of them spoils costs
//! that one alone.

use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{LockDriver, Renewal};
use lockkit_core::{Guard, LockManager, Settings};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};

use crate::stage::{PATIENCE, claim, driver, keys, leases, soon, take, until};

async fn manager(url: &str, ttl: u64) -> LockManager {
    let settings = Settings::default().ttl(Duration::from_secs(ttl));
    let settings = settings.wait_ttl(Duration::from_secs(ttl));
    LockManager::with(driver(url).await, settings).unwrap()
}

async fn hold(locks: &LockManager, n: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for some in (0..n).collect::<Vec<_>>().chunks(500) {
        let lock = |i| async move { locks.mutex(format!("n{i}")).lock().await.unwrap() };
        guards.extend(join_all(some.iter().map(lock)).await);
    }
    guards
}

fn lost(guards: &[Guard]) -> Vec<String> {
    let lost = guards.iter().filter(|guard| !guard.is_valid());
    lost.map(|guard| format!("{}: {:?}", guard.name(), guard.loss())).collect()
}

/// Waits until all have been renewed so many times over.
async fn for_so_long(ttl: u64, times: u32) {
    tokio::time::sleep(Duration::from_secs(ttl) * times).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_lock_costs_six_thousand_others_nothing() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let locks = manager(&server.url(), 10).await;
    let guards = hold(&locks, 6_000).await;
    let before = leases(&server).await.len();
    let cancelled = locks.mutex("cancelled");
    let _ = tokio::time::timeout(Duration::from_micros(150), cancelled.lock()).await;
    for_so_long(10, 2).await;
    assert_eq!(lost(&guards), [""; 0]);
    assert_eq!(
        leases(&server).await.len(),
        before,
        "it was answered, so nobody has to leave a lease"
    );
    until("its end", || async { keys(&server, "cancelled").await.is_empty() }).await;
}

/// The same where the answer never comes: the lease that may carry a ghost is left by all.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_may_carry_a_ghost_is_left_by_thousands_and_none_is_lost() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let url = format!("etcd://{},{}", proxy.addr(), server.addr());
    let locks = manager(&url, 10).await;
    let guards = hold(&locks, 6_000).await;
    // The last claims are on the lease that the ghost gets, with up to 2,000 others.
    let lease = keys(&server, "n5999").await[0].lease();
    proxy.fault(ProxyFault::Mute, When::Request(1));
    {
        let ghost = locks.mutex("ghost");
        let _ = tokio::time::timeout(Duration::from_millis(100), ghost.lock()).await;
    }
    until("another lease", || async {
        assert_eq!(lost(&guards), [""; 0]);
        keys(&server, "n5999").await[0].lease() != lease
    })
    .await;
    for_so_long(10, 2).await;
    assert_eq!(lost(&guards), [""; 0]);
    until("its end", || async { keys(&server, "ghost").await.is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_lock_elsewhere_costs_neither_a_line_of_waiters_nor_its_holder_anything() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let locks = manager(&server.url(), 10).await;
    let holder = locks.mutex("a").lock().await.unwrap();
    let waiting = (0..800).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.mutex("a").lock().await.unwrap();
            let token = guard.token().unwrap();
            guard.release().await.unwrap();
            token
        })
    });
    let waiting: Vec<_> = waiting.collect();
    until("all in line", || async { keys(&server, "a").await.len() == 801 }).await;
    let line: Vec<_> = keys(&server, "a").await.iter().map(|kv| kv.create_revision()).collect();
    let _ = tokio::time::timeout(Duration::from_micros(150), locks.mutex("b").lock()).await;
    for_so_long(10, 1).await;
    assert!(holder.is_valid(), "{:?}", holder.loss());
    let still: Vec<_> = keys(&server, "a").await.iter().map(|kv| kv.create_revision()).collect();
    assert_eq!(still, line, "nobody lost its place");
    holder.release().await.unwrap();
    let tokens = soon("the last turn", join_all(waiting)).await;
    let mut tokens: Vec<_> = tokens.into_iter().map(|token| token.unwrap().get()).collect();
    tokens.sort_unstable();
    let line: Vec<_> = line.iter().map(|created| u64::try_from(*created).unwrap()).collect();
    assert_eq!(tokens, line[1..]);
}

/// Puts so many in a queue behind a holder, who lets go; returns when all have had their turns.
async fn turns(locks: &LockManager, server: &Server, waiters: usize, began: impl FnOnce()) {
    let holder = locks.mutex("a").lock().await.unwrap();
    let waiting = (0..waiters).map(|_| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let guard = locks.mutex("a").lock().await.unwrap();
            // (One that is not answered in time is done in the background.)
            let _ = guard.release().await;
        })
    });
    let waiting: Vec<_> = waiting.collect();
    until("all in line", || async { keys(server, "a").await.len() == waiters + 1 }).await;
    began();
    holder.release().await.unwrap();
    for turn in join_all(waiting).await {
        turn.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_hundred_waiters_have_their_turns_in_bounded_time() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let locks = manager(&server.url(), 10).await;
    let all = turns(&locks, &server, 1_500, || {});
    tokio::time::timeout(2 * PATIENCE, all).await.expect("the last turn comes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_costs_the_same_however_many_wait() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let locks = manager(&server.url_at(proxy.addr()), 300).await;
    let mut each = Vec::new();
    for waiters in [30, 300] {
        turns(&locks, &server, waiters, || proxy.reset()).await;
        each.push(proxy.counts().bytes_to_client / waiters as u64);
    }
    assert!(each[1] < 2 * each[0], "bytes for a turn: {each:?}");
}

/// One claim of a batch has lost its key, of another nothing can be found out.
#[tokio::test]
async fn what_concerns_one_claim_is_told_in_its_item() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let claims = ["a", "b", "c"].map(|name| claim(name, 30, 30));
    for claim in &claims {
        take(&ours, claim).await;
    }
    let gone = keys(&server, "b").await.remove(0);
    crate::stage::client(&server).await.delete(gone.key(), None).await.unwrap();
    let unknown = claim("d", 30, 30);
    let asked: Vec<_> = claims.iter().cloned().chain([unknown]).collect();
    let renewals = ours.renew(&asked).await.unwrap();
    assert!(matches!(renewals[0], Ok(Renewal::Holds(_))), "{renewals:?}");
    assert!(matches!(renewals[1], Ok(Renewal::Ended(_))), "{renewals:?}");
    assert!(matches!(renewals[2], Ok(Renewal::Holds(_))), "{renewals:?}");
    assert!(matches!(renewals[3], Ok(Renewal::Ended(_))), "{renewals:?}");
}
