//! Limits that semaphores were given, among the keys of their claims.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, SetLimit};
use lockkit_core::state::ListRequest;
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::{Server, ServerKind};

const LONG: Duration = Duration::from_secs(300);

fn permits(name: &str, permits: u32, limit: u32) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Semaphore, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Permits { permits, limit }, LONG, LONG, me))
}

async fn hold(driver: &EtcdDriver, claim: &Arc<Claim>) {
    let answer = driver.acquire(claim, Patience::Wait).await.unwrap().result;
    assert!(matches!(answer, Acquisition::Granted(_)));
}

/// More limits than keys that are fetched at once stand before, between and behind the lists in
/// use.
#[tokio::test]
async fn a_listing_shows_the_lists_in_use_and_passes_over_limits_alone() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let driver = EtcdDriver::connect(&server.url()).await.unwrap();
    let name = |n: usize| format!("pool{n:04}");
    let mut in_use = BTreeSet::new();
    for n in 0..1_300 {
        let pool = permits(&name(n), 1, 2);
        driver.resize(&pool.key, SetLimit::To(2)).await.unwrap();
        if [600, 601, 602, 1_250].contains(&n) {
            hold(&driver, &pool).await;
            in_use.insert(name(n));
        }
    }
    for limit in [1, 2, 100] {
        let (namespace, prefix) = (Namespace::default(), String::new());
        let mut request = ListRequest { namespace, space: None, prefix, after: None, limit };
        let mut shown = Vec::new();
        loop {
            let page = driver.list(&request).await.unwrap();
            for state in &page.states {
                assert_eq!((state.limit(), state.queue.len()), (Some(2), 1));
                shown.push(state.key.name.to_string());
            }
            match page.next {
                Some(next) => request.after = Some(next),
                None => break,
            }
        }
        assert_eq!(shown.iter().cloned().collect::<BTreeSet<_>>(), in_use, "in pages of {limit}");
        assert_eq!(shown.len(), in_use.len(), "each once");
    }
}

#[tokio::test]
async fn more_than_can_be_asked_for_hold_on_when_the_limit_is_lowered() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let driver = EtcdDriver::connect(&server.url()).await.unwrap();
    let one = || permits("pool", 1, 150);
    let mut holders = Vec::new();
    for _ in 0..150 {
        let claim = one();
        hold(&driver, &claim).await;
        holders.push(claim);
    }
    let waiter = one();
    let answer = driver.acquire(&waiter, Patience::Wait).await.unwrap().result;
    assert_eq!(answer, Acquisition::Queued { ahead: 150 });
    assert_eq!(driver.resize(&waiter.key, SetLimit::To(140)).await.unwrap(), 140);
    let holding = async || {
        let state = driver.inspect(&waiter.key).await.unwrap();
        (state.holders().count(), state.queue.len(), state.limit())
    };
    assert_eq!(holding().await, (150, 151, Some(140)), "nobody is evicted");
    for claim in &holders[..10] {
        driver.release(claim).await.unwrap();
    }
    assert_eq!(holding().await, (140, 141, Some(140)), "nobody comes in");
    driver.release(&holders[10]).await.unwrap();
    assert_eq!(holding().await, (140, 140, Some(140)), "there is room for one");
    driver.granted(&waiter).await.unwrap();
}
