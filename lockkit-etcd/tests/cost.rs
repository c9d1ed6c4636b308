//! What the operations cost on the wire, by count.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Attempted, LockDriver, Patience, Released, Renewal, SetLimit,
};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, GetOptions};
use lockkit_lab::proxy::{Counts, Protocol};
use lockkit_lab::{Proxy, Server, ServerKind};

const LONG: Duration = Duration::from_secs(300);

fn claim(name: &str, mode: Mode) -> Arc<Claim> {
    claim_in(Space::Lock, name, mode)
}

fn claim_in(space: Space, name: &str, mode: Mode) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), space, Name::new(name).unwrap());
    let me = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, mode, LONG, LONG / 2, me))
}

/// A server behind ten milliseconds, and a driver whose connection and leases are warm.
async fn warm() -> (Server, Proxy, EtcdDriver) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let driver = EtcdDriver::connect(&server.url_at(proxy.addr())).await.unwrap();
    let first = claim("warm", Mode::Exclusive);
    driver.acquire(&first, Patience::Wait).await.unwrap();
    driver.renew_single(&first).await.unwrap();
    driver.release(&first).await.unwrap();
    proxy.latency(Duration::from_millis(10));
    (server, proxy, driver)
}

/// The counts of what happens meanwhile.
async fn counted<T>(proxy: &Proxy, what: impl Future<Output = T>) -> (T, Counts) {
    proxy.reset();
    let done = what.await;
    (done, proxy.counts())
}

#[tokio::test]
async fn the_usual_verbs_take_one_round_trip() {
    let (_server, proxy, driver) = warm().await;
    let holder = claim("a", Mode::Exclusive);
    let (answer, cost) = counted(&proxy, driver.acquire(&holder, Patience::Wait)).await;
    assert!(matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })));
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "acquire: {cost:?}");

    let other = claim("a", Mode::Exclusive);
    let (answer, cost) = counted(&proxy, driver.acquire(&other, Patience::Try)).await;
    assert_eq!(answer.unwrap().result, Acquisition::Busy);
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "try, when held: {cost:?}");

    let (answer, cost) = counted(&proxy, driver.acquire(&other, Patience::Wait)).await;
    assert_eq!(answer.unwrap().result, Acquisition::Queued { ahead: 1 });
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "standing in line: {cost:?}");
    driver.release(&other).await.unwrap();

    let (answer, cost) = counted(&proxy, driver.release(&holder)).await;
    assert_eq!(answer.unwrap(), Released::Removed);
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "release: {cost:?}");

    let (answer, cost) = counted(&proxy, driver.acquire(&other, Patience::Try)).await;
    assert!(matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })));
    assert_eq!((cost.round_trips, cost.requests), (1, 1), "try: {cost:?}");
}

#[tokio::test]
async fn a_thousand_claims_are_renewed_by_one_keep_alive() {
    let (_server, proxy, driver) = warm().await;
    proxy.latency(Duration::ZERO);
    let mut claims = Vec::new();
    for i in 0..1000 {
        let claim = claim(&format!("n{i}"), Mode::Exclusive);
        let answer = driver.acquire(&claim, Patience::Wait).await.unwrap().result;
        assert!(matches!(answer, Acquisition::Granted(_)));
        claims.push(claim);
    }
    proxy.latency(Duration::from_millis(10));
    let (answer, cost) = counted(&proxy, driver.renew(&claims)).await;
    let renewed = answer.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Ok(Renewal::Holds(_)))));
    // The keep-alive; beside it the question which keys are on the lease, and a read that says
    // whether the leader still is one.
    assert_eq!((cost.round_trips, cost.requests), (1, 3), "{cost:?}");
}

#[tokio::test]
async fn a_thousand_free_names_of_a_multi_lock_travel_in_flights() {
    let (_server, proxy, driver) = warm().await;
    let fewest =
        1_000_u64.div_ceil(u64::try_from(driver.capabilities().batches.operations).unwrap());
    let locks = LockManager::new(driver);
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    let all = locks.multi((0..1_000).map(|n| format!("n{n}")));
    let (guard, cost) = counted(&proxy, all.try_lock_for(LONG)).await;
    let guard = guard.unwrap().expect("all are free");
    // BatchLimits are bounded by bytes too; beside them stand the keep-alives of leases.
    assert!((fewest..=4 * fewest).contains(&cost.requests), "{cost:?}");
    let (released, cost) = counted(&proxy, guard.release()).await;
    released.unwrap();
    assert!((fewest..=4 * fewest).contains(&cost.requests), "{cost:?}");
}

#[tokio::test]
async fn a_waiter_knows_that_it_holds_without_asking() {
    let (server, proxy, driver) = warm().await;
    let near = EtcdDriver::connect(&server.url()).await.unwrap();
    let (holder, waiter) = (claim("a", Mode::Exclusive), claim("a", Mode::Exclusive));
    near.acquire(&holder, Patience::Wait).await.unwrap();
    driver.acquire(&waiter, Patience::Wait).await.unwrap();
    let granted = driver.granted(&waiter);
    tokio::pin!(granted);
    // Its watches are set when nothing more passes.
    let mut before = None;
    while before != Some(proxy.counts()) {
        before = Some(proxy.counts());
        let a_while = tokio::time::sleep(Duration::from_millis(300));
        tokio::select! {
            _ = &mut granted => panic!("it is held"),
            () = a_while => {}
        }
    }
    let began = std::time::Instant::now();
    let (answer, cost) = counted(&proxy, async {
        near.release(&holder).await.unwrap();
        granted.await
    })
    .await;
    let took = began.elapsed();
    answer.unwrap();
    assert_eq!((cost.answers, cost.requests.min(1)), (0, 0), "{cost:?} in {took:?}");
    assert!(cost.pushes >= 1, "{cost:?}");
}

#[tokio::test]
async fn all_who_wait_for_permits_hear_of_a_release_by_one_message() {
    let (server, proxy, driver) = warm().await;
    proxy.latency(Duration::ZERO);
    let near = EtcdDriver::connect(&server.url()).await.unwrap();
    let permit = || claim_in(Space::Semaphore, "s", Mode::Permits { permits: 1, limit: 2 });
    let holders = [permit(), permit()];
    for holder in &holders {
        near.acquire(holder, Patience::Wait).await.unwrap();
    }
    let driver = Arc::new(driver);
    let mut waiting = tokio::task::JoinSet::new();
    for ahead in 2..102 {
        let waiter = permit();
        let answer = driver.acquire(&waiter, Patience::Wait).await.unwrap().result;
        assert_eq!(answer, Acquisition::Queued { ahead });
        let driver = driver.clone();
        waiting.spawn(async move { driver.granted(&waiter).await });
    }
    let mut before = None;
    while before != Some(proxy.counts()) {
        before = Some(proxy.counts());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    proxy.reset();
    near.release(&holders[0]).await.unwrap();
    waiting.join_next().await.unwrap().unwrap().unwrap();
    // Whatever else would come is on its way by the time that something later has been answered.
    driver.health().await.unwrap();
    let cost = proxy.counts();
    assert_eq!(cost.pushes, 1, "{cost:?}");
    assert!(waiting.try_join_next().is_none(), "one permit, one holder");
}

#[tokio::test]
async fn a_permit_of_a_resizable_semaphore_takes_one_round_trip() {
    let (server, proxy, driver) = warm().await;
    let permits = |permits| claim_in(Space::Semaphore, "s", Mode::Permits { permits, limit: 3 });
    let pool = permits(1).key.clone();
    let (limit, cost) = counted(&proxy, driver.resize(&pool, SetLimit::IfUnset(3))).await;
    assert_eq!((limit.unwrap(), cost.round_trips), (3, 1), "its first limit: {cost:?}");
    let (limit, cost) = counted(&proxy, driver.resize(&pool, SetLimit::IfUnset(9))).await;
    assert_eq!((limit.unwrap(), cost.round_trips), (3, 1), "which limit it has: {cost:?}");
    for (patience, beside) in [Patience::Wait, Patience::Try].into_iter().zip([1, 2]) {
        let one = permits(1);
        let (answer, cost) = counted(&proxy, driver.acquire(&one, patience)).await;
        assert!(matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })));
        assert_eq!(cost.round_trips, 1, "{patience:?}, nobody there: {cost:?}");
        let other = permits(1);
        let (answer, cost) = counted(&proxy, driver.acquire(&other, patience)).await;
        assert!(matches!(answer, Ok(Attempted { result: Acquisition::Granted(_), .. })));
        // A try looks first, as with any semaphore.
        assert_eq!(cost.round_trips, beside, "{patience:?}, beside another: {cost:?}");
        all_have_the_lease_of_a_holder(&server).await;
        // What moved the second there has been answered when something later has.
        driver.health().await.unwrap();
        let (answer, cost) = counted(&proxy, driver.acquire(&permits(2), Patience::Try)).await;
        assert_eq!((answer.unwrap().result, cost.round_trips), (Acquisition::Busy, 1), "{cost:?}");
        driver.release(&other).await.unwrap();
        let (answer, cost) = counted(&proxy, driver.release(&one)).await;
        assert_eq!((answer.unwrap(), cost.round_trips), (Released::Removed, 1), "{cost:?}");
    }
    let (limit, cost) = counted(&proxy, driver.resize(&pool, SetLimit::To(2))).await;
    assert_eq!((limit.unwrap(), cost.round_trips), (2, 2), "another limit: {cost:?}");
}

/// One who holds beside another gets the lease of a holder in the background.
async fn all_have_the_lease_of_a_holder(server: &Server) {
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    let (claims, end) = ("lockkit/semaphore//s/", "lockkit/semaphore//s/~");
    loop {
        let all = GetOptions::new().with_range(end);
        let all = client.get(claims, Some(all)).await.unwrap();
        if all.kvs().iter().all(|kv| kv.value_str().unwrap().contains("held_at_ms")) {
            return;
        }
    }
}

/// A renewal asks which keys are on a lease; the answer must pass.
#[tokio::test]
async fn a_lease_takes_no_more_keys_than_can_be_listed() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let driver = EtcdDriver::connect(&server.url()).await.unwrap();
    let mut claims = Vec::new();
    for i in 0..2_500 {
        let claim = claim(&format!("{i:0>500}"), Mode::Exclusive);
        let answer = driver.acquire(&claim, Patience::Try).await.unwrap().result;
        assert!(matches!(answer, Acquisition::Granted(_)));
        claims.push(claim);
    }
    let mut client = Client::connect([server.addr().to_string()], None).await.unwrap();
    assert_eq!(client.leases().await.unwrap().leases().len(), 2);
    let renewed = driver.renew(&claims).await.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Ok(Renewal::Holds(_)))));
    // The full one goes with the last claim that lives on it.
    for claim in &claims[..2_200] {
        driver.release(claim).await.unwrap();
    }
    while client.leases().await.unwrap().leases().len() > 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let renewed = driver.renew(&claims[2_200..]).await.unwrap();
    assert!(renewed.iter().all(|renewal| matches!(renewal, Ok(Renewal::Holds(_)))));
}

#[tokio::test]
async fn a_slot_whose_first_try_wins_takes_three_round_trips_and_its_release_two() {
    let (_server, proxy, driver) = warm().await;
    let locks = LockManager::new(driver);
    locks.slots("gpu", 4).acquire().await.unwrap().release().await.unwrap();
    let (slot, cost) = counted(&proxy, locks.slots("gpu", 4).acquire()).await;
    assert_eq!(cost.round_trips, 3, "permit, listing, lock: {cost:?}");
    let (released, cost) = counted(&proxy, slot.unwrap().release()).await;
    released.unwrap();
    assert_eq!(cost.round_trips, 2, "lock, permit: {cost:?}");
    locks.shutdown().await;
}
